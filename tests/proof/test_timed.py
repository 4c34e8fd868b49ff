"""A proof that takes too long ends, and says so; what is known to differ by then is not written."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

import onnxfuse
from onnxfuse.cli.main import main
from onnxfuse.fusing.fuse import fuse
from onnxfuse.fusing.fused import UNNAMED, Fused, Progress
from onnxfuse.language.catalogue import load
from onnxfuse.proof import cut_proof, timed
from onnxfuse.proof.claim import Claim, Experiment
from onnxfuse.proof.comparison import FUSED, ORIGINAL, SEARCH
from onnxfuse.proof.prove import prove
from onnxfuse.runtime.quiet import Session
from tests import broken

MODELS = Path(__file__).parents[2] / "models"
Capture = pytest.CaptureFixture[str]


def endless() -> onnx.ModelProto:
    """A Loop whose condition is always true, of x and its Swish."""
    text = """<ir_version: 9, opset_import: ["": 18]>
    g (float[n, 4] x) => (float[n, 4] y, float[n, 4] z) {
        s = Sigmoid (x)
        z = Mul (x, s)
        always = Constant <value = bool {1}> ()
        y = Loop <body = body (int64 i, bool c, float[n, 4] v) => (bool again, float[n, 4] w) {
            again = Identity (c)
            w = Neg (v)
        }> (, always, x)
    }"""
    return onnx.parser.parse_model(text)


def doubling(levels: int) -> onnx.ModelProto:
    """Functions that each call the next one twice."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("d", 1)]
    functions = []
    for level in range(levels):
        called = {"op_type": f"F{level + 1}", "domain": "d"} if level < levels - 1 else {"op_type": "Relu"}
        nodes = [helper.make_node(inputs=["x"], outputs=["t"], **called)]
        nodes += [helper.make_node(inputs=["t"], outputs=["y"], **called)]
        functions.append(helper.make_function("d", f"F{level}", ["x"], ["y"], nodes, opsets))
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("F0", ["x"], ["y"], domain="d")], "g", values[:1], values[1:])
    return helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=9)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("model", [endless(), doubling(40)], ids=["loop", "functions"])
def test_a_model_that_never_ends_is_fused_and_not_validated(
    model: onnx.ModelProto, folder: Path, capsys: Capture
) -> None:
    onnx.save(model, "m.onnx")
    assert main(["optimize", "m.onnx", "--timeout", "1"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "not validated: took longer than 1 s to run the original" in out
    nodes = [node.op_type for node in onnx.load("m.fused.onnx").graph.node]
    assert nodes == [op for op in nodes if op not in ("Sigmoid", "Mul")]


@pytest.mark.parametrize("command", ["run", "bench"])
def test_nor_does_it_hang_other_commands(command: str, folder: Path, capsys: Capture) -> None:
    onnx.save(endless(), "m.onnx")
    assert main([command, "m.onnx", "--timeout", "1"]) == 2
    assert capsys.readouterr().err == ("onnxfuse: error: m.onnx: took longer than 1 s: give it more with --timeout\n")


def test_a_proof_in_a_process_is_the_same_proof() -> None:
    model = broken.custom_op_in_the_middle()
    model.graph.node[-1].ClearField("domain")
    for example in (broken.good(), model, onnx.load(MODELS / "softmax.onnx")):
        here, there = (onnxfuse.optimize(example, timeout=timeout) for timeout in (None, 60.0))
        assert here.model == there.model
        assert (here.report.validation, here.report.left_out) == (there.report.validation, there.report.left_out)


@pytest.mark.parametrize(
    ("steps", "verdict"),
    [
        ([], "not validated"),
        ([ORIGINAL], "not validated"),
        ([ORIGINAL, FUSED], "mismatch"),
        ([ORIGINAL, FUSED, "compare site by site"], "not validated"),
        ([ORIGINAL, FUSED, SEARCH, "compare site by site"], "mismatch"),
        ([ORIGINAL, FUSED, SEARCH, "bisect"], "mismatch"),
    ],
)
def test_what_is_known_when_the_time_is_up_decides(
    steps: list[str], verdict: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def waits(claim: Claim, experiment: Experiment, progress: Progress) -> None:
        for number, step in enumerate(steps):
            progress(step, number, 3)
        import time

        time.sleep(60)

    monkeypatch.setattr(timed, "prove", waits)
    onnx.save(broken.good(), "m.onnx")
    assert main(["optimize", "m.onnx", "--timeout", "0.2"]) == (3 if verdict == "mismatch" else 0)
    out, err = capsys.readouterr()
    assert "took longer than 0.2 s" + (f" to {steps[-1]}" if steps else "") in (err if verdict == "mismatch" else out)
    assert Path("m.fused.onnx").exists() == (verdict != "mismatch")


def test_a_step_that_finds_something_wrong_says_so() -> None:
    """Else time that is up while it is looked for would let it through."""
    model = onnx.load(MODELS / "softmax.onnx")
    fused = fuse(model, load())
    spoiled = Fused(onnx.ModelProto.FromString(fused.model.SerializeToString()), fused.sites, [], frozenset())
    spoiled.model.graph.output[0].name, told = fused.model.graph.input[0].name, list[str]()
    _, validation, _ = prove(
        Claim(model, spoiled, lambda banned, apart=UNNAMED: spoiled),
        Experiment(on_mismatch="fail"),
        lambda step, done, total: told.append(step),
    )
    assert validation.verdict == "mismatch"
    assert told[:3] == [ORIGINAL, FUSED, SEARCH]


def _crashing(monkeypatch: pytest.MonkeyPatch, *, optimized: bool) -> None:
    """Sessions of cuts crash: those that onnxruntime optimizes, or those that it does not."""

    class Crashing(Session):
        def __init__(self, *given: Any, optimize: bool, **options: Any) -> None:
            if optimize == optimized:
                os.kill(os.getpid(), signal.SIGSEGV)
            super().__init__(*given, optimize=optimize, **options)

    monkeypatch.setattr(cut_proof, "Session", Crashing)


def test_a_cut_on_which_the_optimizer_of_onnxruntime_crashes_is_compared_without_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    onnx.save(onnx.load(MODELS / "softmax.onnx"), "m.onnx")
    _crashing(monkeypatch, optimized=True)
    assert main(["optimize", "m.onnx"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "same numbers in onnxruntime" in out
    assert re.search(r"and at \d+ places?", out)


def test_a_cut_that_crashes_without_it_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    onnx.save(onnx.load(MODELS / "softmax.onnx"), "m.onnx")
    _crashing(monkeypatch, optimized=False)
    assert main(["optimize", "m.onnx"]) == 2
    assert "m.onnx: onnxruntime, or onnx, crashed with SIGSEGV" in capsys.readouterr().err
    assert not Path("m.fused.onnx").exists()
