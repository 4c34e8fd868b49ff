"""Functions of elements that another kernel calls."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import Launch, Source
from onnxfuse.kernels.pointwise.device_function import device_function
from onnxfuse.language.catalogue import load
from tests.kernel_runs import FLOAT32, far, reference
from tests.kernels.pointwise.test_pointwise_nodes import CHECKED, integers, node


def test_a_function_of_elements_is_called_by_another_kernel() -> None:
    """Skip and bias before, an activation after: what a row kernel does on its reads and writes."""
    nodes = [node("Add", "x skip", "s"), node("Add", "s bias", "sum"), node("Gelu", "sum", "y")]
    dtypes = dict.fromkeys(("x", "skip", "bias"), FLOAT32)
    text = device_function("prologue", nodes, dtypes, {"sum": "total", "y": "bent"})
    assert text.startswith("__device__ __forceinline__ void prologue(float x, float skip, float bias, float& total, ")
    caller = """
extern "C" __global__ void k(const float* x, const float* bias, float* total, float* bent) {
    prologue(x[threadIdx.x], 1.f, bias[0], total[threadIdx.x], bent[threadIdx.x]);
}
"""
    x, bias = np.linspace(-3, 3, 32, dtype=np.float32), np.array([0.5], np.float32)
    total, bent = np.empty_like(x), np.empty_like(x)
    made = Source("prologue", Source.file("functions.cuh").text + text + caller)
    CHECKED.launch(Launch(made, "k", (1,), (32,)), [x, bias, total, bent])
    np.testing.assert_allclose(total, x + 1.5, rtol=1e-6)
    arrays = [total]
    assert not far(bent, reference("Gelu", {}, arrays, load())[0])


def test_a_function_of_elements_knows_no_coordinates() -> None:
    with pytest.raises(KernelError, match="single elements"):
        device_function("f", [integers("n", 1, 2), node("Cast", "n", "y", to=1)], {}, {"y": "y"})
    with pytest.raises(KernelError, match="neither elementwise nor a view"):
        device_function("f", [node("Softmax", "x", "y")], {"x": FLOAT32}, {"y": "y"})


def test_values_are_called_otherwise_than_what_it_takes() -> None:
    text = device_function("f", [node("Exp", "t1", "a"), node("Neg", "a", "b"), node("Add", "b t1", "y")],
                           {"t1": FLOAT32}, {"y": "t0"})  # fmt: skip
    caller = 'extern "C" __global__ void k(const float* x, float* y) { f(x[threadIdx.x], y[threadIdx.x]); }\n'
    x = np.linspace(-3, 3, 32, dtype=np.float32)
    y = np.empty_like(x)
    CHECKED.launch(Launch(Source("f", Source.file("functions.cuh").text + text + caller), "k", (1,), (32,)), [x, y])
    np.testing.assert_allclose(y, x - np.exp(x), rtol=1e-6)
