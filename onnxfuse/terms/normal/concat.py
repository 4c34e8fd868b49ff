"""Normal form of Concat: slices put together again are what they were cut from, and so is what is computed of each.

    slices      Concat(x[0:2], x[2:5]) is x[0:5]
    copies      Concat(x, x) along an axis of size 1 is an Expand
    functions   Concat(f(x[0:2]), f(x[2:4])) is f(x), its axes in another order, for an f that treats what is before its
                last axes row by row: a stack of features, or attention that was written head by head

The last holds only if all slices have the same length and lead to one tensor: siblings computed from different tensors
stay apart, and keep what they are fused with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from onnxfuse.model.dims import Shape, product
from onnxfuse.model.op_traits import ROW_BY_ROW
from onnxfuse.terms.infer_table import normal_axis
from onnxfuse.terms.term import REAL, SMALL, Term, Terms, same_shape, static

from .table import Applied, hoisted, law, make, repeated_constants, scaled, storable
from .views import expand, repeat, reshape, slice_axis, transpose

DEEP = 16
"""How many ops may lie between the slices and the Concat."""


def _parts(a: Applied) -> tuple[int, list[Term]]:
    """The axis, from the front, and what is not empty along it; the first where all is."""
    axis = normal_axis(a.attrs["axis"], len(a.shape or ()))
    return axis, [x for x in a.args if x.shape is None or x.shape[axis] != 0] or a.args[:1]


@law("Concat", "Concat(Slice(x, (0,), (1,), (3,)), Slice(x, (1,), (4,), (3,)), axis=3) = x")
def _of_slices(a: Applied) -> Term | None:
    if a.shape is None:
        return None
    axis, kept = _parts(a)
    return kept[0] if len(kept) == 1 else _rejoined(a.terms, kept, axis)


@law(
    "Concat",
    "Concat(Exp(Slice(x, (0,), (1,), (0,))), Exp(Slice(x, (1,), (2,), (0,))), axis=0)"
    " = Reshape(Exp(Reshape(x, (2, 1, 3, 4, 4))), (2, 3, 4, 4))",
)
def _of_functions(a: Applied) -> Term | None:
    return None if a.shape is None else _restacked(a.terms, _parts(a)[1], _parts(a)[0], a.shape)


@law("Concat", "Concat(2 * x, -2 * y, axis=-1) = 2 * Concat(x, -1 * y, axis=-1)")
def _of_multiples(a: Applied) -> Term | None:
    split = [hoisted(x) for x in a.args]
    size = abs(split[0][1])
    if size == 1 or a.args[0].dtype not in REAL or any(abs(factor) != size for _, factor in split):
        return None
    rest = [scaled(a.terms, x, math.copysign(1.0, factor)) for x, factor in split]
    return scaled(a.terms, make(a.terms, "Concat", rest, a.attrs, a.shape, a.dtype), size)


@law(
    "Concat",
    "Concat(Expand((1, 2), (900, 2)), Expand((3, 4), (900, 2)), axis=1)"
    " = Expand(Reshape((1, 2, 3, 4), (1, 4)), (900, 4))",
)
def _of_repeated(a: Applied) -> Term | None:
    """Sines and cosines of positions are put together once, and repeated for each picture."""
    cores, whole = repeated_constants(a.args), a.shape
    if not cores or whole is None:
        return None
    axis, rank = normal_axis(a.attrs["axis"], len(whole)), len(whole)
    owns = [(1,) * (rank - len(core.shape or ())) + (core.shape or ()) for core in cores]
    repeated = [all(own[i] == 1 for own in owns) and i != axis for i in range(rank)]
    if all(dim == 1 for once, dim in zip(repeated, whole, strict=True) if once):
        return None  # each repeats along axes of its own, as coordinates do
    parts = []
    for core, own, x in zip(cores, owns, a.args, strict=True):
        dims = tuple(1 if once else dim for once, dim in zip(repeated, x.shape or whole, strict=True))
        if static(dims) is None:
            return None
        parts.append(expand(a.terms, reshape(a.terms, core, own), dims))
    table = make(a.terms, "Concat", parts, a.attrs)
    return expand(a.terms, table, whole) if storable(table) else None


@law("Concat", "Concat(x, y, axis=3) = Concat(x, y, axis=-1)")
def _axis_from_the_end(a: Applied) -> Term | None:
    if a.shape is None:
        return None
    axis, kept = _parts(a)
    if len(kept) == len(a.args) and a.attrs["axis"] < 0:
        return None
    return make(a.terms, "Concat", kept, {"axis": axis - len(a.shape)}, a.shape, a.dtype)


def _rejoined(terms: Terms, parts: Sequence[Term], axis: int) -> Term | None:
    """Slices of one term put together again, or one of length 1 repeated; None for anything else."""
    first = parts[0]
    if first.shape is not None and first.shape[axis] == 1 and all(part is first for part in parts):
        return expand(terms, first, (*first.shape[:axis], len(parts), *first.shape[axis + 1 :]))
    x, indices = first.args[0] if first.op == "Slice" else first, list[int]()
    for part in parts:
        sliced = part.op == "Slice" and part.args == (x,) and part.attr("axis") == axis and part.attr("step") == 1
        start, stop = (0, x.shape[axis] if x.shape else None) if part is x else (part.attr("start"), part.attr("stop"))
        if not (sliced or part is x) or not isinstance(start, int) or not isinstance(stop, int):
            return None
        if start < 0 or stop < 0:  # where the axis ends is not known: x[0:-1] is not nothing
            return None
        indices += range(start, stop)
    return chosen(terms, x, axis, indices) if x.shape is not None and len(indices) <= SMALL else None


def chosen(terms: Terms, x: Term, axis: int, indices: Sequence[Any]) -> Term | None:
    """The elements at these indices of an axis, if they are a run in which each comes equally often, else None."""
    assert x.shape is not None
    dim, often = x.shape[axis], indices.count(indices[0])
    once = indices[::often]
    if any(b - a != 1 for a, b in pairwise(once)) or list(indices) != [n for n in once for _ in range(often)]:
        return None
    if isinstance(dim, int) and not all(0 <= n < dim for n in once):
        return None
    return repeat(terms, slice_axis(terms, x, axis, once[0], once[-1] + 1), axis, often)


@dataclass(frozen=True)
class Stack:
    """n terms of one shape as one: `behind` of its axes follow the axis that counts them."""

    term: Term
    behind: int

    @property
    def shape(self) -> Shape:
        assert self.term.shape is not None
        return self.term.shape

    @property
    def place(self) -> int:
        return len(self.shape) - 1 - self.behind


def _moved(terms: Terms, stack: Stack, behind: int) -> Stack:
    """The stack with its counting axis elsewhere."""
    rank, place = len(stack.shape), stack.place
    order = [i for i in range(rank) if i != place]
    order.insert(rank - 1 - behind, place)
    shape = tuple(stack.shape[i] for i in order)
    passed = stack.shape[min(place, rank - 1 - behind) : max(place, rank - 1 - behind) + 1]
    ones = sum(d != 1 for d in passed) < 2
    term = reshape(terms, stack.term, shape) if ones else transpose(terms, stack.term, order)
    return Stack(term, behind)


def _restacked(terms: Terms, parts: Sequence[Term], axis: int, shape: Shape) -> Term | None:
    """What is computed alike of slices of one term, computed of the term."""
    whole = _stacked(terms, parts, DEEP)
    return None if whole is None else reshape(terms, _moved(terms, whole, len(shape) - axis).term, shape)


def _stacked(terms: Terms, parts: Sequence[Term], depth: int) -> Stack | None:
    """The stack of these parts, if they are computed alike of slices of one term."""
    first = parts[0]
    if not depth or any(p.op != first.op or not same_shape(p.shape, first.shape) for p in parts):
        return None
    if first.op == "Slice":
        return _uncut(terms, parts)
    if first.shape is None or any(p.attrs != first.attrs or len(p.args) != len(first.args) for p in parts):
        return None
    if first.op in ("Reshape", "Transpose") and len(first.args) == 1:
        inner = _stacked(terms, [p.args[0] for p in parts], depth - 1)
        return None if inner is None else _viewed(terms, first, inner)
    if first.op not in ROW_BY_ROW or first.attr("axis", -1) >= 0:
        return None
    if first.op == "MatMul" and any((a.rank or 0) < 2 for p in parts for a in p.args):
        return None
    found = _arguments(terms, parts, depth)
    if found is None:
        return None
    args, behind = found
    term = make(terms, first.op, args, dict(first.attrs))
    split = len(first.shape) - behind
    wanted = (*first.shape[:split], len(parts), *first.shape[split:])
    return Stack(term, behind) if same_shape(term.shape, wanted) else None


def _viewed(terms: Terms, part: Term, inner: Stack) -> Stack | None:
    """The stack of parts that are one Reshape or Transpose of those in `inner`."""
    shape, source = part.shape, part.args[0].shape
    assert shape is not None
    assert source is not None
    if part.op == "Transpose":
        front = _moved(terms, inner, len(source))
        flipped = transpose(terms, front.term, [0, *(i + 1 for i in part.attr("perm"))])
        return _moved(terms, Stack(flipped, len(shape)), inner.behind)
    size = product(source[len(source) - inner.behind :])
    for behind in range(len(shape) + 1):  # where the axes behind are the same elements, the counting axis may stay
        if product(shape[len(shape) - behind :]) == size:
            split = len(shape) - behind
            count = inner.shape[inner.place]
            return Stack(reshape(terms, inner.term, (*shape[:split], count, *shape[split:])), behind)
    front = _moved(terms, inner, len(source))
    return Stack(reshape(terms, front.term, (front.shape[0], *shape)), len(shape))


def _arguments(terms: Terms, parts: Sequence[Term], depth: int) -> tuple[list[Term], int] | None:
    """The arguments of the stack of parts: what all share as it is, of everything else the stack; and how many axes
    are behind the counting one."""
    first = parts[0]
    assert first.shape is not None
    columns = list(zip(*(p.args for p in parts), strict=True))
    if first.op in ("Add", "Mul") and first.dtype in REAL:  # their order says nothing
        shared = [a for a in first.args if all(any(a is b for b in p.args) for p in parts)]
        own = [[a for a in p.args if not any(a is b for b in shared)] for p in parts]
        if any(len(o) != len(own[0]) for o in own):
            return None
        columns = [*((a,) * len(parts) for a in shared), *zip(*own, strict=True)]
    found: list[Term | Stack] = []
    for column in columns:
        if all(a is column[0] for a in column):
            found.append(column[0])
            continue
        stack = _stacked(terms, column, depth - 1)
        if stack is None:
            return None
        found.append(stack)
    own_axes = 2 if first.op == "MatMul" else -first.attr("axis", -1)
    behind = max([own_axes, *(stack.behind for stack in found if isinstance(stack, Stack))])
    if behind > len(first.shape) or all(isinstance(a, Term) for a in found):
        return None
    return [_aligned(terms, a, behind) for a in found], behind


def _aligned(terms: Terms, argument: Term | Stack, behind: int) -> Term:
    """An argument with as many axes behind the counting one as all others."""
    if isinstance(argument, Stack):
        short = behind - (len(argument.shape) - 1)
        if short > 0:
            front = _moved(terms, argument, len(argument.shape) - 1)
            padded = (front.shape[0], *(1,) * short, *front.shape[1:])
            argument = Stack(reshape(terms, front.term, padded), behind)
        return _moved(terms, argument, behind).term
    if argument.rank is None or argument.rank <= behind or argument.op == "Absent":
        return argument
    assert argument.shape is not None
    split = argument.rank - behind
    return reshape(terms, argument, (*argument.shape[:split], 1, *argument.shape[split:]))


def _uncut(terms: Terms, parts: Sequence[Term]) -> Stack | None:
    """Slices of equal length that follow each other; what is cut behind a Transpose is cut before it."""
    x, axis = parts[0].args[0], parts[0].attr("axis")
    starts, stops = [p.attr("start") for p in parts], [p.attr("stop") for p in parts]
    if x.shape is None or not all(isinstance(b, int) and b >= 0 for b in (*starts, *stops)):
        return None
    if any(p.args != (x,) or p.attr("axis") != axis or p.attr("step") != 1 for p in parts) or starts[1:] != stops[:-1]:
        return None
    length = stops[0] - starts[0]
    if any(stop - start != length for start, stop in zip(starts, stops, strict=True)):
        return None
    rank = len(x.shape)
    y, perm = (x.args[0], x.attr("perm")) if x.op == "Transpose" else (x, tuple(range(rank)))
    assert y.shape is not None
    cut = perm[axis]
    run = slice_axis(terms, y, cut, starts[0], stops[-1])
    split = reshape(terms, run, (*y.shape[:cut], len(parts), length, *y.shape[cut + 1 :]))
    order = [i + (i >= cut) for i in perm]  # cut is its length now, the count is before it
    return Stack(transpose(terms, split, [*order[:axis], cut, *order[axis:]]), rank - axis)
