"""What is fused in branches is proved in each of them, found to blame by its value, and left out where nothing runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from onnxfuse import optimize
from onnxfuse.errors import NumericsError
from onnxfuse.model.graph import family_of
from onnxfuse.model.walk import attribute_graphs
from tests.spellings.mutants import run

WRONG = """# Cosine taken for sine.
Sloppy(X)

match:    Y = X * Cos(X)
emit:     Y = Sloppy(X)
meaning:  Y = X * Sin(X)
"""
SLOPPY = "c1 = Cos (x)  {0} = Mul (x, c1)"
GATE = "m = Mul (x, k)  s = Sigmoid (m)  {0} = Mul (x, s)"
SOFTPLUS = "e = Exp (x)  f = Add (e, one)  {0} = Log (f)"


def model(then: str, other: str) -> onnx.ModelProto:
    return parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 17]>
        g (bool c, float[n, 4] x) => (float[n, 4] y) <float one = {{1}}, float k = {{1.702}}> {{
            y = If (c) <
                then_branch = p () => (a) {{ {then} }},
                else_branch = q () => (b) {{ {other} }}
            >
        }}"""
    )


BOTH = model(GATE.format("a"), SOFTPLUS.format("b"))


def ops(given: onnx.ModelProto) -> dict[str, set[str]]:
    """The ops of each branch that a fusion may lead to."""
    (node,) = (node for node in given.graph.node if node.op_type == "If")
    return {
        name: {family_of(n) for n in body.node} & {"QuickGelu", "Softplus", "Sloppy"}
        for name, body in attribute_graphs(node)
    }


def test_both_branches_are_run_and_what_is_fused_in_each_is_compared() -> None:
    done = optimize(BOTH)
    assert ops(done.model) == {"then_branch": {"QuickGelu"}, "else_branch": {"Softplus"}}
    assert done.report.validation.verdict == "equal"
    assert done.report.left_out == []
    x = np.linspace(-3, 3, 8, dtype=np.float32).reshape(2, 4)
    for taken in (True, False):
        given = {"c": np.array(taken), "x": x}
        np.testing.assert_allclose(run(done.model, given)[0], run(BOTH, given)[0], rtol=1e-5)


@pytest.fixture
def rules(tmp_path: Path) -> list[Path]:
    (tmp_path / "sloppy.rule").write_text(WRONG)
    return [tmp_path]


@pytest.mark.parametrize(
    ("then", "other", "scope"),
    [
        (SLOPPY.format("a"), GATE.format("b"), "/If_y.then_branch"),
        (GATE.format("a"), SLOPPY.format("b"), "/If_y.else_branch"),
    ],
)
def test_a_wrong_fusion_of_a_branch_is_named_and_left_out_alone(
    then: str, other: str, scope: str, rules: list[Path]
) -> None:
    given = model(then, other)
    done = optimize(given, rules=rules)
    assert [(left.fusion.rule, left.fusion.scope) for left in done.report.left_out] == [("Sloppy", scope)]
    assert done.report.validation.verdict == "equal"
    assert sorted(map(sorted, ops(done.model).values())) == [[], ["QuickGelu"]]
    with pytest.raises(NumericsError, match="Sloppy"):
        optimize(given, rules=rules, on_mismatch="fail")


def test_a_wrong_fusion_of_a_branch_that_no_generated_input_takes_is_found_too(rules: list[Path]) -> None:
    given = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 17]>
        g (float[n, 4] x) => (float[n, 4] y) <float k = {{1.702}}, float far = {{1000000000}}> {{
            l = ReduceMax <keepdims = 0> (x)
            never = Greater (l, far)
            y = If (never) <
                then_branch = p () => (a) {{ {SLOPPY.format("a")} }},
                else_branch = q () => (b) {{ {GATE.format("b")} }}
            >
        }}"""
    )
    done = optimize(given, rules=rules)
    assert [left.fusion.rule for left in done.report.left_out] == ["Sloppy"]
    assert ops(done.model) == {"then_branch": set(), "else_branch": {"QuickGelu"}}


def test_what_is_fused_in_a_branch_that_does_not_run_is_left_out() -> None:
    given = model(
        "r = Reshape (x, three)  h = Reshape (r, back)  " + GATE.format("a").replace("x,", "h,"), GATE.format("b")
    )
    for name, values in (("three", [-1, 3, 5, 7]), ("back", [2, 7])):
        given.graph.initializer.append(numpy_helper.from_array(np.array(values, np.int64), name))
    done = optimize(given)
    assert ops(done.model) == {"then_branch": set(), "else_branch": {"QuickGelu"}}
    assert done.report.validation.verdict == "equal"
    assert {left.fusion.scope for left in done.report.left_out} == {"/If_y.then_branch"}
    assert all("no inputs are found that its branch runs on" in left.reason for left in done.report.left_out)


def test_where_given_inputs_take_one_branch_the_other_is_proved_on_those_too(rules: list[Path]) -> None:
    given = model(GATE.format("a"), SLOPPY.format("b"))
    inputs = {"c": np.array(True), "x": np.ones((1, 4), np.float32)}
    done = optimize(given, rules=rules, inputs=inputs)
    assert [left.fusion.rule for left in done.report.left_out] == ["Sloppy"]


def loop(body: str, count: str = "n") -> onnx.ModelProto:
    """A Loop whose body squashes what it makes, so that a small error of it is none of the output's."""
    return parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 17]>
        g (int64 n, float[m, 4] x) => (float[m, 4] y)
        <float k = {{1.702}}, bool go = {{1}}, float tiny = {{0.000001}}> {{
            y = Loop ({count}, go, x) <body = b (int64 i, bool on, float[m, 4] x) => (again, next) {{
                again = Identity (on)
                {body}
            }}>
        }}"""
    )


HIDDEN = SLOPPY.format("a") + "  small = Mul (a, tiny)  next = Add (x, small)"


def bodies(given: onnx.ModelProto) -> set[str]:
    (node,) = (node for node in given.graph.node if node.op_type == "Loop")
    return {family_of(inner) for _, body in attribute_graphs(node) for inner in body.node}


@pytest.mark.parametrize("count", ["n", "zero"])
def test_a_wrong_fusion_in_a_loop_is_found_by_its_value(count: str, rules: list[Path]) -> None:
    given = loop(HIDDEN, count)
    given.graph.initializer.append(numpy_helper.from_array(np.array(0, np.int64), "zero"))
    done = optimize(given, rules=rules)
    assert [(left.fusion.rule, left.fusion.scope) for left in done.report.left_out] == [("Sloppy", "/Loop_y.body")]
    assert "Sloppy" not in bodies(done.model)


def test_what_is_wrong_in_later_iterations_alone_is_found(tmp_path: Path) -> None:
    """The number of the first one is 0, and no loop is fed that has another."""
    (tmp_path / "late.rule").write_text(
        WRONG.replace("Cos(X)", "Sin(Z)").replace("Sin(X)", "Sin(2 * Z)").replace("(X)", "(X, Z)")
    )
    given = loop(
        "t = Cast <to = 1> (i)  s = Sin (t)  a = Mul (x, s)  small = Mul (a, tiny)  next = Add (x, small)", "zero"
    )
    given.graph.initializer.append(numpy_helper.from_array(np.array(0, np.int64), "zero"))
    done = optimize(given, rules=[tmp_path])
    assert [(left.fusion.rule, left.fusion.scope) for left in done.report.left_out] == [("Sloppy", "/Loop_y.body")]


def test_a_right_fusion_in_a_loop_stays() -> None:
    given = loop(GATE.format("next"))
    done = optimize(given)
    assert "QuickGelu" in bodies(done.model)
    assert done.report.validation.verdict == "equal"
    assert done.report.left_out == []


def test_a_step_that_does_not_run_alone_is_compared_with_the_whole_model() -> None:
    """A body that fails at its first step runs where the loop has none."""
    refuses = "r = Reshape (x, three)  h = Reshape (r, back)  " + GATE.format("next").replace("x,", "h,")
    given = loop(refuses, "zero")
    for name, values in (("three", [-1, 3, 5, 7]), ("back", [2, 7]), ("zero", 0)):
        given.graph.initializer.append(numpy_helper.from_array(np.array(values, np.int64), name))
    done = optimize(given)
    assert done.report.validation.verdict == "equal"
    assert done.report.left_out == []


def test_a_wrong_fusion_of_a_function_is_named_and_left_out_alone(rules: list[Path]) -> None:
    """Also within another function; and all functions are run in the two runs of the whole model."""
    given = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 17, "own": 1]> g (float[n, 4] x) => (float[n, 4] y) {{
            a = own.outer (x)  b = own.outer (a)  y = own.gate (b)
        }}
        <domain: "own", opset_import: ["": 17, "own": 1]> outer (x) => (y) {{
            {SLOPPY.format("s")}  y = own.gate (s)
        }}
        <domain: "own", opset_import: ["": 17]> gate (x) => (y) {{
            k = Constant <value_float = 1.702> ()  {GATE.format("y")}
        }}"""
    )
    right = optimize(given, level=1).report.validation
    assert (right.verdict, right.sites) == ("equal", 1)
    assert right.cases == optimize(given, rules=rules, level=1).report.validation.cases
    done = optimize(given, rules=rules)
    assert [(left.fusion.rule, left.fusion.scope) for left in done.report.left_out] == [("Sloppy", "/own.outer")]
    assert [family_of(node) for function in done.model.functions for node in function.node].count("QuickGelu") == 1
