"""What rounding alone does to outputs is allowed for, and nothing else is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest

import onnxfuse
from onnxfuse.proof.draws import Distance
from onnxfuse.proof.oracle import Oracle
from onnxfuse.proof.roundings import FACTORS, Roundings, rounded_otherwise
from onnxfuse.runtime.quiet import Session, SessionError

INPUT = "onnxfuse/roundings/factor"
RNG = np.random.default_rng(5)


def parse(graph: str, opset: int = 18, tail: str = "") -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}, "own": 1]>\n{graph}\n{tail}')


def values(model: onnx.ModelProto, x: np.ndarray, factor: float = 11 / 16) -> np.ndarray:
    """Of the only output, rounded otherwise."""
    made = rounded_otherwise(model)
    onnx.checker.check_model(made)
    feeds = {"x": x, INPUT: np.array(factor, np.float32)}
    return np.asarray(Session(made, optimize=False).run(feeds)[0])


def allowed(model: onnx.ModelProto, x: np.ndarray, expected: Sequence[np.ndarray]) -> Distance:
    return Roundings(model, None).allow("case", {"x": x}, expected, 0)


# ------------------------------------------------------------------------------------------------ what is moved


@pytest.mark.parametrize("node", ["Exp(x)", "Mul(x, third)", "MatMul(x, w)", "ReduceSum(x, last)"])
def test_what_rounds_moves_by_some_last_digits(node: str) -> None:
    w = onnx.numpy_helper.from_array(RNG.standard_normal((64, 8)).astype(np.float32), "w")
    model = parse(
        f"g (float[n, 64] x) => (float[a, b] y) <float third = {{0.3333333}}, int64[1] last = {{-1}}> {{ y = {node} }}"
    )
    model.graph.initializer.append(w)
    x = RNG.standard_normal((32, 64)).astype(np.float32)
    (y,) = Session(model, optimize=False).run({"x": x})
    moved = [Distance.of(values(model, x, factor), y).most for factor in FACTORS]
    assert 0 < max(moved) < 2e-6
    assert sum(m > 0 for m in moved) > len(FACTORS) // 2


@pytest.mark.parametrize(
    "nodes",
    [
        "a = Transpose<perm = [1, 0]>(x) b = Relu(a) c = Neg(b) y = Max(c, a)",
        "e = Exp(x) i = Identity(e) y = Sub(e, i)",
        "one = Constant<value_float = 1.0>() a = Abs(x) b = Floor(a) c = Sub(one, b) y = Mul(c, c)",
        "h = Constant<value_float = 0.5>() s = Size(x) f = Cast<to = 1>(s) g = Mul(f, h) t = Shape(x) y = Expand(g, t)",
    ],
    ids=["moves and choices", "a number from itself", "integers", "positions"],
)
def test_what_does_not_round_stays(nodes: str) -> None:
    model = parse(f"g (float[n, m] x) => (float[a, b] y) {{ {nodes} }}")
    x = RNG.standard_normal((4, 5)).astype(np.float32) * 3
    (y,) = Session(model, optimize=False).run({"x": x})
    for factor in FACTORS:
        np.testing.assert_array_equal(values(model, x, factor), y)


def test_a_fill_that_is_the_largest_number_stays_finite() -> None:
    most = "<float most = {-3.4028234663852886e38}>"
    model = parse(f"g (float[n, 4] x) => (float[n, 4] y) {most} {{ f = Mul(x, most) y = Max(f, most) }}")
    assert np.isfinite(values(model, np.ones((1, 4), np.float32))).all()


def test_the_bias_of_a_sum_is_scaled_with_it() -> None:
    model = parse(
        """g (float[1, 2, 4] x) => (float[1, 3, 4] y)
        <float[3, 2, 1] w = {1.1, 2.2, 3.3, 4.4, 5.5, 6.6}, float[3] b = {7.7, 8.8, 9.9}>
        { y = Conv(x, w, b) }"""
    )
    x = RNG.standard_normal((1, 2, 4)).astype(np.float32)
    (y,) = Session(model, optimize=False).run({"x": x})
    assert Distance.of(values(model, x), y).most < 1e-6


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "double"])
def test_numbers_of_other_types_move_by_their_own_last_digits(dtype: str) -> None:
    model = parse(f"g ({dtype}[n, 64] x) => ({dtype}[n, 64] y) {{ y = Exp(x) }}")
    kind = np.dtype({"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "double": np.float64}[dtype])
    x = RNG.standard_normal((8, 64)).astype(kind)
    expected = np.exp(x.astype(np.float64))
    most = allowed(model, x, [expected.astype(kind)]).most
    assert 0 < most < 40 * float(ml_dtypes.finfo(kind).eps)  # type: ignore[no-untyped-call]


def test_bodies_and_functions_are_rounded_otherwise_as_well() -> None:
    body = "a () => (float[n] r) { r = Exp(x) }"
    branch = parse(
        f"g (float[n] x, bool c) => (float[n] y) {{ y = If(c) <then_branch = {body}, else_branch = {body}> }}"
    )
    inside = rounded_otherwise(branch).graph.node[-1].attribute[0].g
    assert [node.op_type for node in inside.node] == ["Exp", "Mul", "Div"]
    called = parse(
        "g (float[n] x) => (float[n] y) { y = own.Twice(x) }",
        tail='<domain: "own", opset_import: ["": 18]> Twice (a) => (b) { b = Exp(a) }',
    )
    assert [node.op_type for node in rounded_otherwise(called).graph.node] == ["Cast", "Exp", "Mul", "Div"]


def test_nothing_is_allowed_where_the_original_does_not_run_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise SessionError("no kernel")

    model = parse("g (float[n] x) => (float[n] y) { y = Exp(x) }")
    monkeypatch.setattr("onnxfuse.proof.draws.Session", refuse)
    x = np.ones(4, np.float32)
    assert allowed(model, x, [np.exp(x)]) == Distance()


# ---------------------------------------------------------------------------------------- a gradient that is zero

STEP = """g (float[b, t, 8] x, float[b, t, 8] k, float[b, t, t] dp) => (OUTPUTS)
    <int64[1] last = {-1}, int64[2] both = {0, 1}, int64[1] first = {0}, int64[2] flat = {-1, 8},
     float off = {1.001}, float e = {1e-5}> {
    m = ReduceMean(x, last) c = Sub(x, m) n = Mul(c, c) v = ReduceMean(n, last) w = Add(v, e) r = Sqrt(w) q = Div(c, r)
    kt = Transpose<perm = [0, 2, 1]>(k)
    s = MatMul(q, kt)
    p = Softmax<axis = -1>(s)
    g = Mul(dp, p)
    d = ReduceSum<keepdims = 1>(g, last)
    GRADIENT
    dst = Transpose<perm = [0, 2, 1]>(ds)
    dk = MatMul(dst, q)
    BIAS
}"""
"""A norm, and attention's gradient of its keys behind it, and of their bias, which no softmax sees."""
TORCH = "t = Mul(p, d) ds = Sub(g, t)"
RIGHT = "t = Sub(dp, d) ds = Mul(p, t)"
SUM, FLAT = "db = ReduceSum<keepdims = 0>(dk, both)", "f = Reshape(dk, flat) db = ReduceSum<keepdims = 0>(f, first)"
BIAS, KEYS = "float[8] db", "float[b, t, 8] dk"


def step(gradient: str, bias: str, outputs: str = f"{BIAS}, {KEYS}") -> onnx.ModelProto:
    return parse(STEP.replace("GRADIENT", gradient).replace("BIAS", bias).replace("OUTPUTS", outputs))


def test_a_gradient_that_is_zero_is_equal_and_its_error_is_relative_to_rounding() -> None:
    verdict = Oracle(step(TORCH, SUM)).compare(step(RIGHT, FLAT))
    assert verdict.verdict == "equal"
    assert verdict.note.startswith("rounding alone moves output 'db' as far: by ")
    assert float(verdict.note.split()[-1]) > 0.05, "one rounding beside the other"
    assert (verdict.max_error or 1) <= (verdict.rtol or 0)


@pytest.mark.parametrize(
    "wrong",
    [
        "ds = Identity(g)",
        "t = Mul(p, d) ds = Add(g, t)",
        "o = Mul(d, off) t = Mul(p, o) ds = Sub(g, t)",
        "o = Mul(g, off) t = Mul(p, d) ds = Sub(o, t)",
    ],
    ids=["a term is missing", "a sign", "a thousandth of the term", "a thousandth of the other"],
)
@pytest.mark.parametrize("outputs", [BIAS, f"{BIAS}, {KEYS}"])
def test_a_wrong_gradient_is_refused_though_the_right_one_is_zero(wrong: str, outputs: str) -> None:
    verdict = Oracle(step(TORCH, SUM, outputs)).compare(step(wrong, FLAT, outputs))
    assert verdict.verdict == "mismatch"


def test_a_scale_that_zero_does_not_show_is_seen_in_the_gradient_beside_it() -> None:
    wrong = "t = Sub(dp, d) u = Mul(p, t) ds = Mul(u, off)"
    assert Oracle(step(TORCH, SUM)).compare(step(wrong, FLAT)).note.startswith("output 'dk' differs by 1.0e-03")


@pytest.mark.parametrize("name", ["onnxfuse", "onnx", "ort"])
def test_no_fusion_is_left_out_for_a_gradient_that_is_zero(name: Any) -> None:
    done = onnxfuse.optimize(step(TORCH, SUM), target=name)
    assert (done.report.validation.verdict, done.report.left_out) == ("equal", [])
    assert done.report.nodes_after < done.report.nodes_before


def test_the_users_tolerance_is_none_that_rounding_widens() -> None:
    assert Oracle(step(TORCH, SUM)).compare(step(RIGHT, FLAT), rtol=1e-5).verdict == "mismatch"


def test_float64_is_no_nearer_to_what_is_rounding_alone() -> None:
    verdict = Oracle(step(TORCH, SUM), reference=True).compare(step(RIGHT, FLAT))
    assert verdict.verdict == "equal"
