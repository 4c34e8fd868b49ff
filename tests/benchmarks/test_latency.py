"""The latency benchmark feeds, compares and counts as it says; no test asserts a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from benchmarks import floor, latency
from benchmarks.latency import Row, Settings, SideError
from onnxfuse.performance.interleaved import Ratio

MODELS = Path(__file__).resolve().parents[2] / "models"

LINEAR = """
<ir_version: 9, opset_import: ["" : 17]>
g (float[batch, 8] x) => (float[batch, 8] y)
<float[8, 8] w = {WEIGHTS}>
{ p = MatMul(x, w)  y = Relu(p) }
""".replace("WEIGHTS", ", ".join(str(n / 64) for n in range(64)))


@pytest.fixture
def linear(tmp_path: Path) -> Path:
    """One matrix product and its activation, in a file."""
    path = tmp_path / "linear.onnx"
    onnx.save(parser.parse_model(LINEAR), path)
    return path


def settings(**changes: Any) -> Settings:
    """Three rounds of onnxfuse's default target, with these changes."""
    values: dict[str, Any] = {
        "targets": ["onnxfuse"],
        "peers": [],
        "peers_python": Path("/nowhere/python"),
        "shapes": {},
        "threads": 1,
        "precision": 0.01,
        "seconds": 1.0,
        "rounds": 3,
        "clock": "wall",
        "with_floor": False,
    }
    return Settings(**{**values, **changes})


def tool(path: Path, script: str) -> Path:
    """A stand-in for onnxslim that runs `script`; returns the Python it lies beside."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path.with_name("python")


def test_a_model_is_measured_beside_itself_and_what_onnxfuse_writes() -> None:
    row = latency.benchmark(MODELS / "bert.dynamo.onnx", settings(targets=["onnxfuse", "onnx"], with_floor=True))
    assert row.failures == {}
    assert list(row.ratios) == ["control", "onnxfuse", "onnx"]
    assert row.rounds == 3
    assert row.original_us > 0
    assert row.floor is not None
    assert 0 < row.floor <= 1


def test_a_file_that_computes_something_else_is_not_measured(tmp_path: Path, linear: Path) -> None:
    other = tmp_path / "other.onnx"
    onnx.save(parser.parse_model(LINEAR.replace("Relu", "Neg")), other)
    row = latency.benchmark(
        linear, settings(peers=["onnxslim"], peers_python=tool(tmp_path / "onnxslim", f'cp {other} "$2"'))
    )
    assert list(row.ratios) == ["control", "onnxfuse"]
    assert "output 'y' differs by" in row.failures["onnxslim"]


def test_a_tool_that_fails_says_why(tmp_path: Path, linear: Path) -> None:
    python = tool(tmp_path / "onnxslim", "echo no such op >&2; exit 1")
    row = latency.benchmark(linear, settings(targets=[], peers=["onnxslim", "onnxsim"], peers_python=python))
    assert row.failures == {"onnxslim": "failed: no such op", "onnxsim": "not installed"}


def test_a_model_that_onnxruntime_refuses_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.onnx"
    path.write_bytes(b"no model")
    row = latency.benchmark(path, settings())
    assert list(row.failures) == ["original"]
    assert "\n" not in latency.line(row)
    assert latency.summary([row]) == ["original: 1 failed"]


def test_inputs_come_from_the_file_beside_the_model(linear: Path) -> None:
    given = np.arange(24, dtype=np.float32).reshape(3, 8)
    np.savez(linear.with_suffix(".npz"), **{"in:x": given, "out:y": given})
    original = latency.session(linear, 1)
    assert np.array_equal(latency.feeds_for(linear, original, {})["x"], given)
    # A shape of one of its inputs calls for generated ones; a shape of another model's input does not.
    assert latency.feeds_for(linear, original, {"x": (5, 8)})["x"].shape == (5, 8)
    assert np.array_equal(latency.feeds_for(linear, original, {"pixels": (1, 3)})["x"], given)


def test_inputs_on_which_the_model_does_not_run_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "strict.onnx"
    onnx.save(parser.parse_model(LINEAR.replace("float[batch, 8] x", "float[batch, width] x")), path)
    with pytest.raises(SideError):
        latency.feeds_for(path, latency.session(path, 1), {"x": (2, 9)})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["none.onnx"], "no model at none.onnx"),
        (["LINEAR", "--shape", "z:1,8"], "--shape z: no model has such an input"),
        (["LINEAR", "--shape", "x"], "'x': write NAME:DIMS, such as input_ids:1,128"),
        (["LINEAR", "--clock", "cpu", "--threads", "2"], "--clock cpu counts one thread only: leave --threads at 1"),
        (["LINEAR", "--target", "fastest"], "invalid choice: 'fastest'"),
    ],
)
def test_a_mistake_is_one_clear_line(
    arguments: list[str], message: str, linear: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        latency.main([str(linear) if argument == "LINEAR" else argument for argument in arguments])
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_the_json_says_what_the_figures_depend_on(
    tmp_path: Path, linear: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "latency.json"
    assert latency.main([str(linear), "--rounds", "3", "--clock", "cpu", "--json", str(output)]) == 0
    written = json.loads(output.read_text())
    assert written["versions"]["onnxruntime"] == onnxruntime.__version__
    assert (written["threads"], written["clock"]) == (1, "cpu")
    assert set(written["rows"][0]["ratios"]) == {"control", "onnxfuse"}
    assert capsys.readouterr().out.startswith("linear.onnx")


def test_the_summary_counts_what_is_slower_and_what_failed() -> None:
    fast = Row("fast.onnx", 100.0, 9, {"control": Ratio(1.0, 1.0, 1.0), "onnxfuse": Ratio(4.0, 3.9, 4.1)})
    slow = Row("slow.onnx", 100.0, 9, {"control": Ratio(1.03, 1.0, 1.1), "onnxfuse": Ratio(0.96, 0.9, 1.0)})
    broken = Row("broken.onnx", 100.0, 9, {"control": Ratio(1.0, 1.0, 1.0)}, {"onnxfuse": "differs"})
    assert latency.summary([fast, slow, broken])[1:] == [
        "onnxfuse: geometric mean 1.960 of 2, least 0.96 (slow.onnx), 1 under 0.97, 1 failed",
        "the control is off by more than 2% on 1: measure again on a quieter machine",
    ]
    assert latency.line(slow).endswith("(noisy)")
    assert not latency.line(fast).endswith("(noisy)")


def test_the_line_says_what_the_floor_leaves() -> None:
    row = Row("model.onnx", 1234.5, 9, {"onnxfuse": Ratio(1.25, 1.2, 1.3)}, floor=0.5)
    assert latency.line(row).split("  ")[-2:] == ["onnxfuse 1.25 [1.20, 1.30]", "products 50%, leaves 2.00"]
    row.floor = 0.0
    assert latency.line(row).endswith("products 0%, leaves all")


def test_products_are_counted_run_by_run() -> None:
    def event(name: str, start: int, took: int, **args: str) -> dict[str, Any]:
        return {"name": name, "ts": start, "dur": took, "args": args}

    events = [
        event("model_loading_uri", 0, 50),
        event("a_kernel_time", 110, 20, op_name="MatMul"),
        event("b_kernel_time", 140, 30, op_name="Softmax"),
        event("c_kernel_time", 180, 5, op_name="FusedConv"),
        event("model_run", 100, 100),
        event("a_fence_before", 310, 7, op_name="MatMul"),
        event("a_kernel_time", 320, 40, op_name="MatMul"),
        event("model_run", 300, 100),
    ]
    assert floor.product_seconds(events) == pytest.approx([25e-6, 40e-6])


def test_the_floor_of_a_model_without_products_is_nothing(tmp_path: Path, linear: Path) -> None:
    path = tmp_path / "relu.onnx"
    onnx.save(parser.parse_model(LINEAR.replace("MatMul(x, w)", "Add(x, x)")), path)
    feeds = {"x": np.ones((4, 8), np.float32)}
    assert floor.share(path, latency.options(1), feeds, seconds=0.1) == 0
    assert 0 < floor.share(linear, latency.options(1), feeds, seconds=0.1) <= 1
