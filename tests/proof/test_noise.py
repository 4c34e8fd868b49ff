"""What draws random numbers is proved with numbers that both models draw alike."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxfuse import pipeline
from onnxfuse.model.op_traits import RANDOM
from onnxfuse.proof.noise import ALIKE, steady
from onnxfuse.proof.oracle import Oracle
from onnxfuse.runtime.quiet import Session


def model(
    body: str, inputs: str = "float[n, 6] x", opset: int = 17, constants: str = "", tail: str = ""
) -> onnx.ModelProto:
    return parser.parse_model(
        f'<ir_version: 7, opset_import: ["": {opset}, "d": 1]> g ({inputs}) => (y) {constants} {{ {body} }}\n{tail}'
    )


def run(given: onnx.ModelProto, **feeds: np.ndarray) -> np.ndarray:
    """What it gives each of two times; the same."""
    made = steady(given)
    assert not any(node.op_type in RANDOM for node in made.graph.node)
    first, again = (Session(made, optimize=optimize).run(feeds)[0] for optimize in (False, True))
    np.testing.assert_array_equal(first, again)
    return first


X = np.random.default_rng(0).uniform(0.0, 1.0, (500, 6)).astype(np.float32)


@pytest.mark.parametrize("opset", [12, 17, 22])
@pytest.mark.parametrize(
    ("body", "low", "high", "mean", "deviation"),
    [
        ("y = RandomUniformLike <low = 2.0, high = 4.0> (x)", 2, 4, 3, 2 / 12**0.5),
        ("y = RandomNormalLike <mean = 1.0, scale = 0.5> (x)", -1, 3, 1, 0.5),
        ("y = RandomUniform <shape = [100, 30]> ()", 0, 1, 0.5, 1 / 12**0.5),
        ("y = RandomNormal <shape = [100, 30], dtype = 11> ()", -4, 4, 0, 1),
        ("h = Cast <to = 10> (x) r = RandomNormalLike (h) y = Cast <to = 1> (r)", -4, 4, 0, 1),
    ],
)  # fmt: skip
def test_numbers_of_the_same_range(
    body: str, low: float, high: float, mean: float, deviation: float, opset: int
) -> None:
    y = run(model(body, opset=opset), x=X)
    assert y.shape in (X.shape, (100, 30))
    assert y.min() >= low
    assert y.max() <= high
    assert y.mean() == pytest.approx(mean, abs=0.1)
    assert y.std() == pytest.approx(deviation, rel=0.1)
    assert len(np.unique(y)) > 1000


def test_choices() -> None:
    y = run(model("p = Bernoulli <dtype = 1> (x) y = Sub (p, x)"), x=X)
    assert abs(y.mean()) < 0.05
    assert set(np.unique(np.round(y + X, 6))) == {0.0, 1.0}
    y = run(model("y = Multinomial <sample_size = 40> (x)"), x=X)
    assert (y.shape, y.dtype) == ((500, 40), np.int32)
    assert set(np.unique(y)) == set(range(6))


@pytest.mark.parametrize("ratio", ["", "r"])
def test_dropout_drops_as_many_as_it_says(ratio: str) -> None:
    body = f"d, kept = Dropout (x, {ratio}, train) f = Cast <to = 1> (kept) y = Sub (d, f)"
    given = model(body, "float[n, 6] x, bool train", constants="<float r = {0.25}>")
    share = 0.25 if ratio else 0.5
    y = run(given, x=X, train=np.array(True))
    dropped = y == 0
    assert dropped.mean() == pytest.approx(share, abs=0.03)
    np.testing.assert_allclose(y[~dropped], (X / np.float32(1 - share) - 1)[~dropped], atol=1e-6)
    np.testing.assert_array_equal(run(given, x=X, train=np.array(False)), X - 1)


def test_each_draws_numbers_of_its_own_and_none_is_a_function_of_its_place_in_the_file() -> None:
    two = model("a = RandomNormalLike (x) b = RandomNormalLike (x) y = Sub (a, b)")
    assert np.abs(run(two, x=X)).max() > 1
    alone, behind = model("y = RandomNormalLike (x)"), model("z = Relu (x) y = RandomNormalLike (z)")
    np.testing.assert_array_equal(run(alone, x=X), run(behind, x=X))


def test_what_has_no_elements() -> None:
    assert run(model("y = RandomNormalLike (x)"), x=np.zeros((0, 6), np.float32)).shape == (0, 6)


def test_what_draws_in_a_function_or_a_body_is_not_proved() -> None:
    tail = '<domain: "d", opset_import: ["": 17]> F (a) => (b) { r = RandomNormalLike (a) b = Add (a, r) }'
    branches = "then_branch = t () => (u) { u = RandomNormalLike (x) }, else_branch = e () => (v) { v = Relu (x) }"
    for body, inputs in (("y = d.F (x)", "float[n, 6] x"), (f"y = If (c) <{branches}>", "float[n, 6] x, bool c")):
        given = model(body, inputs, tail=tail)
        assert steady(given) is given
        assert Oracle(given).compare(given).note.startswith("the original draws random numbers")


def test_what_draws_nothing_is_itself() -> None:
    given = model("d = Dropout (x) y = Relu (d)")
    assert steady(given) is given


def test_a_model_that_draws_is_proved() -> None:
    body = (
        "s = Sigmoid (x) m = Mul (s, x) r = RandomNormalLike (m) a = Add (m, r) d, k = Dropout (a, h, t) y = Tanh (d)"
    )
    given = model(body, constants="<float h = {0.5}, bool t = {1}>")
    before = given.SerializeToString()
    done = pipeline.optimize(given)
    assert [fusion.kind for fusion in done.report.fusions][:1] == ["Swish"]
    assert done.report.validation.verdict == "equal"
    assert done.report.validation.note == ALIKE
    assert given.SerializeToString() == before
    assert {node.op_type for node in done.model.graph.node} >= {"RandomNormalLike", "Dropout"}


def test_a_fusion_that_changes_what_is_dropped_is_found() -> None:
    given = model("s = Sigmoid (x) y, k = Dropout (s, h, t)", constants="<float h = {0.5}, bool t = {1}>")
    other = model("s = Tanh (x) y, k = Dropout (s, h, t)", constants="<float h = {0.5}, bool t = {1}>")
    assert Oracle(steady(given)).compare(steady(given)).verdict == "equal"
    assert Oracle(steady(given)).compare(steady(other)).verdict == "mismatch"
