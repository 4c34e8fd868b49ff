"""A node of another domain goes where fewer nodes come of it, and stays where it would be taken apart for nothing."""

from __future__ import annotations

import pytest
from onnx import parser

from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from onnxfuse.model.graph import count_nodes, family_of
from onnxfuse.targets.target import Target

CATALOGUE = catalogue.load()
TARGETS = [Target(), Target("onnx"), Target("ort"), Target("ort", "cuda")]


def model(nodes: str) -> str:
    return f"""<ir_version: 8, opset_import: ["" : 20, "com.microsoft" : 1]>
    g (float[N, 7, 8] x, float[N, 7, 8] skip, int32[N, 7] mask, float[9, 2] cos, float[9, 2] sin, int64[N, 7] ids)
        => (float[N, 7, 8] y) <float[8] w = {{1, 2, 3, 4, 5, 6, 7, 8}}> {{ {nodes} }}"""


ALONE = {
    "norm and activation": "s = com.microsoft.SkipLayerNormalization (x, skip, w) y = com.microsoft.BiasGelu (s, w)",
    "attention": "y = com.microsoft.MultiHeadAttention <num_heads = 2> (x, x, x)",
    "attention behind a rotation": """q = com.microsoft.RotaryEmbedding <num_heads = 2> (x, ids, cos, sin)
        y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, x, x, , mask)""",
    "a product": "y = com.microsoft.FusedMatMul <alpha = 0.5, transB = 1> (x, x)",
}


@pytest.mark.parametrize("nodes", ALONE.values(), ids=ALONE)
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: f"{t.name}-{t.provider}")
def test_there_are_never_more_nodes_than_before(nodes: str, target: Target) -> None:
    nodes = nodes.replace("y = com.microsoft.FusedMatMul", "p = com.microsoft.FusedMatMul")
    before = parser.parse_model(model(nodes + " y = MatMul (p, x)" * ("p = " in nodes)))
    after = fuse(before, CATALOGUE.serving(target)).model
    assert count_nodes(after) <= count_nodes(before)


def test_what_is_the_same_op_again_stays_as_it_is() -> None:
    before = parser.parse_model(model(ALONE["norm and activation"]))
    assert list(fuse(before, CATALOGUE).model.graph.node) == list(before.graph.node)


def test_a_node_takes_in_what_is_around_it() -> None:
    nodes = "p = MatMul (x, m) s = com.microsoft.BiasGelu (p, w) t = Add (s, skip) y = LayerNormalization (t, w)"
    before = parser.parse_model(model(nodes).replace("ids)", "ids, float[8, 8] m)"))
    after = fuse(before, CATALOGUE).model
    assert [family_of(node) for node in after.graph.node] == ["FusedMatMul", "SkipLayerNormalization"]
