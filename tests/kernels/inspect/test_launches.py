"""Launches of a kernel on a card, and how many blocks a multiprocessor holds."""

from __future__ import annotations

import numpy as np

from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.gemm.gemm import FusedMatMul
from onnxfuse.kernels.inspect.launches import LIMITS, launches, occupancy, resident
from onnxfuse.kernels.rows.norm import LayerNormalization


def test_what_limits_the_blocks_of_a_multiprocessor() -> None:
    assert resident("sm_90", 256, 32, 0) == 8  # threads
    assert resident("sm_90", 32, 16, 0) == 32  # blocks
    assert resident("sm_90", 256, 128, 0) == 2  # registers
    assert resident("sm_90", 256, 129, 0) == 1  # which are given out eight at a time
    assert resident("sm_90", 128, 32, 60 * 1024) == 3  # shared memory
    assert resident("sm_80", 128, 32, 60 * 1024) == 2
    assert resident("sm_80", 1024, 65, 0) == 0
    assert LIMITS.keys() >= {"sm_80", "sm_90"}


def test_the_registers_are_those_of_the_source_that_is_most_alike() -> None:
    half = np.dtype(np.float16)
    shapes = [TensorType(half, (4096, 4096))] * 2 + [TensorType(half, (4096,))]
    (large,) = launches(FusedMatMul({"activation": "Tanh"}), shapes, 132)
    assert (large.blocks, large.threads) == (32 * 32, 128)
    found = [occupancy(large, name) for name in ("sm_80", "sm_90")]
    assert [one and one.resident for one in found] == [2, 2]
    small, finish = launches(FusedMatMul({"activation": "Tanh"}), [TensorType(half, (4, 4096)), *shapes[1:]], 132)
    assert small.blocks == 64 * 4
    few = occupancy(small, "sm_90")
    assert few is not None
    assert few.resident > 2
    assert occupancy(finish, "sm_90") is not None
    (norm,) = launches(LayerNormalization({}), [TensorType(half, (64, 768)), *[TensorType(half, (768,))] * 2], 132)
    assert occupancy(norm, "sm_90") is not None
    assert occupancy(norm, "sm_86") is None
