"""Constant folding in numpy: canonical ops over arrays, real numbers in float64.

The ONNX reference evaluator is not used: it is slow and mis-evaluates GatherElements; and onnxruntime would make the
core depend on it.  An op that is not listed is never folded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import reduce
from typing import Any, TypeVar

import numpy as np
from onnx import TensorProto, numpy_helper

from onnxfuse.model.dims import END

from .blockwise import Blockwise
from .erf import erf
from .fold_layers import LAYERS
from .term import REAL, Array, Term, UnknownValueError, numpy_dtype, static

_Answer = TypeVar("_Answer", bound=Hashable)

_UNARY: dict[str, Callable[[Array], Array]] = {
    "Reciprocal": lambda x: 1 / x,
    "Sqrt": np.sqrt,
    "Exp": np.exp,
    "Log": np.log,
    "Erf": erf,
    "Tanh": np.tanh,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Abs": np.abs,
    "Neg": np.negative,
    "Ceil": np.ceil,
    "Floor": np.floor,
    "Round": np.rint,
    "Sin": np.sin,
    "Cos": np.cos,
    "Sign": np.sign,
    "Relu": lambda x: np.maximum(x, 0),
    "Not": np.logical_not,
    "IsNaN": np.isnan,
    "Identity": lambda x: x,
}

_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "Add": np.add,
    "Mul": np.multiply,
    "Sub": np.subtract,
    "Sum": np.add,
    "Equal": np.equal,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
    "Greater": np.greater,
    "Less": np.less,
    "GreaterOrEqual": np.greater_equal,
    "LessOrEqual": np.less_equal,
    "Min": np.minimum,
    "Max": np.maximum,
    "Pow": np.power,
    "MatMul": np.matmul,
}


def _log_sum_exp(x: Array, axis: tuple[int, ...] | None, keepdims: bool) -> Any:
    """The exponentials of no number overflow."""
    most = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    most = np.where(np.isfinite(most), most, 0.0)
    found = np.log(np.sum(np.exp(x - most), axis=axis, keepdims=True)) + most
    return found if keepdims else np.squeeze(found, axis)


_REDUCE: dict[str, Callable[..., Any]] = {
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceMean": np.mean,
    "ReduceSum": np.sum,
    "ReduceProd": np.prod,
    "ReduceMax": np.max,
    "ReduceMin": np.min,
}


def widen(array: Array, dtype: int) -> Array:
    """Real numbers as float64, everything else as it is."""
    return array.astype(np.float64) if dtype in REAL else array


def evaluate(op: str, arrays: Sequence[Array | None], attrs: Mapping[str, Any], term: Term) -> Array:
    """The value of `op` over constant arrays, in the dtype of `term` (float64 for real numbers).

    Raises KeyError for an op that is not folded and ValueError where the op is undefined."""
    given = [widen(a, arg.dtype) for a, arg in zip(arrays, term.args, strict=True) if a is not None]
    with np.errstate(all="ignore"):
        if op in LAYERS:
            result = LAYERS[op](_in_place(arrays, term), attrs, term)
        else:
            result = np.asarray(_evaluate(op, given, attrs, term))
        return result.astype(np.float64 if term.dtype in REAL else numpy_dtype(term.dtype), copy=False)


def _in_place(arrays: Sequence[Array | None], term: Term) -> list[Array | None]:
    """The operands, widened, None where an input is absent."""
    return [None if a is None else widen(a, arg.dtype) for a, arg in zip(arrays, term.args, strict=True)]


def _evaluate(op: str, x: list[Array], attrs: Mapping[str, Any], term: Term) -> Any:
    if op in _UNARY:
        return _UNARY[op](x[0])
    if op in _BINARY:
        return reduce(_BINARY[op], x)
    if op in _REDUCE:
        axes = attrs.get("axes")
        if not axes and attrs.get("noop_with_empty_axes"):
            return x[0]
        return _REDUCE[op](x[0], axis=tuple(axes) if axes else None, keepdims=bool(attrs.get("keepdims", 1)))
    return _OTHER[op](x, attrs, term)


def _divide(x: list[Array], attrs: Mapping[str, Any], term: Term) -> Array:
    if term.dtype in REAL:
        return np.asarray(x[0] / x[1])
    quotient = np.abs(x[0]) // np.abs(x[1])
    return np.asarray(np.where((x[0] < 0) == (x[1] < 0), quotient, -quotient))


def _shape(term: Term) -> tuple[int, ...]:
    if term.shape is None or not all(isinstance(d, int) for d in term.shape):
        raise ValueError(f"{term!r} has no static shape")
    return tuple(d for d in term.shape if isinstance(d, int))


def _cast(x: list[Array], attrs: Mapping[str, Any], term: Term) -> Array:
    return x[0].astype(numpy_dtype(int(attrs["to"])))


def _slice(x: list[Array], attrs: Mapping[str, Any], term: Term) -> Array:
    index = [slice(None)] * x[0].ndim
    stop, step = attrs["stop"], attrs["step"]
    index[attrs["axis"]] = slice(attrs["start"], None if step < 0 and stop <= -END else stop, step)
    return np.asarray(x[0][tuple(index)])


def _pad(x: list[Array], attrs: Mapping[str, Any], term: Term) -> Array:
    if attrs.get("mode", "constant") != "constant" or len(x) > 3:
        raise ValueError("only constant padding is folded")
    n = x[0].ndim
    pads = [(int(x[1][i]), int(x[1][i + n])) for i in range(n)]
    if any(p < 0 for pair in pads for p in pair):
        raise ValueError("negative padding is not folded")
    return np.pad(x[0], pads, constant_values=x[2].item() if len(x) > 2 else 0)


def _trilu(x: list[Array], attrs: Mapping[str, Any], term: Term) -> Array:
    k = int(x[1].item()) if len(x) > 1 else 0
    return np.triu(x[0], k) if attrs.get("upper", 1) else np.tril(x[0], k)


def _gather_elements(x: list[Array], attrs: Mapping[str, Any], term: Term) -> Array:
    axis = attrs.get("axis", 0) % x[0].ndim
    index = list(np.ogrid[tuple(slice(n) for n in x[1].shape)])
    index[axis] = x[1]
    return np.asarray(x[0][tuple(index)])


def _gather_nd(x: list[Array], attrs: Mapping[str, Any], term: Term) -> Array:
    if attrs.get("batch_dims"):
        raise ValueError("GatherND with batch_dims is not folded")
    return np.asarray(x[0][tuple(np.moveaxis(x[1], -1, 0))])


def _scatter_nd(x: list[Array], attrs: Mapping[str, Any], term: Term) -> Array:
    if attrs.get("reduction", "none") != "none":
        raise ValueError("ScatterND with a reduction is not folded")
    result = x[0].copy()
    result[tuple(np.moveaxis(x[1], -1, 0))] = x[2]
    return result


def _filler(attrs: Mapping[str, Any]) -> Any:
    value = attrs.get("value")
    return 0.0 if value is None else numpy_helper.to_array(TensorProto.FromString(value[1])).item()


def _clip(x: list[Array], attrs: Mapping[str, Any], term: Term) -> Array:
    bounds = iter(x[1:])
    low, high = ([None if a.op == "Absent" else next(bounds) for a in term.args[1:]] + [None, None])[:2]
    return np.clip(x[0], low, high)


def _cumsum(x: list[Array], attrs: Mapping[str, Any], term: Term) -> Array:
    if attrs.get("exclusive") or attrs.get("reverse"):
        raise ValueError("only the plain CumSum is folded")
    return np.cumsum(x[0], axis=int(x[1].item()))


_OTHER: dict[str, Callable[[list[Array], Mapping[str, Any], Term], Any]] = {
    "Div": _divide,
    "Mean": lambda x, attrs, term: sum(x) / len(x),
    "Mod": lambda x, attrs, term: np.fmod(x[0], x[1]) if attrs.get("fmod") else np.mod(x[0], x[1]),
    "Where": lambda x, attrs, term: np.where(*x),
    "Cast": _cast,
    "Shape": lambda x, attrs, term: np.array(x[0].shape, np.int64)[attrs.get("start", 0) : attrs.get("end")],
    "Size": lambda x, attrs, term: np.array(x[0].size),
    "Reshape": lambda x, attrs, term: x[0].reshape(_shape(term)),
    "Squeeze": lambda x, attrs, term: x[0].reshape(_shape(term)),
    "Unsqueeze": lambda x, attrs, term: x[0].reshape(_shape(term)),
    "Expand": lambda x, attrs, term: np.broadcast_to(x[0], _shape(term)),
    "ConstantOfShape": lambda x, attrs, term: np.full(tuple(x[0]), _filler(attrs)),
    "Transpose": lambda x, attrs, term: x[0].transpose(attrs["perm"]),
    "Concat": lambda x, attrs, term: np.concatenate(x, axis=attrs["axis"]),
    "Repeat": lambda x, attrs, term: np.repeat(x[0], attrs["n"], axis=attrs["axis"]),
    "Tile": lambda x, attrs, term: np.tile(x[0], tuple(x[1])),
    "Slice": _slice,
    "Gather": lambda x, attrs, term: np.take(x[0], x[1], axis=attrs.get("axis", 0)),
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "ScatterND": _scatter_nd,
    "Range": lambda x, attrs, term: np.arange(x[0].item(), x[1].item(), x[2].item()),
    "Trilu": _trilu,
    "CumSum": _cumsum,
    "Pad": _pad,
    "Clip": _clip,
}


def value_of(term: Term) -> Array:
    """The elements of a constant term, folded on demand, to be looked at; floats in float64.

    Raises UnknownValueError for a term that is not `constant`, or turns out not to be: it is not from then on; and
    UnevenError where each of several blocks has its own, and they differ."""
    found = folded(term)
    return found.looked_at() if isinstance(found, Blockwise) else found


def decided(term: Term, question: Callable[..., _Answer], *asked: Hashable) -> _Answer:
    """What a question (elements, *asked) is answered of a constant term, by each of several blocks if it is one's.

    Raises UnknownValueError as `value_of` does, and UnevenError where blocks answer differently."""
    found = folded(term)
    return found.family.answer(question, *asked) if isinstance(found, Blockwise) else question(found, *asked)


def folded(term: Term) -> Array | Blockwise:
    """The elements of a constant term, or how those of each block are computed.  Raises UnknownValueError, see
    `value_of`."""
    stack = [term]
    while stack:
        top = stack[-1]
        missing = [] if top.load is not None else [a for a in top.args if a.op != "Absent" and a.load is None]
        stack.extend(missing)
        if not missing:
            stack.pop()
            if top.load is None:
                top.load = _folded(top)
    assert term.load is not None
    return term.load if isinstance(term.load, Blockwise) else term.load()


def _folded(term: Term) -> Callable[[], Array] | Blockwise:
    """What gives the elements of a term whose arguments are known."""
    try:
        if not term.constant:
            raise ValueError(f"{term!r} is not a constant")
        found = [None if a.load is None else a.load if isinstance(a.load, Blockwise) else a.load() for a in term.args]
        if any(isinstance(one, Blockwise) for one in found) and (own := _blockwise(term, found)) is not None:
            return own
        arrays = [one.looked_at() if isinstance(one, Blockwise) else one for one in found]
        array = evaluate(term.op, arrays, dict(term.attrs), term)
    except (ArithmeticError, LookupError, MemoryError, TypeError, ValueError) as error:
        # What a node computes of constants may be undefined; it is for the runtime to say so, if it ever runs it.
        term.constant = False
        raise UnknownValueError(f"{term!r} cannot be computed: {error}") from error
    return lambda: array


def _blockwise(term: Term, found: Sequence[Array | Blockwise | None]) -> Blockwise | None:
    """How each block's elements are computed, where nothing but real numbers flows into real numbers: of these it
    depends neither whether that can be done, nor of which shape the result is.  None for anything else."""
    dims, op, attrs = static(term.shape), term.op, dict(term.attrs)
    own = {a: one for a, one in zip(term.args, found, strict=True) if isinstance(one, Blockwise)}
    if dims is None or math.prod(dims) <= 1 or op in _COUNTING or any(a.dtype not in REAL for a in (term, *own)):
        return None

    def compute(arrays: Sequence[Array | None]) -> Array:
        return evaluate(op, arrays, attrs, term).reshape(dims)

    families = next(iter(own.values())).family.families
    return families.derived((op, term.attrs, dims, term.dtype), found, compute)


_COUNTING = frozenset({"Range"})
"""Ops of real numbers by which a result has more elements or fewer."""
