"""Tensor maps, as the driver is asked for them; it is a fake one."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device import tensor_maps
from onnxfuse.kernels.device.device import Buffer, TensorMap

MATRIX = TensorMap(Buffer(0, (7, 72), np.dtype(np.float16)), 8, 6, 72, (64, 16))
BATCH = MATRIX._replace(rows=2, matrices=3, step=160)


def words(where: Any, kind: Any, count: int) -> list[int]:
    return list(ctypes.cast(where, ctypes.POINTER(kind))[:count])


def test_what_the_driver_is_asked() -> None:
    """cuTensorMapEncodeTiled: sizes from the innermost on, strides in bytes, of all dimensions but that."""
    asked: list[Any] = []

    def driver(
        to: int, kind: int, rank: int, address: int, sizes: Any, strides: Any, box: Any, steps: Any, *how: int
    ) -> int:
        asked.extend(
            [to % 64, kind, rank, address, words(sizes, ctypes.c_uint64, 3), words(strides, ctypes.c_uint64, 2)]
        )
        asked.extend([words(box, ctypes.c_uint32, 3), words(steps, ctypes.c_uint32, 3), how])
        ctypes.memset(to, 7, 128)
        return 0

    assert tensor_maps.encoded(driver, MATRIX, 4096) == bytes([7]) * 128
    assert asked == [0, 1, 3, 4096 + 16, [72, 6, 1], [144, 864], [16, 64, 1], [1, 1, 1], (0, 3, 2, 0)]
    asked.clear()
    tensor_maps.encoded(driver, BATCH, 4096)
    assert asked[4:] == [[72, 2, 3], [144, 320], [16, 64, 1], [1, 1, 1], (0, 3, 2, 0)]


def test_what_it_refuses() -> None:
    with pytest.raises(KernelError, match=r"no tensor map of \[6, 72\] \(CUresult 1\)"):
        tensor_maps.encoded(lambda *_: 1, MATRIX, 4096)


def test_where_there_is_no_driver_or_an_old_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(name)

    for library in (missing, lambda name: SimpleNamespace()):
        tensor_maps.driver.cache_clear()
        monkeypatch.setattr(ctypes, "CDLL", library)
        assert tensor_maps.driver() is None
    tensor_maps.driver.cache_clear()
