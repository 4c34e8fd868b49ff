"""What a tensor is along its diagonals: recognises masks of the past, of the future and of windows, however computed.

A tensor is *diagonal* if its value depends on nothing but j - i, for indices i and j along its last two axes; a vector
is a row, whose i is 0.  A lower triangle is; so is the comparison of two ranges, and what any elementwise op makes of
such tensors.  Constants are compared element by element; where a value ends may be symbolic.  Nothing is assumed: what
cannot be decided is not diagonal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from onnxfuse.model.dims import Dim, at_least
from onnxfuse.model.op_traits import ELEMENTWISE, FOLDABLE
from onnxfuse.terms.fold import decided, evaluate
from onnxfuse.terms.normal.affine import affine, broadcast_steps
from onnxfuse.terms.term import Array, Term, static

LARGEST = 1 << 24
"""Constants of more elements are not looked into."""
MOST = 8
"""Values of a diagonal tensor; one of more (a bias by distance) is no mask."""
EVALUATED = ELEMENTWISE & FOLDABLE


class Diagonals(NamedTuple):
    """`values[k]` where breaks[k - 1] < j - i <= breaks[k]; no break: one value everywhere."""

    breaks: tuple[Dim, ...]
    values: tuple[Any, ...]

    def joined(self) -> Diagonals:
        """Without breaks between equal values."""
        kept = [k for k in range(len(self.breaks)) if self.values[k] != self.values[k + 1]]
        return Diagonals(tuple(self.breaks[k] for k in kept), (*(self.values[k] for k in kept), self.values[-1]))

    def shifted(self, by: Dim) -> Diagonals:
        return self._replace(breaks=tuple(b + by for b in self.breaks))


def diagonals(term: Term, seen: dict[int, Diagonals | None] | None = None) -> Diagonals | None:
    """The term by its diagonals, or None; `seen` holds what is known already."""
    seen = {} if seen is None else seen
    if term.id not in seen:
        seen[term.id] = None
        seen[term.id] = _diagonals(term, seen)
    return seen[term.id]


def _diagonals(term: Term, seen: dict[int, Diagonals | None]) -> Diagonals | None:
    if term.scalar is not None:
        return Diagonals((), (term.scalar,))
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
    return _elementwise(term, seen) if term.op in EVALUATED else None


def _constant(term: Term) -> Diagonals | None:
    dims = static(term.shape)
    if not dims or int(np.prod(dims)) > LARGEST or 0 in dims:
        return None
    return decided(term, _of_elements)


def _of_elements(values: Array) -> Diagonals | None:
    matrices = values.reshape((-1, *(1, *values.shape)[-2:]))
    array = matrices[0]
    if (matrices[1:] != array).any():  # all heads see the same
        return None
    queries, keys = array.shape  # a vector is a single row
    values = np.concatenate([array[::-1, 0], array[0, 1:]])  # by j - i, from 1 - queries on
    changes = np.flatnonzero(values[1:] != values[:-1])
    rows = np.lib.stride_tricks.sliding_window_view(values, keys)
    if len(changes) >= MOST or not (array[::-1] == rows).all():
        return None
    breaks = tuple(int(c) + 1 - queries for c in changes)
    return Diagonals(breaks, (*(values[c] for c in changes), values[-1]))


def _view(term: Term, seen: dict[int, Diagonals | None]) -> Diagonals | None:
    x = term.args[0]
    own = diagonals(x, seen) if len(term.args) == 1 else None
    if own is None or not own.breaks or x.shape is None or term.shape is None:
        return own
    rank = len(x.shape)
    if term.op == "Transpose":
        perm = term.attr("perm")
        if perm[-2:] == (rank - 2, rank - 1):
            return own
        turned = perm[-2:] == (rank - 1, rank - 2)
        return Diagonals(tuple(-b - 1 for b in own.breaks[::-1]), own.values[::-1]) if turned else None
    if term.op == "Slice":
        axis, start = term.attr("axis") - rank, term.attr("start")
        if axis < -2:
            return own
        if term.attr("step") != 1 or not at_least(start, 0):  # what counts from the end may do so anywhere
            return None
        return own.shifted(start if axis == -2 else -start)
    return own if x.shape[-2:] == term.shape[-2:] and term.op != "Repeat" else None


def _trilu(term: Term, seen: dict[int, Diagonals | None]) -> Diagonals | None:
    x = diagonals(term.args[0], seen)
    k: Dim | None = 0
    if len(term.args) > 1 and term.args[1].op != "Absent":
        data = term.args[1].data
        k = data.item() if data is not None and data.size == 1 else None
    if x is None or k is None:
        return None
    upper = term.attr("upper", 1)
    kept = Diagonals((k - 1,), (False, True)) if upper else Diagonals((k,), (True, False))
    breaks = _merged([x, kept])
    if breaks is None:
        return None
    zero = np.zeros_like(x.values[0])
    pairs = zip(_at(x, breaks), _at(kept, breaks), strict=True)
    return Diagonals(breaks, tuple(value if keep else zero for value, keep in pairs)).joined()


def _compared(term: Term) -> Diagonals | None:
    """Greater or GreaterOrEqual of a range of queries and a range of keys."""
    sides = [affine(a) for a in term.args]
    if term.shape is None or len(term.shape) < 2 or None in sides:
        return None
    a, b = (
        broadcast_steps(s.steps, t.shape, term.shape) for s, t in zip(sides, term.args, strict=True) if s is not None
    )
    *others, row, column = (p - q for p, q in zip(a, b, strict=True))
    offset = sides[0].offset - sides[1].offset if sides[0] is not None and sides[1] is not None else 0
    # Where i or j is always 0, any multiple of it may be added.
    row, column = -column if term.shape[-2] == 1 else row, -row if term.shape[-1] == 1 else column
    if any(others) or row != -column or term.shape[-2:] == (1, 1):
        return None
    strict = term.op == "Greater"
    if column == 1:  # j + offset > i: what is later
        return Diagonals((-offset - (0 if strict else 1),), (False, True))
    return Diagonals((offset - (1 if strict else 0),), (True, False)) if column == -1 else None


def _elementwise(term: Term, seen: dict[int, Diagonals | None]) -> Diagonals | None:
    known = [diagonals(a, seen) for a in term.args]
    parts = [d for d in known if d is not None]
    breaks = _merged(parts) if len(parts) == len(known) else None
    if breaks is None or len(breaks) >= MOST:
        return None
    broken = [a.shape for a, d in zip(term.args, parts, strict=True) if d.breaks]
    if term.shape is None or any(shape is None or shape[-2:] != term.shape[-2:] for shape in broken):
        return None
    try:
        values = tuple(
            evaluate(term.op, [np.asarray(v) for v in operands], dict(term.attrs), term)
            for operands in zip(*(_at(d, breaks) for d in parts), strict=True)
        )
    except (ValueError, KeyError):
        return None
    return Diagonals(breaks, values).joined()


def _merged(parts: Sequence[Diagonals]) -> tuple[Dim, ...] | None:
    """The breaks of all in order; None where their order depends on what symbols stand for."""
    ordered: list[Dim] = []
    for new in (b for part in parts for b in part.breaks):
        below = [b for b in ordered if b != new and at_least(new, b)]
        above = [b for b in ordered if b != new and at_least(b, new)]
        if len(below) + len(above) + (new in ordered) < len(ordered):
            return None
        if new not in ordered:
            ordered.insert(len(below), new)
    return tuple(ordered)


def _at(part: Diagonals, breaks: Sequence[Dim]) -> list[Any]:
    """The values between these breaks, among which are its own."""
    return [part.values[sum(b in breaks[:k] for b in part.breaks)] for k in range(len(breaks) + 1)]
