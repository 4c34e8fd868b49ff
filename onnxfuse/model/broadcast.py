"""Broadcasting of dimensions that may be unknown, as numpy does it for those that are not."""

from __future__ import annotations

from .dims import Bounded, Derived, Dim, Shape, Sym, smallest_of, symbol


def _cut_to(dim: Dim) -> tuple[Dim, ...]:
    """Dimensions to which one was cut, or otherwise fits, so that beside one of them it is that one, or 1."""
    for name in dim.symbols if isinstance(dim, Sym) and len(dim.terms) == 1 else ():
        if isinstance(name, Derived) and name.startswith("tail(") and dim == symbol(name):
            return name.operands[:1]
        if isinstance(name, Bounded) and name.whole is not None and dim == symbol(name):
            return (name.whole,)
    return smallest_of(dim)


def broadcast_dim(a: Dim, b: Dim) -> Dim:
    """One dimension of numpy broadcasting; of two unknowns a symbol that names both."""
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    if isinstance(a, int):
        return a
    if isinstance(b, int):
        return b
    # A run that does not fail has equal dims here unless one of them is 1, so the broadcast is their maximum; and
    # min(c, n) against n can only be n.
    for dim, other in ((a, b), (b, a)):
        if other in _cut_to(dim):
            return other
    own = [{*map(repr, broadcast_of(dim))} for dim in (a, b)]
    names = own[0] | own[1]
    for dim, leaves in zip((a, b), own, strict=True):
        if names == leaves:
            return dim
    return symbol(Derived.of("bcast(" + "|".join(sorted(names)) + ")", a, b))


def broadcast_of(dim: Dim) -> list[Dim]:
    """The dimensions of which this one is the broadcast; itself if it is none."""
    for name in dim.symbols if isinstance(dim, Sym) else ():
        if isinstance(name, Derived) and name.startswith("bcast(") and dim == symbol(name):
            return [leaf for operand in name.operands for leaf in broadcast_of(operand)]
    return [dim]


def broadcast(*shapes: Shape) -> Shape:
    """The shape that numpy broadcasting gives."""
    if len(shapes) == 2:
        a, b = shapes
        if a[max(len(a) - len(b), 0) :] == b:
            return a
        if b[max(len(b) - len(a), 0) :] == a:
            return b
    shapes = tuple(dict.fromkeys(shape for shape in shapes if shape))
    if len(shapes) < 2:
        return shapes[0] if shapes else ()
    rank = max(map(len, shapes), default=0)
    result: list[Dim] = [1] * rank
    for shape in shapes:
        for axis, dim in enumerate(shape, start=rank - len(shape)):
            result[axis] = broadcast_dim(result[axis], dim)
    return tuple(result)
