"""Rule × term → `Match` or `NearMiss`: matching modulo the normal form, with backtracking.

Sums and products are matched as multisets.  What a pattern's root leaves of a longer chain stays outside; a parameter
of kind `sum` takes what is left of an inner one.  Conditions are checked inside the backtracking, so that an ambiguous
binding is tried again until one satisfies them.  A failed match remembers how far it got and why it stopped there.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field

from onnx import TensorProto

from onnxfuse.language.catalogue import Catalogue
from onnxfuse.language.context import Context
from onnxfuse.language.evaluate import Bindings
from onnxfuse.language.outline import turns
from onnxfuse.language.pattern import Pattern
from onnxfuse.language.rule import ANY, Rule, targets
from onnxfuse.language.variadic import Each, spread
from onnxfuse.language.variants import Variant
from onnxfuse.model.op_traits import COMMUTATIVE, NEUTRAL
from onnxfuse.terms.normal.normal import combine, make
from onnxfuse.terms.term import REAL, Term, Terms, is_number

from .binding import Binder, Failure
from .compare import KIND_TEXT, close, collected, kind_fits
from .instantiate import RefusedError, conclude
from .kept_products import hidden
from .near_miss import lacking, surplus
from .prefilter import OPENINGS, Glance, may_lack, may_open

BUDGET = 4000
"""Steps one rule may take at one term; more is a near miss, not a hang."""


@dataclass(eq=False)
class Match:
    """A rule that fits at a term.

    `emitted` replaces `root`; `exposed` maps further matched terms to the outputs that replace them; `cover` are the
    terms that the fused op computes inside.
    """

    rule: Rule
    block: int
    root: Term
    bindings: Bindings
    cover: tuple[Term, ...]
    emitted: Term
    exposed: dict[Term, Term]
    matched: frozenset[int]
    """Ids of the terms that the pattern bound: where what was there ends and what `emit` made begins."""
    values: set[str] = field(default_factory=set)
    """The values that were computed anew when the match was made: they name it if it must not be made again."""
    inner: tuple[Match, ...] = ()
    """The last matches behind the terms that it covers."""

    def made(self, existing: Container[int]) -> list[Term]:
        """The terms that `emit` built on top of what was matched and of `existing` ones, arguments before users.

        Part of a sum that was matched is built as well: of a + b + c, a + b."""
        found: dict[int, Term] = {}
        stack = [self.emitted, *self.exposed.values()]
        while stack:
            term = stack.pop()
            bound = term.id in self.matched and (term.constant or term.op not in ("Add", "Mul"))
            if not bound and term.id not in found and term.id not in existing:
                found[term.id] = term
                stack.extend(term.args)
        return [found[i] for i in sorted(found)]


class Matcher(Binder):
    """Tries variants at terms of one scope."""

    def __init__(self, terms: Terms, catalogue: Catalogue, context: Context) -> None:
        super().__init__(terms, catalogue, context)
        self.glance = Glance()
        self.passed: list[tuple[Term, list[Variant]]] = []
        """Variants that a glance ruled out at a term."""
        self.hiding: list[tuple[Match, str]] = []
        """What fits, but would hide a product that the target keeps; and the op of that."""

    def match(self, variant: Variant, root: Term) -> Match | None:
        """The first binding that satisfies the pattern, the conditions and `emit`."""
        self.variant, self.rule, self.root = variant, variant.rule, root
        self.env, self.cover, self.steps, self.opened = dict(variant.operators), [], 0, []
        self.whole = whole_of(root)
        if self.whole is not root:
            names = targets(self.rule.blocks[variant.block][-1])
            outputs = self.context.outputs.get(self.whole.id)
            if not outputs or max(outputs) >= len(names) or any(names[i] == "_" for i in outputs):
                return None
            self.env |= {names[i]: output for i, output in outputs.items() if i}
            self.cover += outputs.values()
        for rest in self._root(variant.root, self.whole):
            found = self._finish(rest)
            if found is not None:
                return found
        return None

    # ------------------------------------------------------------------------------------- failures

    def explained(self, roots: Container[int]) -> list[Failure]:
        """The furthest that each rule got at each of these terms (ids), those that were ruled out among them."""
        for term, variants in self.passed:
            if term.id in roots:
                for variant in variants:
                    self.match(variant, term)
        self.passed.clear()
        return [failure for failure in self.failures.values() if failure.root.id in roots]

    # ------------------------------------------------------------------------------------- patterns

    def _root(self, p: Pattern, t: Term) -> Iterator[list[Term]]:
        """Matches of the whole pattern; yields the operands of a longer chain that stay outside."""
        if p.op in NEUTRAL and t.dtype in REAL and p.kind == "op" and t.op == p.op:
            self.cover.append(t)
            yield from self._chain(p, t, at_root=True)
            self.cover.pop()
        else:
            for _ in self._match(p, t):
                yield []

    def _match(self, p: Pattern, t: Term) -> Iterator[None]:
        self.steps += 1
        if self.steps > BUDGET:
            if self.steps == BUDGET + 1:
                self._fail(p, t, lambda: "too many ways to match; the search was given up")
            return
        if p.kind == "variable":
            yield from self._variable(p, t)
        elif p.scalar:
            yield from self._number(p, t)
        elif p.kind == "absent":
            if t.op == "Absent":
                yield
        elif p.label and p.label in self.env:
            if self.env[p.label] is t:
                yield
        elif p.op != t.op:
            self._fail(p, t, lambda: f"wants {p.op}, saw {t}", strays=True)
        elif t.id in self.context.outputs and t is not self.whole:
            self._fail(p, t, lambda: f"{p.op} has further outputs here")
        else:
            yield from self._op(p, t)

    def _variable(self, p: Pattern, t: Term) -> Iterator[None]:
        if p.op == ANY:
            self.env[p.name] = None if t.op == "Absent" else t
            yield
            del self.env[p.name]
            return
        bound = self.env.get(p.name)
        if bound is not None:
            if bound is t:
                yield
            else:
                self._fail(p, t, lambda: f"{p.name} is {bound} elsewhere, saw {t}", strays=True)
        elif t.op == "Absent":
            if p.lacking:
                self.env[p.name] = None
                yield
                del self.env[p.name]
            else:
                self._fail(p, t, lambda: f"{p.name} is not given")
        elif not kind_fits(p.op, t):
            self._fail(p, t, lambda: f"{p.name} wants {KIND_TEXT[p.op]}, saw {t}")
        else:
            self.env[p.name] = t
            yield
            del self.env[p.name]

    def _number(self, p: Pattern, t: Term) -> Iterator[None]:
        if t.scalar is None or t.dtype == TensorProto.BOOL:
            self._fail(p, t, lambda: f"wants a number, saw {t}")
            return
        yield from self._scalar(p, t.scalar, t)

    def _op(self, p: Pattern, t: Term) -> Iterator[None]:
        if p.op in NEUTRAL and t.dtype in REAL:
            self.cover.append(t)
            for _ in self._chain(p, t, at_root=False):
                yield from self._labelled(p, t)
            self.cover.pop()
            return
        undo = self._attributes(p, t)
        if undo is None:
            return
        self.cover.append(t)
        for _ in self._arguments(p, t):
            yield from self._labelled(p, t)
        self.cover.pop()
        for name in undo:
            del self.env[name]

    def _labelled(self, p: Pattern, t: Term) -> Iterator[None]:
        if not p.label or p.label in self.env:
            yield
            return
        self.env[p.label] = t
        yield
        del self.env[p.label]

    def _arguments(self, p: Pattern, t: Term) -> Iterator[None]:
        wanted, found = list(p.args), list(t.args)
        if wanted and wanted[-1].kind == "each":
            yield from self._each(p, t, wanted.pop(), wanted, found)
            return
        while len(found) < len(wanted) and may_lack(wanted[len(found)]):
            found.append(self.terms.absent)
        if len(wanted) != len(found):
            self._fail(p, t, lambda: f"{p.op} wants {len(wanted)} inputs, saw {len(found)}")
            return
        yield from self._sequence(wanted, found)
        if p.op in COMMUTATIVE and len(wanted) == 2 and found[0] is not found[1]:
            yield from self._sequence(wanted, found[::-1])
        if turns(p) and found[0].op != "Not":  # Where(Not(m), b, a) is Where(m, a, b)
            yield from self._sequence(wanted, [make(self.terms, "Not", found[:1], {}), found[2], found[1]])

    def _each(self, p: Pattern, t: Term, each: Pattern, wanted: list[Pattern], found: list[Term]) -> Iterator[None]:
        """The first inputs as they are wanted, and one or more like the pattern of a `*`."""
        if len(found) <= len(wanted):
            self._fail(p, t, lambda: f"{p.op} wants more than {len(wanted)} inputs, saw {len(found)}")
            return
        for _ in self._sequence(wanted, found[: len(wanted)]):
            yield from self._listed(each, found[len(wanted) :], [])

    def _listed(self, each: Pattern, found: list[Term], before: list[Bindings]) -> Iterator[None]:
        """Every operand by itself; then the names stand for lists."""
        if not found:
            self.env |= {name: Each(bound.get(name) for bound in before) for name in each.bound}
            yield
            for name in each.bound:
                del self.env[name]
            return
        for _ in self._match(each.args[0], found[0]):
            bound = {name: self.env.pop(name) for name in each.bound if name in self.env}
            yield from self._listed(each, found[1:], [*before, bound])
            self.env |= bound

    def _sequence(self, ps: Sequence[Pattern], ts: Sequence[Term]) -> Iterator[None]:
        if not ps:
            yield
            return
        for _ in self._match(ps[0], ts[0]):
            yield from self._sequence(ps[1:], ts[1:])

    # ------------------------------------------------------------------------------------- sums and products

    def _chain(self, p: Pattern, t: Term, *, at_root: bool) -> Iterator[list[Term]]:
        missing = p.heads - self.glance.heads(t)
        if missing:
            self._fail(p, t, lacking(p.op, missing, t.args), strays=True)
            return
        scalar = p.number
        rest = [a for a in p.rest if a.name not in self.env]
        bound = [a for a in (*p.variables, *p.rest) if a.name in self.env]
        others = [*p.parts, *bound, *(a for a in p.variables if a.name not in self.env)]
        first = list(t.args)
        depth = OPENINGS if may_open(p, first, [a for a in first if a.op == p.op]) else 0
        for operands in self._openings(p.op, first, depth):
            numbers = [o for o in operands if is_number(o)]
            terms = [o for o in operands if not is_number(o)]
            if len(terms) < len(others) + len(rest) and not numbers:
                continue
            # What an opened chain leaves over would be computed twice, and its own root matches without it.
            partial = at_root and operands is first
            if not partial and not rest and len(operands) != len(others) + (scalar is not None):
                self._fail(p, t, lambda: surplus(p, t))
                continue
            for outside in self._with_number(p, t, scalar, numbers, partial):
                for _ in self._assign(p, t, others, terms + outside[1], rest, partial):
                    yield [*self._left, *outside[0]]
            if partial and p.op == "Mul" and scalar is not None and numbers and self._known(scalar) is None:
                yield from self._solved(p, t, scalar, numbers, others, terms, rest)

    _left: list[Term]

    def _solved(
        self,
        p: Pattern,
        t: Term,
        scalar: Pattern,
        numbers: list[Term],
        others: list[Pattern],
        terms: list[Term],
        rest: list[Pattern],
    ) -> Iterator[list[Term]]:
        """Matches in which the other operands say what the number should be: what it is more stays outside."""
        for _ in self._assign(p, t, others, terms, rest, True):
            known, found = self._known(scalar), numbers[0].scalar
            assert found is not None
            if known and not close(known, found, t.dtype):
                yield [*self._left, self.terms.number(found / known, t.dtype, numbers[0].rank or 0), *numbers[1:]]

    def _with_number(
        self, p: Pattern, t: Term, scalar: Pattern | None, numbers: list[Term], at_root: bool
    ) -> Iterator[tuple[list[Term], list[Term]]]:
        """Match the chain's number; yields (operands left outside, numbers still to be assigned)."""
        if scalar is None:
            if at_root and all(a.name in self.env for a in p.rest):  # else it takes them
                yield numbers, []
                if numbers:
                    yield [], numbers
            else:
                yield [], numbers
            return
        if not numbers:
            if at_root and p.op == "Mul" and scalar.kind == "number" and scalar.value:
                # 2 * gelu(x) has no number left: the missing factor stays outside.
                yield [self.terms.number(1 / scalar.value, t.dtype)], []
            else:
                self._fail(p, t, lambda: f"{p.op} wants a number beside its other operands", strays=True)
            return
        matched = False
        for i, n in enumerate(numbers):
            assert n.scalar is not None
            for _ in self._scalar(scalar, n.scalar, n):
                matched = True
                yield [], numbers[:i] + numbers[i + 1 :]
        if not matched and at_root and p.op == "Mul" and scalar.kind == "number" and scalar.value:
            n = numbers[0]
            assert n.scalar is not None
            yield [self.terms.number(n.scalar / scalar.value, t.dtype, n.rank or 0)], numbers[1:]

    def _openings(self, op: str, operands: list[Term], depth: int) -> Iterator[list[Term]]:
        """The operands as they are, then with shared inner chains opened."""
        yield operands
        if not depth:
            return
        for i, inner in enumerate(operands):
            if inner.op == op and inner.dtype in REAL:
                opened = collected(self.terms, op, [*operands[:i], *inner.args, *operands[i + 1 :]])
                self.cover.append(inner)
                self.opened.append(inner)
                yield from self._openings(op, opened, depth - 1)
                self.opened.pop()
                self.cover.pop()

    def _assign(
        self, p: Pattern, t: Term, ps: list[Pattern], ts: list[Term], rest: list[Pattern], at_root: bool
    ) -> Iterator[None]:
        if not ps:
            if rest and ts:
                self._left = []
                yield from self._rest(p, rest[0], t, ts[0] if len(ts) == 1 else combine(self.terms, p.op, ts))
            elif not rest and (at_root or not ts):
                self._left = ts
                yield
            elif not rest:
                self._fail(p, t, lambda: f"{p.op} has {ts[0]} as a further operand", strays=True)
            return
        seen = set()
        wanted = ps[0]
        candidates = 0
        for i, operand in enumerate(ts):
            if operand.id in seen or (wanted.kind == "op" and wanted.op != operand.op):
                continue
            candidates += 1
            seen.add(operand.id)
            for _ in self._match(wanted, operand):
                yield from self._assign(p, t, ps[1:], ts[:i] + ts[i + 1 :], rest, at_root)
        if not candidates and ts:
            self._fail(p, t, lacking(p.op, {wanted.op or wanted.name}, ts), strays=True)

    def _finish(self, outside: list[Term]) -> Match | None:
        """The match, if its conditions hold."""
        matched = frozenset(t.id for t in spread([*self.env.values(), *outside]) if isinstance(t, Term))
        if self.root.shape is None and any(
            a.rank for t in self.cover if t.shape is None for a in t.args if is_number(a)
        ):
            text = "its rank is unknown, and a constant in it may have more axes: declare the shapes of its inputs"
            self._fail(Pattern("where", line=self.rule.emit[0].lineno), self.root, lambda: text)
            return None
        try:
            found = conclude(self.terms, self.catalogue, self.context, self.variant, self.root, self.env, outside)
        except RefusedError as refused:
            self._fail(Pattern("where", line=refused.line), self.root, refused.reason, other=refused.other)
            return None
        if found.emitted is self.root:
            return None
        block, cover = self.variant.block, tuple(self.cover)
        match = Match(self.rule, block, self.root, found.bindings, cover, found.emitted, found.exposed, matched)
        if (kept := self.catalogue.target.keep_products) is not None:
            results = [found.emitted, *found.exposed.values()]
            if op := hidden(cover, results, self.context, weighted=kept == "weighted"):
                self.hiding.append((match, op))
                return None
        return match


def whole_of(term: Term) -> Term:
    """The op whose first output a term is; itself if that op has one output only."""
    return term.args[0] if term.op == "Output" and not term.attr("index") else term
