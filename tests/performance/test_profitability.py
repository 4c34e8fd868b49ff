"""Fusions that are predicted to lose on a card: left out, named, and only where a card was asked for."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import ModelProto

import onnxfuse
from onnxfuse.cli.main import main
from onnxfuse.errors import UsageError
from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.gemm import autotune
from onnxfuse.kernels.gemm.gemm import FusedMatMul
from onnxfuse.model.graph import family_of
from onnxfuse.performance import estimate, gpus
from onnxfuse.performance.estimate import predict
from onnxfuse.performance.gpus import CARDS
from onnxfuse.proof import inputs
from tests.performance.test_estimate import linear

HALF = np.dtype(np.float16)
NORM = """g (float[rows, 64] x) => (float[rows, 64] y)
<float[1] e = {1e-5}, float[1] two = {2}>
{
    m = ReduceMean<axes = [-1]>(x)
    d = Sub(x, m)
    s = Pow(d, two)
    v = ReduceMean<axes = [-1]>(s)
    t = Add(v, e)
    r = Sqrt(t)
    y = Div(d, r)
}"""


@pytest.fixture(autouse=True)
def _nothing_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ONNXFUSE_CACHE", str(tmp_path / "cache"))
    autotune.verdicts.cache_clear()
    monkeypatch.setattr(estimate, "verdicts", autotune.verdicts)


@pytest.fixture
def wide(tmp_path: Path) -> str:
    """A card on which one kernel of few blocks is slower than many of any number."""
    path = tmp_path / "wide.json"
    path.write_text(json.dumps({"like": "h200", "multiprocessors": 200_000, "float32": 1e17, "launch": 1e-7}))
    return str(path)


def norm() -> ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]>\n{NORM}')


def ops(model: ModelProto) -> list[str]:
    return [family_of(node) for node in model.graph.node if family_of(node) != "Constant"]


def test_what_pays_is_fused_as_without_a_card() -> None:
    plain, weighed = (onnxfuse.optimize(norm(), card=card, validate="off") for card in (None, "h200"))
    assert ops(plain.model) == ["LayerNormalization"]
    assert weighed.model.SerializeToString(deterministic=True) == plain.model.SerializeToString(deterministic=True)
    assert (plain.report.card, weighed.report.card, weighed.report.assumed) == (None, "h200", "rows=3")
    assert weighed.report.fusions[0].estimate == onnxfuse.report(norm(), card="h200").fusions[0].estimate
    assert weighed.report.left_out == []


def test_what_loses_is_left_out_and_named(wide: str) -> None:
    result = onnxfuse.optimize(norm(), card=wide, level=1)
    assert ops(result.model) == ops(norm())
    assert result.report.validation.verdict == "equal"
    assert result.report.fusions == []
    # What is found in the place of the first is weighed in its turn.
    assert [left.fusion.rule for left in result.report.left_out] == ["LayerNormalization", "RMSNormalization"]
    for left in result.report.left_out:
        assert left.error is None
        assert re.fullmatch(r"predicted to be [\d.]+ µs slower on wide than what it replaces", left.reason)


def test_the_sizes_decide(wide: str) -> None:
    assert ops(onnxfuse.optimize(norm(), card=wide, shapes={"x": [1_000_000, 64]}, validate="off", level=1).model) == [
        "LayerNormalization"
    ]


def test_fusions_that_are_alike_are_left_out_together_and_others_stay(wide: str) -> None:
    path = Path(__file__).parents[2] / "models" / "bert.dynamo.onnx"
    result = onnxfuse.optimize(path, card=wide, validate="off", level=1)
    gone = [left for left in result.report.left_out if left.fusion.rule == "SkipLayerNormalization"]
    assert len({left.fusion.node for left in gone}) == 7
    assert len({left.reason for left in gone}) == 2
    assert result.report.census["Attention"] == 3
    card = gpus.card(wide)
    shapes, _ = inputs.assumed(onnx.load(path))
    fused = onnxfuse.optimize(path, validate="off", level=1)
    assert predict(result.model, shapes, card).seconds < predict(fused.model, shapes, card).seconds


def test_a_product_that_was_measured_to_be_slow_with_its_epilogue_is_left_alone() -> None:
    model = linear(64, 256, 512)
    kernel = FusedMatMul({"activation": "Relu"})
    which = kernel.which([TensorType(HALF, shape) for shape in ((64, 256), (256, 512), (512,))])
    card = "NVIDIA H200 sm_90, driver 13000"
    autotune.verdicts()._keep(card, which, {"tiled": 1e-3, "vendor": 9e-4})
    # The same product alone is taken to be as slow: what is measured speaks for both.
    assert ops(onnxfuse.optimize(model, card="h200", validate="off", level=1).model) == ["FusedMatMul"]
    autotune.verdicts()._keep(card, which._replace(epilogue=""), {"tiled": 1e-5, "vendor": 2e-5})
    result = onnxfuse.optimize(model, card="h200", validate="off", level=1)
    assert ops(result.model) == ["FusedMatMul", "Relu"], "with its bias it is a product as fast as one alone"
    assert [left.fusion.op for left in result.report.left_out] == ["onnxfuse.FusedMatMul"]
    assert ops(onnxfuse.optimize(model, card="a100", validate="off", level=1).model) == ["FusedMatMul"]
    assert ops(onnxfuse.optimize(model, validate="off", level=1).model) == ["FusedMatMul"]


def test_a_model_is_predicted_node_by_node() -> None:
    h200 = CARDS["h200"]
    found = predict(norm(), {"x": (1 << 20, 64)}, h200)
    each, column = 4 * 64 << 20, 4 << 20
    moved = (each + column) + (2 * each + column) + 2 * each + (each + column) + 2 * column + 2 * column
    moved += 2 * each + column
    assert (found.fused, found.unknown) == ({}, 0)
    assert found.others == pytest.approx(moved / h200.bandwidth + 7 * h200.launch, rel=1e-6)
    assert predict(norm(), {}, h200).unknown == 7


def test_the_command_says_what_it_left_out(
    wide: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(norm(), "norm.onnx")
    assert main(["optimize", "norm.onnx", "-O1", "--card", wide, "--report", "report.json"]) == 0
    out = capsys.readouterr().out
    assert "at rows=3, assumed: --shape x:3,64\n  weighed on wide" in out
    assert "left out: LayerNormalization at " in out
    found = json.loads(Path("report.json").read_text())
    assert (found["card"], found["assumed"], found["left_out"][0]["error"]) == ("wide", "rows=3", None)
    assert main(["optimize", "norm.onnx", "--card", "h200", "--shape", "x:128,64"]) == 0
    out = capsys.readouterr().out
    assert "weighed on h200\n" in out
    assert main(["optimize", "norm.onnx", "--card", "h201"]) == 2
    assert "--card h201: it is a100, h100, h200, b200, or a .json file" in capsys.readouterr().err


def test_only_our_own_target_is_weighed() -> None:
    with pytest.raises(UsageError, match="estimates are for --target onnxfuse"):
        onnxfuse.optimize(norm(), card="h200", target="ort")
