"""What a match binds besides terms: the numbers and attributes of a pattern, and how far a match got that failed."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from onnxfuse.language.builtins import UndecidedError
from onnxfuse.language.catalogue import Catalogue
from onnxfuse.language.context import Context
from onnxfuse.language.evaluate import Bindings, Scope, attribute_defaults, undefined
from onnxfuse.language.pattern import Pattern
from onnxfuse.language.rule import REST, Rule, names_in, op_name
from onnxfuse.language.variants import Variant
from onnxfuse.model.dims import Sym, exact
from onnxfuse.model.op_traits import NEUTRAL
from onnxfuse.terms.normal.normal import closed
from onnxfuse.terms.term import Term, Terms, is_number

from .compare import close, same
from .near_miss import MISSING, attribute


@dataclass(eq=False)
class Failure:
    """The furthest that a rule got at a term: where and why it stopped.  `reason` is formatted only when printed."""

    rule: Rule
    root: Term
    at: Term
    line: int
    matched: int
    size: int
    covered: frozenset[int]
    """Ids of the terms that had matched by then."""
    reason: Callable[[], str]
    other: bool = False
    """Whether what is there is something else than the rule is about, which is nobody's near miss."""
    strays: bool = False
    """Whether it stopped at a value that is another than the rule's, as at x of Max(x, 0.1 * y) for LeakyRelu, and not
    at a number, an attribute or a condition."""


class Binder:
    """The names of one rule and what they are bound to at one term; `context` is that of the round."""

    variant: Variant
    rule: Rule
    root: Term
    opened: list[Term]
    """Terms of the cover that were opened on the way, and count for nothing."""

    def __init__(self, terms: Terms, catalogue: Catalogue, context: Context) -> None:
        self.terms, self.catalogue, self.context = terms, catalogue, context
        self.env: Bindings = {}
        self.cover: list[Term] = []
        self.failures: dict[tuple[int, int], Failure] = {}

    def _fail(
        self, p: Pattern, t: Term, reason: Callable[[], str], *, other: bool = False, strays: bool = False
    ) -> None:
        matched, key = len(self.cover) - len(self.opened), (id(self.rule), self.root.id)
        known = self.failures.get(key)
        if known is None or matched / self.variant.size > known.matched / known.size:
            covered = frozenset(term.id for term in self.cover)
            line = p.line or self.rule.blocks[self.variant.block][0].lineno  # numbers have none of their own
            size = self.variant.size
            self.failures[key] = Failure(self.rule, self.root, t, line, matched, size, covered, reason, other, strays)

    def _rest(self, p: Pattern, rest: Pattern, t: Term, whole: Term) -> Iterator[None]:
        """What is left of a chain is what a name stands for; another operand may have said by now what that is."""
        known = self.env.get(rest.name)
        if known is None:
            self.env[rest.name] = whole
            yield
            del self.env[rest.name]
        elif known is whole or known is closed(self.terms, whole):
            yield
        else:
            self._fail(p, t, lambda: f"{rest.name} is {known}, and {whole} is left of {p.op}", strays=True)

    def _scalar(self, p: Pattern, value: float, t: Term) -> Iterator[None]:
        """Solve a scalar pattern with at most one unbound name for a number."""
        if p.kind == "number":
            if close(p.value, value, t.dtype):
                yield
            else:
                self._fail(p, t, lambda: f"wants {p.value:.7g}, saw {value:.7g}")
        elif p.kind == "constant":
            bound = self.env.get(p.name)
            if bound is None:
                self.env[p.name] = self._as_written(value, t)
                yield
                del self.env[p.name]
            elif close(bound, value, t.dtype):
                yield
        elif p.op == "Reciprocal" and value:
            yield from self._scalar(p.args[0], 1 / value, t)
        elif p.op == "Sqrt" and value >= 0:
            yield from self._scalar(p.args[0], value * value, t)
        elif p.op in NEUTRAL:
            known = [self._known(a) for a in p.args]
            unknown = [a for a, k in zip(p.args, known, strict=True) if k is None]
            total = [k for k in known if k is not None]
            if p.op == "Add":
                rest = value - sum(total)
            else:
                factor = math.prod(total)
                if not factor:
                    return
                rest = value / factor
            if not unknown:
                if close(NEUTRAL[p.op], rest, t.dtype):
                    yield
            elif len(unknown) == 1:
                yield from self._scalar(unknown[0], rest, t)

    def _as_written(self, value: float, t: Term) -> float:
        """A number that was solved for, or the one of an opened chain that it is but for rounding: of 0.5 * x, which
        others use, times 0.2002, which was 1 / 5, it is 0.5, as those see it."""
        inner = (n.scalar for chain in self.opened for n in chain.args if is_number(n) and n.scalar is not None)
        return next((number for number in inner if close(number, value, t.dtype)), value)

    def _known(self, p: Pattern) -> float | None:
        if p.kind == "number":
            return p.value
        if p.kind == "constant":
            bound = self.env.get(p.name)
            return float(bound) if isinstance(bound, int | float) else None
        parts = [self._known(a) for a in p.args]
        if any(x is None for x in parts):
            return None
        values = [x for x in parts if x is not None]
        if p.op == "Add":
            return sum(values)
        if p.op == "Mul":
            return math.prod(values)
        if p.op == "Reciprocal":
            return 1 / values[0] if values[0] else None
        return math.sqrt(values[0]) if values[0] >= 0 else None

    def _attributes(self, p: Pattern, t: Term) -> list[str] | None:
        """Bind attribute names; returns the names bound, or None if an attribute does not fit."""
        standard = attribute_defaults(p.op, self.catalogue)
        bound: list[str] = []
        given = dict(t.attrs)
        for name, wanted in p.attrs.items():
            value = given.pop(name, standard.get(name, MISSING))
            if value is MISSING or not self._unify(wanted, value, bound):
                self._fail(p, t, attribute(p.op, name, wanted, value))
                for n in bound:
                    del self.env[n]
                return None
        strange = undefined(p.op, given, self.catalogue) if p.star else []
        if strange:
            self._fail(p, t, lambda: f"{p.op} has {strange[0]}, which its definition does not")
            for n in bound:
                del self.env[n]
            return None
        if p.star:
            self.env[p.star] = tuple(given.items())
            bound.append(p.star)
            for name in self.rule.passed if p.star == REST else ():
                self.env[name] = given.get(name, standard.get(name))
                bound.append(name)
        elif given and any(standard.get(k, MISSING) != v for k, v in given.items()):
            self._fail(p, t, lambda: f"{p.op} has {', '.join(f'{k}={v}' for k, v in given.items())}")
            for n in bound:
                del self.env[n]
            return None
        return bound

    def _unify(self, wanted: ast.expr, value: Any, bound: list[str]) -> bool:
        if isinstance(wanted, ast.Name):
            if wanted.id == "_":
                return True
            if wanted.id in self.env:
                return same(self.env[wanted.id], value)
            self.env[wanted.id] = value
            bound.append(wanted.id)
            return True
        if isinstance(wanted, ast.List | ast.Tuple):
            return (
                isinstance(value, tuple)
                and len(value) == len(wanted.elts)
                and all(self._unify(w, v, bound) for w, v in zip(wanted.elts, value, strict=True))
            )
        if isinstance(wanted, ast.Call) and op_name(wanted) == "trailing":
            trails = isinstance(value, tuple) and value == tuple(range(-len(value), 0))
            return bool(value) and trails and self._unify(wanted.args[0], -len(value), bound)
        if isinstance(wanted, ast.BinOp) and isinstance(wanted.op, ast.Mult):
            for known, unknown in ((wanted.left, wanted.right), (wanted.right, wanted.left)):
                factor = self._dim(known)
                if factor is not None:
                    quotient = exact(value, factor) if isinstance(value, int | Sym) else None
                    return quotient is not None and self._unify(unknown, quotient, bound)
            return False
        known_value = self._dim(wanted)
        return known_value is not None and same(known_value, value)

    def _dim(self, node: ast.expr) -> Any:
        """The value of an expression whose names are bound, else None."""
        if isinstance(node, ast.Constant):
            return node.value
        if not all(name in self.env for name in names_in(node)):
            return None
        try:
            return Scope(self.terms, self.rule, self.env, self.root, self.context, self.catalogue).value(node)
        except UndecidedError:
            return None
