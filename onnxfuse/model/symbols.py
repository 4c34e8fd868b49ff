"""What the symbols of dimensions stand for: what they are called, what shapes say about them, what size they have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import gcd

from .broadcast import broadcast_dim, broadcast_of
from .dims import (
    Bounded,
    Derived,
    Dim,
    Shape,
    Sym,
    exact,
    floor_divide,
    is_quotient,
    minimum,
    product,
    smallest_of,
    symbol,
    tail,
    viewed,
)


class Apart(Bounded):
    """The symbol of a dimension that is labelled like another, of which nobody knows whether it has that one's size."""

    __slots__ = ("label",)
    label: str

    @classmethod
    def labelled(cls, label: str, owner: str) -> Apart:
        result = cls(f"{label}@{owner}")
        result.label, result.least, result.limit, result.whole = label, 0, None, None
        return result


def label(name: str) -> str:
    """What a symbol is called in the model."""
    return name.label if isinstance(name, Apart) else name


def renamed(dim: Dim, names: Mapping[str, str | Dim]) -> Dim:
    """The dimension with other symbols or dimensions for these, in what is derived from them as well."""
    return _renamed(dim, names, {})


def _renamed(dim: Dim, names: Mapping[str, str | Dim], made: dict[str, Dim]) -> Dim:
    """The same; `made` is what symbols have become, each of which may be part of many."""
    if not isinstance(dim, Sym):
        return dim
    total: Dim = 0
    for monomial, coefficient in dim.terms:
        factor: Dim = coefficient
        for name in monomial:
            if name not in made:
                made[name] = _instead(name, names, made)
            factor = factor * made[name]
        total = total + factor
    return total


def _instead(name: str, names: Mapping[str, str | Dim], made: dict[str, Dim]) -> Dim:
    if isinstance(name, Derived):
        a, b = (_renamed(operand, names, made) for operand in name.operands)
        return symbol(name) if (a, b) == name.operands else _derive(name)(a, b)
    known = names.get(name, name)
    return symbol(known) if isinstance(known, str) else known


def _derive(name: str) -> Callable[[Dim, Dim], Dim]:
    """The function of dimensions that a derived symbol stands for."""
    kinds = {"min": minimum, "bcast": broadcast_dim, "view": viewed, "tail": tail}
    return kinds.get(name.partition("(")[0], floor_divide)


def told_apart(*dims: Dim) -> dict[str, str]:
    """The symbols in them that were told `apart` → what they are labelled."""
    found: dict[str, str] = {}
    seen: set[str] = set()
    stack = list(dims)
    while stack:
        dim = stack.pop()
        for name in dim.symbols if isinstance(dim, Sym) else ():
            if isinstance(name, Apart):
                found[name] = name.label
            elif isinstance(name, Derived) and name not in seen:
                seen.add(name)
                stack.extend(name.operands)
    return dict(sorted(found.items()))


def same_if(symbol: Derived) -> set[str]:
    """The symbols told apart that must be what their labels say, or else this one would hardly be computed: what is
    broadcast together has the same size, and what is viewed with some of its dimensions given is divided by them.

    The smaller of two, and one divided by the other in the model's own arithmetic, ask how they differ."""
    a, b = symbol.operands
    names = told_apart(a, b)
    if symbol.startswith("bcast("):
        first, second = renamed(a, names), renamed(b, names)
        return set(names) if broadcast_dim(first, second) in (first, second) else set()
    if symbol.startswith("view("):
        for name, other in names.items():
            if exact(renamed(a, {name: other}), renamed(b, {name: other})) is not None:
                return {name}
        return set(names) if exact(renamed(a, names), renamed(b, names)) is not None else set()
    return set()


def same_in_view(before: Shape, after: Shape) -> set[str]:
    """The symbol told apart that must be what its label says, or else these two shapes would hold different numbers of
    elements.  Of two that only together make them equal, neither must: 2 times 3 is 3 times 2."""
    a, b = product(before), product(after)
    names = {} if a == b else told_apart(a, b)
    return {name for name, other in names.items() if renamed(a, {name: other}) == renamed(b, {name: other})}


def multiples(a: Dim, b: Dim) -> tuple[Dim, Dim] | None:
    """What two dimensions that are broadcast together are multiples of, by the same number: equal in every run that
    does not fail, since neither can be 1.  None of those that may be 1, or are numbers."""
    if not isinstance(a, Sym) or not isinstance(b, Sym) or a == b:
        return None
    number = gcd(*(coefficient for dim in (a, b) for _, coefficient in dim.terms))
    first, second = exact(a, number), exact(b, number)
    return (first, second) if number > 1 and first is not None and second is not None else None


def fitting(a: Dim, b: Dim) -> dict[str, Dim]:
    """Symbols → the dimension that they are, or 1, if these two are equal: what a and m are broadcast to is a only
    where m is that, or 1; so it is where a is such a broadcast itself."""
    found: dict[str, Dim] = {}
    for whole, other in ((a, b), (b, a)):
        leaves, parts = broadcast_of(other), broadcast_of(whole)
        if all(plain(part) and part in leaves for part in parts):
            found.update((name, whole) for leaf in leaves if leaf not in parts and (name := plain(leaf)))
    return found


def plain(dim: Dim) -> str | None:
    """The symbol that a dimension is, if it is one, and derived from no others."""
    if isinstance(dim, Sym) and len(dim.terms) == 1:
        ((monomial, coefficient),) = dim.terms
        if len(monomial) == 1 and coefficient == 1 and not isinstance(monomial[0], Derived):
            return monomial[0]
    return None


def limit(a: Dim, b: Dim) -> tuple[str, int] | None:
    """(symbol, number) if the two, which are broadcast together, show that the symbol is never above the number: what
    is cut to min(c, n) meets n only where it is n, and n is c at most."""
    for cut, whole in ((a, b), (b, a)):
        parts = smallest_of(cut)
        (most,) = [part for part in parts if part != whole] if whole in parts else (None,)
        if isinstance(most, int) and most > 1 and isinstance(whole, Sym) and len(whole.terms) == 1:
            ((monomial, coefficient),) = whole.terms
            if len(monomial) == 1 and coefficient == 1 and not isinstance(monomial[0], Derived | Apart):
                return monomial[0], most
    return None


def single(before: Shape, after: Shape) -> str | None:
    """The symbol that is 1 if these two shapes hold equally many elements; None if they tell of no such."""
    for one, other in ((before, after), (after, before)):
        quotient = exact(product(one), product(other))
        name = plain(quotient) if quotient is not None else None
        if name is not None:
            return name
    return None


def present(before: Shape, after: Shape) -> str | None:
    """The symbol that is at least 1 if these shapes hold equally many elements: what is cut to one position has one."""
    for one, other in ((before, after), (after, before)):
        quotient = exact(product(one), product(other))
        parts = smallest_of(quotient) if quotient is not None else ()
        if 1 in parts and len(parts) == 2 and isinstance(quotient, Sym) and len(quotient.terms) == 1:
            (dim,) = (part for part in parts if part != 1)
            name = plain(dim)
            if name is not None:
                return name
    return None


def needed(dim: Dim, least: int) -> tuple[str, int] | None:
    """(symbol, number) if a dimension is only at least so much where the symbol is at least the number."""
    summands = [(monomial, c) for monomial, c in dim.terms if monomial] if isinstance(dim, Sym) else []
    if len(summands) != 1 or len(summands[0][0]) != 1 or summands[0][1] < 0 or not isinstance(dim, Sym):
        return None
    (((name,), coefficient),) = summands
    rest = dim - symbol(name) * coefficient
    assert isinstance(rest, int)
    number = -((rest - least) // coefficient)
    if isinstance(name, Derived):
        divisor = name.operands[1] if is_quotient(name) else 0
        return needed(name.operands[0], number * divisor) if isinstance(divisor, int) and divisor > 0 < number else None
    return (name, number) if number > 0 else None


def last(a: Dim, b: Dim) -> str | None:
    """The symbol that is 1 if these two are broadcast together: 9 and one more meet 10, and twice as many meet 2.  What
    could be 1 itself tells nothing."""
    for number, total in ((a, b), (b, a)):
        if not isinstance(number, int) or number < 2:
            continue
        rest = total - number
        if not isinstance(rest, Sym) or len(rest.terms) != 2:
            continue
        (ones, less), (monomial, coefficient) = rest.terms
        fixed = number - coefficient
        alone = fixed > 1 or (fixed == 0 and coefficient > 1)
        if not ones and less == -coefficient and alone and len(monomial) == 1 and not isinstance(monomial[0], Derived):
            return monomial[0]
    return None


def evaluate(dim: Dim, known: Mapping[str, int]) -> int | None:
    """The size of a dimension if symbols with these labels have these sizes; None if one of them is unknown."""
    return _evaluated(dim, known, {})


def _evaluated(dim: Dim, known: Mapping[str, int], sizes: dict[str, int | None]) -> int | None:
    """The same; `sizes` are those of symbols, each of which may be part of many."""
    if isinstance(dim, int):
        return dim
    total = 0
    for monomial, part in dim.terms:
        for name in monomial:
            if name not in sizes:
                sizes[name] = _size(name, known, sizes)
            size = sizes[name]
            if size is None:
                return None
            part *= size
        total += part
    return total


def _size(name: str, known: Mapping[str, int], sizes: dict[str, int | None]) -> int | None:
    """The size of a symbol, of one that is derived from others by theirs."""
    if not isinstance(name, Derived):
        return known.get(label(name))
    operands = [_evaluated(operand, known, sizes) for operand in name.operands]
    if None in operands:
        return None
    size = _derive(name)(*(operand for operand in operands if operand is not None))
    return size if isinstance(size, int) else None
