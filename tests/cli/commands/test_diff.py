"""`diff` of two files: formats, exit codes, and sizes that are the same for both."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import onnx
import pytest

import onnxfuse
from onnxfuse.cli.main import main
from tests.fake_engine import Engine, fusion

Capture = pytest.CaptureFixture[str]
GELU = Path(__file__).parents[3] / "models" / "quick_gelu.onnx"


def test_a_model_before_and_after(tmp_path: Path, capsys: Capture) -> None:
    fused = tmp_path / "fused.onnx"
    onnxfuse.optimize(GELU, fused, validate="off")
    assert main(["diff", str(GELU), str(fused), "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["verdict"], data["gained"], data["lost"]) == ("same", [], [])
    figures = {figure["name"]: (figure["before"], figure["after"]) for figure in data["figures"]}
    assert figures["nodes"][1] < figures["nodes"][0]
    assert figures["launches, fused"][0] == figures["launches, fused"][1]


def test_sizes_are_those_of_either_model(tmp_path: Path, capsys: Capture) -> None:
    """One export has a fixed batch, the other does not: both are measured at the fixed one, whichever comes first."""
    fixed = onnx.load(GELU)
    name = fixed.graph.input[0].name
    dims = fixed.graph.input[0].type.tensor_type.shape.dim
    rank = len(dims)
    for dim in dims:
        dim.dim_value = dim.dim_value or 5
    onnx.save(fixed, tmp_path / "fixed.onnx")
    asked = [str(tmp_path / "fixed.onnx"), str(GELU)]
    for order in (asked, asked[::-1]):
        assert main(["diff", *order, "--format", "json"]) == 0
        data = json.loads(capsys.readouterr().out)
        sizes = dict(each.split(":") for each in data["sizes"].split())
        assert len(sizes[name].split(",")) == rank
        before, after = next((f["before"], f["after"]) for f in data["figures"] if f["name"] == "bytes moved, fused")
        assert before == after


def test_worse_exits_1_in_every_format(models: list[str], engine: Engine, capsys: Capture) -> None:
    first, _, third = models

    def report(model: onnx.ModelProto, *values: object, **options: object) -> object:
        found = Engine.report(engine, model, *values, **options)  # type: ignore[arg-type]
        found.fusions = [fusion()] if len(engine.calls) % 2 else []
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("onnxfuse.pipeline.report", report)
        assert main(["diff", first, third]) == 1
        text = capsys.readouterr().out
        assert text.startswith("model.onnx → third.onnx: worse: 1 fusion lost\n")
        for style, begin in (("markdown", "### ❌ onnxfuse: worse"), ("json", "{"), ("text", "model.onnx → ")):
            assert main(["diff", first, third, "--format", style, "-o", "out"]) == 1
            assert Path("out").read_text().startswith(begin)
        assert Path("out").read_text() == text
        assert main(["diff", first, third, "-o", "-"]) == 1
        assert capsys.readouterr().out == text


def test_what_cannot_be_read_is_an_error(models: list[str], engine: Engine, capsys: Capture) -> None:
    assert main(["diff", models[0], models[1]]) == 2
    assert "second.onnx" in capsys.readouterr().err
    assert main(["diff", models[0], models[2], "-o", models[2]]) == 2
    assert "third.onnx is a file that was given to read" in capsys.readouterr().err


def test_a_model_against_itself(model: Path, engine: Engine, capsys: Capture) -> None:
    shutil.copy(model, "copy.onnx")
    engine.fusions = [fusion()]
    assert main(["diff", str(model), "copy.onnx", "--jobs", "2"]) == 0
    assert capsys.readouterr().out.startswith("model.onnx → copy.onnx: same, once both are fused\n")
    assert main(["diff", str(model), str(model)]) == 0
