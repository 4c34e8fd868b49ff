"""`onnxfuse bench`: two models that compute the same, measured in turns, and what is shown of that."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from onnx import parser

from onnxfuse.cli import tables
from onnxfuse.cli.console import console
from onnxfuse.cli.main import main
from onnxfuse.performance import benchmark
from onnxfuse.performance.benchmark import Bench, OpTime, op_times
from onnxfuse.performance.interleaved import Ratio

Capture = pytest.CaptureFixture[str]

LONG = """<ir_version: 9, opset_import: ["": 17]>
g (float[n, 256] x) => (float[n, 256] y) {
    a = Mul(x, x)
    b = Sin(a)
    c = Sin(b)
    y = Add(c, x)
}"""
SAME = LONG.replace("a = Mul(x, x)", "two = Constant <value_float = 2.0> () a = Pow(x, two)")
QUICK = ["--rounds", "9", "--no-profile"]


def saved(folder: Path, name: str, text: str) -> str:
    path = folder / name
    onnx.save(parser.parse_model(text), path)
    return str(path)


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
    model = str(Path(__file__).parents[2] / "models" / "quick_gelu.onnx")
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


def test_strings_and_sequences_are_measured_too(tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["": 17]>
    g (float[4] x) => (seq(float[2]) y) { two = Constant <value_int = 2> () y = SplitToSequence(x, two) }"""
    side = benchmark.Side(parser.parse_model(text), tmp_path, "a sequence")
    assert benchmark.bench(side, side, rounds=9, profile=False).rounds == 9


def test_a_profile_counts_nodes_and_leaves_the_first_run_out() -> None:
    def event(name: str, start: int, duration: int, op: str = "") -> dict[str, object]:
        return {"name": name, "ts": start, "dur": duration, "args": {"op_name": op} if op else {}}

    events = [event("model_run", 0, 90), event("a_kernel_time", 10, 50, "Add")]
    for start, interrupted in ((100, 0), (200, 900), (300, 0)):
        events += [event("model_run", start, 50), event("session_initialization", start, 9)]
        events += [
            event("a_kernel_time", start + 1, 4 + interrupted, "Add"),
            event("b_kernel_time", start + 9, 6, "Add"),
        ]
        events += [event("c_kernel_time", start + 20, 30, "MatMul")]
    assert op_times(events) == [OpTime("MatMul", 1, pytest.approx(30e-6)), OpTime("Add", 2, pytest.approx(10e-6))]
    assert op_times(events[:2]) == []


def test_kernels_and_a_slower_model_are_shown(capsys: Capture) -> None:
    result = Bench("a", "b", "cuda", 1, "n=1", {"original": 1.5, "fused": 0.0021}, 9, Ratio(0.9, 0.8, 0.95), ["Gelu"])
    tables.print_bench(console(), result)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "  cuda, n=1, 9 rounds in turns"
    assert lines[3].split()[:3] == ["original", "1.5", "s"]
    assert lines[4].split()[:3] == ["fused", "2.1", "ms"]
    assert lines[5] == "  0.90 times as fast  (95 % of medians: 0.80 to 0.95)"
    assert lines[6] == "  kernels: Gelu"
