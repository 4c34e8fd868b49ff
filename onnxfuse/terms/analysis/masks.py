"""Which keys a mask lets a query see: recognises masks that are causal, and windows around each query.

A mask is one of booleans (True: seen), or added to scores; its `diagonals` tell what it does, however it is computed.
Nothing is assumed: what cannot be decided is neither.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from onnxfuse.model.dims import Dim, smallest_of
from onnxfuse.terms.fold import value_of
from onnxfuse.terms.normal.table import make
from onnxfuse.terms.term import REAL, Term, Terms, same_shape, static

from .diagonals import LARGEST, Diagonals, diagonals

NEVER = -1e9
"""What a mask adds at most to a score that it takes away: its exponential vanishes beside that of any other score."""


def is_causal(mask: Term, queries: Dim, keys: Dim, offset: Dim) -> bool:
    """Does the mask let query i see exactly the keys j <= i + offset?"""
    return _bounds(mask, queries, keys) == (None, offset)


def window(mask: Term, queries: Dim, keys: Dim, offset: Dim) -> tuple[int, int] | None:
    """(left, right) such that the mask lets query i, at p = i + offset, see exactly the keys j from p - left to
    p + right, -1 for a side without a bound; None if there are none."""
    bounds = _bounds(mask, queries, keys)
    if bounds is None:
        return None
    before, last = bounds
    left = -1 if before is None else offset - before - 1
    right = -1 if last is None else last - offset
    if not isinstance(left, int) or not isinstance(right, int):
        return None
    bounded = [size for size, bound in ((left, before), (right, last)) if bound is not None]
    return (left, right) if min(bounded, default=-1) >= 0 else None


def _bounds(mask: Term, queries: Dim, keys: Dim) -> tuple[Dim | None, Dim | None] | None:
    """(b, c) such that the mask lets query i see exactly the keys b < j - i <= c, None for no such bound."""
    dims = (1, *mask.shape)[-2:] if mask.shape else ()
    if len(dims) < 2 or not (_fills(dims[0], queries) and _fills(dims[1], keys)):
        return None
    known = diagonals(mask)
    sees = () if known is None else tuple(_sees(mask, float(value)) for value in known.values)
    if known is None or None in sees:
        return None
    breaks, sees = Diagonals(known.breaks, sees).joined()
    match sees:
        case (True, False):
            return None, breaks[0]
        case (False, True):
            return breaks[0], None
        case (False, True, False):
            return breaks[0], breaks[1]
    return None


def _sees(mask: Term, value: float) -> bool | None:
    """Does a query see a key where the mask has this value?  None if it sees it less well."""
    if mask.dtype == TensorProto.BOOL:
        return bool(value)
    if mask.dtype not in REAL or not (value == 0 or value <= NEVER):
        return None
    return bool(value == 0)


def _fills(dim: Dim, size: Dim) -> bool:
    """Is the dimension the size, and no 1 that broadcasts?  What is cut to min(n, size) is, in every run that adds."""
    parts = smallest_of(dim)
    return dim == size or (size in parts and all(p == size or (isinstance(p, int) and p != 1) for p in parts))


def hides(mask: Term) -> bool:
    """Does an additive mask of diagonals take scores away altogether, by -inf, so that what is added besides makes no
    difference?"""
    known = diagonals(mask)
    return known is not None and all(v == 0 or np.isneginf(v) for v in known.values) and bool(known.breaks)


def apart(terms: Terms, mask: Term) -> tuple[Term, Term] | None:
    """A mask of booleans as two, both of which must let a query see: one of diagonals, and the rest."""
    diagonal, rest = list[Term](), list[Term]()
    for part in _conjuncts(mask):
        (rest if diagonals(part) is None else diagonal).append(part)
    return (_both(terms, diagonal), _both(terms, rest)) if diagonal and rest else None


def _conjuncts(mask: Term) -> list[Term]:
    return [c for a in mask.args for c in _conjuncts(a)] if mask.op == "And" else [mask]


def _both(terms: Terms, parts: list[Term]) -> Term:
    first, *others = parts
    return make(terms, "And", [first, _both(terms, others)], {}) if others else first


def blended(keep: Term, fill: Term) -> float | None:
    """The number that `fill` is where `keep` is 0, if it is 0 where that is 1, and `keep` nothing else; or None."""
    if keep.constant and fill.constant:
        return _blended_constants(keep, fill)
    kept, filled = diagonals(keep), diagonals(fill)
    source, view = (keep.args[0], keep) if keep.op == "Reshape" and len(keep.args) == 1 else (keep, None)
    choice = _choice(source)
    if choice is not None:
        condition, truth = choice
        values = [_substituted(fill, condition, value, view) for value in (truth, not truth)]
    elif kept is not None and filled is not None and kept.breaks == filled.breaks and len(kept.breaks) == 1:
        if kept.values[0] not in (0, 1) or kept.values[1] != 1 - kept.values[0]:
            return None
        values = [*filled.values] if kept.values[0] else [*filled.values[::-1]]
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


def _choice(keep: Term) -> tuple[Term, bool] | None:
    """(condition, t) of what is 1 where the condition is t, and 0 elsewhere."""
    if keep.op == "Where" and (keep.args[1].scalar, keep.args[2].scalar) in ((1, 0), (0, 1)):
        condition, truth = keep.args[0], keep.args[1].scalar == 1
    elif keep.op == "Cast" and keep.args[0].dtype == TensorProto.BOOL:
        condition, truth = keep.args[0], True
    else:
        return None
    return (condition.args[0], not truth) if condition.op == "Not" else (condition, truth)


def _substituted(term: Term, condition: Term, truth: bool, view: Term | None = None) -> float | None:
    """The number that an elementwise expression of one condition is where that holds, or where it does not.  With a
    `view`, of the condition as it is seen there."""
    if view is not None and term.op == "Reshape" and term.attrs == view.attrs and len(term.args) == 1:
        same = same_shape(term.args[0].shape, view.args[0].shape)
        return _substituted(term.args[0], condition, truth) if same else None
    if term is condition and view is None:
        return float(truth)
    if term.scalar is not None:
        return term.scalar
    if term.op == "Where":
        chosen = _substituted(term.args[0], condition, truth, view)
        return None if chosen is None else _substituted(term.args[1 if chosen else 2], condition, truth, view)
    if term.op in ("Cast", "Not") and term.args[0].dtype == TensorProto.BOOL:
        inner = _substituted(term.args[0], condition, truth, view)
        return 1 - inner if inner is not None and term.op == "Not" else inner
    if term.op not in ("Add", "Mul"):
        return None
    parts = [_substituted(a, condition, truth, view) for a in term.args]
    numbers = [p for p in parts if p is not None]
    if len(numbers) < len(parts):
        return None
    return float(np.sum(numbers) if term.op == "Add" else np.prod(numbers))
