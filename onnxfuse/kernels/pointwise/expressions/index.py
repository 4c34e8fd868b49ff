"""Arithmetic on coordinates: sums of loop variables, quotients and remainders, kept in a normal form.

An `Index` is const + Σ coefficient · atom.  An atom is a loop variable, a quotient or a remainder of a sum that is
never negative, or an index read from a tensor.  Every one knows its range, and `divide` uses it: what a reshape takes
apart and another puts together is one loop variable again.  Sizes are numbers here, so all that is concluded holds for
the sizes at hand; in the source they become parameters (see `source`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from .scalars import Scalar

LOOP, LANE, ROW, DOWN = 1, 2, 4, 8
"""What a value depends on, as a bit mask: the loop over vectors, the lane inside a vector, the vector of several."""


class Atom:
    """A variable part of a sum, from `low` to `high`; compares by what it is."""

    __slots__ = ("_hash", "_key", "depends", "high", "low")

    def __init__(self, key: tuple[object, ...], low: int, high: int, depends: int) -> None:
        self._key, self.low, self.high, self.depends = key, low, high, depends
        self._hash = hash((type(self), key))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (type(self) is type(other) and isinstance(other, Atom) and self._key == other._key)


class Variable(Atom):
    """A loop variable, from 0 to `high`."""

    __slots__ = ("name",)

    def __init__(self, name: str, high: int, depends: int = LOOP) -> None:
        super().__init__((name, high, depends), 0, high, depends)
        self.name = name


class Quotient(Atom):
    """index / divisor; the index is never negative."""

    __slots__ = ("divisor", "index")

    def __init__(self, index: Index, divisor: int) -> None:
        super().__init__((index, divisor), index.low // divisor, index.high // divisor, index.depends)
        self.index, self.divisor = index, divisor


class Remainder(Atom):
    """index % divisor; the index is never negative."""

    __slots__ = ("divisor", "index")

    def __init__(self, index: Index, divisor: int) -> None:
        super().__init__((index, divisor), 0, min(index.high, divisor - 1), index.depends)
        self.index, self.divisor = index, divisor


class Read(Atom):
    """An index that a tensor holds, into an axis of `extent`; whoever uses it guards it by `Valid`."""

    __slots__ = ("extent", "value")

    def __init__(self, value: Scalar, extent: int) -> None:
        super().__init__((value, extent), 0, max(extent - 1, 0), value.depends)
        self.value, self.extent = value, extent


class Clamped(Atom):
    """An index that is asked for only where it lies in 0 … extent - 1."""

    __slots__ = ("index",)

    def __init__(self, index: Index, extent: int) -> None:
        super().__init__((index, extent), max(index.low, 0), min(index.high, extent - 1), index.depends)
        self.index = index


class Index:
    """const + Σ terms[atom] · atom."""

    __slots__ = ("_hash", "const", "depends", "high", "low", "terms")

    def __init__(self, const: int = 0, terms: Mapping[Atom, int] | None = None) -> None:
        self.const, self.terms = const, terms or {}
        low = high = const
        depends = 0
        for atom, c in self.terms.items():
            low += c * (atom.low if c > 0 else atom.high)
            high += c * (atom.high if c > 0 else atom.low)
            depends |= atom.depends
        self.low, self.high, self.depends = low, high, depends
        self._hash = hash((const, frozenset(self.terms.items())))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Index) and self.const == other.const and self.terms == other.terms)

    def __add__(self, other: Index | int) -> Index:
        if isinstance(other, int):
            return Index(self.const + other, self.terms)
        return total([(self, 1), (other, 1)])

    def __mul__(self, factor: int) -> Index:
        if factor == 1:
            return self
        return Index(self.const * factor, {a: c * factor for a, c in self.terms.items()} if factor else {})

    @property
    def value(self) -> int | None:
        """The number that it is, if it varies with nothing."""
        return self.const if not self.terms else None

    def reads(self) -> Iterator[Read]:
        """The indices read from tensors that it depends on."""
        for atom in self.terms:
            if isinstance(atom, Read):
                yield atom
            elif isinstance(atom, Quotient | Remainder | Clamped):
                yield from atom.index.reads()

    def clamped(self) -> bool:
        """Is its range only known where it is asked for?"""
        return any(
            isinstance(a, Clamped) or (isinstance(a, Quotient | Remainder) and a.index.clamped()) for a in self.terms
        )

    def part(self, depends: int) -> Index:
        """The terms that depend on `depends` and on nothing else, without the constant."""
        return Index(0, {a: c for a, c in self.terms.items() if a.depends == depends})


Coordinates: TypeAlias = tuple[Index, ...]
ZERO = Index()


def number(value: int) -> Index:
    return Index(value) if value else ZERO


@lru_cache(maxsize=1 << 10)
def variable(name: str, extent: int, depends: int = LOOP) -> Index:
    """A loop variable below `extent`; 0 where that is 1."""
    return Index(0, {Variable(name, extent - 1, depends): 1}) if extent > 1 else ZERO


def total(parts: Iterable[tuple[Index, int]]) -> Index:
    """Σ factor · index, where a quotient and a remainder that belong together are one again."""
    const, terms = 0, dict[Atom, int]()
    for index, factor in parts:
        const += factor * index.const
        for atom, c in index.terms.items():
            terms[atom] = terms.get(atom, 0) + factor * c
    terms = {a: c for a, c in terms.items() if c}
    for atom, c in terms.items():
        joined = _joined(atom, c, terms) if isinstance(atom, Remainder) else None
        if joined is not None:
            return total([(joined, 1), (number(const), 1)])
    return Index(const, terms)


def _joined(rest: Remainder, c: int, terms: Mapping[Atom, int]) -> Index | None:
    """n·(x / n) + x % n is x;  n·(x / n % m) + x % n is x % (n·m)."""
    x, n = rest.index, rest.divisor
    quotient, _ = divide(x, n)
    if quotient.const == 0 and quotient.terms and all(terms.get(a) == c * n * q for a, q in quotient.terms.items()):
        kept = {a: k for a, k in terms.items() if a is not rest and a not in quotient.terms}
        return total([(Index(0, kept), 1), (x, c)])
    for other, k in terms.items():
        if isinstance(other, Remainder) and k == c * n and other.index == quotient:
            kept = {a: k for a, k in terms.items() if a is not rest and a is not other}
            return total([(Index(0, kept), 1), (divide(x, n * other.divisor)[1], c)])
    return None


@lru_cache(maxsize=1 << 12)
def divide(x: Index, n: int) -> tuple[Index, Index]:
    """x / n rounded down, and x % n, for n > 0."""
    if n == 1:
        return x, ZERO
    if x.value is not None:
        return number(x.value // n), number(x.value % n)
    found = _split(x, n)
    if found is not None:
        g, y, r = found
        if g == n:
            return y, r
        quotient, rest = divide(y, n // g)
        return quotient, total([(rest, g), (r, 1)])
    whole = Index(0, {a: c // n for a, c in x.terms.items() if c % n == 0})
    rest = Index(x.const, {a: c for a, c in x.terms.items() if c % n})
    shift = rest.low // n  # a dividend that is never negative
    whole, rest = whole + shift, rest + -shift * n
    if len(rest.terms) == 1 and rest.const == 0:
        (atom, c), *_ = rest.terms.items()
        if c == 1 and isinstance(atom, Quotient):
            return total([(whole, 1), (divide(atom.index, atom.divisor * n)[0], 1)]), Index(0, {Remainder(rest, n): 1})
        if c == 1 and isinstance(atom, Remainder) and atom.divisor % n == 0:
            quotient, remainder = divide(atom.index, n)
            return total([(whole, 1), (divide(quotient, atom.divisor // n)[1], 1)]), remainder
    return total([(whole, 1), (Index(0, {Quotient(rest, n): 1}), 1)]), Index(0, {Remainder(rest, n): 1})


def _split(x: Index, n: int) -> tuple[int, Index, Index] | None:
    """(g, y, r) with x = g·y + r, 0 <= r < g, for the largest divisor g of n for which that is known."""
    for g in sorted({n, *(gcd(n, c) for c in x.terms.values())} - {1}, reverse=True):
        rest = Index(x.const, {a: c for a, c in x.terms.items() if c % g})
        shift = rest.low // g
        if rest.high - shift * g < g:
            return g, Index(shift, {a: c // g for a, c in x.terms.items() if c % g == 0}), rest + -shift * g
    return None


def within(x: Index, extent: int) -> Index:
    """x, known to lie in 0 … extent - 1 wherever it is asked for."""
    if extent == 1:
        return ZERO
    if x.low >= 0 and x.high < extent:
        return x
    found = _split(x, extent)
    if found is None:
        return Index(0, {Clamped(x, extent): 1})
    g, y, r = found
    return total([(within(y, extent // g), g), (r, 1)])


def free(x: Index) -> Index:
    """The same index without what is known of where it is asked for, which may then join what it was part of."""
    if not any(isinstance(a, Clamped) for a in x.terms):
        return x
    parts = [(a.index, c) if isinstance(a, Clamped) else (Index(0, {a: 1}), c) for a, c in x.terms.items()]
    return free(total([*parts, (number(x.const), 1)]))


@lru_cache(maxsize=1 << 12)
def flat(coordinates: Coordinates, shape: tuple[int, ...]) -> Index:
    """The position of an element in a contiguous tensor."""
    parts, stride = [], 1
    for c, n in zip(reversed(coordinates), reversed(shape), strict=True):
        parts.append((c, stride))
        stride *= n
    return total(reversed(parts))


@lru_cache(maxsize=1 << 12)
def coordinates(position: Index, shape: tuple[int, ...]) -> Coordinates:
    """The inverse of `flat`."""
    found = []
    for n in reversed(shape):
        position, c = divide(position, max(n, 1))
        found.append(c)
    return tuple(reversed(found))


# --------------------------------------------------------------------------------------------------------- conditions


@dataclass(frozen=True, slots=True)
class Bound:
    """index < limit, or if not `below`, index >= limit."""

    index: Index
    limit: int
    below: bool

    @property
    def depends(self) -> int:
        return self.index.depends


@dataclass(frozen=True, slots=True)
class Valid:
    """An index read from a tensor lies inside its axis."""

    read: Read

    @property
    def depends(self) -> int:
        return self.read.depends

    @property
    def index(self) -> Index:
        return Index(0, {self.read: 1})


Guard: TypeAlias = tuple[Bound | Valid, ...]
"""Conditions under which a value is asked for; all must hold."""


def below(x: Index, limit: int) -> Bound | bool:
    """x < limit; True or False where the ranges decide."""
    if x.high < limit:
        return True
    if x.low >= limit:
        return False
    x, limit = x + -x.const, limit - x.const
    found = _split(x, limit) if limit > 1 else None
    if found is not None:
        g, y, _ = found
        x, limit = y + -y.const, limit // g - y.const
    return Bound(x, limit, True)


def guarded(guard: Guard, condition: Bound | Valid | bool, wanted: bool = True) -> Guard:
    """The guard with one more condition, or with its opposite."""
    if isinstance(condition, bool):
        return guard
    if isinstance(condition, Bound) and not wanted:
        condition = Bound(condition.index, condition.limit, False)
    return guard if condition in guard else (*guard, condition)


def neighbours(offset: Index, size: int, width: int) -> tuple[int, Index, Index] | None:
    """(n, start, within): n neighbours from n · start, of which each of `width` lanes takes one; none of them lies
    outside."""
    lanes = offset.part(LANE)
    if width == 1 or not lanes.terms:
        return None
    rest = Index(offset.const, {a: c for a, c in offset.terms.items() if a not in lanes.terms})
    n = 2
    while n <= width:
        if not rest.depends & LANE and all(c % n == 0 for c in rest.terms.values()):
            within = lanes + rest.const % n
            inside = size % n == 0 or (within.low == 0 and within.high == n - 1)
            if within.low >= 0 and within.high < n and inside:
                rest += -(rest.const % n)
                return n, Index(rest.const // n, {a: c // n for a, c in rest.terms.items()}), within
        n *= 2
    return None
