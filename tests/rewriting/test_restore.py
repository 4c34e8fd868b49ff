"""New nodes that compute what an original one did are that node again, where all its names fit."""

from __future__ import annotations

from onnx import NodeProto, helper, parser

from onnxfuse.model.graph import Graph
from onnxfuse.rewriting.restore import restore, signature


def graph(text: str) -> Graph:
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    return Graph(model.graph, model, 17)


def restored(
    scope: Graph, new: list[NodeProto], alias: dict[str, str] | None = None, pinned: tuple[str, ...] = ()
) -> list[NodeProto]:
    entries = [(float(i), 1, node) for i, node in enumerate(new)]
    restore(scope, entries, alias if alias is not None else {}, pinned)
    return [node for _, _, node in entries]


CHAIN = "g (float[2] x, float[2] z) => (y) { a = Add (x, z)  y = Neg (a) }"


def test_a_node_that_computes_the_same_is_the_original_and_its_value_has_that_name() -> None:
    scope, alias = graph(CHAIN), {"old": "new"}
    made = helper.make_node("Add", ["z", "x"], ["new"], "fused")
    (node,) = restored(scope, [made], alias)
    assert node is scope.nodes[0]
    assert alias == {"old": "a", "new": "a"}


def test_a_value_that_must_keep_its_name_keeps_its_node() -> None:
    made = helper.make_node("Add", ["x", "z"], ["new"])
    assert restored(graph(CHAIN), [made], pinned=("new",)) == [made]


def test_another_value_of_the_old_name_is_in_the_way() -> None:
    made, other = helper.make_node("Add", ["x", "z"], ["new"]), helper.make_node("Abs", ["x"], ["a"])
    assert restored(graph(CHAIN), [made, other]) == [made, other]


def test_each_original_is_put_back_once() -> None:
    scope = graph(CHAIN)
    first, again = (helper.make_node("Add", ["x", "z"], [name]) for name in ("p", "q"))
    found = restored(scope, [first, again])
    assert found[0] is scope.nodes[0]
    assert found[1] is again


def test_operands_of_what_commutes_have_no_order_and_others_have() -> None:
    def of(op: str, *inputs: str, **attrs: int) -> tuple[object, ...]:
        return signature(helper.make_node(op, inputs, ["y"], **attrs), {"b": "a"})

    assert of("Add", "x", "z") == of("Add", "z", "x")
    assert of("Sub", "x", "z") != of("Sub", "z", "x")
    assert of("Neg", "b") == of("Neg", "a")
    assert of("Neg", "a") != of("Neg", "a", axis=1)
