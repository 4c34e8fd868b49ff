"""The gradient of one result: the steps of its equations taken back in reverse order, by the transposition table.

What is broadcast is summed: a value that a reduction made has dims of 1 along its axes, and what reaches it from a step
without them is summed along these.  The gradient of an operand that others broadcast with (a scale, a bias) has the
dims of the result: who wants it in the shape of the operand sums it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from .algebra import chosen, factored, factors, number, product, same, simplified, sum_of, value_of
from .table import ELEMENTWISE, OPERANDS, ROWS, transposed
from .tape import Definition, NoDerivativeError, Step, Tape, called, substituted

REDUCTIONS = {"ReduceSum", "ReduceMean"}


@dataclass(frozen=True)
class Gradient:
    """Equations, and equal spellings of the gradient over their names; the first is its meaning."""

    equations: tuple[ast.Assign, ...]
    spellings: tuple[ast.expr, ...]


def gradient(
    result: ast.expr,
    wrt: str,
    seed: ast.expr,
    definition: Callable[[str], Definition | None],
    taken: set[str],
    saved: dict[str, str] | None = None,
    numbers: frozenset[str] = frozenset(),
) -> Gradient:
    """The gradient of an expression with respect to a name, where `seed` is that of its value.

    `definition` says what further ops mean, `taken` are names that no new equation may have, `saved` calls
    intermediates by the names under which they are given, and `numbers` are names of constants, which have no dims.
    Raises NoDerivativeError."""
    tape = Tape(definition, taken, saved or {})
    root = tape.write(result, {}, (saved or {}).get("", ""))
    if not isinstance(root, ast.Name):
        return Gradient((), (number(0),))
    found = _Reverse(tape, wrt, numbers).gradient(root.id, seed)
    if isinstance(found, ast.Constant):
        return Gradient((), (found,))
    spellings = [found]
    partial = _pointwise(tape, wrt, root.id)
    if partial is not None:
        spellings = [product([seed, form]) for form in partial] + spellings
    unlike = [s for i, s in enumerate(spellings) if not any(same(s, other) for other in spellings[:i])]
    given = set((saved or {}).values())
    return Gradient(_needed(tape, unlike, given), tuple(unlike))


@dataclass
class _Reverse:
    """Takes steps back."""

    tape: Tape
    wrt: str
    numbers: frozenset[str]
    contributions: dict[str, list[ast.expr]] = field(default_factory=dict)
    along: dict[str, ast.expr] = field(default_factory=dict)
    """Values with dims of 1 → the axes along which they have them."""

    def __post_init__(self) -> None:
        self.depends = {self.wrt}
        for step in self.tape.steps:
            if any(isinstance(o, ast.Name) and o.id in self.depends for o in step.operands):
                self.depends.add(step.name)
            axes = step.attributes.get("axes") if step.op.startswith("Reduce") else self._common(step)
            if axes is not None:
                self.along[step.name] = axes

    def _common(self, step: Step) -> ast.expr | None:
        """The axes along which all operands of a step have dims of 1."""
        found = [self.along.get(o.id) for o in step.operands if isinstance(o, ast.Name) and o.id not in self.numbers]
        first = found[0] if found else None
        equal = first is not None and all(axes is not None and same(axes, first) for axes in found)
        return first if equal and step.op in ELEMENTWISE else None

    def gradient(self, root: str, seed: ast.expr) -> ast.expr:
        if root not in self.depends:
            return number(0)
        self.contributions[root] = [seed]
        for step in reversed(list(self.tape.steps)):
            if step.name not in self.contributions or step.name not in self.depends:
                continue
            g = sum_of(self.contributions.pop(step.name))
            reached = list(self._reached(step))
            if not isinstance(g, ast.Name) and (len(reached) > 1 or step.op in ROWS.keys() - REDUCTIONS):
                g = self._named(g, f"d{step.name}", self.along.get(step.name))
            for i, operand in reached:
                given = self._transposed(step, i, g)
                self.contributions.setdefault(operand, []).append(self._summed(given, step, operand))
        return chosen(self.contributions.get(self.wrt, [number(0)]))

    def _reached(self, step: Step) -> Iterator[tuple[int, str]]:
        """The operands that the gradient of a step reaches."""
        entry = transposed(step.op) or ()
        for i, operand in enumerate(step.operands):
            if (
                isinstance(operand, ast.Name)
                and operand.id in self.depends
                and (i >= len(entry) or entry[i] is not None)
            ):
                yield i, operand.id

    def _named(self, g: ast.expr, base: str, axes: ast.expr | None) -> ast.expr:
        name = self.tape.fresh(base)
        self.tape.steps.append(Step(name, "", (), g))
        if axes is not None:
            self.along[name] = axes
        return ast.Name(name, ast.Load())

    def _transposed(self, step: Step, index: int, g: ast.expr) -> ast.expr:
        if step.op == "ReduceMean":
            mean = self._mean(g, step.attributes.get("axes"))
            if mean is not None:
                return mean
        return transposed_step(step, index, g)

    def _summed(self, given: ast.expr, step: Step, operand: str) -> ast.expr:
        """Over the axes along which an operand has dims of 1 and the step has not."""
        axes = self.along.get(operand)
        own = self.along.get(step.name)
        if axes is None or step.op in REDUCTIONS or (own is not None and same(own, axes)):
            return given
        factor, above, below = factors(given)
        outside = [f for f in above if self._narrow(f, axes)]
        inside = [f for f in above if not self._narrow(f, axes)]
        if below or not inside:
            return called("ReduceSum", [given], {"axes": axes})
        return product([number(factor), *outside, called("ReduceSum", [product(inside)], {"axes": axes})])

    def _narrow(self, x: ast.expr, axes: ast.expr) -> bool:
        """Has it dims of 1 along these axes?"""
        names = {n.id for n in ast.walk(x) if isinstance(n, ast.Name)} - self.numbers
        return bool(names) and all(n in self.along and same(self.along[n], axes) for n in names)

    def _mean(self, g: ast.expr, axes: ast.expr | None) -> ast.expr | None:
        """A multiple of a sum along some axes, divided by how many they have: the mean in its place."""
        factor, above, below = factors(g)
        for i, f in enumerate(above):
            if axes is not None and isinstance(f, ast.Call) and ast.unparse(f.func) == "ReduceSum":
                own = {k.arg: k.value for k in f.keywords}.get("axes")
                if own is not None and same(own, axes):
                    mean = called("ReduceMean", f.args, {"axes": axes})
                    made = product([number(factor), *above[:i], mean, *above[i + 1 :]])
                    return product([made, *(ast.BinOp(number(1), ast.Div(), d) for d in below)])
        return None


def transposed_step(step: Step, index: int, g: ast.expr) -> ast.expr:
    """What the gradient of a step's result gives to one of its operands."""
    entry = transposed(step.op)
    if entry is None:
        raise NoDerivativeError(f"{step.op} has no entry in the table of gradients")
    equation = entry[index] if index < len(entry) else None
    if equation is None:
        raise NoDerivativeError(f"operand {index + 1} of {step.op} has no gradient")
    names = dict(zip(OPERANDS, step.operands, strict=False)) | dict(step.attributes)
    names |= {"g": g, "y": ast.Name(step.name, ast.Load()), "axis": step.attributes.get("axis", number(-1))}
    return simplified(substituted(equation, names))


def _pointwise(tape: Tape, wrt: str, root: str) -> list[ast.expr] | None:
    """The derivative of a function of each element by itself, as calculus writes it: what the seed is multiplied by,
    as a sum and with common factors in front.  None where it is no such function, or has branches: what is chosen
    there is chosen last, and an infinity that is not chosen makes no NaN."""
    forms = list[dict[str, ast.expr]]()
    for whole in (sum_of, factored):
        partials: dict[str, ast.expr] = {wrt: number(1)}
        for step in [s for s in tape.steps if s.op]:
            own = [i for i, o in enumerate(step.operands) if isinstance(o, ast.Name) and o.id in partials]
            if own and (step.op not in ELEMENTWISE or step.op in ("Where", "Relu")):
                return None
            if own:
                terms = [transposed_step(step, i, partials[_id(step.operands[i])]) for i in own]
                partials[step.name] = whole([t for t in terms if value_of(t) != 0] or [number(0)])
        forms.append(partials)
    return [partials[root] for partials in forms] if root in forms[0] else None


def _id(node: ast.expr) -> str:
    assert isinstance(node, ast.Name)
    return node.id


def _needed(tape: Tape, results: list[ast.expr], given: set[str]) -> tuple[ast.Assign, ...]:
    """The equations that expressions depend on, in order; what only one place mentions, and no equation named before,
    is written there: edits `results`."""
    steps = {s.name: s.value for s in tape.steps if s.name not in given}
    kept = dict[str, ast.expr]()
    wanted = list(_mentioned(results))
    while wanted:
        name = wanted.pop()
        if name in steps and name not in kept:
            kept[name] = steps[name]
            wanted += _mentioned([steps[name]])
    order = [name for name in steps if name in kept]
    for name in order:
        if name in tape.named:
            continue
        _, above, below = factors(kept[name])
        multiple = len(above) == 1 and isinstance(above[0], ast.Name) and not below
        if multiple or _mentioned([*kept.values(), *results]).count(name) == 1:
            value = kept.pop(name)
            kept = {other: simplified(substituted(e, {name: value})) for other, e in kept.items()}
            results[:] = [simplified(substituted(e, {name: value})) for e in results]
    return tuple(ast.Assign([ast.Name(name, ast.Store())], kept[name]) for name in order if name in kept)


def _mentioned(expressions: Iterable[ast.expr]) -> list[str]:
    return [n.id for e in expressions for n in ast.walk(e) if isinstance(n, ast.Name)]
