"""What can be said about shapes before a model runs: bounds of slices, and integers computed from shapes.

Exporters compute shapes in the graph (Shape, Gather, Mul, Concat, Reshape).  `shape_data` does that arithmetic over
symbolic dimensions, so that a Reshape by a computed shape is as good as one by a constant.  Every function here answers
None, or a fresh symbol, where the result depends on what the symbols stand for; only bounds of slices that are
written with symbols are taken not to count from the end (`position`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, numpy_helper

from onnxfuse.model.dims import (
    END,
    Dim,
    Shape,
    Sym,
    at_least,
    equal,
    floor_divide,
    maximum,
    minimum,
    modulo,
    product,
    tail,
)
from onnxfuse.model.op_traits import RESHAPES

from .term import INTEGER, PRECISE, Array, Attributes, Term, Terms


def slice_bounds(args: list[Term]) -> list[tuple[int, Dim, Dim, int]] | None:
    """(axis, start, stop, step) per sliced axis of a canonical Slice, or None where one is not known."""
    operands = [a.data if a.op != "Absent" else None for a in args[1:]]
    starts, stops = operands[0], operands[1]
    axes = operands[2] if len(operands) > 2 else None
    steps = operands[3] if len(operands) > 3 else None
    if starts is None or stops is None:
        return None
    if (axes is None and len(args) > 3 and args[3].op != "Absent") or (
        steps is None and len(args) > 4 and args[4].op != "Absent"
    ):
        return None
    axis_list = list(range(starts.size)) if axes is None else [int(a) for a in axes.ravel()]
    step_list = [1] * starts.size if steps is None else list(steps.ravel())
    if any(isinstance(s, Sym) for s in step_list):
        return None
    return list(zip(axis_list, starts.ravel(), stops.ravel(), step_list, strict=True))


def slice_length(terms: Terms, dim: Dim, start: Dim, stop: Dim, step: int) -> Dim:
    """Elements that start:stop:step takes from an axis of length `dim`; a fresh symbol where undecided."""
    if step == 1:
        if isinstance(stop, Sym) and at_least(start, 0) and at_least(stop, start) and position(start, dim) is None:
            return minimum(dim - start, stop - start)
        first, last = _clamped(start, dim), _clamped(stop, dim)
        if first is not None and last is not None:
            return last - minimum(first, last)
        if last == dim and at_least(0, start):
            return tail(-start, dim)
    elif isinstance(dim, int) and isinstance(start, int) and isinstance(stop, int):
        return len(range(dim)[slice(start, None if step < 0 and stop <= -END else stop, step)])
    return terms.fresh_dim()


def _clamped(index: Dim, dim: Dim) -> Dim | None:
    """Where a Slice bound lies in [0, dim]; None for one that counts from the end if it is not 0."""
    if isinstance(index, int) and abs(index) >= END:
        return dim if index > 0 else 0
    if isinstance(index, int) and index < 0:
        return dim - minimum(-index, dim)
    return minimum(index, dim) if at_least(index, 0) else None


def difference(a: Term, b: Term) -> Dim | None:
    """a - b of two integers that are not known, if it is the same for every input: positions from a start to so many
    behind it."""
    total: dict[Term, int] = {}
    number = _collect(a, 1, total) - _collect(b, -1, total)
    return None if any(total.values()) else number


def _collect(term: Term, sign: int, total: dict[Term, int]) -> Dim:
    """What is known of a sum of integers, as it counts without its sign; unknown summands are counted in `total`."""
    if term.data is not None and term.data.size == 1:
        known: Dim = term.data.ravel()[0]
        return known
    if term.op in ("Reshape", "Cast") and term.dtype == TensorProto.INT64 and term.args[0].dtype in INTEGER:
        return _collect(term.args[0], sign, total)
    if term.op in ("Add", "Sub") and len(term.args) == 2 and term.dtype == TensorProto.INT64:
        first, second = term.args
        other = _collect(second, sign if term.op == "Add" else -sign, total)
        return _collect(first, sign, total) + (other if term.op == "Add" else -other)
    total[term] = total.get(term, 0) + sign
    return 0


def position(index: Dim, dim: Dim) -> Dim | None:
    """A Slice bound as a position in [0, dim], or None where undecided.

    A bound that is written with a symbol is taken not to count from the end: n - 1 is no -1, though n may be 0."""
    if isinstance(index, int):
        if index >= END:
            return dim
        if index <= -END:
            return 0
        if index < 0:
            return max(dim + index, 0) if isinstance(dim, int) else dim + index if at_least(dim, -index) else None
        if isinstance(dim, int):
            return min(index, dim)
        if index == 0:
            return 0
    return index if equal(index, dim) or at_least(dim, index) else None


def _at_least(a: Dim, b: Dim) -> bool | None:
    return True if at_least(a, b) else False if at_least(b, a + 1) else None


def _not(truth: bool | None) -> bool | None:
    return None if truth is None else not truth


_ARITHMETIC: dict[str, Callable[[Dim, Dim], Any]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": floor_divide,
    "Mod": modulo,
    "Min": minimum,
    "Max": maximum,
    "Equal": equal,
    "Greater": lambda a, b: _not(_at_least(b, a)),
    "Less": lambda a, b: _not(_at_least(a, b)),
    "GreaterOrEqual": lambda a, b: _at_least(a, b),
    "LessOrEqual": lambda a, b: _at_least(b, a),
}


def shape_data(op: str, args: list[Term], attrs: Attributes, shape: Shape | None) -> Array | None:
    """The (symbolic) integers an op computes from shapes, or None: what folds TorchScript's shape arithmetic."""
    if op == "Shape":
        source = args[0].shape
        return None if source is None else _array(source[attrs.get("start", 0) : attrs.get("end")])
    if op == "Size":
        return None if args[0].shape is None else np.array(product(args[0].shape), object)
    if op == "Cast" and attrs["to"] in INTEGER and args[0].dtype in PRECISE:
        return _held(args[0])
    if not args or args[0].data is None:
        return None
    data = [a.data for a in args]
    first = data[0]
    assert first is not None
    if op == "Identity" or (op == "Cast" and attrs["to"] in INTEGER and args[0].dtype in INTEGER):
        return first
    if op in _ARITHMETIC and len(data) == 2 and data[1] is not None and args[0].dtype in INTEGER:
        if attrs.get("fmod"):  # C's, with the sign of the dividend
            return None
        function = _ARITHMETIC[op]
        results = [function(p, q) for p, q in zip(*_flat(first, data[1]), strict=True)]
        return None if None in results else _array(results, np.broadcast_shapes(first.shape, data[1].shape))
    if op in RESHAPES and shape is not None:
        dims = [d for d in shape if isinstance(d, int)]
        return first.reshape(dims) if len(dims) == len(shape) else None
    if any(d is None for d in data):
        return None
    arrays = [d for d in data if d is not None]
    if op == "Gather" and all(isinstance(i, int) for i in arrays[1].ravel()):
        indices = np.array(arrays[1].tolist(), np.int64).reshape(arrays[1].shape)
        axis = attrs.get("axis", 0)
        if first.ndim and (indices >= -first.shape[axis]).all() and (indices < first.shape[axis]).all():
            return np.asarray(np.take(first, indices, axis=axis), object)
    elif op == "Concat" and all(a.ndim for a in arrays):
        return np.concatenate(arrays, axis=attrs["axis"])
    elif op == "Slice":
        bounds = slice_bounds(args)
        if bounds is not None and not any(isinstance(b, Sym) for bound in bounds for b in bound[1:3]):
            return first[_cut(bounds, first.ndim)]
    elif op == "Transpose" and first.ndim:
        return np.transpose(first, attrs.get("perm"))
    elif op == "Where" and all(isinstance(c, bool | np.bool_) for c in first.ravel()):
        chosen = [x if c else y for c, x, y in zip(*_flat(*arrays), strict=True)]
        return _array(chosen, np.broadcast_shapes(*[a.shape for a in arrays]))
    elif op == "Expand" and shape is not None and all(isinstance(d, int) for d in shape):
        target = [d for d in shape if isinstance(d, int)]
        return np.broadcast_to(first, target) if np.prod(target, dtype=np.int64) <= 64 else None
    elif op == "ConstantOfShape" and all(isinstance(d, int) for d in first) and first.size <= 8:
        value = attrs.get("value")
        if value is not None:
            filler = numpy_helper.to_array(TensorProto.FromString(value[1]))
            sizes = tuple(int(d) for d in first)
            if filler.dtype == np.int64 and np.prod(sizes, dtype=np.int64) <= 64:
                return np.full(sizes, filler.item(), object)
    elif op == "ReduceProd" and shape is not None and not attrs.get("axes", ()) and first.ndim <= 1:
        return _array([product(first.ravel())], tuple(d for d in shape if isinstance(d, int)))
    elif op == "Neg":
        return _array([-x for x in first.ravel()], first.shape)
    return None


def _held(term: Term) -> Array | None:
    """The integers that a real tensor holds: an exporter (tf2onnx) has the larger and the smaller of real numbers
    alone, and converts sizes there and back."""
    if term.op == "Cast" and term.args[0].dtype in INTEGER:
        return term.args[0].data
    if term.op in ("Max", "Min") and len(term.args) == 2:
        held = [_held(a) for a in term.args]
        if held[0] is None or held[1] is None:
            return None
        results = [_ARITHMETIC[term.op](p, q) for p, q in zip(*_flat(held[0], held[1]), strict=True)]
        return _array(results, np.broadcast_shapes(held[0].shape, held[1].shape))
    if not term.by_content or not callable(term.load):
        return None
    values = term.load()
    whole = values.size <= 64 and bool((np.abs(values) <= END).all()) and bool((np.rint(values) == values).all())
    return values.astype(np.int64).astype(object) if whole else None


def _cut(bounds: Sequence[tuple[int, Any, Any, int]], rank: int) -> tuple[slice, ...]:
    cut = [slice(None)] * rank
    for axis, start, stop, step in bounds:
        cut[axis] = slice(int(start), None if step < 0 and int(stop) <= -END else int(stop), step)
    return tuple(cut)


def _array(items: Sequence[Any], shape: tuple[int, ...] | None = None) -> Array:
    array = np.empty(len(items), object)
    array[:] = list(items)
    return array if shape is None else array.reshape(shape)


def _flat(*arrays: Array) -> list[list[Any]]:
    return [list(a.ravel()) for a in np.broadcast_arrays(*arrays)]
