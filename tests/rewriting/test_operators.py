"""Nodes of standard ops as the opset at hand has them."""

from __future__ import annotations

from typing import Any

import onnx
import pytest
from onnx import parser

from onnxfuse.fusing.fuse import Found
from onnxfuse.language import catalogue
from onnxfuse.language.functions import Functions
from onnxfuse.lifting.lift import lift
from onnxfuse.model.graph import Names, roots
from onnxfuse.rewriting.operators import counted, op_node
from onnxfuse.rewriting.plan import Draft, Plan, UnrealisableError
from onnxfuse.terms.term import Term
from tests.terms.normal.space import Space

FLOAT = int(onnx.TensorProto.FLOAT)


def plan(opset: int, text: str = "g (float[B, S, 12] x) => (float[B, S, 12] y) { y = Neg (x) }") -> Plan:
    """Nothing yet, in a scope that has the inputs of this graph."""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}]> {text}')
    graph = next(roots(onnx.shape_inference.infer_shapes(model)))
    view = lift(graph, None)
    draft = Draft(view, Found(dict(view.terms_of)), Names.of([graph]), Functions(catalogue.load()))
    for name in graph.inputs:
        draft.register(view.term(name), -1.0, name, view.dtypes[name])
    return Plan(draft)


def constants(made: Plan) -> list[list[Any]]:
    """The vectors that a plan adds."""
    return [list(term.data) for term, _ in made.constants.values() if term.data is not None]


@pytest.mark.parametrize(
    ("op", "opset", "as_input"),
    [("Squeeze", 12, False), ("Squeeze", 13, True), ("ReduceMean", 17, False), ("ReduceMean", 18, True)],
)
def test_axes_are_an_attribute_or_an_input(op: str, opset: int, as_input: bool) -> None:
    made = plan(opset)
    op_node(made, op, ["x"], {"axes": (0,)}, FLOAT, 1, "")
    node = made.nodes[-1]
    assert len(node.inputs) == (2 if as_input else 1)
    assert dict(node.attrs) == ({} if as_input else {"axes": (0,)})
    assert constants(made) == ([[0]] if as_input else [])


def test_a_cast_says_its_type_and_a_softmax_its_axis() -> None:
    made = plan(17)
    op_node(made, "Cast", ["x"], {}, FLOAT, 1, "")
    op_node(made, "Softmax", ["x"], {}, FLOAT, 1, "")
    assert [dict(node.attrs) for node in made.nodes] == [{"to": FLOAT}, {"axis": -1}]


def test_a_softmax_along_another_axis_has_no_old_form() -> None:
    op_node(plan(12), "Softmax", ["x"], {"axis": -1}, FLOAT, 1, "")
    with pytest.raises(UnrealisableError, match="before opset 13 Softmax works on all axes from -2 on"):
        op_node(plan(12), "Softmax", ["x"], {"axis": -2}, FLOAT, 1, "")


def test_axes_are_counted_from_the_first_where_the_rank_is_known() -> None:
    t = Space()
    x: Term = t.input("x", 2, 3, 4)
    assert counted(x, {"axes": (-1, 0), "keepdims": 0}) == {"axes": (2, 0), "keepdims": 0}
    assert counted(t.unknown("u"), {"axes": (-1,)}) == {"axes": (-1,)}
    assert counted(x, {"keepdims": 0}) == {"keepdims": 0}


@pytest.mark.parametrize(("opset", "name"), [(17, "SimplifiedLayerNormalization"), (23, "RMSNormalization")])
def test_a_norm_that_only_onnxruntime_has_yet_is_made_anew_as_its_own(opset: int, name: str) -> None:
    made = plan(opset)
    made.nodes.clear()
    op_node(made, "RMSNormalization", ["x", "w"], {"axis": -1}, FLOAT, 0.0, "")
    assert [(node.domain, node.op) for node in made.nodes] == [("", name)]
