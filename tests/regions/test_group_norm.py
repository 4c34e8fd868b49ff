"""Norms of groups of channels are rows of a region, with the sum before them and the activation behind."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from onnxfuse.regions.group_norm import written_out

from .written import calls, fused, model, run, scope

NORMS = {
    "GroupNormalization": "n = GroupNormalization<num_groups = 4, epsilon = 0.01>(h, s, b)",
    "InstanceNormalization": "n = InstanceNormalization<epsilon = 0.01>(h, s, b)",
}
BLOCK = """g (TYPE[n,8,H,6] x, TYPE[n,8,1,1] e, TYPE[8] s, TYPE[8] b) => (TYPE[n,8,H,6] y, TYPE[n,8,H,6] h) {
    h = Add(x, e) NORM y = Relu(n) }"""
"""A residual block's beginning: something for each channel, the norm, the activation; the sum is read elsewhere."""


def block(norm: str, kind: str = "float", height: str = "5") -> str:
    return BLOCK.replace("NORM", NORMS[norm]).replace("TYPE", kind).replace("H", height)


@pytest.mark.parametrize("height", ["5", "h"])
@pytest.mark.parametrize(
    ("norm", "opset"), [("GroupNormalization", 21), *(("InstanceNormalization", o) for o in (15, 18))]
)
def test_a_norm_of_channels_is_one_launch_with_what_is_around_it(norm: str, opset: int, height: str) -> None:
    text = block(norm, height=height)
    made = fused(text, opset, validate="kernels" if height == "h" else "onnxruntime")
    assert calls(made.model) == ["Region"]
    assert made.report.validation is not None
    assert made.report.validation.verdict == "equal"
    rng = np.random.default_rng(0)
    sizes = {"x": (2, 8, 5, 6), "e": (2, 8, 1, 1), "s": (8,), "b": (8,)}
    feeds = {name: rng.standard_normal(size).astype(np.float32) for name, size in sizes.items()}
    for got, wanted in zip(run(made.model, feeds), run(model(text, opset), feeds), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_tensors_without_elements_stay_so() -> None:
    made = fused(block("InstanceNormalization", height="h"), 18)
    sizes = {"x": (2, 8, 0, 6), "e": (2, 8, 1, 1), "s": (8,), "b": (8,)}
    found = run(made.model, {name: np.ones(size, np.float32) for name, size in sizes.items()})
    assert [y.shape for y in found] == [(2, 8, 0, 6)] * 2


def test_in_half_precision_it_is_computed_in_float32() -> None:
    made = fused(block("InstanceNormalization", "float16"), 18)
    assert calls(made.model) == ["Region"]
    assert made.report.validation is not None
    assert made.report.validation.verdict == "equal"
    (body,) = made.model.functions
    assert [node.op_type for node in body.node].count("Cast") >= 4


def test_a_norm_by_itself_stays_the_op_that_it_is() -> None:
    text = "g (float[2,8,5] x, float[8] s, float[8] b) => (float[2,8,5] y) { y = InstanceNormalization(x, s, b) }"
    assert calls(fused(text, 18).model) == ["InstanceNormalization"]


@pytest.mark.parametrize(
    ("text", "opset"),
    [
        pytest.param(block("InstanceNormalization"), 14, id="no body is of its inputs' type"),
        pytest.param(block("GroupNormalization").replace("[8]", "[4]"), 20, id="a scale for each group"),
        pytest.param(block("InstanceNormalization", "double"), 18, id="another type"),
    ],
)
def test_others_are_not_written_out(text: str, opset: int) -> None:
    found = scope(text, opset)
    index = next(i for i, n in enumerate(found.view.graph.nodes) if n.op_type.endswith("Normalization"))
    assert not written_out(found, found.view.graph.nodes[index], "at")
    assert not written_out(found, helper.make_node("Constant", [], ["c"], value_int=1), "at")
