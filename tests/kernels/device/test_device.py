"""Launches as values, and the accesses that arrays allow."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from onnxfuse.kernels.device.device import Launch, Source, TensorType, nbytes

LAUNCH = Launch(Source("x.cu", "text"), "entry", (3, 5), (32, 2), 100)


def test_a_launch_is_a_value() -> None:
    assert dataclasses.replace(LAUNCH) == LAUNCH
    assert len({LAUNCH, dataclasses.replace(LAUNCH), dataclasses.replace(LAUNCH, shared=0)}) == 2
    assert (LAUNCH.blocks, LAUNCH.threads, str(LAUNCH)) == (15, 64, "x.cu, kernel entry")
    with pytest.raises(dataclasses.FrozenInstanceError):
        LAUNCH.shared = 0  # type: ignore[misc]


def test_bytes() -> None:
    assert nbytes(TensorType(np.dtype(np.float16), (2, 3, 4))) == 48
    assert nbytes(TensorType(np.dtype(np.int64), ())) == 8
    assert nbytes(np.zeros((0, 3), np.float32)) == 0
