"""Constants of a model as terms; elements of a large or external one are read only on demand."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from onnx import NodeProto, TensorProto, numpy_helper
from onnx.external_data_helper import ExternalDataInfo

from onnxfuse.model.schema import attribute_value
from onnxfuse.model.types import CONSTANTS
from onnxfuse.terms.blockwise import Blockwise
from onnxfuse.terms.term import REAL, SMALL, Array, Term, numpy_dtype

from .view import View

NUMERIC = frozenset(
    {
        TensorProto.FLOAT,
        TensorProto.FLOAT16,
        TensorProto.BFLOAT16,
        TensorProto.DOUBLE,
        TensorProto.INT8,
        TensorProto.INT16,
        TensorProto.INT32,
        TensorProto.INT64,
        TensorProto.UINT8,
        TensorProto.UINT16,
        TensorProto.UINT32,
        TensorProto.UINT64,
        TensorProto.BOOL,
    }
)
"""Element types whose values may be read; all others (strings, float8, int4, ...) are only ever passed on."""


_STORED: Mapping[int, str] = {
    TensorProto.FLOAT: "<f4",
    TensorProto.DOUBLE: "<f8",
    TensorProto.INT64: "<i8",
    TensorProto.INT32: "<i4",
    TensorProto.FLOAT16: "<f2",
}
"""Element types whose bytes in raw_data are NumPy's own: most small constants are of these, and there are many."""


def constant_term(view: View, name: str, tensor: TensorProto, own: Blockwise | None = None) -> Term:
    """The term of an initializer; elements of a large or external one are read only on demand, and those of one that
    each of several blocks has its `own` of are not."""
    dims = tuple(tensor.dims)
    small = math.prod(dims) <= SMALL
    if tensor.data_type not in NUMERIC:
        return view.terms.input(name, dims, tensor.data_type)
    load: Callable[[], Array] | Blockwise = own or reader(tensor, view.base_dir)
    if is_missing(tensor, view.base_dir):
        if tensor.data_type not in REAL:
            view.unread.add(name)
            return view.terms.input(name, dims, tensor.data_type)
        load = own or partial(_unread, view, name, dims)
    if not small or tensor.data_location == TensorProto.EXTERNAL:
        return view.terms.stored(name, dims, tensor.data_type, load)
    if isinstance(load, Blockwise):
        return view.terms.blockwise(load, dims, tensor.data_type)
    return view.terms.constant(load(), tensor.data_type)


def known_term(view: View, name: str, tensor: TensorProto, before: View) -> Term | None:
    """The term of a small initializer, if another reading has found it in the same one."""
    term = before.terms_of.get(name)
    if term is None or not term.by_content or term.dtype != tensor.data_type:
        return None
    return view.terms.like(term) if before.graph.initializers.get(name) == tensor else None


def reader(tensor: TensorProto, base_dir: Path | None) -> Callable[[], Array]:
    """Reads a tensor's elements; bfloat16 comes as float32, which holds it exactly."""

    def load() -> Array:
        dtype = _STORED.get(tensor.data_type)
        if dtype is not None and tensor.HasField("raw_data") and tensor.data_location != TensorProto.EXTERNAL:
            return np.frombuffer(tensor.raw_data, dtype).reshape(tuple(tensor.dims))
        array = numpy_helper.to_array(tensor, str(base_dir) if base_dir is not None else "")
        return array.astype(np.float32) if tensor.data_type == TensorProto.BFLOAT16 else array

    return load


def is_missing(tensor: TensorProto, base_dir: Path | None) -> bool:
    """Is the file that holds a tensor not there?"""
    if tensor.data_location != TensorProto.EXTERNAL:
        return False
    try:
        return not Path(base_dir or "", ExternalDataInfo(tensor).location).is_file()
    except (OSError, ValueError):  # a name that no file can have
        return True


def _unread(view: View, name: str, dims: Sequence[int]) -> Array:
    """What stands for the elements of a tensor that is not there: NaNs of its own, which equal nothing."""
    view.unread.add(name)
    quiet = np.uint32(0x7FC00000 | zlib.crc32(name.encode()) & 0x3FFFFF)
    return np.broadcast_to(quiet.view(np.float32), tuple(dims))


def constant_node(view: View, node: NodeProto) -> tuple[Term, int]:
    attribute, name = node.attribute[0], node.output[0]
    if attribute.ref_attr_name:
        dtype = {"value_float": TensorProto.FLOAT, "value_int": TensorProto.INT64}.get(attribute.name, 0)
        return view.terms.input(name, () if dtype else None, dtype), dtype
    if attribute.name == "value":
        return constant_term(view, name, attribute.t), attribute.t.data_type
    value = attribute_value(attribute)
    if dtype := CONSTANTS.get(attribute.name, 0):
        return view.terms.constant(np.array(value, numpy_dtype(dtype)), dtype), dtype
    dtype, shape = view.graph.type_of(name)
    return view.terms.input(name, shape, dtype), dtype
