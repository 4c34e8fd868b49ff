"""Random models: the engine alone, without a proof, computes what they do; with NaN and empty tensors, too."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import parser

from benchmarks.random_graphs.build import Seeded
from benchmarks.random_graphs.feeds import feeds
from benchmarks.random_graphs.graphs import random_model
from benchmarks.random_graphs.judge import Original
from benchmarks.random_graphs.shrink import fused, shrunken
from onnxfuse.runtime.quiet import Session

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


def written(
    body: str, inputs: str = "float[b,s,4] x", outputs: str = "float[?,?,?] y", opset: int = 18
) -> onnx.ModelProto:
    """A model of these equations."""
    return parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> g ({inputs}) => ({outputs}) {{ {body} }}')


ZERO = "z = Constant<value = float {0.0}>()\n one = Constant<value = float {1.0}>()\n"
LAYER_NORM = """axes = Constant<value = int64[1] {2}>()
    mean = ReduceMean(x, axes)  d = Sub(x, mean)  q = Mul(d, d)  v = ReduceMean(q, axes)
    e = Constant<value = float {EPSILON}>()  w = Add(v, e)  r = Sqrt(w)  y = Div(d, r)"""
PLANTED = {
    "0 times anything is 0": (f"{ZERO} y = Mul(x, z)", f"{ZERO} a = Sign(x) y = Mul(a, z)"),
    "a difference with itself is 0": ("y = Sub(x, x)", f"{ZERO} a = Sign(x) y = Mul(a, z)"),
    "a quotient with itself is 1": ("y = Div(x, x)", f"{ZERO} a = Sigmoid(x) y = Div(a, a)"),
    "NaN is 0": ("y = Identity(x)", f"{ZERO} n = IsNaN(x) y = Where(n, z, x)"),
    "what is not above 0 is 0": (f"{ZERO} p = Greater(x, z) y = Where(p, x, z)", "y = Relu(x)"),
    "an epsilon is ten times too large": (LAYER_NORM.replace("EPSILON", "1e-2"), LAYER_NORM.replace("EPSILON", "1e-1")),
    "a factor is off by 1e-4": (
        "c = Constant<value = float {0.5}>() y = Mul(x, c)",
        "c = Constant<value = float {0.50005}>() y = Mul(x, c)",
    ),
    "a dimension is lost": ("a = Constant<value = int64[1] {2}>() y = ReduceMax(x, a)", "y = Identity(x)"),
}
"""What is wrong → an original, and what it must not become."""
RIGHT = {
    "softplus overflows by its spelling": (f"{ZERO} e = Exp(x) s = Add(e, one) y = Log(s)", "y = Softplus(x)"),
    "a sum in another order": (
        "a = Exp(x) b = Sin(x) t = Add(x, a) y = Add(t, b)",
        "a = Exp(x) b = Sin(x) t = Add(a, b) y = Add(x, t)",
    ),
    "what cancels is left to rounding": ("a = Cos(x) s = Add(x, a) y = Sub(s, x)", "y = Cos(x)"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_mistake_is_found(name: str) -> None:
    before, after = (written(body) for body in PLANTED[name])
    assert Original(before, feeds(before)).wrong(before) is None
    assert Original(before, feeds(before)).wrong(after) is not None


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_in_another_way_is_no_mistake(name: str) -> None:
    before, after = (written(body) for body in RIGHT[name])
    assert Original(before, feeds(before)).wrong(after) is None


def test_a_wrong_model_is_made_as_small_as_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    model = written(
        f"{ZERO} a = Sin(x) b = Mul(a, z) c = Add(b, one) d = Cos(c) u = Exp(a) y = Tanh(d)",
        outputs="float[?,?,?] y, float[?,?,?] u",
    )

    def engine(model: onnx.ModelProto, target: str) -> onnx.ModelProto:
        """One that takes 0 * b for 0."""
        made = onnx.ModelProto()
        made.CopyFrom(model)
        for node in made.graph.node:
            if node.op_type == "Mul":
                node.input[0] = node.input[1]
        return made

    monkeypatch.setattr("benchmarks.random_graphs.shrink.fused", engine)
    found = Original(model, feeds(model)).wrong(engine(model, "ort"))
    assert found is not None
    small = shrunken(model, "ort", found)
    assert [node.op_type for node in small.graph.node if node.op_type != "Constant"] == ["Mul"]
