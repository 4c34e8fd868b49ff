"""Launches as values, and the accesses that arrays allow."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

from onnxfuse.kernels.device.access import vector_of
from onnxfuse.kernels.device.device import Buffer, Launch, Source, TensorType, nbytes
from onnxfuse.kernels.device.recorder import Recorder

LAUNCH = Launch(Source("x.cu", "text"), "entry", (3, 5), (32, 2), 100)


def test_a_launch_is_a_value() -> None:
    assert dataclasses.replace(LAUNCH) == LAUNCH
    assert len({LAUNCH, dataclasses.replace(LAUNCH), dataclasses.replace(LAUNCH, shared=0)}) == 2
    assert (LAUNCH.blocks, LAUNCH.threads, str(LAUNCH)) == (15, 64, "x.cu, kernel entry")
    with pytest.raises(dataclasses.FrozenInstanceError):
        LAUNCH.shared = 0  # type: ignore[misc]


def test_a_recorder_keeps_launches() -> None:
    device = Recorder()
    device.launch(LAUNCH, [np.int32(1)])
    with device.scratch(1000):
        device.launch(LAUNCH, [])
    assert device.launches == [LAUNCH, LAUNCH]
    assert device.scratched == 1000


def test_bytes() -> None:
    assert nbytes(TensorType(np.dtype(np.float16), (2, 3, 4))) == 48
    assert nbytes(TensorType(np.dtype(np.int64), ())) == 8
    assert nbytes(np.zeros((0, 3), np.float32)) == 0


def test_the_widest_access_that_sizes_and_addresses_allow() -> None:
    """All of them, against trying every width."""
    for itemsize, size, at, wide in itertools.product((2, 4), (0, 1, 2, 6, 8, 24), (0, 2, 4, 8, 24), (2, 4, 8)):
        if at % itemsize or at % wide:
            continue  # no array begins there
        arrays = [Buffer(4096 + at, (1,), np.dtype(f"V{wide}")), None]
        allowed = [
            n for n in (1, 2, 4, 8) if n * itemsize <= 16 and size % n == 0 and (4096 + at) % min(16, n * wide) == 0
        ]
        assert vector_of(itemsize, [size, 16], arrays) == max(allowed)
