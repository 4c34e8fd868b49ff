"""Attention in Einsum with queries before heads: scores are [batch, queries, heads, keys] (DeepSeek, Gemma in JAX)."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxfuse.fusing.fuse import fuse, lower
from onnxfuse.language.catalogue import load
from onnxfuse.targets.target import Target
from tests.spellings.mutants import run

CATALOGUE = load()
MASKS = ("none", "1, S, 1, S", "B, 1, 1, S", "B, S, 1, S")


def attention(mask: str) -> onnx.ModelProto:
    masked = "masked = Add (scaled, mask)" if mask != "none" else "masked = Identity (scaled)"
    given = f", float[{mask}] mask" if mask != "none" else ""
    return parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 17]>
        g (float[B, S, 32] q, float[B, S, 32] k, float[B, S, 32] v{given}) => (float[B, S, 32] y)
        <int64[4] split = {{0, 0, 4, 8}}, int64[3] merged = {{0, 0, 32}}, float scale = {{0.35}}> {{
          q4 = Reshape (q, split)  k4 = Reshape (k, split)  v4 = Reshape (v, split)
          scores = Einsum <equation = "bshd,bthd->bsht"> (q4, k4)  scaled = Mul (scores, scale)
          {masked}
          p = Softmax <axis = -1> (masked)
          y4 = Einsum <equation = "bsht,bthd->bshd"> (p, v4)  y = Reshape (y4, merged) }}"""
    )


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("target", ["onnxfuse", "onnx", "ort"])
def test_scores_with_queries_before_heads_are_one_attention(mask: str, target: str) -> None:
    model = attention(mask)
    found = (
        fuse(model, CATALOGUE) if target == "onnxfuse" else lower(model, CATALOGUE.serving(Target(target)))[1]
    ).model
    ops = Counter(node.op_type.partition("_")[0] for node in found.graph.node)
    assert ops["Attention"] == 1
    assert not ops.keys() & {"Einsum", "Softmax"}
    rng, sizes = np.random.default_rng(0), {"B": 2, "S": 5}
    given = {}
    for value in model.graph.input:
        shape = [sizes.get(d.dim_param) or d.dim_value for d in value.type.tensor_type.shape.dim]
        given[value.name] = rng.standard_normal(shape).astype(np.float32)
    if "mask" in given:
        given["mask"] = np.where(given["mask"] > 1, -np.inf, given["mask"])
    for before, after in zip(run(model, given), run(found, given), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)
