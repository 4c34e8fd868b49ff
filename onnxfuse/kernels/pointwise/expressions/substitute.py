"""Elements at other coordinates: other indices in place of loop variables, and all that is computed of them.

column → 8·column + v      the elements of a vector, of which a thread has one at a time
row → 32·row + lane        those of neighbouring rows
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from .index import (
    Atom,
    Bound,
    Clamped,
    Guard,
    Index,
    Quotient,
    Read,
    Remainder,
    Valid,
    Variable,
    divide,
    number,
    total,
    within,
)
from .scalars import Scalar, Scalars


class Substitution:
    """`variables` are indices by the names of the loop variables whose place they take, which have the same range;
    `argument` says what stands for what device code hands over, by its name."""

    def __init__(
        self, scalars: Scalars, variables: Mapping[str, Index], argument: Callable[[str], Scalar] | None = None
    ) -> None:
        self.scalars, self.variables, self.argument = scalars, variables, argument
        self._known: dict[Scalar, Scalar] = {}

    def index(self, x: Index) -> Index:
        """The same sum of other atoms, in normal form."""
        return total([*((self._atom(atom), c) for atom, c in x.terms.items()), (number(x.const), 1)])

    def _atom(self, atom: Atom) -> Index:
        match atom:
            case Variable():
                return self.variables.get(atom.name, Index(0, {atom: 1}))
            case Quotient():
                return divide(self.index(atom.index), atom.divisor)[0]
            case Remainder():
                return divide(self.index(atom.index), atom.divisor)[1]
            case Clamped():
                return within(self.index(atom.index), atom.high + 1)
            case Read():
                return Index(0, {self._read(atom): 1})
        raise AssertionError(f"an index has no atom {type(atom).__name__}")

    def _read(self, read: Read) -> Read:
        return Read(self.scalar(read.value), read.extent)

    def _guard(self, guard: Guard) -> Guard:
        return tuple(map(self._condition, guard))

    def _condition(self, condition: Bound | Valid) -> Bound | Valid:
        return Valid(self._read(condition.read)) if isinstance(condition, Valid) else self._bound(condition)

    def _bound(self, bound: Bound) -> Bound:
        return Bound(self.index(bound.index), bound.limit, bound.below)

    def scalar(self, scalar: Scalar) -> Scalar:
        """The element; operands first, so that a long chain of ops is no deep recursion."""
        pending = [scalar]
        while pending:
            s = pending[-1]
            missing = [a for a in s.args if a not in self._known]
            if missing:
                pending += missing
                continue
            pending.pop()
            if s not in self._known:
                self._known[s] = self._made(s)
        return self._known[scalar]

    def _made(self, s: Scalar) -> Scalar:
        match s.kind:
            case "argument":
                return s if self.argument is None else self.argument(s.payload)
            case "load":
                source, offset, guard, size = s.payload
                return self.scalars.load(source, s.type, self.index(offset), size, self._guard(guard))
            case "table":
                values, offset, guard = s.payload
                return self.scalars.table(values, s.type, self.index(offset), self._guard(guard))
            case "position":
                return self.scalars.position(self.index(s.payload))
            case "select":
                yes, no = (self._known[a] for a in s.args)
                return self.scalars.select(self._bound(s.payload), yes, no)
            case "call":
                return self.scalars.again(s, [self._known[a] for a in s.args])
        return s
