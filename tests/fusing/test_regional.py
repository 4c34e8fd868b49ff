"""-O2: regions beside what rules fuse, proved, told, and found as they are by whoever fuses the file again."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onnxfuse
from models import split_stack
from onnxfuse.errors import UsageError
from onnxfuse.fusing.build import Build
from onnxfuse.fusing.fuse import lower
from onnxfuse.pipeline import report
from tests.exports import MODELS
from tests.regions.written import calls, fused, model, regions

GATED = """g (float[N,4,8] x, float[8,8] w) => (float[N,8,4] y)
<float half = {0.5}, float root = {1.41421356}, float one = {1}> {
    d = Div(x, root) e = Erf(d) f = Add(e, one) g0 = Mul(x, f) g1 = Mul(g0, half)
    h = Transpose<perm = [0, 2, 1]>(g1) y = Mul(h, half) }"""


def test_a_fused_op_goes_into_a_region_and_is_told_with_it() -> None:
    done = fused(GATED)
    assert calls(done.model) == ["Region"]
    (fusion,) = done.report.fusions
    assert fusion.rule == "Gelu Transpose Mul"
    assert fusion.absorbed == ("Gelu",)
    assert fusion.op == "onnxfuse.Region"
    assert fusion.launches_saved == 6
    assert {function.name for function in done.model.functions} == {regions(done.model)[0].op_type}
    assert done.report.validation.verdict == "equal"


def test_what_became_one_before_and_products_behind_views_count_as_what_they_save() -> None:
    """A Mul that stands for two of the original, and a product that a view stands before."""
    text = """g (float[N,4,8] x, float[8,8] w) => (float[N,32] z)
        <float half = {0.5}, float two = {3.0}, int64[2] flat = {-1, 32}, float[32] b> {
        a = Sin(x) c = Mul(a, half) d = Mul(c, two) e = Cos(d) p = MatMul(e, w) f = Reshape(p, flat) z = Exp(f) }"""
    done = fused(text)
    assert {fusion.rule: fusion.launches_saved for fusion in done.report.fusions} == {
        "Sin Mul Cos": 3,
        "MatMul Exp": 1,
    }


@pytest.mark.parametrize("name", ["bert.ts", "gpt2.ts", "convnext.ts", "control_if", "function_layernorm"])
def test_fusing_again_changes_nothing(name: str) -> None:
    once = onnxfuse.optimize(MODELS / f"{name}.onnx", level=2, validate="off").model
    for level in (1, 2):
        again = onnxfuse.optimize(once, level=level, validate="off").model
        assert again.SerializeToString(deterministic=True) == once.SerializeToString(deterministic=True)


def test_a_wrong_region_is_found_and_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from onnxfuse.regions import write

    right = write.content

    def wrong(*given: object) -> onnx.FunctionProto:
        made = right(*given)  # type: ignore[arg-type]
        for node in made.node:
            node.op_type = "Cos" if node.op_type == "Sin" else node.op_type
        return made

    monkeypatch.setattr(write, "content", wrong)
    text = """g (float[N,8] x, float[8,8] w) => (float[N,8] y, float[N,8] z) {
        a = Sin(x) b = Neg(a) m = MatMul(b, w) c = Exp(m) z = Neg(c) y = MatMul(z, w) }"""
    done = fused(text)
    assert [left.fusion.rule for left in done.report.left_out] == ["Sin Neg"]
    assert calls(done.model) == ["Sin", "Neg", "Region", "MatMul"]


def test_a_report_reads_what_the_last_pass_has_read() -> None:
    done = lower(model(GATED), Build(level=2).catalogue)[1]
    assert calls(done.model) == ["Region"]
    assert done.lifted is not None
    assert done.lifted.model is done.model
    assert done.lifted.views[0].graph.nodes == list(done.model.graph.node)


def test_levels() -> None:
    text = "g (float[N,8] x) => (float[N,8] y) { s = Sigmoid(x) a = Mul(x, s) b = Relu(a) y = Neg(b) }"
    kinds = [calls(onnxfuse.optimize(model(text), level=level).model) for level in (0, 1, 2)]
    assert kinds == [["Sigmoid", "Mul", "Relu", "Neg"], ["Swish", "Relu", "Neg"], ["Region"]]
    assert calls(onnxfuse.optimize(model(text)).model) == kinds[2]


def test_a_level_that_asks_for_a_card_says_so() -> None:
    with pytest.raises(UsageError, match="name one with --card"):
        onnxfuse.optimize(model(GATED), level=3)
    assert calls(onnxfuse.optimize(model(GATED), level=3, card="h100", shapes={"x": (64, 4, 8)}).model) == ["Region"]
    with pytest.raises(UsageError, match="it is 0, 1, 2 or 3"):
        onnxfuse.report(model(GATED), level=4)  # type: ignore[arg-type]


def test_half_precision_and_other_targets_have_no_regions() -> None:
    assert "Region" not in calls(fused(GATED, precision="fp16").model)
    assert {node.domain for node in fused(GATED, target="onnx").model.graph.node} == {""}


def test_its_kernels_compute_the_same() -> None:
    done = fused(GATED, validate="kernels")
    assert "Region" in done.report.kernels
    session = onnxfuse.InferenceSession(
        done.model.SerializeToString(), providers=["CPUExecutionProvider"], emulate=True
    )
    x = np.random.default_rng(3).standard_normal((5, 4, 8)).astype(np.float32)
    (found,) = session.run(None, {"x": x, "w": np.zeros((8, 8), np.float32)})
    gelu = 0.5 * x * (1 + np.vectorize(__import__("math").erf)(x / np.sqrt(2)))
    np.testing.assert_allclose(found, gelu.transpose(0, 2, 1) * 0.5, rtol=1e-5, atol=1e-6)


def test_split_stack_is_two_launches() -> None:
    stack = split_stack.build(3, 4, 16)
    assert onnxfuse.report(stack, level=2).after.launches == 2
    done = onnxfuse.optimize(stack, level=2, validate="kernels")
    assert done.report.validation.verdict == "equal"
    assert {"Region", "FusedMatMul"} <= done.report.kernels.keys()
    assert "LayerNormalization Tanh" in {fusion.rule for fusion in done.report.fusions}


def test_selected_rules_have_no_regions_beside_them() -> None:
    done = onnxfuse.optimize(model(GATED), select=["Gelu"])
    assert calls(done.model) == ["Gelu", "Transpose", "Mul"]
    assert done.report.level == 1


def test_the_kernels_that_are_generated_are_counted() -> None:
    text = """g (float[N,8] x, float[8,8] w) => (float[N,8] y) {
        a = Sin(x) b = Abs(a) m = MatMul(b, w) c = Sin(m) d = Abs(c) n = MatMul(d, w) y = Tanh(n) }"""
    told = fused(text).report
    assert told.census == {"Region": 2, "FusedMatMul": 1}
    assert told.generated == 2
    assert told.kernels == {"FusedMatMul": "gemm", "Region": "gemm, pointwise"}


@pytest.mark.parametrize(("skip", "told"), [("17,8", False), ("N,17,8", None)])
def test_a_near_miss_of_a_rule_is_told_where_no_region_saves_as_much(skip: str, told: bool | None) -> None:
    """A table that is added to each sequence alike is no residual; a region takes the sum and the norm all the same."""
    text = f"""g (float[N,17,8] x, float[{skip}] t, float[8] w) => (float[N,17,8] y) {{
        s = Add(x, t) y = LayerNormalization(s, w) }}"""
    rules, both, why = (
        {miss.rule for miss in report(model(text), Build(level=level), why=why).near_misses}
        for level, why in ((1, None), (2, None), (2, "SkipLayerNormalization"))
    )
    assert ("SkipLayerNormalization" in rules, "SkipLayerNormalization" in why) == (told is not None,) * 2
    assert ("SkipLayerNormalization" in both) is bool(told)
