"""Dimensions that may be unknown: integer polynomials over named symbols, each symbol at least 0.

A dimension is an `int` or a `Sym`; arithmetic returns an `int` whenever the value is known, so equal polynomials are
equal objects in the sense of ``==`` and shapes compare as tuples.  What has no polynomial form (a floor division that
may not be exact, the larger of two unknowns) becomes a new symbol named after its operands: equal operands, equal name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2s
from itertools import count
from math import prod
from typing import TypeAlias, TypeGuard

END = 10**9
"""A Slice that stops here or later means the end of the axis: jax2tf writes no more than this, others more."""

STEPS = 400
"""Sums that are looked at to find whether a dimension is at least another; what takes more is not found."""

_LONGEST = 400
"""Characters of a symbol's name; that of one which is derived from itself in each layer would double in each."""

Monomial: TypeAlias = tuple[str, ...]


def declared_name(dim_param: str) -> str:
    """The name of a dimension; empty for what names nothing, such as the ``?`` of paddle2onnx for any unknown size."""
    return dim_param if any(c.isalnum() for c in dim_param) else ""


class Sym:
    """A polynomial that is not a plain integer: ((monomial, coefficient), ...) in sorted order."""

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        self.terms = terms
        self._hash = hash(terms)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Sym) and self.terms == other.terms)

    def __add__(self, other: Dim) -> Dim:
        return _sum(self, other)

    __radd__ = __add__

    def __mul__(self, other: Dim) -> Dim:
        return _product(self, other)

    __rmul__ = __mul__

    def __neg__(self) -> Dim:
        return _product(self, -1)

    def __sub__(self, other: Dim) -> Dim:
        return _sum(self, _product(other, -1))

    def __rsub__(self, other: Dim) -> Dim:
        return _sum(other, _product(self, -1))

    def __repr__(self) -> str:
        def monomial(symbols: Monomial, coefficient: int) -> str:
            factors = [str(coefficient)] if coefficient != 1 or not symbols else []
            return "*".join([*factors, *symbols])

        return "+".join(monomial(*term) for term in self.terms).replace("+-", "-")

    @property
    def symbols(self) -> set[str]:
        return {name for monomial, _ in self.terms for name in monomial}


Dim: TypeAlias = int | Sym
Shape: TypeAlias = tuple[Dim, ...]


def symbol(name: str) -> Sym:
    return Sym((((name,), 1),))


def _table(x: Dim) -> dict[Monomial, int]:
    if isinstance(x, Sym):
        return dict(x.terms)
    return {(): int(x)} if x else {}


def _canonical(table: dict[Monomial, int]) -> Dim:
    terms = tuple(sorted((m, c) for m, c in table.items() if c))
    if not terms:
        return 0
    if len(terms) == 1 and terms[0][0] == ():
        return terms[0][1]
    return Sym(terms)


def _sum(a: Dim, b: Dim) -> Dim:
    table = _table(a)
    for monomial, coefficient in _table(b).items():
        table[monomial] = table.get(monomial, 0) + coefficient
    return _canonical(table)


def _product(a: Dim, b: Dim) -> Dim:
    if isinstance(a, int):
        a, b = b, a
    if isinstance(b, int):
        if isinstance(a, int):
            return a * b
        if b == 1 or not b:
            return a if b else 0
        return Sym(tuple([(monomial, coefficient * b) for monomial, coefficient in a.terms]))
    table: dict[Monomial, int] = {}
    for m, c in _table(a).items():
        for n, e in _table(b).items():
            key = tuple(sorted(m + n))
            table[key] = table.get(key, 0) + c * e
    return _canonical(table)


class Bounded(str):
    """The symbol of a dimension that is never below a number, and never above another if it has a limit; of one that is
    `whole` or 1, if that is given."""

    __slots__ = ("least", "limit", "whole")
    least: int
    limit: int | None
    whole: Dim | None

    @classmethod
    def of(cls, text: str, least: int = 0, limit: int | None = None, whole: Dim | None = None) -> Bounded:
        result = cls(text)
        result.least, result.limit, result.whole = least, limit, whole
        return result


class Derived(str):
    """A symbol that stands for a function of dimensions, which has no polynomial form: its name tells which."""

    __slots__ = ("operands",)
    operands: tuple[Dim, ...]

    @classmethod
    def of(cls, text: str, *operands: Dim) -> Derived:
        if len(text) > _LONGEST:
            kind, _, said = text.partition("(")
            text = f"{kind}({blake2s(said.encode()).hexdigest()})"
        result = cls(text)
        result.operands = operands
        return result


def product(dims: Iterable[Dim]) -> Dim:
    """The number of elements of a shape."""
    number = 1
    result: Dim = 1
    for dim in dims:  # numbers by themselves: most are, and a polynomial is made anew with each factor
        if isinstance(dim, Sym):
            result = dim * result
        else:
            number *= dim
    return result * number


def _without(monomial: Monomial, factor: Monomial) -> Monomial | None:
    rest = list(monomial)
    for name in factor:
        if name not in rest:
            return None
        rest.remove(name)
    return tuple(rest)


def exact(a: Dim, b: Dim) -> Dim | None:
    """a / b if b divides a as a polynomial, else None."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b and a % b == 0 else None
    if a == b:
        return 1
    if isinstance(a, Sym) and isinstance(b, int) and b:
        if any(coefficient % b for _, coefficient in a.terms):
            return None
        return Sym(tuple([(monomial, coefficient // b) for monomial, coefficient in a.terms]))
    rest, divisor, quotient = _table(a), _table(b), dict[Monomial, int]()
    if not divisor:
        return None

    def rank(m: Monomial) -> tuple[int, Monomial]:
        return (len(m), m)

    lead = max(divisor, key=rank)
    while rest:
        head = max(rest, key=rank)
        monomial = _without(head, lead)
        if monomial is None or rest[head] % divisor[lead]:
            return None
        coefficient = rest[head] // divisor[lead]
        quotient[monomial] = quotient.get(monomial, 0) + coefficient
        for n, e in divisor.items():
            key = tuple(sorted(monomial + n))
            rest[key] = rest.get(key, 0) - coefficient * e
            if not rest[key]:
                del rest[key]
    return _canonical(quotient)


def floor_divide(a: Dim, b: Dim) -> Dim:
    """ONNX integer Div (truncation); a fresh symbol where it may not be exact."""
    quotient = exact(a, b)
    if quotient is not None:
        return quotient
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else 0
    if isinstance(b, int) and b < 0:
        return -floor_divide(a, -b)
    if at_least(0, a):  # a symbol is never negative
        return 0 if at_least(a, 0) else -floor_divide(-a, b)
    if isinstance(a, Sym) and isinstance(b, int) and b and (low := _lowest(a, count(1))) is not None and low >= 0:
        return _steps(a, b)
    return symbol(Derived.of(f"({a!r})//({b!r})", a, b))


def _steps(a: Sym, b: int) -> Dim:
    """How often b goes into a sum that takes nothing away: multiples of b apart, a quotient of a quotient is one."""
    whole = _canonical({m: c // b for m, c in a.terms if c // b})
    rest = _canonical({m: c % b for m, c in a.terms if c % b})
    names = rest.symbols if isinstance(rest, Sym) else ()
    if len(names) == 1 and is_quotient(name := next(iter(names))):
        inner, divisor = name.operands
        if isinstance(more := rest - symbol(name), int) and isinstance(divisor, int) and at_least(inner, 0):
            return whole + floor_divide(inner + more * divisor, divisor * b)
    return whole if isinstance(rest, int) else whole + symbol(Derived.of(f"({rest!r})//({b!r})", rest, b))


def modulo(a: Dim, b: Dim) -> Dim | None:
    """ONNX integer Mod, whose sign is the divisor's: what is missing to the next multiple of b is -a modulo b.  None
    where the sign of `a` is not known."""
    if isinstance(a, int) and isinstance(b, int):
        return a % b if b else 0
    if isinstance(b, int) and b > 0 and isinstance(a, Sym):  # multiples of b count for nothing
        a = _canonical({m: c for m, c in a.terms if c % b})
    if not at_least(b, 1) or not (at_least(a, 0) or at_least(0, a)):
        return None
    return a - floor_divide(a, b) * b if at_least(a, 0) else a + floor_divide(b - 1 - a, b) * b


def viewed(a: Dim, b: Dim) -> Dim:
    """The dimension that a view of `a` elements has beside dimensions of `b` elements; a symbol where undecided."""
    quotient = exact(a, b)
    if quotient is not None or (isinstance(a, int) and isinstance(b, int)):
        return floor_divide(a, b)
    return symbol(Derived.of(f"view({a!r}|{b!r})", a, b))


def minimum(a: Dim, b: Dim) -> Dim:
    """The smaller of the two; where undecided what both exceed, plus a symbol for the smaller of two sums that have
    nothing in common: min(a + c, b + c) is min(a, b) + c."""
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    if at_least(a, b):
        return b
    if at_least(b, a):
        return a
    first = _canonical({m: c for m, c in _table(a - b).items() if c > 0})
    second = first - (a - b)
    smaller = symbol(Derived.of("min(" + ",".join(sorted((repr(first), repr(second)))) + ")", first, second))
    return smaller + (a - first)


def maximum(a: Dim, b: Dim) -> Dim:
    """The larger of the two: what they are together without the smaller one."""
    return a + b - minimum(a, b)


def tail(n: Dim, dim: Dim) -> Dim:
    """How many elements x[-n:] takes of an axis: n of them, or as many as there are; all where n is 0."""
    if isinstance(n, int) and isinstance(dim, int):
        return min(n, dim) if n else dim
    if at_least(n, 1):
        return minimum(n, dim)
    return symbol(Derived.of(f"tail({n!r}|{dim!r})", n, dim))


def at_least(a: Dim, b: Dim) -> bool:
    """Is a >= b for certain?  A symbol may be 0 (an empty cache) if nothing is known of it, never negative."""
    return _never_negative(_sum(a, _product(b, -1)), count(1))


def _never_negative(dim: Dim, steps: Iterator[int]) -> bool:
    """What is not found within STEPS is not certain: there are more and more ways the deeper minima are nested."""
    if isinstance(dim, int):
        return dim >= 0
    if next(steps) > STEPS:
        return False
    low = _lowest(dim, steps)
    if low is not None and low >= 0:
        return True
    # What is taken away is at most what bounds it.
    for monomial, c in dim.terms:
        for i, name in enumerate(monomial if c < 0 else ()):
            rest = Sym(((monomial[:i] + monomial[i + 1 :], -c),)) if len(monomial) > 1 else -c
            if any(_never_negative(dim + rest * (symbol(name) - bound), steps) for bound in _bounds(name, steps)):
                return True
    return any(_never_negative(lower, steps) for lower in _without_quotients(dim, steps))


def _without_quotients(dim: Sym, steps: Iterator[int]) -> Iterator[Dim]:
    """Dimensions that a sum is never below: d * (n // d) is n at most, and less by d - 1 at most."""
    for monomial, c in dim.terms:
        for i, name in enumerate(monomial):
            whole, divisor = name.operands if is_quotient(name) else (0, 0)
            if not isinstance(divisor, int) or divisor < 1 or c % divisor:
                continue
            others = monomial[:i] + monomial[i + 1 :]
            if _never_negative(whole, steps) and all(_least(other, steps) >= 0 for other in others):
                least = whole - (divisor - 1) if c > 0 else whole
                factor = product(symbol(other) for other in others)
                yield dim - factor * symbol(name) * c + factor * least * (c // divisor)


def _lowest(dim: Dim, steps: Iterator[int]) -> int | None:
    """The number below which a sum never is; None where something is taken away."""
    if isinstance(dim, int):
        return dim
    summands = [(c, [_least(name, steps) for name in monomial]) for monomial, c in dim.terms]
    if any((c < 0 and least) or -1 in least for c, least in summands):
        return None
    return sum(c * prod(least) for c, least in summands)


def _least(name: str, steps: Iterator[int]) -> int:
    """The number below which a symbol never is; -1 for a quotient or the smaller of two that may be negative."""
    operands = name.operands if isinstance(name, Derived) and name.startswith(("(", "min(")) else ()
    if not all(_never_negative(operand, steps) for operand in operands):
        return -1
    if is_quotient(name):
        low, divisor = _lowest(name.operands[0], steps), name.operands[1]
        return low // divisor if low is not None and isinstance(divisor, int) and divisor > 0 else 0
    return getattr(name, "least", 0)


def is_quotient(name: str) -> TypeGuard[Derived]:
    """Does a symbol stand for one dimension divided by another?"""
    return isinstance(name, Derived) and name.startswith("(")


def _bounds(name: str, steps: Iterator[int]) -> tuple[Dim, ...]:
    """Dimensions that a symbol is never above."""
    if isinstance(name, Derived) and name.startswith("tail("):
        return name.operands[1:]
    if is_quotient(name):
        whole, divisor = name.operands
        return (whole,) if all(_never_negative(d, steps) for d in (divisor + -1, whole)) else ()
    limit = name.limit if isinstance(name, Bounded) else None
    return smallest_of(symbol(name)) if limit is None else (limit,)


def smallest_of(dim: Dim) -> tuple[Dim, ...]:
    """The dimensions of which this one is the smallest; none where it is not written so."""
    for monomial, c in dim.terms if isinstance(dim, Sym) else ():
        name = monomial[0] if len(monomial) == 1 else ""
        if c == 1 and isinstance(name, Derived) and name.startswith("min("):
            return tuple(operand + (dim - symbol(name)) for operand in name.operands)
    return ()


def equal(a: Dim, b: Dim) -> bool | None:
    """True, False, or None where it depends on what the symbols stand for."""
    if a == b:
        return True
    if at_least(a, b + 1) or at_least(b, a + 1):
        return False
    return None
