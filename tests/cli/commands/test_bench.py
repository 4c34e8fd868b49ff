"""`onnxfuse bench`: two models side by side, as text and as JSON, and what stands in the way."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onnxfuse.cli.main import main
from onnxfuse.performance.benchmark import Bench
from tests.performance.test_benchmark import LONG, QUICK, SAME, Capture, saved


def test_two_models_are_measured(tmp_path: Path, capsys: Capture) -> None:
    original, fused = saved(tmp_path, "a.onnx", LONG), saved(tmp_path, "b.onnx", SAME)
    assert main(["bench", original, fused, "--shape", "x:64,256", "--rounds", "9"]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line]
    assert lines[0] == f"{original} against {fused}"
    assert lines[1] == "  cpu, 1 thread, n=64, 9 rounds in turns"
    assert lines[2].startswith("  original ")
    assert lines[3].startswith("  fused ")
    assert max(line.count("█") for line in lines[2:4]) == 40
    assert "times as fast" in lines[4]
    ops = [line.split()[:2] for line in lines[6:]]
    assert ["Sin", "2"] in ops
    assert ["Mul", "1"] in ops
    assert ops.index(["original", *[]]) < ops.index(["fused", *[]])


def test_the_figures_as_json(tmp_path: Path, capsys: Capture) -> None:
    original, fused = saved(tmp_path, "a.onnx", LONG), saved(tmp_path, "b.onnx", SAME)
    assert main(["bench", original, fused, *QUICK, "--format", "json", "--threads", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == {"schema", *Bench.__dataclass_fields__}
    assert (found["rounds"], found["threads"], found["provider"], found["profile"]) == (9, 2, "cpu", {})
    assert found["ratio"]["low"] <= found["ratio"]["median"] <= found["ratio"]["high"]
    assert found["seconds"].keys() == {"original", "fused"}


def test_the_fused_model_is_made_where_none_is_given(capsys: Capture) -> None:
    model = str(Path(__file__).parents[3] / "models" / "quick_gelu.onnx")
    assert main(["bench", model, *QUICK, "--target", "ort"]) == 0
    assert "quick_gelu.onnx against what onnxfuse makes of it (--target ort)\n" in capsys.readouterr().out


def test_models_that_compute_different_numbers_are_not_measured(tmp_path: Path, capsys: Capture) -> None:
    original, other = saved(tmp_path, "a.onnx", LONG), saved(tmp_path, "b.onnx", LONG.replace("Add", "Sub"))
    assert main(["bench", original, other, *QUICK]) == 3
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"onnxfuse: error: {other} computes something else, nothing measured: output 'y' differ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LONG.replace("float[n, 256] x", "float[n, 256] z").replace("x", "z"), "does not run it on these inputs: "),
        (LONG.replace("Sin(a)", "Softmax <axis = 7> (a)"), "onnxruntime does not load it: "),
        (LONG.replace("=> (", "=> (float[n, 256] b, "), "has 2 outputs instead of 1: nothing measured"),
    ],
)
def test_a_model_that_cannot_stand_beside_the_original_is_named(
    tmp_path: Path, text: str, message: str, capsys: Capture
) -> None:
    original, other = saved(tmp_path, "a.onnx", LONG), saved(tmp_path, "b.onnx", text)
    assert main(["bench", original, other, *QUICK]) in (2, 3)
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert other in error
    assert message in error


def test_a_model_that_is_not_there_is_one_line(tmp_path: Path, capsys: Capture) -> None:
    original = saved(tmp_path, "a.onnx", LONG)
    assert main(["bench", original, str(tmp_path / "no.onnx")]) == 2
    assert capsys.readouterr().err == f"onnxfuse: error: {tmp_path / 'no.onnx'}: no such file: check the name\n"
