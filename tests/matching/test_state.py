"""What a search knows of a scope between two substitutions."""

from __future__ import annotations

import onnx.parser

from onnxfuse.lifting.lifted import Lifted
from onnxfuse.lifting.view import View
from onnxfuse.matching.search import Found
from onnxfuse.matching.state import State, reachable

GRAPH = """<ir_version: 9, opset_import: ["": 18]> g (float[n, 4] x) => (float[n, 2] y, float[n, 4] z) {
    half = Constant<value_ints = [2, 2]>() a, b = Split<axis = 1>(x, half) c = Tanh(a) d = Sin(b) e = Mul(c, d)
    y = Add(e, c) z = Erf(x) unused = Cos(x) }"""


def view() -> View:
    return Lifted.of(onnx.parser.parse_model(GRAPH)).views[0]


def test_what_no_output_depends_on_is_not_alive() -> None:
    scope = view()
    terms, needed = reachable(scope, scope.terms_of)
    ops = {term.op for term in terms}
    assert "Erf" in ops
    assert "Cos" not in ops
    assert needed == {scope.terms_of["y"].id, scope.terms_of["z"].id}
    assert [term.id for term in terms] == sorted(term.id for term in terms)


def test_roots_of_some_ops_come_from_the_outputs_down() -> None:
    scope = view()
    state = State.of(scope, Found(dict(scope.terms_of)))
    assert state.roots(["Sin", "Add", "Tanh", "Gelu"]) == [scope.terms_of[name] for name in ("y", "d", "c")]
    assert state.roots([]) == []


def test_rules_may_ask_what_is_used_more_than_once() -> None:
    scope = view()
    asked = State.of(scope, Found(dict(scope.terms_of))).within(scope.context)
    assert {name for name, term in scope.terms_of.items() if term.id in asked.reused} == {"x", "c", "y", "z"}
    assert scope.terms_of["unused"].id not in asked.alive
