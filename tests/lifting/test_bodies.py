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


BRANCH = "r = If ({}) <then_branch = t2 () => (p) {{ p = Neg(x) }}, else_branch = e2 () => (q) {{ q = Exp(x) }}>"


@pytest.mark.parametrize(("condition", "op"), [("yes", "Neg"), ("no", "Exp"), ("open", "If")])
def test_an_if_in_a_body_is_the_branch_that_it_takes(condition: str, op: str) -> None:
    bodies = [BRANCH.format(condition), *(f"r = {each}(x)" for each in ("Neg", "Exp"))]
    ifs = [
        f"o{i} = If (c) <then_branch = t () => (r) {{ {body} }}, else_branch = e () => (o) {{ o = Abs(x) }}>"
        for i, body in enumerate(bodies)
    ]
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
    g (float[3] x, bool c, bool open) => (float[3] o0) <bool yes = {{1}}, bool no = {{0}}> {{ {"  ".join(ifs)} }}"""
    terms = Lifted.of(parser.parse_model(text)).views[0].terms_of
    assert [terms["o0"] is terms[f"o{i}"] for i in (1, 2)] == [op == "Neg", op == "Exp"]
