"""Fusions inside the bodies of If and Loop and inside local functions."""

from __future__ import annotations

import numpy as np

from onnxfuse.fusing.fuse import fuse
from onnxfuse.model.graph import family_of
from tests.whole.test_fusion import (
    CATALOGUE,
    LAYER_NORM,
    assert_same_numbers,
    model,
    ops,
)

GELU = """
    z = Div ({0}, r)
    e = Erf (z)
    s = Add (e, one)
    p = Mul ({0}, s)
    {1} = Mul (p, half)
"""
GELU_CONSTANTS = "float r = {1.4142135}, float one = {1}, float half = {0.5}"


def test_inside_both_branches_of_an_if_with_constants_of_the_graph_around() -> None:
    before = model(
        f"""g (float[N, 4] x, bool c) => (float[N, 4] y) <{GELU_CONSTANTS}> {{
            y = If (c) <
                then_branch = t () => (float[N, 4] a) {{ {GELU.format("x", "a")} }},
                else_branch = f () => (float[N, 4] b) {{ n = Neg (x) {GELU.format("n", "b")} }}
            >
        }}"""
    )
    after = fuse(before, CATALOGUE).model
    branches = {attribute.name: ops(attribute.g) for attribute in after.graph.node[0].attribute}
    assert branches == {"then_branch": ["onnxfuse.Gelu"], "else_branch": ["Neg", "onnxfuse.Gelu"]}
    for chosen in (True, False):
        assert_same_numbers(before, after, c=np.array(chosen))


def test_inside_an_if_inside_a_loop() -> None:
    before = model(
        f"""g (float[N, 4] x, bool c) => (float[N, 4] y) <{GELU_CONSTANTS}, int64 n = {{3}}, bool on = {{1}}> {{
            y = Loop (n, on, x) <body = b (int64 i, bool go, float[N, 4] h) => (bool again, float[N, 4] next) {{
                again = Identity (go)
                next = If (c) <
                    then_branch = t () => (float[N, 4] a) {{ {GELU.format("h", "a")} }},
                    else_branch = f () => (float[N, 4] b) {{ b = Neg (h) }}
                >
            }}>
        }}"""
    )
    fused = fuse(before, CATALOGUE)
    body = fused.model.graph.node[0].attribute[0].g
    inner = next(node for node in body.node if family_of(node) == "If")
    assert {a.name: ops(a.g) for a in inner.attribute} == {"then_branch": ["onnxfuse.Gelu"], "else_branch": ["Neg"]}
    assert [site.scope.count("/") for site in fused.sites] == [2]
    for chosen in (True, False):
        assert_same_numbers(before, fused.model, c=np.array(chosen))


def test_inside_a_local_function() -> None:
    before = model(
        "g (float[N, 4] x) => (float[N, 4] y) { h = local.act (x)  y = local.act (h) }",
        """
        <domain: "local", opset_import: ["": 17]>
        act (x) => (y) {
            r = Constant <value = float {1.4142135}> ()
            one = Constant <value = float {1}> ()
            half = Constant <value = float {0.5}> ()
        """
        + GELU.format("x", "y")
        + "}",
        imports=', "local": 1',
    )
    after = fuse(before, CATALOGUE).model
    function = next(f for f in after.functions if f.domain == "local")
    assert ops(function) == ["onnxfuse.Gelu"]
    assert "onnxfuse" in {entry.domain for entry in function.opset_import}
    assert_same_numbers(before, after)


def test_a_function_that_is_called_with_other_ranks_is_fused_only_where_that_does_not_matter() -> None:
    """LayerNormalization's scale may not have more axes than are normalized, which a call here violates."""
    before = model(
        """g (float[2, 3, 4] x, float[4] g1, float[3, 4] g2) => (float[2, 3, 4] y)
        { h = local.norm (x, g1)  y = local.norm (h, g2) }""",
        """
        <domain: "local", opset_import: ["": 17]>
        norm (x, gamma) => (y) {
            two = Constant <value = float {2}> ()
            eps = Constant <value = float {0.00001}> ()
            beta = Constant <value = float {0.5}> ()
        """
        + LAYER_NORM.format("y")
        + "}",
        imports=', "local": 1',
    )
    after = fuse(before, CATALOGUE).model
    assert_same_numbers(before, after)
