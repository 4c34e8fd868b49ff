"""Batch normalization by known statistics is a loop over elements, in training steps."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.regions.batch_norm import written_out
from onnxfuse.regions.spelled import standard
from onnxfuse.runtime.quiet import Session

from .written import fused, model, scope

STEP = """g (float[2,4SIZES] x, float[4] w, float[4] b, float[4] m, float[4] v)
 => (float loss, float[4] dw) <int64[SUMMED] axes = {0ALL}> {
 y = BatchNormalization<epsilon = 0.01>(x, w, b, m, v) r = Relu(y) q = Mul(r, r) loss = ReduceSum<keepdims = 0>(q)
 s = Mul(r, x) dw = ReduceSum<keepdims = 0>(s, axes) }"""


def of(sizes: int) -> str:
    """A step of so many axes of positions."""
    texts = {"SIZES": ",5" * sizes, "SUMMED": str(1 + sizes), "ALL": "".join(f", {2 + i}" for i in range(sizes))}
    text = STEP
    for name, value in texts.items():
        text = text.replace(name, value)
    return text


@pytest.mark.parametrize("sizes", [0, 1, 2, 3])
def test_it_is_part_of_a_region_with_its_numbers(sizes: int) -> None:
    made, given = fused(of(sizes), validate="off").model, model(of(sizes))
    assert "BatchNormalization" not in [node.op_type for node in made.graph.node]
    rng = np.random.default_rng(1)
    feeds = {
        value.name: rng.random([d.dim_value for d in value.type.tensor_type.shape.dim], np.float32) + np.float32(0.1)
        for value in given.graph.input
    }
    for a, b in zip(*(Session(m, None, optimize=False).run(feeds) for m in (made, given)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_its_number_has_the_type_of_the_variance() -> None:
    """Of any other operand, a result would rest on that as well: proofs of what is computed again took its rounding for
    a mistake."""
    made = fused(of(2), validate="off").model
    nodes = next(f for f in made.functions if "Sqrt" in [node.op_type for node in f.node]).node
    cast = next(node for node in nodes if node.op_type == "CastLike")
    added = next(node for node in nodes if cast.output[0] in node.input and node.op_type == "Add")
    assert cast.input[1] == added.input[0]


def test_what_is_no_step_keeps_its_op() -> None:
    text = of(2).replace("float loss, float[4] dw", "float[2,4,5,5] r").split(" q = ")[0] + " }"
    made = scope(text)
    assert [step.op_type for step in standard(made, 0)] == ["BatchNormalization"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("float[2,4,5,5] x, float[4] w", "float16[2,4,5,5] x, float16[4] w"),
        ("<epsilon = 0.01>", "<epsilon = 0.01, training_mode = 1>"),
        ("BatchNormalization<epsilon = 0.01>(x, w, b, m, v)", "InstanceNormalization(x, w, b)"),
    ],
)
def test_others_stay_as_they_are(old: str, new: str) -> None:
    text = of(2).replace(old, new)
    found = scope(text)
    node = found.view.graph.nodes[0]
    assert not written_out(found, node, "at")
