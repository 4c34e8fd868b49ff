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
from .indexing import affine, broadcast_steps
from .symbolic import Dim, at_least
from .terms import REAL, Term, static, value_of

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
    sides = [affine(a) for a in term.args]
    if term.shape is None or len(term.shape) < 2 or None in sides:
        return None
    a, b = (
        broadcast_steps(s.steps, t.shape, term.shape) for s, t in zip(sides, term.args, strict=True) if s is not None
    )
    apart = tuple(p - q for p, q in zip(a, b, strict=True))
    offset = sides[0].offset - sides[1].offset if sides[0] is not None and sides[1] is not None else 0
    if any(apart[:-2]) or (1 in term.shape[-2:]):
        return None
    strict = term.op == "Greater"
    if apart[-2:] == (-1, 1):  # j + offset > i: what is later
        return Step(-offset - (0 if strict else 1), False, True)
    return Step(offset - (1 if strict else 0), True, False) if apart[-2:] == (1, -1) else None


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


def blended(keep: Term, fill: Term) -> float | None:
    """The number that `fill` is where `keep` is 0, if it is 0 where that is 1, and `keep` nothing else; or None."""
    if keep.constant and fill.constant:
        return _blended_constants(keep, fill)
    step = step_of(keep, {})
    if keep.op == "Cast" and keep.args[0].dtype == TensorProto.BOOL:
        values = [_substituted(fill, keep, value) for value in (1.0, 0.0)]
    elif step is not None and step.offset is not None and step.inside in (0, 1) and step.outside == 1 - step.inside:
        other = step_of(fill, {})
        if other is None or other.offset != step.offset:
            return None
        values = [other.inside, other.outside] if step.inside else [other.outside, other.inside]
    else:
        return None
    return None if values[1] is None or values[0] != 0 else float(values[1])


def _blended_constants(keep: Term, fill: Term) -> float | None:
    dims = [static(t.shape) for t in (keep, fill)]
    if any(d is None or int(np.prod(d)) > LARGEST for d in dims):
        return None
    kept, filled = value_of(keep), value_of(fill)
    if not np.isin(kept, (0, 1)).all() or (kept != 0).all():
        return None
    low = float(np.broadcast_to(filled, np.broadcast_shapes(kept.shape, filled.shape)).min())
    return low if np.array_equal(filled, np.where(kept != 0, 0, low)) else None


def _substituted(term: Term, variable: Term, value: float) -> float | None:
    """The number that an elementwise expression of one tensor is where that has this value."""
    if term is variable:
        return value
    if term.scalar is not None:
        return term.scalar
    if term.op not in ("Add", "Mul"):
        return None
    parts = [_substituted(a, variable, value) for a in term.args]
    numbers = [p for p in parts if p is not None]
    if len(numbers) < len(parts):
        return None
    return float(np.sum(numbers) if term.op == "Add" else np.prod(numbers))
