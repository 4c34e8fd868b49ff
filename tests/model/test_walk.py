"""Bodies at any depth, of graphs and of functions, are walked; what only looks like one is not."""

from __future__ import annotations

from onnx import NodeProto, helper, parser

from onnxfuse.model.graph import count_nodes
from onnxfuse.model.walk import attribute_graphs, has_bodies, nodes, nodes_of, owners

MODEL = parser.parse_model(
    """<ir_version: 8, opset_import: ["" : 17, "local" : 1]>
g (float[2] x, bool c) => (float[2] y) {
    one = Constant <value_float = 1.0> ()
    u = local.Nested (x, c)
    y = If (c) <
        then_branch = t () => (float[2] a) {
            a = If (c) <
                then_branch = tt () => (float[2] b) { b = Exp (x) },
                else_branch = te () => (float[2] d) { d = Log (x) }
            >
        },
        else_branch = f () => (float[2] e) { e = Neg (u) }
    >
}
<domain: "local", opset_import: ["" : 17]>
Nested (x, c) => (y) {
    y = If (c) <
        then_branch = t () => (a) { a = Sin (x) },
        else_branch = f () => (b) { b = Cos (x) }
    >
}"""
)


def ops(found: object) -> list[str]:
    return sorted(node.op_type for node in found if isinstance(node, NodeProto))  # type: ignore[attr-defined]


def test_all_nodes_are_met_once() -> None:
    assert ops(nodes_of(MODEL)) == sorted("Constant Nested If If If Exp Log Neg Sin Cos".split())
    assert ops(nodes(MODEL.graph)) == sorted("Constant Nested If If Exp Log Neg".split())
    assert ops(nodes(*MODEL.functions)) == sorted("If Sin Cos".split())
    assert count_nodes(MODEL) == 9


def test_what_is_around_comes_before_what_is_inside() -> None:
    names = [owner.name for owner in owners(*MODEL.functions, MODEL.graph)]
    assert names[0] == "g"
    assert names.index("t") < names.index("tt")
    assert names.index("te") < names.index("Nested"), "the last that was given is first, with all that is in it"


def test_only_graphs_are_bodies() -> None:
    constant, call, branch = MODEL.graph.node
    assert [has_bodies(node) for node in (constant, call, branch)] == [False, False, True]
    assert [name for name, _ in attribute_graphs(branch)] == ["then_branch", "else_branch"]
    several = helper.make_node("Several", ["x"], ["y"], domain="own", graphs=[g for _, g in attribute_graphs(branch)])
    assert [(name, graph.name) for name, graph in attribute_graphs(several)] == [("graphs[0]", "t"), ("graphs[1]", "f")]
    assert not list(attribute_graphs(constant))
