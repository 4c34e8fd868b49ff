"""Normal form of what is written into a part of a tensor: where that is the part and something more, a sum.

    ScatterND       x[..., 1:, 1:] += u, which exporters write as a ScatterND of x[..., 1:, 1:] + u by a mesh of runs,
                    is x + Pad(u); of x[..., 1:, 1:] alone, which torch writes back behind every such sum, x
    Concat          of the parts of x, some of them with something more, is x and these between zeros
    parts           that are written over stand between what is left
    zeros           into which u is written or added, are Pad(u)
    loops           what is written to all of an axis, part by part, is the Concat of the parts

So decomposed relative positions, which vision transformers add to all scores but those of the class token, are a bias
like any other, and the gradient of a part is one of the whole.  Only for indices that are runs (`gather.affine`), each
along an axis of its own: those name no element twice, and none that is not there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from onnxfuse.model.dims import Dim, at_least, product
from onnxfuse.terms.term import REAL, Term, Terms, same_shape

from .affine import affine
from .axes import moves_ones
from .gather import runs
from .ranges import every
from .sums import combine
from .table import Applied, hoisted, law, make, scaled
from .views import expand, reshape, slice_axis, transpose

MANY = 16
"""Parts at most of what one more part is written over."""


@law(
    "ScatterND",
    "ScatterND(T(z), (((1, 0), (1, 1)), ((2, 0), (2, 1))),"
    " Slice(Slice(T(z), (1,), (3,), (0,)), (0,), (2,), (1,)) + Slice(row, (0,), (2,), (1,)))"
    " = T(z) + Pad(Expand(Slice(row, (0,), (2,), (1,)), (2, 2)), (1, 0, 1, 2))",
)
def _scattered(a: Applied) -> Term | None:
    """Of a tensor and of what is written there, as they are, or as that was before it was transposed."""
    terms, (x, index, y) = a.terms, a.args
    if a.attrs.get("reduction", "none") != "none" or x.shape is None or y.shape is None:
        return None
    box = _box(index, x, y)
    if box is None:
        return None
    y = reshape(terms, y, tuple(n for _, n in box))
    turned = _turned(x)
    total = _written(terms, x, y, box)
    if total is not None:
        return total
    if turned is None:
        return _without_ones(terms, x, y, box)
    order = turned.attr("perm")
    back = [order.index(axis) for axis in range(len(box))]
    total = _written(terms, transpose(terms, x, back), transpose(terms, y, back), [box[axis] for axis in back])
    return None if total is None else transpose(terms, total, order)


def _without_ones(terms: Terms, x: Term, y: Term, box: Sequence[tuple[Dim, Dim]]) -> Term | None:
    """Of what a view has dims of 1 elsewhere: a Transpose that moves those of one picture and one head."""
    inner, factor = hoisted(x)
    dims = inner.args[0].shape if inner.op == "Reshape" and len(inner.args) == 1 and moves_ones(inner) else None
    if dims is None or x.shape is None:
        return None
    runs_of = [run for run, d in zip(box, x.shape, strict=True) if d != 1]
    if any(run != (0, 1) for run, d in zip(box, x.shape, strict=True) if d == 1):
        return None
    left = iter(runs_of)
    within = [(0, 1) if d == 1 else next(left) for d in dims]
    whole = scaled(terms, inner.args[0], factor)
    total = _written(terms, whole, reshape(terms, y, tuple(n for _, n in within)), within)
    return None if total is None else reshape(terms, total, x.shape)


law(
    "ScatterND",
    "ScatterND(T(z), (((1, 0), (1, 1)), ((2, 0), (2, 1))), Slice(Slice(T(z), (1,), (3,), (0,)), (0,), (2,), (1,)))"
    " = T(z)",
)(_scattered)
law(
    "ScatterND",
    "ScatterND(Reshape(row, (4, 1)), ((1,), (2,)), "
    "Reshape(Slice(row, (1,), (3,), (1,)) + Slice(ones, (0,), (2,), (0,)), (2, 1)))"
    " = Reshape(row + Pad(Slice(ones, (0,), (2,), (0,)), (1, 1)), (4, 1))",
)(_scattered)


def _box(index: Term, x: Term, y: Term) -> list[tuple[Dim, Dim]] | None:
    """Which part of x these indices name, if y has so many elements: (start, count) along each axis."""
    if x.shape is None or y.shape is None:
        return None
    found = runs(index, x.shape)
    if found is None or not all(at_least(start, 0) and at_least(d, start + n) for (start, n), d in found):
        return None
    box = [*(run for run, _ in found), *((0, d) for d in x.shape[len(found) :])]
    return box if product(y.shape) == product(n for _, n in box) else None


@law(
    "ScatterND",
    "ScatterND(Expand(zero, (4, 4)), ((1,), (2,)), Slice(z, (0,), (2,), (0,)))"
    " = Pad(Slice(z, (0,), (2,), (0,)), (1, 0, 1, 0))",
)
def _into_zeros(a: Applied) -> Term | None:
    """Of what is written, as it is, or as it was before it was transposed."""
    terms, (x, index, y) = a.terms, a.args
    if not a.real or a.attrs.get("reduction", "none") not in ("none", "add"):
        return None
    box = _box(index, x, y)
    if box is None or x.shape is None or not every(x, 0):
        return None
    y, factor = hoisted(reshape(terms, y, tuple(n for _, n in box)))
    if not math.isfinite(factor):  # times a zero that is put around, it is no number
        return None
    around = [(start, d - start - n) for (start, n), d in zip(box, x.shape, strict=True)]
    if not all(isinstance(p, int) for pads in around for p in pads):
        return None
    turned = _turned(y)
    order = list(range(len(around)) if turned is None else turned.attr("perm"))
    back = [order.index(axis) for axis in range(len(order))]
    inner = transpose(terms, y, back)
    if inner.shape is None:
        return None
    whole = _padded(terms, inner, inner.shape, [around[axis] for axis in back])
    return scaled(terms, transpose(terms, whole, order), factor)


@law(
    "ScatterND",
    "ScatterND(Expand(zero, (4, 4)), ((1,), (3,)), Slice(z, (0,), (2,), (0,)))"
    " = Reshape(Pad(Reshape(Slice(z, (0,), (2,), (0,)), (2, 1, 4)), (0, 1, 0, 0, 0, 0)), (4, 4))",
)
def _every_other(a: Applied) -> Term | None:
    """Of what is written to every second place of an axis, or every third: one of two that lie side by side."""
    terms, (x, index, y) = a.terms, a.args
    places = affine(index) if a.real and a.attrs.get("reduction", "none") in ("none", "add") else None
    if places is None or x.shape is None or index.shape is None or len(index.shape) != 2 or index.shape[1] != 1:
        return None
    count, step, offset = index.shape[0], places.steps[0], places.offset
    if not (isinstance(count, int) and isinstance(step, int) and isinstance(offset, int)) or step < 2:
        return None
    if not 0 <= offset < step:
        return None
    if x.shape[0] != count * step or not same_shape(y.shape, (count, *x.shape[1:])) or not every(x, 0):
        return None
    y, factor = hoisted(y)
    turned = _turned(y)
    order = list(range(len(x.shape)) if turned is None else turned.attr("perm"))
    inner, axis = transpose(terms, y, [order.index(k) for k in range(len(order))]), order[0] + 1
    if inner.shape is None or not math.isfinite(factor):
        return None
    apart = (*inner.shape[:axis], 1, *inner.shape[axis:])
    around = [(0, 0)] * len(apart)
    around[axis] = (offset, step - 1 - offset)
    pairs = _padded(terms, reshape(terms, inner, apart), apart, around)
    whole = (*inner.shape[: axis - 1], count * step, *inner.shape[axis:])
    return scaled(terms, transpose(terms, reshape(terms, pairs, whole), order), factor)


@law(
    "ScatterND",
    "ScatterND(ScatterND(Expand(zero, (2, 4)), ((0,),), Slice(z, (1,), (2,), (0,))), ((1,),),"
    " Slice(z, (3,), (4,), (0,))) = Concat(Slice(z, (1,), (2,), (0,)), Slice(z, (3,), (4,), (0,)), axis=0)",
)
def _written_throughout(a: Applied) -> Term | None:
    """Of what a loop writes part by part to all of an axis (a recurrence, RWKV): nothing is left of what it was written
    into.  Asked where the first or the last part is written, or each of a long loop would look at all before."""
    run = _Run.of(a.terms, *a.args) if a.attrs.get("reduction", "none") == "none" else None
    if run is None or not isinstance(run.dim, int) or not (run.start == 0 or run.start + run.length == run.dim):
        return None
    found, below, left = {run.start: run}, a.args[0], run.dim - run.length
    while left > 0:
        former = _part_below(a.terms, below, run)
        if former is None or former.axis != run.axis or any(former.meets(other) for other in found.values()):
            return None
        found[former.start], left, below = former, left - former.length, below.args[0]
    return make(a.terms, "Concat", [found[start].part for start in sorted(found)], {"axis": run.axis})


@law(
    "ScatterND",
    "ScatterND(z, ((1,), (2,)), Slice(T(z), (0,), (2,), (0,)))"
    " = Concat(Slice(z, (0,), (1,), (0,)), Slice(T(z), (0,), (2,), (0,)), Slice(z, (3,), (4,), (0,)), axis=0)",
)
def _replaced(a: Applied) -> Term | None:
    """Of what is written over a part along one axis, between what is left (boxes in place, rotations of a part)."""
    x = a.args[0]
    if a.attrs.get("reduction", "none") != "none" or x.op in ("ScatterND", "Pad") or x.data is not None or every(x, 0):
        return None
    box = _box(a.args[1], x, a.args[2])
    if box is None or x.shape is None or (x.op == "Concat" and len(x.args) > MANY):
        return None
    parts = [(axis, *run) for axis, (run, d) in enumerate(zip(box, x.shape, strict=True)) if run != (0, d)]
    if len(parts) != 1:
        return None
    axis, start, count = parts[0]
    part = reshape(a.terms, a.args[2], tuple(n for _, n in box))
    before = _pieces(a.terms, x, axis, 0, start)
    behind = _pieces(a.terms, x, axis, start + count, x.shape[axis])
    return make(a.terms, "Concat", [*before, part, *behind], {"axis": axis})


def _pieces(terms: Terms, x: Term, axis: int, start: Dim, stop: Dim) -> list[Term]:
    """What x has there along an axis, of a Concat its parts."""
    assert x.shape is not None
    if start == stop:
        return []
    parts = x.args if x.op == "Concat" and x.attr("axis") == axis - len(x.shape) else ()
    counts = [part.shape[axis] if part.shape is not None else None for part in parts]
    known = [n for n in (start, stop, *counts) if isinstance(n, int)]
    if not parts or len(known) < len(parts) + 2:
        return [slice_axis(terms, x, axis, start, stop)]
    (low, high, *lengths), found = known, list[Term]()
    for part, length in zip(parts, lengths, strict=True):
        if max(low, 0) < min(high, length):
            found.append(slice_axis(terms, part, axis, max(low, 0), min(high, length)))
        low, high = low - length, high - length
    return found


class _Run(NamedTuple):
    """A part along one axis, of what has so many there."""

    axis: int
    start: int
    length: int
    dim: Dim
    part: Term

    @staticmethod
    def of(terms: Terms, x: Term, index: Term, y: Term) -> _Run | None:
        """What a ScatterND writes, if that is all of a run along an axis."""
        box = _box(index, x, y)
        if box is None or x.shape is None:
            return None
        parts = [(axis, *run) for axis, (run, d) in enumerate(zip(box, x.shape, strict=True)) if run != (0, d)]
        axis, start, count = parts[0] if len(parts) == 1 else (0, 0, 0)
        if not isinstance(start, int) or not isinstance(count, int) or not count:
            return None
        return _Run(axis, start, count, x.shape[axis], reshape(terms, y, tuple(n for _, n in box)))

    def meets(self, other: _Run) -> bool:
        return self.start < other.start + other.length and other.start < self.start + self.length


def _part_below(terms: Terms, x: Term, run: _Run) -> _Run | None:
    """What was written before, or is between zeros."""
    if x.op == "ScatterND" and dict(x.attrs).get("reduction", "none") == "none":
        return _Run.of(terms, *x.args)
    pads = x.args[1].data if x.op == "Pad" and len(x.args) > 1 else None
    if pads is None or x.shape is None or any(p != 0 for p in np.delete(pads, (run.axis, run.axis + len(x.shape)))):
        return None
    part, around = x.args[0], [pads[run.axis], pads[run.axis + len(x.shape)]]
    count = part.shape[run.axis] if part.shape is not None else None
    if not (isinstance(count, int) and count and all(isinstance(p, int | np.integer) and p >= 0 for p in around)):
        return None
    return _Run(run.axis, int(around[0]), count, run.dim, part)


def _turned(x: Term) -> Term | None:
    """The Transpose that x, or what x is a slice of, is."""
    x, _ = hoisted(x)
    while x.op == "Slice" and len(x.args) == 1:
        x = x.args[0]
    return x if x.op == "Transpose" else None


def _written(terms: Terms, x: Term, y: Term, box: Sequence[tuple[Dim, Dim]]) -> Term | None:
    """x, in a box of which, (start, count) along each axis, is y instead: x if y is what x has there, or was written
    there before, and if it is that and something more, the sum of x and this."""
    if _alike(_boxed(terms, x, box), y):
        return x
    added = _added(terms, x, y, box)
    if added is not None:
        return combine(terms, "Add", [x, added])
    before = x.args if x.op == "Add" else ()
    for i, padded in enumerate(before):
        if padded.op == "Pad":
            rest = [operand for j, operand in enumerate(before) if j != i]
            if _added(terms, rest[0] if len(rest) == 1 else combine(terms, "Add", rest), y, box) is padded:
                return x
    return None


def _boxed(terms: Terms, x: Term, box: Sequence[tuple[Dim, Dim]]) -> Term:
    """What x has in a box."""
    for axis, (start, count) in enumerate(box):
        x = slice_axis(terms, x, axis, start, start + count)
    return x


def _added(terms: Terms, x: Term, y: Term, box: Sequence[tuple[Dim, Dim]]) -> Term | None:
    """What y has more than x in a box, between zeros; None if y is no such sum."""
    part = _boxed(terms, x, box)
    more = _more(terms, part, y) if x.dtype in REAL and same_shape(part.shape, y.shape) else None
    if more is None or x.shape is None or y.shape is None:
        return None
    around = [(start, d - start - n) for (start, n), d in zip(box, x.shape, strict=True)]
    return _padded(terms, more, y.shape, around)


def _alike(x: Term, y: Term) -> bool:
    """Are two terms one, but for that a value which several nodes use is closed?"""
    return x is y or (x.op in ("Add", "Mul") and (x.op, x.args, x.shape, x.dtype) == (y.op, y.args, y.shape, y.dtype))


@law(
    "Concat",
    "Concat(Slice(x, (0,), (1,), (3,)), Slice(x, (1,), (4,), (3,)) + Slice(y, (0,), (3,), (3,)), axis=3)"
    " = x + Pad(Slice(y, (0,), (3,), (3,)), (0, 0, 0, 1, 0, 0, 0, 0))",
)
def _stacked(a: Applied) -> Term | None:
    if not a.real or a.shape is None or len(a.args) < 2:
        return None
    axis = a.attrs["axis"] % len(a.shape)
    for x in _sliced(a.args, axis):
        if same_shape(x.shape, a.shape):
            total = _sum(a.terms, x, a.args, axis)
            if total is not None:
                return total
    return None


def _sliced(parts: Sequence[Term], axis: int) -> list[Term]:
    """The tensors of which parts along this axis are slices, as they are or in a sum."""
    found: dict[int, Term] = {}
    for part in parts:
        for operand in (part, *(part.args if part.op == "Add" else ())):
            x, _ = hoisted(operand)
            if x.op == "Slice" and len(x.args) == 1 and x.attr("axis") == axis:
                found[x.args[0].id] = x.args[0]
    return list(found.values())


def _sum(terms: Terms, x: Term, parts: Sequence[Term], axis: int) -> Term | None:
    """x and what its parts have more, or None where these are not its parts, one after the other."""
    assert x.shape is not None
    factors = {factor for part in parts for factor in _factors(part, x)}
    if len(factors) != 1:
        return None
    whole = scaled(terms, x, factors.pop())
    start: Dim = 0
    total = [whole]
    for part in parts:
        if part.shape is None:
            return None
        count = part.shape[axis]
        own = slice_axis(terms, whole, axis, start, start + count)
        if part is not own:
            more, behind = _more(terms, own, part), x.shape[axis] - start - count
            if more is None or not isinstance(start, int) or not isinstance(behind, int):
                return None  # before opset 11 a Pad takes numbers alone
            around: list[tuple[Dim, Dim]] = [(0, 0)] * len(x.shape)
            around[axis] = (start, behind)
            total.append(_padded(terms, more, part.shape, around))
        start = start + count
    return combine(terms, "Add", total) if len(total) > 1 else None


def _factors(part: Term, x: Term) -> set[float]:
    """What slices of x are multiplied by in a part."""
    operands = (part, *(part.args if part.op == "Add" else ()))
    split = [hoisted(operand) for operand in operands]
    return {factor for base, factor in split if base.op == "Slice" and base.args == (x,)}


def _more(terms: Terms, part: Term, total: Term) -> Term | None:
    """u of part + u, also if they were added in another shape; None if it is no such sum."""
    assert part.shape is not None
    inner = total.args[0] if total.op == "Reshape" and len(total.args) == 1 else total
    if inner.op != "Add" or inner.shape is None:
        return None
    own = reshape(terms, part, inner.shape)
    rest = [operand for operand in inner.args if not _alike(operand, own)]
    if len(rest) != len(inner.args) - 1:
        return None
    more = rest[0] if len(rest) == 1 else combine(terms, "Add", rest)
    return more if inner is total else reshape(terms, expand(terms, more, inner.shape), part.shape)


def _padded(terms: Terms, x: Term, shape: Sequence[Dim], around: Sequence[tuple[Dim, Dim]]) -> Term:
    """x, which broadcasts to this shape, with so many zeros before and behind each of its axes."""
    assert x.shape is not None
    padded = [axis for axis, pads in enumerate(around) if pads != (0, 0)]
    missing = len(shape) - len(x.shape)
    wide = list(x.shape)
    for axis in padded:
        if axis < missing:
            wide, missing = [*shape[axis:missing], *wide], axis
        wide[axis - missing] = shape[axis]
    x = expand(terms, x, tuple(wide))
    pads = [around[axis][side] for side in (0, 1) for axis in range(missing, len(shape))]
    data = np.array(pads, object)
    return make(terms, "Pad", [x, terms.integers(data)], {}) if padded else x
