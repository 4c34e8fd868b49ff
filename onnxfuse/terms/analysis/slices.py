"""A slice of a value, computed inside what computes the value.

Rotary embeddings spell their angles out twice, as Concat(f, f) below Cos and Sin, or each element twice in a row.
`part` moves a slice of the last axis inward until it meets the copies, so that both halves are one term.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from typing import TypeAlias

import numpy as np
from onnx import TensorProto

from onnxfuse.model.dims import Dim, minimum
from onnxfuse.model.op_traits import ELEMENTWISE, VIEWS
from onnxfuse.terms.fold import value_of
from onnxfuse.terms.infer_table import normal_axis
from onnxfuse.terms.normal.normal import expand, make, repeat, reshape, slice_axis
from onnxfuse.terms.term import Term, Terms, is_number, static

Inward: TypeAlias = Callable[[Terms, Term, int, int, int], Term | None]
"""(terms, x, start, stop, step) → the slice with x's own op outside, or None where it cannot move inward."""


MOVES = VIEWS | {"Concat", "Gather", "GatherElements", "Output", "Split", "Squeeze", "Unsqueeze"}
"""Ops whose elements are elements of their inputs."""


def behind(x: Term, dims: Sequence[Dim]) -> Term | None:
    """What x is taken from by moving elements alone, of such last dimensions: that which lies furthest behind."""
    last = slice(-len(dims), None)
    fitting = [t for t in _below(x, MOVES, x.dtype) if t.shape is not None and t.shape[last] == tuple(dims)]
    return min(fitting, key=lambda t: t.id, default=None)


def sizes(x: Term, count: int) -> Term | None:
    """The vector of so many integers from which x is computed: that which lies furthest behind."""
    fitting = [t for t in _below(x) if t.dtype == TensorProto.INT64 and t.shape == (count,)]
    return min(fitting, key=lambda t: t.id, default=None)


def _below(x: Term, ops: Container[str] | None = None, dtype: int = 0) -> Iterator[Term]:
    """x and what it is computed from, constants aside; by these ops, in this type."""
    stack, seen = [x], set[int]()
    while stack:
        term = stack.pop()
        if term.id not in seen and not term.constant and dtype in (0, term.dtype):
            seen.add(term.id)
            yield term
            if ops is None or term.op in ops:
                stack += term.args


def along(terms: Terms, x: Term, axis: int) -> Term | None:
    """The vector [x.shape[axis]] that x repeats along all its other axes; None if it is no such repetition."""
    source = x.args[0] if x.op == "Expand" and len(x.args) == 1 else x
    if x.shape is None or source.shape is None:
        return None
    size, place = x.shape[axis], axis - len(x.shape) + len(source.shape)
    if source.scalar is not None and isinstance(size, int):
        return terms.constant(np.full(size, source.scalar), x.dtype)
    if place < 0:
        return None
    if source.shape[place] == size and all(d == 1 for i, d in enumerate(source.shape) if i != place):
        return reshape(terms, source, (size,))
    dims = static(x.shape)
    if dims is None or not x.constant or 0 in dims:
        return None
    rows = np.moveaxis(value_of(x), axis, -1).reshape(-1, dims[axis])
    return terms.constant(rows[0].copy(), x.dtype) if (rows == rows[0]).all() else None


def rows(terms: Terms, x: Term, count: Dim) -> Term | None:
    """A matrix [n, columns] whose row i, or whose only one, x has as its row i wherever its leading axes stand, for i
    below `count`; None where x differs along those.

    Of a Slice of a stored table it is the table from there on: a sum of x with `count` rows that does not fail takes no
    others of it."""
    if x.op == "Add":
        return _total(terms, [rows(terms, a, count) for a in x.args])
    if x.op == "Expand" and len(x.args) == 1:
        x = x.args[0]
    if not x.shape:
        return None
    dims = static(x.shape)
    if x.constant and dims is not None and 0 not in dims and any(d != 1 for d in dims[:-2]):
        tables = value_of(x).reshape(-1, *dims[-2:])
        return terms.constant(tables[0].copy(), x.dtype) if (tables == tables[0]).all() else None
    if any(d != 1 for d in x.shape[:-2]):
        return None
    matrix = reshape(terms, x, ((1, *x.shape) if len(x.shape) == 1 else x.shape[-2:]))
    return _table(terms, matrix, count)


def _table(terms: Terms, x: Term, count: Dim) -> Term:
    """The stored table from whose first rows x was cut, if there is one."""
    if x.op != "Slice" or x.attr("axis") != 0 or x.attr("step") != 1 or x.shape is None:
        return x
    table, start = x.args[0], x.attr("start")
    size = table.shape[0] if table.shape else None
    if not table.constant or not isinstance(size, int) or not isinstance(start, int) or not 0 <= start < size - 1:
        return x
    # One row alone would be broadcast: min(1, count) is no count of rows that have to be there.
    whole = x.shape[0] == count or x.shape[0] == minimum(size - start, count)
    return slice_axis(terms, table, 0, start, size) if whole else x


def _total(terms: Terms, parts: Sequence[Term | None]) -> Term | None:
    """The sum of matrices of so many rows or of one, of as many as all have."""
    found = [p for p in parts if p is not None and p.shape is not None]
    lengths = {p.shape[0] for p in found if p.shape is not None and p.shape[0] != 1}
    if len(found) < len(parts):
        return None
    if len(lengths) > 1:
        sizes = [n for n in lengths if isinstance(n, int)]
        if len(sizes) < len(lengths):
            return None
        found = [p if p.shape is None or p.shape[0] == 1 else slice_axis(terms, p, 0, 0, min(sizes)) for p in found]
    return make(terms, "Add", found, {})


def part(terms: Terms, x: Term, start: int, stop: int, step: int = 1) -> Term | None:
    """x[..., start:stop:step], 0 <= start < stop <= the last dim; None where that dim is unknown or too small."""
    size = x.shape[-1] if x.shape else None
    if not isinstance(size, int) or not 0 <= start < stop <= size or x.shape is None:
        return None
    if (start, stop, step) == (0, size, 1):
        return x
    if x.constant:
        return terms.constant(value_of(x)[..., start:stop:step].copy(), x.dtype)
    inward = _pointwise if x.op in ELEMENTWISE else _INWARD.get(x.op)
    moved = inward(terms, x, start, stop, step) if inward is not None else None
    return moved if moved is not None else slice_axis(terms, x, len(x.shape) - 1, start, stop, step)


def _leading(x: Term) -> tuple[Dim, ...]:
    return (x.shape or ())[:-1]


def _pointwise(terms: Terms, x: Term, start: int, stop: int, step: int) -> Term | None:
    args = list[Term]()
    for arg in x.args:
        broadcast = is_number(arg) or not arg.shape or arg.shape[-1] == 1
        piece = arg if broadcast else part(terms, arg, start, stop, step)
        if piece is None:
            return None
        args.append(piece)
    return make(terms, x.op, args, dict(x.attrs))


def _slice(terms: Terms, x: Term, start: int, stop: int, step: int) -> Term | None:
    source, first, pace = x.args[0], x.attr("start"), x.attr("step")
    if len(x.args) > 1 or source.shape is None:
        return None
    if x.attr("axis") != len(source.shape) - 1:
        inner = part(terms, source, start, stop, step)
        return None if inner is None else slice_axis(terms, inner, x.attr("axis"), first, x.attr("stop"), pace)
    if not isinstance(first, int) or pace < 1:
        return None
    return part(terms, source, first + start * pace, first + (stop - 1) * pace + 1, step * pace)


def _concat(terms: Terms, x: Term, start: int, stop: int, step: int) -> Term | None:
    if normal_axis(x.attr("axis"), len(x.shape or ())) != len(x.shape or ()) - 1:
        return None
    offset = 0
    for piece in x.args:
        size = piece.shape[-1] if piece.shape else None
        if not isinstance(size, int):
            return None
        if offset <= start and stop <= offset + size:
            return part(terms, piece, start - offset, stop - offset, step)
        offset += size
    return None


def _reshape(terms: Terms, x: Term, start: int, stop: int, step: int) -> Term | None:
    source = x.args[0]
    if len(x.args) > 1 or not source.shape or not x.shape:
        return None
    length = len(range(start, stop, step))
    if source.shape[-1] == x.shape[-1]:
        inner = part(terms, source, start, stop, step)
    elif source.shape[-2:] == (length, step) and length * step == x.shape[-1] and start < step:
        inner = part(terms, source, start, start + 1)  # the elements of the last axis took turns
    else:
        return None
    return None if inner is None else reshape(terms, inner, (*_leading(x), length))


def _repeat(terms: Terms, x: Term, start: int, stop: int, step: int) -> Term | None:
    source, axis, n = x.args[0], x.attr("axis"), x.attr("n")
    if axis != len(x.shape or ()) - 1:
        inner = part(terms, source, start, stop, step)
        return None if inner is None else repeat(terms, inner, axis, n)
    whole = source.shape is not None and len(range(start, stop, step)) == source.shape[-1]
    return source if step == n and start < n and whole else None


def _expand(terms: Terms, x: Term, start: int, stop: int, step: int) -> Term | None:
    source, length = x.args[0], len(range(start, stop, step))
    if len(x.args) > 1 or not source.shape:
        return None
    inner = source if source.shape[-1] == 1 else part(terms, source, start, stop, step)
    return None if inner is None else expand(terms, inner, (*_leading(x), length))


def _gather(terms: Terms, x: Term, start: int, stop: int, step: int) -> Term | None:
    data, indices = x.args
    rank = len(data.shape or ())
    if not rank or normal_axis(x.attr("axis", 0), rank) == rank - 1:
        return None
    inner = part(terms, data, start, stop, step)
    return None if inner is None else make(terms, "Gather", [inner, indices], dict(x.attrs))


_INWARD: dict[str, Inward] = {
    "Slice": _slice,
    "Concat": _concat,
    "Reshape": _reshape,
    "Repeat": _repeat,
    "Expand": _expand,
    "Gather": _gather,
}
