"""`onnxfuse bench`: two models that compute the same, measured in turns, and what is shown of that."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import parser

from onnxfuse.performance import benchmark
from onnxfuse.performance.benchmark import OpTime, op_times

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
