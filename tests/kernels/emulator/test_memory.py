"""Memory of a launch as the emulator guards it."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import Buffer, Launch, Source
from onnxfuse.kernels.emulator.device import Emulated
from tests.kernels.emulator.test_device import SQUARED, VECTORS, floats, zeros


def test_an_output_left_unwritten_is_named() -> None:
    source = Source("most.cu", SQUARED)
    for checked in (True, False):
        device = Emulated(checked)
        y = np.zeros((4, 8), np.float32)
        message = r"output 0 \(float32\[4, 8\]\): 5 elements were never written, the first is element 27"
        with pytest.raises(KernelError, match=message), device.fresh(y):
            device.launch(Launch(source, "squared", (1,), (32,)), [floats(32), y, np.int32(27)])
        with device.fresh(y):
            device.launch(Launch(source, "squared", (1,), (32,)), [floats(32), y, np.int32(27)])
            np.testing.assert_array_equal(np.flatnonzero(device.unwritten(y)), range(27, 32))
            device.launch(Launch(source, "squared", (1,), (32,)), [floats(32), y, np.int32(32)])
        assert y[3, 7] == 32 * 32


def test_an_output_may_be_written_in_parts() -> None:
    source = Source("parts.cu", SQUARED)
    for checked in (True, False):
        device = Emulated(checked)
        x, y, empty = floats(64), zeros(64), np.zeros((0, 3), np.float32)
        message = "32 elements were never written, the first is element 32"
        with pytest.raises(KernelError, match=message), device.fresh(y, empty):
            device.launch(Launch(source, "squared", (1,), (32,)), [x, y[:32], np.int32(32)])
        with device.fresh(y, empty):
            device.launch(Launch(source, "squared", (1,), (32,)), [x, y[:32], np.int32(32)])
            device.launch(Launch(source, "squared", (1,), (32,)), [x[32:], y[32:], np.int32(32)])
            np.testing.assert_array_equal(y, x * x)
            device.launch(Launch(source, "squared", (2,), (32,)), [y, y, np.int32(64)])
        np.testing.assert_array_equal(y, x**4)


def test_integers_may_be_minus_one() -> None:
    text = 'extern "C" __global__ void minus(int *y) { y[threadIdx.x] = -1; }'
    for checked in (True, False):
        device, y = Emulated(checked), np.zeros(8, np.int32)
        with device.fresh(y):
            device.launch(Launch(Source("minus.cu", text), "minus", (1,), (8,)), [y])
        assert set(y) == {-1}


def test_what_overlaps_is_one_buffer() -> None:
    """A kernel may work in place, and an array is not read-only where another argument lets it be written."""
    x = floats(40)
    for checked in (True, False):
        Emulated(checked).launch(Launch(Source("v.cu", VECTORS), "vectors", (1,), (8,)), [x[:32], x[:32], np.int32(32)])
    np.testing.assert_array_equal(x, floats(40))
    with pytest.raises(KernelError, match=r"race: (reads|writes)"):
        Emulated().launch(Launch(Source("v.cu", VECTORS), "vectors", (1,), (8,)), [x[:32], x[4:36], np.int32(32)])


def test_alignment_is_that_of_the_callers_memory() -> None:
    x, y = floats(72), zeros(72)
    first = next(i for i in range(8) if x[i:].ctypes.data % 16 == 0)
    aligned = Buffer(x[first:].ctypes.data, (64,), x.dtype)
    shifted = Buffer(x[first + 1 :].ctypes.data, (64,), x.dtype)
    target = next(i for i in range(8) if y[i:].ctypes.data % 16 == 0)
    output = Buffer(y[target:].ctypes.data, (64,), y.dtype)
    source = Source("v.cu", VECTORS)
    for checked in (True, False):
        Emulated(checked).launch(Launch(source, "vectors", (2,), (8,)), [aligned, output, np.int32(64)])
        np.testing.assert_array_equal(y[target : target + 64], [(i ^ 3) + 1 + first for i in range(64)])
        with pytest.raises(KernelError, match=r"v.cu:5: .*misaligned access: 4 bytes past a multiple of 16"):
            Emulated(checked).launch(Launch(source, "vectors", (2,), (8,)), [shifted, output, np.int32(64)])
