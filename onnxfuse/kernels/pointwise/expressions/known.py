"""Ops over integers that are known while a kernel is made: most are sums and products of sizes.

The reference evaluator of onnx does the rest; its import alone takes longer than to plan a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from onnx import TensorProto, helper

from onnxfuse.errors import KernelError

Array: TypeAlias = np.ndarray[Any, Any]

ALIKE: Mapping[str, Callable[..., Any]] = {
    "Abs": np.abs,
    "Add": np.add,
    "And": np.logical_and,
    "Equal": np.equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
    "Max": np.maximum,
    "Min": np.minimum,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Not": np.logical_not,
    "Or": np.logical_or,
    "Sign": np.sign,
    "Sub": np.subtract,
}
"""Ops of operands of one type."""
NUMBERS = "iu"
"""Kinds of types of which NumPy and ONNX say the same; booleans besides."""


def computed(op: str, inputs: Sequence[Array | None], attributes: Mapping[str, Any], outputs: int) -> Sequence[Array]:
    """The results of an op whose inputs are known.  Raises KernelError where it has none."""
    try:
        found = _integers(op, inputs, attributes) if outputs == 1 else None
        return _reference(op, inputs, attributes, outputs) if found is None else [np.asarray(found)]
    except Exception as error:  # of whatever sort: the node may be one that no runtime runs
        raise KernelError(f"{op} of constants: {error}") from error


def _integers(op: str, inputs: Sequence[Array | None], attributes: Mapping[str, Any]) -> Any:
    """The result, if it is one of the ops that count sizes, of integers or booleans, or an Expand; else None."""
    given = [x for x in inputs if x is not None]
    if len(given) < len(inputs):
        return None
    if op == "Expand":
        return np.broadcast_to(given[0], np.broadcast_shapes(given[0].shape, given[1].tolist()))
    if any(x.dtype.kind not in (*NUMBERS, "b") for x in given):
        return None
    alike = len({x.dtype for x in given}) == 1
    match op:
        case "Max" | "Min" if len(given) != 2:
            return None
        case _ if op in ALIKE and alike and not attributes and (given[0].dtype.kind == "b") == (op in _LOGICAL):
            return ALIKE[op](*given)
        case "Concat" if alike and all(x.ndim for x in given) and attributes.keys() == {"axis"}:
            return np.concatenate(given, attributes["axis"])
        case "Squeeze" if not attributes:
            return np.squeeze(given[0], tuple(given[1].ravel().tolist()) if len(given) > 1 else None)
        case "Gather" if attributes.keys() <= {"axis"}:
            return np.take(given[0], given[1], axis=attributes.get("axis", 0))
        case "Unsqueeze" if not attributes:
            return np.expand_dims(given[0], tuple(given[1].ravel().tolist()))
        case "Range" if alike and not attributes:
            return np.arange(*(x.item() for x in given), dtype=given[0].dtype)
        case "Reshape" if not attributes:
            return given[0].reshape([size or given[0].shape[axis] for axis, size in enumerate(given[1].tolist())])
        case "Where" if not attributes and given[0].dtype.kind == "b" and given[1].dtype == given[2].dtype:
            return np.where(*given)
        case "Cast" if attributes.keys() == {"to"} and attributes["to"] in _CASTS:
            return given[0].astype(_CASTS[attributes["to"]])
        case "Slice" if len(given) == 5:
            return _sliced(*given)
    return None


_LOGICAL = frozenset(("And", "Not", "Or"))
_CASTS: Mapping[int, Any] = {
    TensorProto.BOOL: np.bool_,
    TensorProto.FLOAT: np.float32,
    TensorProto.INT32: np.int32,
    TensorProto.INT64: np.int64,
}


def _sliced(x: Array, starts: Array, ends: Array, axes: Array, steps: Array) -> Array:
    taken = [slice(None)] * x.ndim
    for start, end, axis, step in zip(*(v.tolist() for v in (starts, ends, axes, steps)), strict=True):
        taken[axis] = slice(start, end, step)
    return x[tuple(taken)]


def _reference(op: str, inputs: Sequence[Array | None], attributes: Mapping[str, Any], outputs: int) -> Sequence[Array]:
    """What onnx says."""
    from onnx.reference import ReferenceEvaluator

    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], **attributes)
    feeds = {name: x for name, x in zip(names, inputs, strict=True) if x is not None}
    return [np.asarray(y) for y in ReferenceEvaluator(node).run(None, feeds)]
