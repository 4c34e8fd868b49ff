"""Scopes of a model: what is used, captured and known in them, what they are called, and copies of them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from onnxfuse.model import graph as graphs
from onnxfuse.model.dims import symbol
from onnxfuse.model.graph import Graph, Names


def model(text: str, *functions: str) -> onnx.ModelProto:
    head = '<ir_version: 8, opset_import: ["": 17, "d": 1, "onnxfuse": 1]>'
    return parser.parse_model("\n".join([head, text, *functions]))


def main(text: str, *functions: str) -> Graph:
    proto = model(text, *functions)
    return Graph(proto.graph, proto, 17)


BRANCHES = """g (bool c, float[N] x, float[N] z) => (y) <float[1] w = {2}> {
    t = Neg (x)
    y = If (c) <
        then_branch = p () => (a) {
            b = Mul (x, t)
            a = If (c) <then_branch = q () => (d) { d = Add (b, w) }, else_branch = r () => (t) {}>
        },
        else_branch = s () => (z) {}
    >
}"""
"""Bodies within a body: `d` is of q, `b` of p; t, c, x, w and z are of the graph around."""

# ------------------------------------------------------------------------------------------------------------ names


def test_the_opset_is_that_of_either_name_of_the_standard_domain() -> None:
    proto = onnx.ModelProto(opset_import=[helper.make_opsetid("ai.onnx", 18), helper.make_opsetid("d", 3)])
    assert [graphs.opset_of(proto), graphs.opset_of(proto, "ai.onnx"), graphs.opset_of(proto, "d")] == [18, 18, 3]
    assert graphs.opset_of(proto, "e") == 0


def test_the_family_of_a_node_is_its_op_without_the_use() -> None:
    assert graphs.family("Attention_attn_mask_1f2e3d4c") == graphs.family("Attention") == "Attention"
    assert graphs.family_of(helper.make_node("Gelu_1f", [], [], domain="onnxfuse")) == "Gelu"
    assert graphs.family_of(helper.make_node("Gelu_1f", [], [], domain="d")) == "Gelu_1f"


def test_inputs_that_take_a_number_say_which() -> None:
    assert graphs.number_of(f"{graphs.NUMBER}-1.5e-05") == -1.5e-5
    assert graphs.number_of("numerator") is None


def test_nodes_are_counted_in_all_scopes_but_not_in_our_own_functions() -> None:
    call = (
        "g (bool c, x) => (y) { n = d.F (x)  y = If (c) <then_branch = p () => (n) {}, "
        "else_branch = q () => (a) { a = Neg (n) }> }"
    )
    theirs = (
        '<domain: "d", opset_import: ["": 17]> F (x) => (y) { two = Constant <value_float = 2.0> ()  y = Mul (x, two) }'
    )
    ours = '<domain: "onnxfuse", opset_import: ["": 17]> G (x) => (y) { t = Neg (x)  y = Neg (t) }'
    assert graphs.count_nodes(model(call, theirs, ours)) == 4


def test_a_new_name_is_one_that_nothing_has() -> None:
    names = Names.of(main(BRANCHES).scopes())
    assert [names.unique(name) for name in ("fresh", "fresh", "d", "w", "x")] == [
        "fresh",
        "fresh_2",
        "d_2",
        "w_2",
        "x_2",
    ]
    assert names.unique("fresh_2") == "fresh_2_2"


def test_numbers_that_are_taken_are_passed_over_and_gaps_are_filled() -> None:
    names = Names({"a", "a_2", "a_3", "a_5", "b_2"})
    beside = names.tentative()
    assert [beside.unique("a") for _ in range(3)] == ["a_4", "a_6", "a_7"]
    assert [names.unique("a") for _ in range(2)] == ["a_4", "a_6"]
    assert [names.unique("b") for _ in range(3)] == ["b", "b_3", "b_4"]


def test_a_sparse_weight_keeps_its_name() -> None:
    scope = main("g (x) => (y) { y = d.F (x, w) }")
    assert Names.of([scope]).unique("w") == "w_2"


def test_tentative_names_are_taken_when_they_are_kept() -> None:
    names = Names({"a"})
    dropped, kept = names.tentative(), names.tentative()
    assert dropped.unique("a") == kept.unique("a") == "a_2"
    assert kept.unique("a") == "a_3"
    kept.keep()
    assert names.unique("a") == "a_4"


# ------------------------------------------------------------------------------------------------------------ scopes


def test_uses_are_inputs_captures_and_outputs() -> None:
    scope = main(
        "g (bool c, x) => (t) { t = Mul (x, x)  u = If (c) <then_branch = p () => (t) {}, "
        "else_branch = q () => (a) { a = Neg (t) }> }"
    )
    assert scope.uses == {"x": 2, "c": 1, "t": 2}, "an If captures a value once, however often its bodies read it"
    assert scope.captures == {1: {"t"}}


def test_a_body_captures_what_it_does_not_make_itself() -> None:
    node = main(BRANCHES).nodes[1]
    assert graphs.captured_names(node) == {"x", "t", "c", "w", "z"}


def test_what_a_body_has_as_a_sparse_weight_is_not_captured() -> None:
    body = parser.parse_graph("p () => (a) { a = Neg (w) }")
    node = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    assert graphs.captured_names(node) == {"w"}
    for attribute in node.attribute:
        attribute.g.sparse_initializer.add().values.name = "w"
    assert graphs.captured_names(node) == set()


def test_scopes_come_outermost_first_each_with_its_path() -> None:
    scopes = list(main(BRANCHES).scopes())
    assert [scope.path for scope in scopes] == [
        "",
        "/If_y.then_branch",
        "/If_y.then_branch/If_a.then_branch",
        "/If_y.then_branch/If_a.else_branch",
        "/If_y.else_branch",
    ]
    assert scopes[2].parent is scopes[1]
    assert {id(scope.root) for scope in scopes} == {id(scopes[0])}


def test_a_weight_is_seen_from_within_unless_something_nearer_has_its_name() -> None:
    scope = main(
        "g (bool c) => (y) <float[1] w = {2}, float[1] v = {3}> { y = If (c) <then_branch = p () => (a) "
        "{ v = Constant <value_float = 1.0> ()  a = Add (v, w) }, else_branch = q () => (w) {}> }"
    )
    inner = next(inner for inner in scope.scopes() if inner.path.endswith("then_branch"))
    found = inner.constant_tensor("w")
    assert found is not None
    assert numpy_helper.to_array(found) == [2]
    assert inner.constant_tensor("v") is None
    assert scope.constant_tensor("v") is not None
    assert scope.constant_tensor("c") is None


def test_scopes_of_a_copy_are_edited_without_the_model() -> None:
    proto = model(BRANCHES, '<domain: "d", opset_import: ["": 17]> F (x) => (y) { y = Neg (x) }')
    scopes = [scope for root in graphs.roots(proto) for scope in root.scopes()]
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    others = graphs.scopes_of_copy(scopes, copy)
    assert [other.path for other in others] == [scope.path for scope in scopes]
    assert all(other.proto == scope.proto for other, scope in zip(others, scopes, strict=True))
    for other in others:
        for node in other.nodes:
            node.doc_string = "edited"
    assert "edited" not in str(proto)
    assert str(copy).count("edited") == 6
    assert others[2].parent is others[1]


def test_our_own_functions_are_no_roots() -> None:
    proto = model(
        "g (x) => (y) { y = d.F (x) }",
        '<domain: "d", opset_import: ["": 17]> F (x) => (y) { y = Neg (x) }',
        '<domain: "onnxfuse", opset_import: ["": 17]> G (x) => (y) { y = Neg (x) }',
    )
    assert [(root.path, root.is_function) for root in graphs.roots(proto)] == [("", False), ("/d.F", True)]


# ------------------------------------------------------------------------------------------------------------- types


def test_types_are_declared_inferred_or_implied() -> None:
    scope = main(
        "g (float[N, 3] x, float16[2] h) => (y) { t = Transpose (x)  u = d.F (x)  v = Mul (u, h)  y = d.F (v) }"
    )
    assert scope.type_of("x") == (TensorProto.FLOAT, (symbol("N"), 3))
    assert scope.type_of("t") == (TensorProto.FLOAT, (3, symbol("N"))), "onnx infers it"
    assert scope.type_of("u") == (TensorProto.FLOAT16, None), "Mul's operands have one type"
    assert scope.type_of("y") == (0, None)


def test_a_dimension_that_has_no_name_is_a_symbol_of_its_own() -> None:
    kind = helper.make_tensor_type_proto(TensorProto.FLOAT, [None, "N", 2, None])
    kind.tensor_type.shape.dim[3].dim_value = -1  # as some exporters write what they do not know
    assert graphs.declared(kind, "x") == (TensorProto.FLOAT, (symbol("x.0"), symbol("N"), 2, symbol("x.3")))
    kind.tensor_type.ClearField("shape")
    assert graphs.declared(kind, "x") == (TensorProto.FLOAT, None)
    assert graphs.declared(helper.make_tensor_type_proto(TensorProto.FLOAT, []), "x") == (TensorProto.FLOAT, ())


def test_what_annotations_and_training_name_is_named() -> None:
    scope = main("g (x) => (y) { y = Neg (x) }")
    note = scope.model.graph.quantization_annotation.add()
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="scale")
    info = scope.model.training_info.add()
    info.update_binding.add(key="w", value="new")
    info.algorithm.node.add(op_type="Neg", input=["rate"])
    assert scope.named_elsewhere() == {"scale", "w", "rate"}


@pytest.mark.parametrize("external", [False, True])
def test_a_skeleton_has_large_weights_as_inputs(external: bool) -> None:
    proto = model("g (x, v) => (y) <float[2] w = {1, 2}> { y = d.F (x, w, v) }")
    proto.graph.initializer.append(numpy_helper.from_array(np.zeros((2, 2), np.float32), "v"))
    if external:
        proto.graph.initializer[0].data_location = TensorProto.EXTERNAL
    bare = graphs.skeleton(proto, keep=2)
    assert [tensor.name for tensor in bare.graph.initializer] == ([] if external else ["w"])
    assert [value.name for value in bare.graph.input] == ["x", "v", *(["w"] if external else [])]
    assert bare.graph.node == proto.graph.node
    assert len(proto.graph.initializer) == 2
    assert graphs.skeleton(model("g (x) => (y) { y = Neg (x) }")) == model("g (x) => (y) { y = Neg (x) }")


@pytest.mark.parametrize(("op", "read"), [("CastLike", ["a"]), ("Add", ["a", "b"])])
def test_what_is_asked_for_its_type_alone_is_not_read(op: str, read: list[str]) -> None:
    assert graphs.elements_read(helper.make_node(op, ["a", "b"], ["c"])) == read
