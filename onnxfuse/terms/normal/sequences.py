"""Normal form of sequences whose elements are known: what is taken out of one is what was put in.

A sequence that is made element by element is SequenceConstruct, one that a tensor is split into parts of known lengths
are its Slices, and what reads such a sequence is a tensor, a Concat, or a number.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from onnxfuse.model.dims import Dim
from onnxfuse.terms.fold import value_of
from onnxfuse.terms.term import Term

from .table import Applied, law, make
from .views import reshape, slice_axis

LONGEST = 256
"""Parts of one length beyond which a sequence is not written out."""


@law("SequenceInsert", "SequenceInsert(SequenceConstruct(x, y), a) = SequenceConstruct(x, y, a)")
def _inserted(a: Applied) -> Term | None:
    found = _elements(a.args[0])
    if found is None:
        return None
    place = _place(a.args[2], len(found) + 1) if len(a.args) > 2 else len(found)
    if place is None:
        return None
    return make(a.terms, "SequenceConstruct", [*found[:place], a.args[1], *found[place:]], {}, None, a.dtype)


@law("SplitToSequence", "SequenceAt(SplitToSequence(x, (2, 2), axis=2), 1) = Slice(x, (2,), (4,), (2,))")
def _split(a: Applied) -> Term | None:
    x, whole = a.args[0], a.args[0].shape
    axis = a.attrs.get("axis", 0)
    if whole is None or not -len(whole) <= axis < len(whole):
        return None
    axis %= len(whole)
    sizes = _sizes(a, whole[axis])
    if sizes is None:
        return None
    parts, start = list[Term](), 0
    for size in sizes:
        part = slice_axis(a.terms, x, axis, start, start + size)
        bare = len(a.args) == 1 and not a.attrs.get("keepdims", 1)
        parts.append(reshape(a.terms, part, whole[:axis] + whole[axis + 1 :]) if bare else part)
        start += size
    return make(a.terms, "SequenceConstruct", parts, {}, None, a.dtype)


@law("SequenceAt", "SequenceAt(SequenceConstruct(x, y), -1) = y")
def _taken(a: Applied) -> Term | None:
    found = _elements(a.args[0]) or []
    place = _place(a.args[1], len(found))
    return None if place is None else found[place]


@law("ConcatFromSequence", "ConcatFromSequence(SequenceConstruct(x, y), axis=1) = Concat(x, y, axis=1)")
def _joined(a: Applied) -> Term | None:
    found, axis = _elements(a.args[0]), a.attrs["axis"]
    if not found:
        return None
    if a.attrs.get("new_axis", 0):
        found = [make(a.terms, "Unsqueeze", [x], {"axes": (axis,)}) for x in found]
    return make(a.terms, "Concat", found, {"axis": axis})


@law("SequenceLength", "Reshape(SequenceLength(SequenceConstruct(x, y)), (1,)) = (2,)")
def _length(a: Applied) -> Term | None:
    found = _elements(a.args[0])
    return None if found is None else a.terms.constant(np.array(len(found), np.int64), TensorProto.INT64)


def _elements(sequence: Term) -> list[Term] | None:
    """The elements of a sequence, if they are known one by one."""
    if sequence.op == "SequenceEmpty":
        return []
    return list(sequence.args) if sequence.op == "SequenceConstruct" else None


def _place(index: Term, count: int) -> int | None:
    """A known index, counted from the end where it is negative; None if it is none of so many."""
    if index.scalar is None or not -count <= index.scalar < count:
        return None
    return int(index.scalar) % count


def _sizes(a: Applied, whole: Dim) -> list[int] | None:
    """The lengths of the parts into which a tensor of `whole` along the axis is split, if they are known."""
    split = a.args[1] if len(a.args) > 1 else None
    if split is not None and (split.op != "Constant" or split.shape is None):
        return None
    if split is None or split.shape == ():
        each = 1 if split is None else int(value_of(split))
        if not isinstance(whole, int) or not 0 < whole <= each * LONGEST:
            return None
        return [min(each, whole - start) for start in range(0, whole, each)]
    sizes = [int(size) for size in value_of(split)]
    return sizes if min(sizes, default=-1) >= 0 and sum(sizes) == whole else None
