"""What onnx.checker takes for granted of a model, and everything behind it does as well."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import onnx
from onnx import TensorProto

from onnxfuse.errors import ModelError

_Types = TensorProto
ITEM_BYTES: dict[int, int] = {_Types.FLOAT: 4, _Types.FLOAT16: 2, _Types.BFLOAT16: 2, _Types.DOUBLE: 8}
ITEM_BYTES |= {_Types.INT8: 1, _Types.UINT8: 1, _Types.INT16: 2, _Types.UINT16: 2, _Types.INT32: 4, _Types.UINT32: 4}
ITEM_BYTES |= {_Types.INT64: 8, _Types.UINT64: 8, _Types.BOOL: 1}
"""Bytes of one element in raw_data and in external data; smaller types are packed, and left to the checker."""
_FIELD: dict[int, str] = {_Types.FLOAT: "float_data", _Types.DOUBLE: "double_data", _Types.STRING: "string_data"}
_FIELD |= {_Types.INT64: "int64_data", _Types.UINT64: "uint64_data", _Types.UINT32: "uint64_data"}
_FIELD |= dict.fromkeys(
    (
        _Types.INT32,
        _Types.INT16,
        _Types.INT8,
        _Types.UINT16,
        _Types.UINT8,
        _Types.BOOL,
        _Types.FLOAT16,
        _Types.BFLOAT16,
    ),
    "int32_data",
)
_KNOWN_TYPES = frozenset(_Types.DataType.values())
_ROOM = 2**62
"""Bytes that no tensor has; arithmetic below it never leaves 64 bits."""


def check_names(path: Path, bodies: Iterable[onnx.GraphProto | onnx.FunctionProto]) -> None:
    """Raises ModelError where a name is not text: protobuf hands it out as bytes."""
    for body in bodies:
        _check_text(path, "the graph" if isinstance(body, onnx.GraphProto) else "a function", [body.name])
        for index, node in enumerate(body.node):
            names = [node.name, node.op_type, node.domain, node.doc_string, *node.input, *node.output]
            names += [text for a in node.attribute for text in (a.name, a.ref_attr_name)]
            _check_text(path, f"node {index} ({node.op_type!r})", names)
        if isinstance(body, onnx.GraphProto):
            values: list[str] = [tensor.name for tensor in body.initializer]
            for info in (*body.input, *body.output, *body.value_info):
                values.append(info.name)
                values += [dim.dim_param for dim in info.type.tensor_type.shape.dim]
            _check_text(path, "a value of the graph", values)
        else:
            _check_text(path, f"function {body.name!r}", [*body.input, *body.output, *body.attribute, body.domain])


def _check_text(path: Path, what: str, names: list[str]) -> None:
    try:
        "".join(names)
    except TypeError:
        wrong = next(name for name in names if not isinstance(name, str))
        raise ModelError(
            f"{path} is not valid: {what} has a name that is not UTF-8, {wrong!r}: export it again"
        ) from None


def check_types(path: Path, bodies: Iterable[onnx.GraphProto | onnx.FunctionProto]) -> None:
    """Raises ModelError where a value is declared to have elements of a type that is none."""
    for body in bodies:
        inputs = (*body.input, *body.output) if isinstance(body, onnx.GraphProto) else ()
        for info in (*inputs, *body.value_info):
            kind = info.type.tensor_type.elem_type
            if kind not in _KNOWN_TYPES:
                raise ModelError(
                    f"{path} is not valid: {info.name!r} has element type {kind}, which the installed onnx "
                    f"{onnx.__version__} does not know: export it again"
                )


def check_tensor(path: Path, tensor: TensorProto) -> None:
    """Raises ModelError where a tensor holds less or more than its shape says, or no shape and type at all."""
    shape, name = list(tensor.dims), tensor.name
    if tensor.data_type not in _KNOWN_TYPES or tensor.data_type == _Types.UNDEFINED:
        raise ModelError(
            f"{path} is not valid: {name!r} has element type {tensor.data_type}, which the installed onnx "
            f"{onnx.__version__} does not know: export it again"
        )
    size = math.prod(shape)
    if min(shape, default=0) < 0 or math.prod(max(d, 1) for d in shape) > _ROOM // 16:
        raise ModelError(f"{path} is not valid: {name!r} has the impossible shape {shape}: export it again")
    if tensor.data_location == _Types.EXTERNAL:
        return
    if tensor.HasField("raw_data"):
        if tensor.data_type not in ITEM_BYTES:
            return
        found, needed, unit = len(tensor.raw_data), size * ITEM_BYTES[tensor.data_type], "bytes"
    elif tensor.data_type in _FIELD:
        found, needed, unit = len(getattr(tensor, _FIELD[tensor.data_type])), size, "elements"
    else:
        return
    if found != needed:
        few = "few" if found < needed else "many"
        raise ModelError(f"{path} is not valid: {name!r} has too {few} {unit} for {shape}: export it again")
