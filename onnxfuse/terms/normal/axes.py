"""How the axes of two shapes of equal size correspond: which are merged, split or kept by a Reshape between them, and
what a permutation of them does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from onnxfuse.model.dims import Dim, Shape, exact, product
from onnxfuse.terms.term import Term

Block: TypeAlias = tuple[int, int, int, int]
"""Axes a from:to of one shape and b from:to of another that hold the same elements: (a from, a to, b from, b to)."""


def blocks_of(a: Shape, b: Shape) -> list[Block] | None:
    """Align two shapes of equal size into minimal blocks of equal products, or None where that is undecided."""
    i = j = 0
    result = []
    while i < len(a) or j < len(b):
        first_i, first_j = i, j
        p: Dim = 1
        q: Dim = 1
        if i < len(a):
            p, i = a[i], i + 1
        if j < len(b):
            q, j = b[j], j + 1
        while p != q:
            if i < len(a) and (exact(q, p) is not None or j == len(b)):
                p, i = p * a[i], i + 1
            elif j < len(b):
                q, j = q * b[j], j + 1
            elif i < len(a):
                p, i = p * a[i], i + 1
            else:
                return None
        result.append((first_i, i, first_j, j))
    return result


def repeated_blocks(own: Shape, whole: Shape, seen: Shape) -> tuple[Shape, Shape] | None:
    """What an Expand from `own` to `whole` that is seen in another shape repeats: how much of it the tensor has before
    it is seen so, and its shape then.  None where the tensor would have to repeat unknown dimensions itself."""
    own = (1,) * (len(whole) - len(own)) + own
    before, after = list[Dim](), list[Dim]()
    for i0, i1, j0, j1 in blocks_of(whole, seen) or [(0, len(whole), 0, len(seen))]:
        repeats = all(d == 1 for d in own[i0:i1])
        if not repeats and own[i0:i1] != whole[i0:i1] and not all(isinstance(d, int) for d in whole[i0:i1]):
            return None
        before += own[i0:i1] if repeats else whole[i0:i1]
        after += [1] * (j1 - j0) if repeats else seen[j0:j1]
    return tuple(before), tuple(after)


def merged_rows(a: Shape, b: Shape) -> bool:
    """Does a view of `a` as `b` merge some axes, and not the last?  Axes of 1 come and go."""
    blocks = blocks_of(a, b)
    if not blocks or any(j1 - j0 != 1 or i1 == i0 for i0, i1, j0, j1 in blocks) or blocks[-1][1] - blocks[-1][0] != 1:
        return False
    return any(sum(d != 1 for d in a[i0:i1]) > 1 for i0, i1, _, _ in blocks)


def split_from(a: Shape | None, b: Shape, axis: int) -> tuple[int, int] | None:
    """The axis of `a` of which `axis` of `b` counts blocks, one behind the other, and their length; None if none is."""
    for i0, i1, j0, j1 in (blocks_of(a, b) if a is not None else None) or []:
        if j0 <= axis < j1:
            each = product(b[axis + 1 : j1])
            first = i1 - i0 == 1 and all(d == 1 for d in b[j0:axis])
            return (i0, each) if first and isinstance(each, int) else None
    return None


def kept_axis(a: Shape | None, b: Shape | None, axis: int) -> int | None:
    """The axis of `a` that `axis` of `b` is, where a view neither merges nor splits it; None where it does."""
    blocks = blocks_of(a, b) if a is not None and b is not None else None
    return next((i0 for i0, i1, j0, j1 in blocks or () if (j0, j1, i1) == (axis, axis + 1, i0 + 1)), None)


def refinement(a: Shape, b: Shape) -> Shape | None:
    """The coarsest shape of which two shapes of equal size both merge axes, or None where that is undecided."""
    rest_a, rest_b, result = [d for d in a if d != 1][::-1], [d for d in b if d != 1][::-1], list[Dim]()
    while rest_a and rest_b:
        p, q = rest_a.pop(), rest_b.pop()
        if p == q:
            result.append(p)
            continue
        longer, shorter = exact(q, p), exact(p, q)
        if longer is not None:
            result.append(p)
            rest_b.append(longer)
        elif shorter is not None:
            result.append(q)
            rest_a.append(shorter)
        else:
            return None
    return None if rest_a or rest_b else tuple(result)


def merged_axes(finer: Shape, shape: Shape) -> list[range]:
    """The axes of a refinement that each axis of a shape merges; none for one of length 1."""
    result, i = [], 0
    for dim in shape:
        start, size = i, product(())
        while size != dim:
            size, i = size * finer[i], i + 1
        result.append(range(start, i))
    return result


def swapped(rank: int) -> tuple[int, ...]:
    """The permutation that transposes matrices."""
    return (*range(rank - 2), rank - 1, rank - 2)


def in_order(shape: Shape, perm: Sequence[int]) -> bool:
    """Does a permutation move dims of 1 alone, so that all elements stay where they are?"""
    kept = [i for i in perm if shape[i] != 1]
    return kept == sorted(kept)


def merged_blocks(term: Term) -> list[Block] | None:
    """The blocks of a Reshape that only merges: each new dimension comes from one or more old ones."""
    if term.op != "Reshape" or term.args[0].shape is None or term.shape is None or len(term.args) > 1:
        return None
    blocks = blocks_of(term.args[0].shape, term.shape)
    if blocks is None or any(j1 - j0 != 1 or i1 == i0 for i0, i1, j0, j1 in blocks):
        return None
    return blocks


def moves_ones(x: Term) -> bool:
    """Is it a Reshape to the same axes in the same order, but for those of 1?"""
    old = x.args[0].shape
    return old is not None and x.shape is not None and [d for d in old if d != 1] == [d for d in x.shape if d != 1]


def below_views(x: Term) -> Term:
    """What is seen in another shape, or in part."""
    while x.op in ("Reshape", "Slice"):
        x = x.args[0]
    return x
