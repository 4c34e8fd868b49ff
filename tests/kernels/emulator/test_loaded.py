"""Launches at a time have a copy of the library each, and a failed one leaves nothing behind."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import Launch, Source
from onnxfuse.kernels.emulator.device import Emulated
from tests.kernels.emulator.test_device import KERNELS, REVERSED, Array, floats, zeros


@pytest.mark.parametrize("checked", [True, False])
def test_several_threads_may_launch_at_a_time(checked: bool) -> None:
    device = Emulated(checked)
    source = Source("r.cu", REVERSED)

    def launch(seed: int) -> bool:
        x = np.random.default_rng(seed).random(64 * 20, np.float32)
        for _ in range(20):
            y = np.zeros_like(x)
            with device.fresh(y):
                device.launch(Launch(source, "reversed", (20,), (64,)), [x, y])
            if not np.array_equal(y.reshape(20, 64), x.reshape(20, 64)[:, ::-1]):
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(launch, range(8))) == [True] * 8


def test_entries_of_one_source_may_run_at_a_time() -> None:
    text = REVERSED + REVERSED.replace("reversed", "negated").replace("tile[63 - t]", "-tile[t]")
    device, source, x = Emulated(), Source("both.cu", text), floats(64 * 50)

    def launch(entry: str) -> Array:
        y = np.zeros_like(x)
        for _ in range(10):
            device.launch(Launch(source, entry, (50,), (64,)), [x, y])
        return y

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(launch, ["reversed", "negated"] * 4))
    for turned, negated in zip(results[::2], results[1::2], strict=True):
        np.testing.assert_array_equal(turned.reshape(50, 64), x.reshape(50, 64)[:, ::-1])
        np.testing.assert_array_equal(negated, -x)


def test_a_kernel_that_fails_leaves_nothing_behind() -> None:
    device = Emulated()
    right, wrong = Source("r.cu", REVERSED), Source("r.cu", REVERSED.replace("__syncthreads();", ""))
    for _ in range(5):
        x, y = floats(128), zeros(128)
        with pytest.raises(KernelError):
            device.launch(Launch(wrong, "reversed", (2,), (64,)), [x, y])
        with device.fresh(y):
            device.launch(Launch(right, "reversed", (2,), (64,)), [x, y])
        np.testing.assert_array_equal(y, KERNELS["reversed"].result)
