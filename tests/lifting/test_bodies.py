"""Bodies of If and Scan: equal ones give equal terms, others do not; what no term shows leaves a leaf."""

from __future__ import annotations

import pytest
from onnx import parser

from onnxfuse.lifting.lifted import Lifted
from onnxfuse.lifting.view import View

STEP = "s2 = Add(s, x)  y = Mul(s2, two)"


def scanned(first: str, second: str, extra: str = "") -> View:
    """The view of a graph with two scans of x, which have these bodies."""
    body = "body = step (float[3] s, float[3] x) => (float[3] s2, float[3] y) {{ {} }}"
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
    g (float[3] init, float[5,3] x, float two) => (float[3] a, float[5,3] b, float[3] c, float[5,3] d)
    <float half = {{0.5}}> {{ {extra}
        a, b = Scan <num_scan_inputs = 1{extra and ", scan_input_directions = [1]"}, {body.format(first)}> (init, x)
        c, d = Scan <num_scan_inputs = 1, {body.format(second)}> (init, x) }}"""
    return Lifted.of(parser.parse_model(text)).views[0]


@pytest.mark.parametrize("spelled", ["t = Add(x, s)  s2 = Identity(t)  y = Mul(two, s2)", STEP])
def test_scans_that_compute_the_same_are_the_same_terms(spelled: str) -> None:
    terms = scanned(STEP, spelled).terms_of
    assert (terms["a"], terms["b"]) == (terms["c"], terms["d"])
    assert terms["a"] is not terms["b"]
    assert terms["b"].shape == (5, 3)


@pytest.mark.parametrize("other", ["s2 = Sub(s, x)  y = Mul(s2, two)", "s2 = Add(s, x)  y = Mul(s2, half)"])
def test_scans_that_compute_something_else_are_others(other: str) -> None:
    terms = scanned(STEP, other).terms_of
    assert terms["b"] is not terms["d"]


def test_a_body_with_random_numbers_is_not_looked_into() -> None:
    terms = scanned(STEP, "s2 = Add(s, x)  y = RandomUniformLike(x)").terms_of
    assert (terms["b"].op, terms["d"].op) == ("Scan", "Input")


def test_a_scan_from_the_last_to_the_first_is_not_looked_into() -> None:
    assert scanned(STEP, STEP, extra="e = Identity(x)").terms_of["b"].op == "Input"


def chosen(condition: str, decides: bool = True) -> View:
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
    g (float[3] x, bool open) => (float[3] y) <bool yes = {{1}}, bool no = {{0}}> {{
        r = If ({condition}) <then_branch = t () => (float[3] p) {{ p = Neg(x) }},
                              else_branch = e () => (float[3] q) {{ q = Exp(x) }}>
        y = Abs(r) }}"""
    model = parser.parse_model(text)
    if decides:
        return Lifted.of(model).views[0]
    from onnxfuse.lifting.lift import lift
    from onnxfuse.model.graph import roots

    return lift(next(iter(roots(model))), None, decides=False)


@pytest.mark.parametrize(("condition", "op"), [("yes", "Mul"), ("no", "Exp"), ("open", "If")])
def test_an_if_whose_condition_is_known_is_the_branch_that_it_takes(condition: str, op: str) -> None:
    view = chosen(condition)
    assert view.terms_of["r"].op == op
    assert view.decided == (set() if condition == "open" else {"r"})


def test_an_if_is_left_open_where_that_is_asked_for() -> None:
    view = chosen("yes", decides=False)
    assert (view.terms_of["r"].op, view.decided) == ("If", set())
