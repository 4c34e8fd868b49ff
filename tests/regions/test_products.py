"""Products of one tensor: which are one launch, and that the numbers are the same."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse.lifting.launched import launched
from onnxfuse.lifting.lifted import Lifted
from onnxfuse.performance.roofline import demand

from .written import calls, fused, groups, model, ops, parts, regions, run

QKV = """g (float[N,S,8] x) => (float[N,S,8] q, float[N,S,4] k, float[N,S,4] v)
<float[8,8] a = {WA}, float[8,4] b = {WB}, float[8,4] c = {WC}, float[8] d = {1, 2, 3, 4, 5, 6, 7, 8},
 float[4] e = {1, 2, 3, 4}> {
    p = MatMul(x, a) q = Add(p, d) k = MatMul(x, b) r = MatMul(x, c) v = Add(e, r) }"""


def weights(text: str) -> str:
    """The text with numbers in place of W and a letter."""
    rng = np.random.default_rng(5)
    for name, size in (("WA", 64), ("WB", 32), ("WC", 32)):
        text = text.replace(name, ", ".join(f"{x:.3f}" for x in rng.standard_normal(size)))
    return text


def feeds(*shape: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)}


def test_queries_keys_and_values_are_one_launch() -> None:
    text = weights(QKV)
    found = fused(text)
    assert calls(found.model) == ["Region"]
    onnx.checker.check_model(found.model, full_check=True)
    assert found.report.validation is not None
    assert found.report.validation.verdict == "equal"
    for shape in ((2, 3, 8), (1, 1, 8), (0, 5, 8)):
        for one, other in zip(run(model(text), feeds(*shape)), run(found.model, feeds(*shape)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


def test_weights_stay_what_they_are() -> None:
    found = fused(weights(QKV))
    (node,) = regions(found.model)
    assert [tensor.name for tensor in found.model.graph.initializer] == ["a", "b", "c", "d", "e"]
    assert sorted(node.input) == ["a", "b", "c", "d", "e", "x"]
    assert sorted(node.output) == ["k", "q", "v"]


def test_a_report_names_them() -> None:
    report = onnxfuse.report(model(weights(QKV)), level=2)
    assert [fusion.rule for fusion in report.fusions] == ["3 products of one input"]
    assert report.kernels == {"Region": "gemm"}


def test_what_is_fused_again_stays() -> None:
    once = fused(weights(QKV)).model
    again = onnxfuse.optimize(once, level=2).model
    assert again.SerializeToString(deterministic=True) == once.SerializeToString(deterministic=True)


GATED = """g (float[N,8] x) => (float[N,4] y) <float[8,4] b = {WB}, float[8,4] c = {WC}> {
    p = MatMul(x, b) q = MatMul(x, c) s = Sigmoid(p) t = Mul(p, s) y = Mul(t, q) }"""


def test_what_makes_one_result_of_two_products_goes_into_them() -> None:
    text = weights(GATED)
    found = fused(text)
    assert calls(found.model) == ["Region"]
    (fusion,) = found.report.fusions
    assert fusion.rule == "2 products of one input and SwiGLU"
    for shape in ((3, 8), (1, 8), (0, 8)):
        for one, other in zip(run(model(text), feeds(*shape)), run(found.model, feeds(*shape)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    again = onnxfuse.optimize(found.model, level=2).model
    assert again.SerializeToString(deterministic=True) == found.model.SerializeToString(deterministic=True)
    given = Lifted.of(fused(text.replace("float[N,8] x", "float[6,8] x")).model).views[0]
    asked = demand(given, next(launched(given)), {})
    assert asked is not None
    assert asked.flops == 2 * 2 * 6 * 8 * 4


def test_a_gate_beside_another_product() -> None:
    text = weights(GATED).replace("=> (float[N,4] y)", "=> (float[N,4] y, float[N,4] z)")
    text = text.replace("y = Mul", "z = MatMul(x, b2) y = Mul").replace(
        "float[8,4] b =", "float[8,4] b2 = {WB}, float[8,4] b ="
    )
    assert sorted(len(group.launches) for group in groups(weights(text))) == [1, 5]


@pytest.mark.parametrize(
    "more",
    [
        "y = Mul(t, q) z = Neg(p)",
        "y = Mul(t, q) z = Softmax(q)",
        "r = Mul(t, q) y = Add(r, e) z = Neg(q)",
    ],
)
def test_a_product_that_something_else_reads_makes_two_launches(more: str) -> None:
    text = weights(GATED).replace("=> (float[N,4] y)", "=> (float[N,4] y, float[N,4] z)")
    text = text.replace("float[8,4] b", "float[4] e = {1, 2, 3, 4}, float[8,4] b").replace("y = Mul(t, q)", more)
    found = fused(text)
    assert sum(name in ("Region", "MatMul", "Softmax") for name in calls(found.model)) == 2
    for one, other in zip(run(model(text), feeds(3, 8)), run(found.model, feeds(3, 8)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


PACKED = """g (float[N,S,8] x) => (float[N,S,4] q, float[N,S,3] k, float[N,S,1] v)
<float[8,8] a = {WA}, float[8] d = {1, 2, 3, 4, 5, 6, 7, 8}, int64[3] sizes = {4, 3, 1}> {
    p = MatMul(x, a) s = Add(p, d) q, k, v = Split<axis = -1>(s, sizes) }"""
GATED_PACKED = """g (float[N,8] x) => (float[N,4] y) <float[8,8] a = {WA}> {
    p = MatMul(x, a) g, q = Split<axis = -1, num_outputs = 2>(p) s = Sigmoid(g) t = Mul(g, s) y = Mul(t, q) }"""


@pytest.mark.parametrize(
    ("text", "shape", "name"),
    [(PACKED, (2, 3, 8), "FusedMatMul Split"), (GATED_PACKED, (5, 8), "MatMul Split SwiGLU")],
)
def test_columns_are_written_apart(text: str, shape: tuple[int, ...], name: str) -> None:
    text = weights(text)
    found = fused(text)
    assert calls(found.model) == ["Region"]
    assert [fusion.rule for fusion in found.report.fusions] == [name]
    assert onnxfuse.report(model(text), level=2).kernels == {"Region": "gemm"}
    for one, other in zip(run(model(text), feeds(*shape)), run(found.model, feeds(*shape)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    again = onnxfuse.optimize(found.model, level=2).model
    assert again.SerializeToString(deterministic=True) == found.model.SerializeToString(deterministic=True)


def test_rows_that_are_taken_apart_are_not() -> None:
    text = weights("""g (float[4,8] x) => (float[2,8] y, float[2,8] z) <float[8,8] a = {WA}> {
        p = MatMul(x, a) y, z = Split<axis = 0, num_outputs = 2>(p) }""")
    assert parts(text) == ["MatMul", "Split"]


def test_products_that_a_quantizer_is_to_find_stay() -> None:
    kept = fused(weights(QKV), keep_products="weighted")
    assert calls(kept.model).count("MatMul") == 3


APART = {
    "of another tensor": "g (float[N,8] x, float[N,8] w) => (float[N,4] y, float[N,4] z)"
    "<float[8,4] b = {WB}, float[8,4] c = {WC}> { y = MatMul(x, b) z = MatMul(w, c) }",
    "weights that are computed": "g (float[N,8] x, float[8,4] w, float[8,4] v) => (float[N,4] y, float[N,4] z)"
    "{ y = MatMul(x, w) z = MatMul(x, v) }",
    "one is a row": "g (float[8] x) => (float[4] y, float[4] z) <float[8,4] b = {WB}, float[8,4] c = {WC}>"
    "{ y = MatMul(x, b) z = MatMul(x, c) }",
    "integers": "g (int32[N,2] x) => (int32[N,2] y, int32[N,2] z)"
    "<int32[2,2] b = {1, 2, 3, 4}, int32[2,2] c = {4, 3, 2, 1}> { y = MatMul(x, b) z = MatMul(x, c) }",
}


@pytest.mark.parametrize("why", APART)
def test_products_that_stay_apart(why: str) -> None:
    assert [ops(group) for group in groups(weights(APART[why]))] == ["MatMul", "MatMul"]


def test_more_than_one_launch_takes_are_several() -> None:
    names = [f"y{i}" for i in range(18)]
    head = ", ".join(f"float[N,4] {name}" for name in names)
    products = " ".join(f"{name} = MatMul(x, b)" for name in names)
    text = weights(f"g (float[N,8] x) => ({head}) <float[8,4] b = {{WB}}> {{ {products} }}")
    assert [len(group.launches) for group in groups(text)] == [16, 2]


def test_they_count_as_the_products_that_they_are() -> None:
    text = weights(QKV).replace("float[N,S,8] x", "float[2,3,8] x")
    view = Lifted.of(fused(text).model).views[0]
    (node,) = launched(view)
    asked = demand(view, node, {})
    assert asked is not None
    assert asked.flops == 2 * 8 * 6 * 16
    assert asked.weights == 4 * (128 + 8 + 4)
    assert asked.bytes - asked.weights == 4 * 6 * (8 + 16)
