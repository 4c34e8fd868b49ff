"""The Conformer's attention: positions are added to the scores before both are scaled, keys are hidden by a fill and,
behind the softmax, once more, so that a row that sees nothing is 0."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxfuse.fusing.fuse import fuse, lower
from onnxfuse.language.catalogue import load
from onnxfuse.model.graph import family
from onnxfuse.targets.target import Target
from tests.spellings.mutants import run

CATALOGUE = load()
SIDE_BY_SIDE = (
    "float[B, S, 32] q, float[B, S, 32] k, float[B, S, 32] v",
    "float[B, S, 32]",
    """q2 = Reshape (q, split)  q4 = Transpose <perm = [0, 2, 1, 3]> (q2)
    k2 = Reshape (k, split)  kt = Transpose <perm = [0, 2, 3, 1]> (k2)
    v2 = Reshape (v, split)  v4 = Transpose <perm = [0, 2, 1, 3]> (v2)""",
    "yt = Transpose <perm = [0, 2, 1, 3]> (y4)  y = Reshape (yt, merged)",
)
AN_AXIS = (
    "float[B, 4, S, 8] q4, float[B, 4, S, 8] k, float[B, 4, S, 8] v4",
    "float[B, 4, S, 8]",
    "kt = Transpose <perm = [0, 1, 3, 2]> (k)",
    "y = Identity (y4)",
)
"""Heads: inputs, the type of the result, and the views before and behind."""


def attention(heads: tuple[str, str, str, str], fill: str, positions: str, hidden: str = "hidden") -> onnx.ModelProto:
    inputs, result, before, behind = heads
    return parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 17]>
        g ({inputs}, float[{positions}] positions, bool[B, 1, 1, S] hidden) => ({result} y)
        <int64[4] split = {{0, -1, 4, 8}}, int64[3] merged = {{0, -1, 32}}, float root = {{2.8}},
         float fill = {{{fill}}}, float zero = {{0.0}}> {{
          {before}
          products = MatMul (q4, kt)  scores = Add (products, positions)  scaled = Div (scores, root)
          masked = Where (hidden, fill, scaled)  p = Softmax <axis = -1> (masked)
          weights = Where ({hidden}, zero, p)  y4 = MatMul (weights, v4)
          {behind} }}"""
    )


def inputs(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Three sequences of five, of which one is hidden in part and one throughout."""
    rng, sizes = np.random.default_rng(0), {"B": 3, "S": 5}
    given = {}
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        shape = tuple(sizes.get(dim.dim_param) or dim.dim_value for dim in dims)
        given[value.name] = rng.standard_normal(shape).astype(np.float32)
    given["hidden"] = np.array([[False] * 5, [False, False, True, False, True], [True] * 5])[:, None, None]
    return given


def written(model: onnx.ModelProto, target: str) -> onnx.ModelProto:
    if target == "onnxfuse":
        return fuse(model, CATALOGUE).model
    return lower(model, CATALOGUE.serving(Target(target)))[1].model


@pytest.mark.parametrize("target", ["onnxfuse", "onnx", "ort"])
@pytest.mark.parametrize("positions", ["B, 4, S, S", "1, 1, S, S"])
@pytest.mark.parametrize("fill", ["-10000.0", "-3.4028235e38", "-inf"])
@pytest.mark.parametrize("heads", [SIDE_BY_SIDE, AN_AXIS], ids=["heads side by side", "heads an axis"])
def test_it_is_an_attention_whose_hidden_rows_are_0(
    heads: tuple[str, str, str, str], fill: str, positions: str, target: str
) -> None:
    before = attention(heads, fill, positions)
    after = written(before, target)
    onnx.checker.check_model(after, full_check=True)
    assert [family(node.op_type) for node in after.graph.node].count("Attention") == 1
    given = inputs(before)
    (want,), (got,) = run(before, given), run(after, given)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    assert not want[2].any()


def test_a_row_that_is_hidden_otherwise_behind_the_softmax_is_none() -> None:
    """Weights of other keys than those that are hidden before are taken away: they do not add up to 1."""
    model = attention(AN_AXIS, "-1e9", "B, 4, S, S", "seen").SerializeToString()
    before = onnx.ModelProto.FromString(model)
    before.graph.node.insert(0, onnx.helper.make_node("Not", ["hidden"], ["seen"]))
    after = fuse(before, CATALOGUE).model
    given = inputs(before)
    np.testing.assert_allclose(run(after, given)[0], run(before, given)[0], rtol=1e-4, atol=1e-6)
    assert "Attention" not in {family(node.op_type) for node in after.graph.node}
