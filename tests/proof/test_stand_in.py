"""Ops that onnxruntime has on a GPU alone are computed by their definition, and no others."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxfuse.language.catalogue import load
from onnxfuse.proof.stand_in import runnable
from onnxfuse.runtime.quiet import Session

HEAD = '<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1, "d": 1]>'
GROUPS = "com.microsoft.GroupNorm <groups = 2, epsilon = 0.001, activation = 0, channels_last = 1> (x, scale, bias)"
PLAIN = f"{HEAD} g (float[2,3,3,4] x, float[4] scale, float[4] bias) => (float[2,3,3,4] y) {{ y = {GROUPS} }}"
CALL = (
    f"{HEAD} g (float[2,3,3,4] x, float[4] scale, float[4] bias) => (float[2,3,3,4] y) {{ y = d.F (x, scale, bias) }}\n"
    f'<domain: "d", opset_import: ["": 17, "com.microsoft": 1]> F (x, scale, bias) => (y) {{ y = {GROUPS} }}'
)


@pytest.mark.parametrize("text", [PLAIN, CALL], ids=["node", "node of a function"])
def test_what_runs_on_a_gpu_alone_runs_by_its_meaning(text: str) -> None:
    model = parser.parse_model(text)
    before = model.SerializeToString()
    x = np.random.default_rng(0).standard_normal((2, 3, 3, 4)).astype(np.float32)
    scale, bias = np.arange(4, dtype=np.float32), np.ones(4, np.float32)
    (y,) = Session(runnable(model, load()), optimize=False).run({"x": x, "scale": scale, "bias": bias})
    groups = x.astype(float).reshape(2, 9, 2, 2)
    mean, variance = groups.mean((1, 3), keepdims=True), groups.var((1, 3), keepdims=True)
    wanted = ((groups - mean) / np.sqrt(variance + 1e-3)).reshape(x.shape) * scale + bias
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)
    assert model.SerializeToString() == before


def test_a_model_that_a_cpu_runs_is_itself() -> None:
    model = parser.parse_model(f"{HEAD} g (float[2] x) => (y) {{ y = com.microsoft.QuickGelu (x) }}")
    assert runnable(model, load()) is model
    assert isinstance(model, onnx.ModelProto)
