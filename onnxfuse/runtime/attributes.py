"""The attributes of a node, as onnxruntime tells them to a custom op."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from ctypes import addressof, byref, c_float, c_int, c_int64, c_size_t, c_void_p
from typing import Any

import numpy as np
from onnx import AttributeProto, helper

from .abi import Api, Pointer

_known: dict[str, frozenset[tuple[str, int]]] = {}
"""Op → names and AttributeProto types of the attributes that its nodes may have."""


def expect(op: str, kinds: Iterable[tuple[str, int]]) -> None:
    """Nodes of this op may have these attributes: onnxruntime cannot list them, and is asked for each."""
    _known[op] = _known.get(op, frozenset()).union(kinds)


def read(api: Api, info: int, op: str) -> dict[str, Any]:
    """The attributes that a node has: numbers, strings, tuples of numbers, NumPy arrays."""
    found: dict[str, Any] = {}
    for name, kind in sorted(_known.get(op, ())):
        value = _READERS[kind](api, info, name.encode())
        if value is not None:
            found[name] = value
    return found


def _float(api: Api, info: int, name: bytes) -> float | None:
    value = c_float()
    return value.value if api.ok(api.KernelInfoGetAttribute_float(info, name, addressof(value))) else None


def _int(api: Api, info: int, name: bytes) -> int | None:
    value = c_int64()
    return value.value if api.ok(api.KernelInfoGetAttribute_int64(info, name, addressof(value))) else None


def _string(api: Api, info: int, name: bytes) -> str | None:
    size = c_size_t()
    if not api.ok(api.KernelInfoGetAttribute_string(info, name, 0, addressof(size))):
        return None
    text = ctypes.create_string_buffer(size.value)
    api.check(api.KernelInfoGetAttribute_string(info, name, addressof(text), addressof(size)))
    return text.value.decode()


def _floats(api: Api, info: int, name: bytes) -> tuple[float, ...] | None:
    return _array(api, api.KernelInfoGetAttributeArray_float, c_float, info, name)


def _ints(api: Api, info: int, name: bytes) -> tuple[int, ...] | None:
    return _array(api, api.KernelInfoGetAttributeArray_int64, c_int64, info, name)


def _array(api: Api, get: Callable[..., Pointer], kind: Any, info: int, name: bytes) -> tuple[Any, ...] | None:
    size = c_size_t()
    if not api.ok(get(info, name, 0, addressof(size))):
        return None
    values = (kind * size.value)()
    if size.value:
        api.check(get(info, name, addressof(values), addressof(size)))
    return tuple(values)


def _tensor(api: Api, info: int, name: bytes) -> np.ndarray | None:
    allocator, value, pointer, dims = c_void_p(), c_void_p(), c_void_p(), c_void_p()
    kind, rank = c_int(), c_size_t()
    api.check(api.GetAllocatorWithDefaultOptions(addressof(allocator)))
    if not api.ok(api.KernelInfoGetAttribute_tensor(info, name, allocator.value, addressof(value))):
        return None
    try:
        api.check(api.GetTensorElementTypeAndShapeDataReference(value, byref(kind), byref(dims), byref(rank)))
        shape = tuple((c_int64 * rank.value).from_address(dims.value)) if dims.value else ()
        array = np.empty(shape, helper.tensor_dtype_to_np_dtype(kind.value))
        api.check(api.GetTensorMutableData(value, byref(pointer)))
        if pointer.value:
            ctypes.memmove(array.ctypes.data, pointer.value, array.nbytes)
        return array
    finally:
        api.ReleaseValue(value.value)


_READERS: Mapping[int, Callable[[Api, int, bytes], Any]] = {
    AttributeProto.FLOAT: _float,
    AttributeProto.INT: _int,
    AttributeProto.STRING: _string,
    AttributeProto.TENSOR: _tensor,
    AttributeProto.FLOATS: _floats,
    AttributeProto.INTS: _ints,
}
READABLE = frozenset(_READERS)
"""AttributeProto types that onnxruntime tells a custom op."""
