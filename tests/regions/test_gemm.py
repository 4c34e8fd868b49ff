"""A Gemm is in a region what a MatMul with a bias is; alone it stays a Gemm."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.regions.gemm import written_out
from onnxfuse.regions.spelled import standard

from .test_products import feeds, weights
from .written import calls, fused, model, run, scope

QKV = """g (float[N,8] x) => (float[N,8] q, float[N,4] k, float[N,4] v)
<float[8,8] a = {WA}, float[8,4] b = {WB}, float[8,4] c = {WC}, float[8] d = {1, 2, 3, 4, 5, 6, 7, 8},
 float[4] e = {1, 2, 3, 4}> {
    q = Gemm(x, a, d) k = Gemm<alpha = 1.0, beta = 1.0>(x, b, e) v = Gemm(x, c, e) }"""
TURNED = QKV.replace("[8,4]", "[4,8]").replace("Gemm<", "Gemm<transB = 1, ").replace("Gemm(", "Gemm<transB = 1>(")


@pytest.mark.parametrize("text", [QKV, TURNED], ids=["plain", "turned"])
@pytest.mark.parametrize("opset", [11, 20])
def test_those_of_one_input_are_one_launch(text: str, opset: int) -> None:
    before = weights(text)
    made = fused(before, opset)
    assert calls(made.model) == ["Region"]
    assert made.report.validation is not None
    assert made.report.validation.verdict == "equal"
    for one, other in zip(run(model(before, opset), feeds(3, 8)), run(made.model, feeds(3, 8)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_a_factor_of_no_bias_is_none() -> None:
    """How equinox's products come out of jax2onnx."""
    text = QKV.replace("x, a, d)", "x, a)").replace("(x, b, e)", "(x, b)").replace("beta = 1.0", "beta = 0.0")
    assert calls(fused(weights(text)).model) == ["Region"]


@pytest.mark.parametrize("factors", ["", "<transB = 1>", "<alpha = 0.5>"])
def test_one_by_itself_stays(factors: str) -> None:
    text = f"g (float[6,8] x) => (float[6,8] y) <float[8,8] a = {{WA}}> {{ y = Gemm{factors}(x, a) }}"
    assert calls(fused(weights(text)).model) == ["Gemm"]


@pytest.mark.parametrize(
    "text",
    [
        "g (float[6,8] x, float[8,8] a, float[8] c) => (float[6,8] y) { y = Gemm<FACTOR>(x, a, c) }".replace(
            "FACTOR", f
        )
        for f in ("alpha = 0.5", "beta = 2.0", "transA = 1")
    ]
    + ["g (float16[6,8] x, float16[8,8] a) => (float16[6,8] y) { y = Gemm(x, a) }"],
)
def test_what_is_more_than_a_product_and_a_sum_stays_whole(text: str) -> None:
    found = scope(text.replace("[6,8] x", "[8,8] x").replace("[6,8] y", "[8,8] y"))
    (node,) = found.view.graph.nodes
    assert standard(found, 0) == [node]
    assert not written_out(found, node, "at")
