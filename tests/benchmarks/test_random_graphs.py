"""Random models: the engine alone, without a proof, computes what they do; with NaN and empty tensors, too."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import benchmarks.random_graphs.__main__ as main
from benchmarks.random_graphs.build import Seeded
from benchmarks.random_graphs.feeds import feeds
from benchmarks.random_graphs.graphs import random_model
from benchmarks.random_graphs.judge import Original
from benchmarks.random_graphs.shrink import fused, raises, shrunken
from onnxfuse.runtime.quiet import Session
from tests.benchmarks.test_random_graphs_judge import ZERO, written

TARGETS = ("onnxfuse", "onnx", "ort")


class Drawn:
    """Decisions that hypothesis takes, and makes simpler where something fails."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    return random_model(Drawn(draw))


@settings(max_examples=50, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(models())
def test_what_is_fused_of_a_random_model_computes_the_same(model: onnx.ModelProto) -> None:
    original = Original(model, feeds(model))
    for target in TARGETS:
        wrong = original.wrong(fused(model, target))
        assert wrong is None, f"{target}: {wrong}\n{onnx.printer.to_text(model)}"


def test_the_checker_accepts_every_random_model_and_onnxruntime_loads_it() -> None:
    ops = set[str]()
    for seed in range(150):
        model = random_model(Seeded(seed))
        onnx.checker.check_model(model, full_check=True)
        Session(model, optimize=False)
        ops |= {node.op_type for node in model.graph.node}
    assert len(ops) > 80
    assert {"If", "Function0"} <= ops


def test_a_seed_gives_the_same_model_and_the_same_feeds() -> None:
    one, other = random_model(Seeded(3)), random_model(Seeded(3))
    assert one.SerializeToString(deterministic=True) == other.SerializeToString(deterministic=True)
    for a, b in zip(feeds(one, 3), feeds(other, 3), strict=True):
        assert a.name == b.name
        assert all(np.array_equal(a.inputs[name], b.inputs[name], equal_nan=True) for name in a.inputs)


def test_a_model_that_never_ends_takes_no_other_with_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What counts is time of a processor: a machine with other work is no reason."""

    def examined(seed: int, pipe: Connection, work: main.Work) -> dict[str, Any]:
        main._begin("onnx", pipe)
        while seed == 1:
            pass
        return {"seed": seed, "wrong": []}

    monkeypatch.setattr(main, "_examined", examined)
    monkeypatch.setattr(main, "SLOW", 1)
    found = {record["seed"]: record["wrong"] for record in main._results([0, 1, 2], 1, main.Work((), tmp_path, False))}
    path = tmp_path / "1.onnx.onnx"
    assert found == {0: [], 1: [f"seed 1: onnx: the process died, or took longer than 1 s: {path}"], 2: []}
    assert onnx.load(path) == random_model(Seeded(1))


def test_an_error_of_the_engine_leaves_a_small_model_and_its_inputs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def engine(model: onnx.ModelProto, target: str) -> onnx.ModelProto:
        raise ValueError("no such axis")

    monkeypatch.setattr(main, "fused", engine)
    monkeypatch.setattr("benchmarks.random_graphs.shrink.fused", engine)
    (record,) = main._results([4], 1, main.Work(("onnx",), tmp_path, False))
    path = tmp_path / "4.onnx.onnx"
    assert record["wrong"] == [f"seed 4: onnx: ValueError: no such axis: {path}"]
    small = onnx.load(path)
    assert len(small.graph.node) < len(random_model(Seeded(4)).graph.node)
    with np.load(path.with_suffix(".npz")) as numbers:
        assert set(numbers) == {value.name for value in small.graph.input}


def test_a_model_on_which_the_engine_raises_is_made_small_for_that_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model = written(f"{ZERO} a = Sin(x) b = Mul(a, z) c = Exp(b) y = Tanh(c)", outputs="float[?,?,?] y")

    def engine(model: onnx.ModelProto, target: str) -> onnx.ModelProto:
        """One that knows no Mul, and gives up where it sees no node but one."""
        ops = [node.op_type for node in model.graph.node if node.op_type != "Constant"]
        if len(ops) < 2:
            raise LookupError
        if "Mul" in ops:
            raise ValueError
        return model

    monkeypatch.setattr("benchmarks.random_graphs.shrink.fused", engine)
    small, numbers = shrunken(model, feeds(model)[0], raises("ort", ValueError("Mul")))
    left = [node.op_type for node in small.graph.node if node.op_type != "Constant"]
    assert len(left) == 2
    assert "Mul" in left
    assert set(numbers.inputs) == {value.name for value in small.graph.input}
