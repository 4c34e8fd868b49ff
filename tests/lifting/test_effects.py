"""Nodes of which nobody knows what they do stay: as many, in the same order, with what they read."""

from __future__ import annotations

import onnx
import pytest
from onnx import parser

from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from onnxfuse.lifting.effects import Effect, Effects
from onnxfuse.lifting.lift import lift
from onnxfuse.model.graph import roots
from onnxfuse.targets.target import Target

CATALOGUE = catalogue.load()
TARGETS = ["onnxfuse", "onnx", "ort"]

HEAD = """<ir_version: 9, opset_import: ["" : 18, "com.example" : 1, "com.microsoft" : 1, "local" : 1]>
g (float[N, 8] x, bool c) => (float[N, 8] y)
<float two = {2}, float e = {0.00001}, int64[1] last = {-1}, int64 n = {3}, float[N, 8] p, float[N, 8] q> {
"""
NORM = """
    m = ReduceMean (x, last)
    d = Sub (x, m)
    s = Pow (d, two)
    v = ReduceMean (s, last)
    a = Add (v, e)
    r = Sqrt (a)
    y = Div (d, r)
"""
"""Layer normalization without scale and bias: its intermediates are d, v, r and others."""


def model(nodes: str, functions: str = "") -> onnx.ModelProto:
    return parser.parse_model(HEAD + nodes + "}\n" + functions)


def calls(model: onnx.ModelProto, op: str) -> list[list[str]]:
    """What the nodes of an op read, in all scopes, in order."""
    scopes = (scope for root in roots(model) for scope in root.scopes())
    return [list(node.input) for scope in scopes for node in scope.nodes if node.op_type == op]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("node", "read"),
    [
        ("log = com.example.Log (x)", ["x"]),
        ("log = com.example.Log (d)", ["d"]),
        ("log, other = com.example.Log (d, two)", ["d", "two"]),
        ("com.example.Log (v)", ["v"]),
        ("log = com.example.Log ()", []),
    ],
    ids=["of an input", "of an intermediate", "two outputs", "no output", "no input"],
)
def test_a_node_of_an_unknown_domain_stays_though_nothing_reads_it(target: str, node: str, read: list[str]) -> None:
    before = model(NORM + (node if "=" in node else "log = com.example.Log (v)"))
    if "=" not in node:
        del before.graph.node[-1].output[:]
    fused = fuse(before, CATALOGUE.serving(Target(target)))
    assert calls(fused.model, "Log") == [read]
    made = {output for n in fused.model.graph.node for output in n.output} | {"x", "two"}
    assert set(read) <= made
    assert fused.model.graph.node[-1] == before.graph.node[-1]
    onnx.checker.check_model(fused.model)
    assert "LayerNormalization" in [site.matches[-1].rule.name for site in fused.sites] or read in (["d"], ["v"])


def test_equal_nodes_of_an_unknown_domain_are_not_one() -> None:
    """Each may draw its own number: what is fused behind them must add up both, not the first twice."""
    first = NORM.replace("y =", "z =")
    for old in "mdsvar":
        first = (
            first.replace(f" {old} =", f" {old}0 =").replace(f"({old})", f"({old}0)").replace(f"({old},", f"({old}0,")
        )
        first = first.replace(f", {old})", f", {old}0)")
    before = model(
        first + "p = com.example.Draw (z) q = com.example.Draw (z) pq = Add (p, q)" + NORM.replace("x", "pq")
    )
    fused = fuse(before, CATALOGUE).model
    assert [node.op_type for node in fused.graph.node][1:3] == ["Draw", "Draw"]
    assert len(fused.graph.node) == 4
    assert sorted(fused.graph.node[-1].input[:2]) == ["p", "q"]


def test_effects_keep_their_order() -> None:
    """The first reads what a fused op of two outputs computes, which stands behind what the second reads."""
    before = model(
        "p = Tan (x) t = Add (x, p) first = com.example.Log (t) second = com.example.Log (x)" + NORM.replace("x", "t")
    )
    fused = fuse(before, CATALOGUE).model
    assert len(fused.graph.node) == 4
    assert calls(fused, "Log") == [["t"], ["x"]]


@pytest.mark.parametrize("target", TARGETS)
def test_effects_inside_bodies_and_functions_stay(target: str) -> None:
    inside = """
        unread = com.example.Log (d)
        none = local.Outer (d)
        branch = If (c) <
            then_branch = t () => (float[N, 8] then_out) { noted = com.example.Log (v) then_out = Relu (x) },
            else_branch = f () => (float[N, 8] else_out) { else_out = Neg (x) }
        >
        looped = Loop (n, c, x) <body = b (int64 i, bool go, float[N, 8] at) => (bool on, float[N, 8] next) {
            on = Identity (go)
            said = local.Inner (at)
            next = Relu (at)
        }>
    """
    functions = """
        <domain: "local", opset_import: ["" : 18, "local" : 1]> Outer (a) => (b)
            { t = Tan (a) u = local.Inner (t) b = Relu (a) }
        <domain: "local", opset_import: ["" : 18, "com.example" : 1]> Inner (a) => (b)
            { l = com.example.Log (a) b = Identity (a) }
    """
    fused = fuse(model(NORM + inside, functions), CATALOGUE.serving(Target(target))).model
    assert calls(fused, "Log") == [["d"], ["v"], ["a"]]
    assert calls(fused, "Outer") == [["d"]]
    assert sorted(calls(fused, "Inner")) == [["at"], ["t"]]
    assert calls(fused, "If") == [["c"]]
    assert calls(fused, "Loop") == [["n", "c", "x"]]
    assert calls(fused, "Tan") == [["a"]]  # what an effect reads is computed


def test_what_has_no_effect_goes() -> None:
    dead = """
        draw = RandomNormalLike (x)
        kept, mask = Dropout (x, two, c)
        gelu = com.microsoft.Gelu (x)
        called = local.Pure (x)
        drawn = local.Draw (x)
        branch = If (c) <
            then_branch = t () => (float[N, 8] then_out) { then_out = Relu (x) },
            else_branch = f () => (float[N, 8] else_out) { else_out = RandomNormalLike (x) }
        >
    """
    functions = """
        <domain: "local", opset_import: ["" : 18]> Pure (a) => (b) { b = Relu (a) }
        <domain: "local", opset_import: ["" : 18]> Draw (a) => (b) { b = RandomNormalLike (a) }
    """
    fused = fuse(model("y = Tan (x)" + dead, functions), CATALOGUE).model
    assert [node.op_type for node in fused.graph.node] == ["Tan"]


def test_calls_that_draw_are_not_one_and_calls_that_do_not_are() -> None:
    functions = """
        <domain: "local", opset_import: ["" : 18]> Pure (a) => (b) { b = Tan (a) }
        <domain: "local", opset_import: ["" : 18, "local" : 1]> Indirect (a) => (b) { b = local.Draw (a) }
        <domain: "local", opset_import: ["" : 18]> Draw (a) => (b) { b = RandomNormalLike (a) }
    """
    draws = "p = local.Indirect (x) q = local.Indirect (x) pq = Sub (p, q) y = Add (pq, q)"
    assert calls(fuse(model(draws, functions), CATALOGUE).model, "Sub") == [["p", "q"]]
    pure = lift(next(roots(model(draws.replace("Indirect", "Pure"), functions))), None)
    assert pure.term("p") is pure.term("q")


def test_an_op_of_ai_onnx_that_nobody_knows_is_not_taken_for_one_of_ours() -> None:
    """A custom op may be called like a fused op, or like one of a later opset."""
    before = model("p = QuickGelu (x) q = QuickGelu (x) y = Sub (p, q) r = Swish (x)")
    fused = fuse(before, CATALOGUE).model
    assert list(fused.graph.node) == list(before.graph.node)


def test_what_calls_itself_has_the_effects_of_the_rest() -> None:
    text = """
        <domain: "local", opset_import: ["" : 18, "local" : 1]> Round (a) => (b) { b = local.Again (a) }
        <domain: "local", opset_import: ["" : 18, "local" : 1%s]> Again (a) => (b)
            { c = local.Round (a) %s b = Neg (c) }
    """
    for more, expected in (("", Effect.NONE), ("d = com.example.Log (c)", Effect.UNKNOWN)):
        functions = text % (', "com.example" : 1' if more else "", more)
        effects = Effects.of(model("y = local.Round (x)", functions))
        assert set(effects.of_functions.values()) == {expected}
