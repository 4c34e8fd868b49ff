"""Which keys a mask lets a query see: recognises masks that are causal, however they are computed.

A *step* is a tensor of at least two axes that has one value where j <= i + offset and another where j > i + offset, for
indices i and j along its last two axes.  A lower triangle is a step; so is the comparison of two ranges, and what any
elementwise op makes of steps with one offset.  Constants are compared element by element; offsets may be symbolic.
Nothing is assumed: what cannot be decided is no step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto

from .fold import evaluate
from .symbolic import Dim, Sym, at_least
from .terms import INTEGER, REAL, Array, Term, static, value_of

NEVER = -1e9
"""What a mask adds at most to a score that it takes away: its exponential vanishes beside that of any other score."""
LARGEST = 1 << 24
"""Constants of more elements are not looked into."""
ELEMENTWISE = frozenset(
    """Where Mul Add Sub Div Neg Not And Or Xor Equal Greater GreaterOrEqual Less LessOrEqual Cast Reciprocal Abs Min
    Max Identity Sign""".split()
)


class Step(NamedTuple):
    """`inside` where j <= i + offset, `outside` elsewhere; offset None: one value everywhere, both are it."""

    offset: Dim | None
    inside: Any
    outside: Any


class Index(NamedTuple):
    """The value at each place is start + its index along an axis, which counts from the end."""

    axis: int
    start: Dim


def is_causal(mask: Term, queries: Dim, keys: Dim, offset: Dim) -> bool:
    """Does the mask, of booleans (True: seen) or added to scores, let query i see exactly the keys j <= i + offset?"""
    dims = mask.shape[-2:] if mask.shape is not None else ()
    if len(dims) < 2 or not (_fills(dims[0], queries) and _fills(dims[1], keys)):
        return False
    step = step_of(mask, {})
    if step is None or step.offset is None or step.offset != offset:
        return False
    if mask.dtype == TensorProto.BOOL:
        return bool(step.inside) and not step.outside
    return mask.dtype in REAL and bool(step.inside == 0) and bool(step.outside <= NEVER)


def _fills(dim: Dim, size: Dim) -> bool:
    """Is the dimension the size, and no 1 that broadcasts?  What is cut to min(n, size) is, in every run that adds."""
    if dim == size:
        return True
    parts = repr(dim)[4:-1].split(",") if repr(dim).startswith("min(") else []
    return repr(size) in parts and all(part == repr(size) or (part.isdigit() and part != "1") for part in parts)


def hides(mask: Term) -> bool:
    """Does an additive step take scores away altogether, by -inf, so that what is added besides makes no difference?"""
    step = step_of(mask, {})
    return step is not None and bool(np.isneginf(step.outside))


def step_of(term: Term, seen: dict[int, Step | None]) -> Step | None:
    """The term as a step, or None."""
    if term.id not in seen:
        seen[term.id] = None
        seen[term.id] = _step(term, seen)
    return seen[term.id]


def _step(term: Term, seen: dict[int, Step | None]) -> Step | None:
    if term.scalar is not None:
        return Step(None, term.scalar, term.scalar)
    if term.constant:
        return _constant(term)
    if term.op in ("Reshape", "Expand", "Slice", "Transpose", "Repeat"):
        return _view(term, seen)
    if term.op == "Trilu":
        return _trilu(term, seen)
    if term.op in ("Greater", "GreaterOrEqual"):
        compared = _compared(term)
        if compared is not None:
            return compared
    return _elementwise(term, seen) if term.op in ELEMENTWISE else None


def _constant(term: Term) -> Step | None:
    dims = static(term.shape)
    if dims is None or len(dims) < 2 or int(np.prod(dims)) > LARGEST or any(d != 1 for d in dims[:-2]) or 0 in dims:
        return None
    array = value_of(term).reshape(dims[-2:])
    inside, outside = array[-1, 0], array[0, -1]
    if (array == inside).all():
        return Step(None, inside, inside)
    keys = np.arange(dims[-1])
    offset = int((array[0] == inside).sum()) - 1
    if offset < 0:  # queries before the first that sees a key
        offset = -int((array[:, 0] != inside).sum())
    seen = keys[None, :] <= np.arange(dims[-2])[:, None] + offset
    return Step(offset, inside, outside) if (array == np.where(seen, inside, outside)).all() else None


def _view(term: Term, seen: dict[int, Step | None]) -> Step | None:
    x = term.args[0]
    step = step_of(x, seen) if len(term.args) == 1 else None
    if step is None or step.offset is None or x.shape is None or term.shape is None:
        return step
    rank = len(x.shape)
    if term.op == "Transpose":
        perm = term.attr("perm")
        if perm[-2:] == (rank - 2, rank - 1):
            return step
        turned = perm[-2:] == (rank - 1, rank - 2)
        return Step(-step.offset - 1, step.outside, step.inside) if turned else None
    if term.op == "Slice":
        axis, start = term.attr("axis") - rank, term.attr("start")
        if axis < -2:
            return step
        if term.attr("step") != 1 or not _from_front(start):
            return None
        return step._replace(offset=step.offset + start if axis == -2 else step.offset - start)
    return step if x.shape[-2:] == term.shape[-2:] and term.op != "Repeat" else None


def _from_front(start: Dim) -> bool:
    """Does a Slice's bound count from the front for certain?"""
    return at_least(start, 0)


def _trilu(term: Term, seen: dict[int, Step | None]) -> Step | None:
    x = step_of(term.args[0], seen)
    k: Dim | None = 0
    if len(term.args) > 1 and term.args[1].op != "Absent":
        data = term.args[1].data
        k = data.item() if data is not None and data.size == 1 else None
    if x is None or k is None:
        return None
    upper = term.attr("upper", 1)
    offset = k - 1 if upper else k
    if x.offset is not None and x.offset != offset:
        return None
    zero = np.zeros_like(x.inside)
    return Step(offset, zero, x.outside) if upper else Step(offset, x.inside, zero)


def _compared(term: Term) -> Step | None:
    """Greater or GreaterOrEqual of a range of queries and a range of keys."""
    a, b = index_of(term.args[0]), index_of(term.args[1])
    if a is None or b is None or {a.axis, b.axis} != {-1, -2}:
        return None
    strict = term.op == "Greater"
    if a.axis == -1:  # j + a > i + b: what is later
        return Step(b.start - a.start - (0 if strict else 1), False, True)
    return Step(a.start - b.start - (1 if strict else 0), True, False)


def index_of(term: Term) -> Index | None:
    """The term as an index along its last axis or the one before, or None."""
    if term.shape is None:
        return None
    if term.constant:
        return _constant_index(term)
    x = term.args[0] if term.args else None
    if term.op == "Range":
        start, _, step = (a.data for a in term.args)
        unit = start is not None and step is not None and step.item() == 1
        return Index(-1, start.item()) if unit and start is not None else None
    if x is None or x.shape is None:
        return None
    if term.op in ("Cast", "Identity"):
        return index_of(x)
    if term.op in ("Add", "Sub") and len(term.args) == 2:
        for moved, shift in (term.args, term.args[::-1]):
            by = _whole(shift)
            index = index_of(moved) if by is not None and same_rank(moved, term) else None
            if index is not None and by is not None and (term.op == "Add" or moved is x):
                return Index(index.axis, index.start + (by if term.op == "Add" else -by))
        return None
    index = index_of(x) if len(term.args) == 1 else None
    if index is None:
        return None
    if term.op == "Expand":
        return index
    if term.op == "Slice":
        axis, start = term.attr("axis") - len(x.shape), term.attr("start")
        if axis != index.axis:
            return index
        return Index(axis, index.start + start) if term.attr("step") == 1 and _from_front(start) else None
    if term.op == "Reshape":
        long = [i - len(term.shape) for i, d in enumerate(term.shape) if d != 1]
        length = x.shape[index.axis]
        if len(long) == 1 and long[0] >= -2 and term.shape[long[0]] == length:
            return Index(long[0], index.start)
    return None


def same_rank(a: Term, b: Term) -> bool:
    return a.rank == b.rank


def _whole(term: Term) -> Dim | None:
    """A whole number, which may be symbolic."""
    if term.dtype in INTEGER and term.data is not None and term.data.size == 1:
        item: Dim = term.data.item()
        return item if isinstance(item, Sym) else int(item)
    return int(term.scalar) if term.scalar is not None and float(term.scalar).is_integer() else None


def _constant_index(term: Term) -> Index | None:
    dims = static(term.shape)
    long = [i - len(dims) for i, d in enumerate(dims) if d != 1] if dims is not None else []
    if len(long) != 1 or long[0] < -2:
        return None
    values: Array = value_of(term).ravel()
    if values[0] != int(values[0]) or (values != values[0] + np.arange(values.size)).any():
        return None
    return Index(long[0], int(values[0]))


def _elementwise(term: Term, seen: dict[int, Step | None]) -> Step | None:
    steps = [step_of(a, seen) for a in term.args]
    known: Sequence[Step] = [s for s in steps if s is not None]
    offsets = {s.offset for s in known if s.offset is not None}
    if len(known) < len(steps) or len(offsets) > 1:
        return None
    stepped = [a.shape for a, s in zip(term.args, known, strict=True) if s.offset is not None]
    if term.shape is None or any(shape is None or shape[-2:] != term.shape[-2:] for shape in stepped):
        return None
    try:
        inside, outside = (
            evaluate(term.op, [np.asarray(v) for v in values], dict(term.attrs), term)
            for values in ([s.inside for s in known], [s.outside for s in known])
        )
    except (ValueError, KeyError):
        return None
    return Step(offsets.pop() if offsets else None, inside, outside)
