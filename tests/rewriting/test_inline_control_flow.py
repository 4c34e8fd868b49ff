"""Control flow of which it is known what will run, before and after."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

import onnxfuse
from onnxfuse.rewriting.inline_control_flow import straightened
from tests.spellings.mutants import run

X = np.array([[1, -2, 3]], np.float32)


def model(body: str, inputs: str = "float[1,3] x", constants: str = "bool yes = {1}, bool no = {0}") -> onnx.ModelProto:
    return parser.parse_model(
        f'<ir_version: 9, opset_import: ["" : 18]> g ({inputs}) => (float[?,?] y) <{constants}> {{ {body} }}'
    )


def straight(body: str, *, inputs: str = "float[1,3] x", **feeds: object) -> list[str]:
    """The ops of a model after; it gives what it gave."""
    before = model(body, inputs)
    stored = before.SerializeToString(deterministic=True)
    after = straightened(before)
    onnx.checker.check_model(after, full_check=True)
    assert before.SerializeToString(deterministic=True) == stored
    given = {"x": X} | feeds
    np.testing.assert_array_equal(run(before, given)[0], run(after, given)[0])
    return [f"{node.op_type}({', '.join(node.input)}) {node.output[0]}" for node in after.graph.node]


BRANCHES = """<then_branch = t () => (p) <float[1] w = {2}> { m = Mul (x, w)  p = Neg (m) },
               else_branch = e () => (q) { q = Exp (x) }>"""


@pytest.mark.parametrize(("condition", "ops"), [("yes", ["Mul(x, w) m", "Neg(m) y"]), ("no", ["Exp(x) y"])])
def test_a_branch_that_is_always_taken_is_all_there_is(condition: str, ops: list[str]) -> None:
    assert straight(f"y = If ({condition}) {BRANCHES}") == ops


def test_a_condition_may_be_a_question_about_shapes() -> None:
    """torch.squeeze: is this axis of size 1?"""
    body = """s = Shape (x)  i = Constant <value_int = 0> ()  d = Gather (s, i)  one = Constant <value_int = 1> ()
        c = Equal (d, one)
        a = If (c) <then_branch = t () => (p) { ax = Constant <value_ints = [0]> ()  p = Squeeze (x, ax) },
                    else_branch = e () => (q) { q = Identity (x) }>
        r = Constant <value_ints = [3, 1]> ()  y = Reshape (a, r)"""
    assert straight(body)[-4:] == ["Constant() ax", "Squeeze(x, ax) a", "Constant() r", "Reshape(a, r) y"]


def test_an_open_condition_stays_open() -> None:
    before = model(f"y = If (c) {BRANCHES}", "float[1,3] x, bool c")
    assert straightened(before) is before


def test_a_model_without_bodies_is_itself() -> None:
    before = model("y = Neg (x)")
    assert straightened(before) is before


def test_what_a_branch_tells_decides_the_next() -> None:
    body = f"""c = If (yes) <then_branch = t () => (p) {{ p = Constant <value = bool {{0}}> () }},
                            else_branch = e () => (q) {{ q = Identity (yes) }}>
        y = If (c) {BRANCHES}"""
    assert straight(body)[1:] == ["Exp(x) y"]


def test_branches_in_branches() -> None:
    inner = BRANCHES.replace("(p)", "(u)").replace("p =", "u =")
    body = f"""y = If (c) <then_branch = o () => (r) {{ r = If (no) {inner} }},
                          else_branch = n () => (z) {{ z = If (yes) {inner} }}>"""
    after = straightened(model(body, "float[1,3] x, bool c"))
    (node,) = after.graph.node
    assert [[inner.op_type for inner in each.g.node] for each in node.attribute] == [["Exp"], ["Mul", "Neg"]]
    whole = straight(body.replace("If (c)", "If (yes)"))
    assert whole == ["Exp(x) y"]


def test_names_that_several_bodies_have_are_told_apart() -> None:
    both = BRANCHES.replace("p =", "q =").replace("(p)", "(q)")
    ops = straight(f"a = If (yes) {both}  b = If (yes) {both}  y = Add (a, b)")
    assert ops[-1] == "Add(a, b) y"
    assert len({op.split()[-1] for op in ops}) == len(ops) == 5


def test_what_a_body_within_reads_follows_its_new_name() -> None:
    outer = """<then_branch = t () => (p) { m = Neg (x)
        p = If (c) <then_branch = i () => (u) { u = Exp (m) }, else_branch = j () => (v) { v = Abs (m) }> },
        else_branch = e () => (q) { m = Abs (x)  q = Identity (m) }>"""
    for c in (True, False):
        ops = straight(f"y = If (yes) {outer}", inputs="float[1,3] x, bool c", c=np.array(c))
        assert [op.split("(")[0] for op in ops] == ["Neg", "If"]


def test_a_branch_may_give_what_stands_around_it_and_one_value_twice() -> None:
    body = """n = Neg (x)
        a, b, y = If (yes) <then_branch = t () => (p, p, r) { p = Exp (x)  r = Identity (n) },
                            else_branch = e () => (q, q, q) { q = Abs (x) }>"""
    assert straight(body) == ["Neg(x) n", "Exp(x) a", "Identity(n) y", "Identity(a) b"]


ONCE = """l, y = Loop ({}) <body = b (int64 i, bool go, float[1,3] f) => (again, next, row) {{
    again = Not (go)  k = Cast <to = 1> (i)  next = Mul (f, f)  r = ReduceSum <keepdims = 0> (next)  row = Add (r, k)
    }}>"""


def test_a_loop_that_runs_once_is_its_first_iteration() -> None:
    body = "n = Constant <value_int = 1> ()  "
    text = ONCE.replace(
        "row = Add (r, k)", "s = Add (r, k)  one = Constant <value_ints = [1]> ()  row = Reshape (s, one)"
    )
    ops = straight(body + text.format("n, yes, x"))
    assert "Mul(x, x) l" in ops
    assert ops[-1].startswith("Unsqueeze(row, ")
    assert not any(op.startswith("Loop") for op in ops)
    assert straight(body + text.format("n, , x")) == ops


@pytest.mark.parametrize("given", ["two, yes, x", "one, no, x", "one, c, x", "m, yes, x", ", yes, x"])
def test_a_loop_that_may_run_otherwise_stays(given: str) -> None:
    counts = "one = Constant <value_int = 1> ()  two = Constant <value_int = 2> ()  "
    before = model(counts + ONCE.format(given), "float[1,3] x, bool c, int64 m")
    assert straightened(before) is before


def test_branches_of_functions_have_no_initializers() -> None:
    text = """<ir_version: 9, opset_import: ["" : 18, "own" : 1]>
    g (float[1,3] x) => (float[1,3] y) { y = own.f (x) }
    <domain: "own", opset_import: ["" : 18]> f (x) => (y) {
        c = Constant <value = bool {1}> ()
        y = If (c) <then_branch = t () => (p) <float[1] w = {2}> { p = Mul (x, w) },
                    else_branch = e () => (q) { q = Exp (x) }> }"""
    after = straightened(parser.parse_model(text))
    onnx.checker.check_model(after, full_check=True)
    assert [node.op_type for node in after.functions[0].node] == ["Constant", "Constant", "Mul"]
    assert run(after, {"x": X})[0].tolist() == (2 * X).tolist()


def test_what_is_fused_across_is_proved() -> None:
    """A head split whose Squeeze asks for its axis: half of a gate stands in a branch."""
    body = """s = Shape (x)  i = Constant <value_int = 0> ()  d = Gather (s, i)  one = Constant <value_int = 1> ()
        c = Equal (d, one)  g = Sigmoid (x)
        y = If (c) <then_branch = t () => (p) { p = Mul (x, g) }, else_branch = e () => (q) { q = Neg (g) }>"""
    made = onnxfuse.optimize(model(body))
    assert [node.op_type.partition("_")[0] for node in made.model.graph.node] == ["Swish"]
    assert made.report.validation.verdict == "equal"
    assert made.report.fusions[0].replaced


@pytest.mark.parametrize("called", ["", "/If"])
def test_bodies_that_stay_have_names_of_their_own(called: str) -> None:
    """Nodes that are called alike, or not at all, in two branches that come into one scope."""
    inner = "If (c) <then_branch = i () => (u) { u = Exp (x) }, else_branch = j () => (v) { v = Abs (x) }>"
    branches = f"<then_branch = t () => (p) {{ p = {inner} }}, else_branch = e () => (q) {{ q = Neg (x) }}>"
    before = model(f"a = If (yes) {branches}  b = If (yes) {branches}  y = Add (a, b)", "float[1,3] x, bool c")
    for node in before.graph.node[:2]:
        node.attribute[0].g.node[0].name = called
    after = straightened(before)
    assert [node.op_type for node in after.graph.node] == ["If", "If", "Add"]
    for c in (True, False):
        given = {"x": X, "c": np.array(c)}
        np.testing.assert_array_equal(run(before, given)[0], run(after, given)[0])


def test_a_node_of_a_branch_may_omit_its_first_output() -> None:
    """As a GRU does of which the last state alone is read."""
    body = """y = If (yes) <then_branch = t () => (p) {
            w = ConstantOfShape <value = float[1] {0.5}> (nine)  s = Unsqueeze (x, zero)
            , h = GRU <hidden_size = 3> (s, w, w)  p = Squeeze (h, zero) },
        else_branch = e () => (q) { q = Neg (x) }>"""
    before = model(body, constants="bool yes = {1}, int64[1] zero = {0}, int64[3] nine = {1, 9, 3}")
    after = straightened(before)
    assert [node.op_type for node in after.graph.node][-2:] == ["GRU", "Squeeze"]
    np.testing.assert_array_equal(run(before, {"x": X})[0], run(after, {"x": X})[0])
