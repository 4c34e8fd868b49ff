"""A scope's values as terms: those of scopes around it are leaves of their own, and a copy is on its own."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, parser

from onnxfuse.lifting.lift import lift
from onnxfuse.lifting.view import View
from onnxfuse.model.graph import Graph
from onnxfuse.terms.fold import value_of

TEXT = """<ir_version: 8, opset_import: ["": 17, "d": 1]> g (bool c, float[N] x) => (y) <float[1] w = {2}> {
    a = Neg (x)
    h = Cast <to = 10> (a)
    l = d.Log (h)
    y = If (c) <then_branch = t () => (p) { p = Mul (h, w) }, else_branch = e () => (q) { q = Identity (h) }>
}"""


def views() -> tuple[View, View]:
    """Of the graph, and of the first branch."""
    model = parser.parse_model(TEXT)
    graph = Graph(model.graph, model, 17)
    outer = lift(graph, None)
    return outer, lift([*graph.scopes()][1], None, outer)


def test_a_value_of_a_scope_around_is_a_leaf_with_its_own_element_type() -> None:
    outer, inner = views()
    assert outer.term("h") is outer.term("a"), "a cast between real types"
    assert inner.term("h").op == "Input"
    assert inner.term("h").shape == outer.term("h").shape
    assert inner.dtypes["h"] == TensorProto.FLOAT16


def test_a_constant_of_a_scope_around_is_a_constant() -> None:
    _, inner = views()
    assert inner.term("w").scalar is None or inner.term("w").scalar == 2
    assert value_of(inner.term("w")).tolist() == np.array([2.0]).tolist()


def test_no_name_is_an_absent_input() -> None:
    outer, _ = views()
    assert outer.term("").op == "Absent"


def test_what_a_scope_has_and_what_stays_in_it() -> None:
    outer, _ = views()
    assert outer.held == {"Neg", "Cast", "If"}
    assert [outer.graph.nodes[i].op_type for i in outer.lasting] == ["Log"]


def test_what_is_made_in_a_copy_is_unknown_here() -> None:
    outer, _ = views()
    model = onnx.ModelProto()
    model.CopyFrom(outer.graph.model)
    before = len(outer.terms)
    copy = outer.of_copy(Graph(model.graph, model, 17), None)
    copy.terms_of["new"] = copy.terms.input("new", (), TensorProto.FLOAT)
    copy.hidden[0] = ["x"]
    assert len(outer.terms) == before
    assert "new" not in outer.terms_of
    assert copy.term("a") is outer.term("a")
