"""Which keys a mask hides behind the lengths of the sequences of a batch: recognises padding masks, however computed.

A *count* is a tensor of integers that is affine in its coordinates but for one term: a vector of lengths, looked up by
the coordinate along one axis, that the model is given or computes.  A mask compares two counts, or adds 0 and -inf by
such a comparison.  Nothing is assumed: what cannot be decided is no mask of lengths.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from onnx import TensorProto

from onnxfuse.model.dims import Dim, Shape
from onnxfuse.terms.normal.affine import DEPTH, affine, broadcast_steps
from onnxfuse.terms.term import REAL, Term


class Count(NamedTuple):
    """offset + sum of steps[a] * (coordinate along axis a) + sign * lengths[coordinate along `axis`]."""

    offset: Dim
    steps: tuple[Dim, ...]
    sign: int = 0
    lengths: Term | None = None
    axis: int = 0

    def plus(self, number: Dim) -> Count:
        return self._replace(offset=self.offset + number)

    def negative(self) -> Count:
        return self._replace(offset=-self.offset, steps=tuple(-s for s in self.steps), sign=-self.sign)


def lengths_of(mask: Term, batch: Dim, keys: Dim, queries: Dim | None = None) -> Term | None:
    """The lengths, int64 [batch], such that a mask of booleans (True: seen), or of 0 and -inf added to the scores, of
    [batch, heads, queries, keys], lets sequence b see exactly the keys j < lengths[b]; given the `queries`, query i
    exactly the keys j <= i + lengths[b] - queries.  None if there are none."""
    seen = _by_lengths(mask, batch, keys)
    if seen is None or seen.sign != 1 or mask.shape is None:
        return None
    slope = 0 if queries is None or queries == 1 else 1
    if slope and mask.shape[-2] != queries:
        return None
    offset = 0 if queries is None else 1 - queries
    steps = (0, 0, slope, 0 if keys == 1 else -1)
    return seen.lengths if seen.steps == steps and seen.offset == offset else None


def window_of(mask: Term, queries: Dim, keys: Dim, lengths: Term) -> tuple[int, int] | None:
    """(left, right) such that the mask lets query i of sequence b, at p = i + lengths[b] - queries, see exactly the
    keys j >= p - left and j <= p + right; -1 for a side without a bound.  None if there are none."""
    if mask.op == "And":
        parts = [window_of(part, queries, keys, lengths) for part in mask.args if part.shape == mask.shape]
        sides = [part for part in parts if part is not None]
        left, right = ([side[i] for side in sides if side[i] >= 0] for i in (0, 1))
        whole = len(sides) == len(mask.args)  # what is no window hides as well
        return (left[0], right[0]) if whole and len(left) == len(right) == 1 else None
    if mask.op == "Where" and mask.args[0].op == "And" and mask.args[0].shape == mask.shape and _zero_or_inf(mask):
        return window_of(mask.args[0], queries, keys, lengths)
    seen = _by_lengths(mask, lengths.shape[0] if lengths.shape else 0, keys)
    if seen is None or seen.lengths is not lengths or mask.shape is None or mask.shape[-2] != queries:
        return None
    steps = (0, 0, 0 if queries == 1 else seen.sign, 0 if keys == 1 else -seen.sign)
    size = seen.offset - 1 + seen.sign * queries
    if seen.steps != steps or not isinstance(size, int) or size < 0:
        return None
    return (-1, size) if seen.sign == 1 else (size, -1)


def _zero_or_inf(mask: Term) -> bool:
    """Does a choice add 0 where its condition holds, and -inf where it does not?"""
    _, x, y = mask.args
    return x.scalar == 0 and y.scalar is not None and bool(np.isneginf(y.scalar))


def _by_lengths(mask: Term, batch: Dim, keys: Dim) -> Count | None:
    """The count above 0 where the mask of [batch, heads, queries, keys] lets see, if it is by a length per sequence."""
    if mask.shape is None or len(mask.shape) != 4 or mask.shape[0] != batch or mask.shape[-1] != keys:
        return None
    seen = _seen(mask, DEPTH)
    known = seen is not None and seen.lengths is not None and seen.axis == 0 and seen.lengths.shape == (batch,)
    return seen if known else None


def _seen(mask: Term, depth: int) -> Count | None:
    """The count that is above 0 exactly where the mask lets a query see."""
    if not depth or not mask.args:
        return None
    if mask.op in ("Reshape", "Expand") and len(mask.args) == 1:
        return _viewed(_seen(mask.args[0], depth - 1), mask)
    if mask.op == "Not":
        below = _seen(mask.args[0], depth - 1)
        return None if below is None else below.negative().plus(1)
    if mask.op in ("Greater", "GreaterOrEqual"):
        apart = _sum(mask, -1, depth)
        return apart if apart is None or mask.op == "Greater" else apart.plus(1)
    if mask.op != "Where" or mask.dtype not in REAL:
        return None
    condition, x, y = mask.args
    seen = _viewed(_seen(condition, depth - 1), mask)
    if seen is None or x.scalar is None or y.scalar is None:
        return None
    if _zero_or_inf(mask):
        return seen
    return seen.negative().plus(1) if y.scalar == 0 and np.isneginf(x.scalar) else None


def _count(term: Term, depth: int) -> Count | None:
    """The term as a count."""
    known = affine(term)
    if known is not None:
        return Count(known.offset, known.steps)
    if term.shape is None or not depth:
        return None
    if term.op in ("Reshape", "Expand") and len(term.args) == 1:
        return _viewed(_count(term.args[0], depth - 1), term)
    if term.op == "Neg":
        count = _count(term.args[0], depth - 1)
        return None if count is None else count.negative()
    if term.op in ("Add", "Sub") and len(term.args) == 2:
        total = _sum(term, 1 if term.op == "Add" else -1, depth)
        if total is not None:
            return total
    return Count(0, (0,), 1, term) if len(term.shape) == 1 and term.dtype == TensorProto.INT64 else None


def _sum(term: Term, sign: int, depth: int) -> Count | None:
    """The first argument plus or minus the second."""
    a, b = (_viewed(_count(x, depth - 1), term, x.shape) for x in term.args)
    if a is None or b is None or (a.lengths is not None and b.lengths is not None):
        return None
    b = b if sign > 0 else b.negative()
    _, _, turn, lengths, axis = a if a.lengths is not None else b
    return Count(a.offset + b.offset, tuple(p + q for p, q in zip(a.steps, b.steps, strict=True)), turn, lengths, axis)


def _viewed(count: Count | None, term: Term, source: Shape | None = None) -> Count | None:
    """The count in the shape of a term that broadcasts it from `source`, or views it: only axes of 1 come and go."""
    source = source if source is not None or not term.args else term.args[0].shape
    shape = term.shape
    if count is None or source is None or shape is None:
        return None
    if term.op == "Reshape" and len(term.args) == 1:
        kept, placed = ([i for i, d in enumerate(s) if d != 1] for s in (source, shape))
        if [source[i] for i in kept] != [shape[i] for i in placed]:
            return None
        steps = dict(zip(placed, (count.steps[i] for i in kept), strict=True))
        where = dict(zip(kept, placed, strict=True)).get(count.axis, 0)
        return count._replace(steps=tuple(steps.get(i, 0) for i in range(len(shape))), axis=where)
    missing = len(shape) - len(source)
    axis = count.axis + missing
    if count.lengths is not None and source[count.axis] != shape[axis]:
        return None
    return count._replace(steps=broadcast_steps(count.steps, source, shape), axis=axis)
