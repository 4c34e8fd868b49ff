"""What is measured of quantized models."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from benchmarks import quantized_models
from tests.quantized_models import quantized

GELU = """root = Constant<value_float = 1.4142135>()  one = Constant<value_float = 1.0>()
    half = Constant<value_float = 0.5>()  p = MatMul(x, m)  t = Add(p, g)  a = Div(t, root)  b = Erf(a)  c = Add(b, one)
    e = Mul(t, c)  y = Mul(e, half)"""


@pytest.mark.parametrize("how", ["dynamic", "qdq-unsigned"])
def test_a_model_is_quantized_fused_and_counted(how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = quantized(GELU)
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", 1, ["b", "t", 8]))
    onnx.save(model, tmp_path / "gelu.onnx")
    status = quantized_models.main([str(tmp_path / "gelu.onnx"), "--how", how, "--target", "onnxfuse"])
    told = capsys.readouterr().out
    assert status == 0, told
    assert "onnxfuse: 1 of 1 right" in told
    assert ("not fused: nothing" in told) == (how == "dynamic"), "steps are between the parts of a static Gelu"
