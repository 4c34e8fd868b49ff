"""A scope's values as terms: those of scopes around it are leaves of their own, and a copy is on its own."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, parser

from onnxfuse.lifting.lift import lift
from onnxfuse.lifting.lifted import Lifted
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


BRANCHES = """<ir_version: 8, opset_import: ["": 17]>
g (bool c, float[batch, n] x, float[batch, past] w) => (float[batch, m] y) <int64[1] zero = {0}, int64[1] four = {4}> {
    s = Shape (x)
    y = If (c) <
        then_branch = p () => (p1) { p0 = Concat <axis = 1> (w, x)  p1 = Abs (p0) },
        else_branch = q () => (q1) { e = Expand (four, s)  q0 = Reshape (x, four)  q1 = Neg (q0) }
    >
}"""


def scopes(text: str) -> list[View]:
    return list(Lifted.of(parser.parse_model(text)).views)


def test_what_a_branch_needs_to_be_equal_is_equal_there_and_nowhere_else() -> None:
    outer, then, other = scopes(BRANCHES)
    assert outer.term("x").shape[:1] != outer.term("w").shape[:1]  # type: ignore[index]
    assert then.term("x").shape[:1] == then.term("w").shape[:1]  # type: ignore[index]
    assert other.term("x").shape == outer.term("x").shape


def test_sizes_that_a_scope_around_has_computed_are_known_inside() -> None:
    outer, _, other = scopes(BRANCHES)
    assert outer.term("s").data is not None
    assert other.term("e").shape == outer.term("x").shape


SINGLE = """<ir_version: 8, opset_import: ["": 17]>
g (bool c, float[batch, n, 3] x) => (float[batch, m, k] y) <int64[3] one = {{0, {}, 3}}> {{
    y = If (c) <then_branch = p () => (p1) {{ p1 = Reshape (x, one) }}, else_branch = q () => (q1) {{ q1 = Neg (x) }}>
}}"""


def test_a_size_that_the_views_of_a_branch_leave_no_choice_is_that_number_there() -> None:
    outer, then, other = scopes(SINGLE.format(1))
    assert then.term("x").shape[1:] == (1, 3)  # type: ignore[index]
    assert other.term("x").shape == outer.term("x").shape != then.term("x").shape


def test_a_view_that_leaves_a_choice_says_nothing() -> None:
    outer, then, _ = scopes(SINGLE.format(-1))
    assert then.term("x").shape == outer.term("x").shape
