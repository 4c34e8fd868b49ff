"""Tensor maps, as the driver encodes them: cuTensorMapEncodeTiled (CUDA driver API, "Tensor Map Object Management")."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from onnxfuse.errors import KernelError

from .device import TensorMap

DRIVER = "libcuda.so.1"
BYTES, ALIGNMENT = 128, 64
"""Of a CUtensorMap."""
RANK = 3
"""Columns, rows, and matrices."""
UINT16, NO_INTERLEAVE, SWIZZLE_128B, PROMOTE_128B, FILL_ZEROS = 1, 0, 3, 2, 0
"""CU_TENSOR_MAP_DATA_TYPE_UINT16: bits are copied, whatever type of 16 bits they are of; _INTERLEAVE_NONE,
_SWIZZLE_128B, _L2_PROMOTION_L2_128B, _FLOAT_OOB_FILL_NONE."""


@cache
def driver() -> Any:
    """The driver's function; None where there is no driver, or one that has none."""
    try:
        found = ctypes.CDLL(DRIVER).cuTensorMapEncodeTiled
    except (OSError, AttributeError):
        return None
    pointer, number = ctypes.c_void_p, ctypes.c_int
    found.argtypes = [pointer, number, ctypes.c_uint32, *[pointer] * 5, *[number] * 4]
    return found


def encoded(function: Any, map: TensorMap, address: int) -> bytes:
    """What the driver's function makes of a map whose array begins at an address.  Raises KernelError if it refuses."""
    itemsize = map.array.dtype.itemsize
    memory = ctypes.create_string_buffer(BYTES + ALIGNMENT)
    first = ctypes.addressof(memory)
    start = -first % ALIGNMENT
    step = map.step if map.matrices > 1 else map.rows * map.columns
    sizes = (ctypes.c_uint64 * RANK)(map.columns, map.rows, map.matrices)
    strides = (ctypes.c_uint64 * (RANK - 1))(map.columns * itemsize, step * itemsize)
    box, steps = (ctypes.c_uint32 * RANK)(*map.box[::-1], 1), (ctypes.c_uint32 * RANK)(1, 1, 1)
    failed = function(
        first + start, UINT16, RANK, address + map.offset * itemsize, sizes, strides, box, steps,
        NO_INTERLEAVE, SWIZZLE_128B, PROMOTE_128B, FILL_ZEROS,
    )  # fmt: skip
    if failed:
        raise KernelError(f"the driver makes no tensor map of [{map.rows}, {map.columns}] (CUresult {failed})")
    return memory.raw[start : start + BYTES]
