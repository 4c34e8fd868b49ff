"""A body in place of its node: its nodes, weights and bodies, under names of their own."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxfuse.model.graph import roots
from onnxfuse.proof.branches import branches, called_alike, taken, with_calls
from tests.spellings.build import Array
from tests.spellings.mutants import run


def model(body: str, inputs: str = "bool c, float[2] x") -> onnx.ModelProto:
    return parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> g ({inputs}) => (float[2] y) {{ {body} }}')


X = np.array([1.0, -2.0], np.float32)
ONE = model(
    """t = Neg (x)
    y = If (c) <
        then_branch = p () => (a) <float[1] w = {3}> { t1 = Mul (t, w)  a = Add (t1, x) },
        else_branch = q () => (t) {}
    >"""
)
NESTED = model(
    """y = If (c) <
        then_branch = p () => (a) {
            b = Mul (x, x)
            a = If (c) <then_branch = q () => (d) { d = Add (b, x) }, else_branch = r () => (b) {}>
        },
        else_branch = s () => (x) {}
    >"""
)


def computed(given: onnx.ModelProto, scope: str, **more: Array) -> list[float]:
    """What a branch computes where the condition says that the other one is taken."""
    alone = taken(given, branches(given)[scope])
    assert alone is not None
    onnx.checker.check_model(alone)
    assert {node.op_type for node in alone.graph.node} & {"If"} == set()
    return run(alone, {"c": np.array(False), "x": X} | more)[0].tolist()


def test_a_branch_is_taken_whatever_the_condition_says() -> None:
    assert branches(ONE).keys() == {"/If_y.then_branch", "/If_y.else_branch"}
    assert computed(ONE, "/If_y.then_branch") == [-2, 4]
    assert computed(ONE, "/If_y.else_branch") == [-1, 2]


def test_a_branch_within_a_branch_takes_both() -> None:
    assert computed(NESTED, "/If_y.then_branch/If_a.then_branch") == [2, 2]
    assert computed(NESTED, "/If_y.then_branch/If_a.else_branch") == [1, 4]


def test_an_if_within_a_branch_stays_one() -> None:
    alone = taken(NESTED, branches(NESTED)["/If_y.then_branch"])
    assert alone is not None
    assert [node.op_type for node in alone.graph.node] == ["Mul", "If", "Identity"]
    for condition, wanted in ((True, [2, 2]), (False, [1, 4])):
        assert run(alone, {"c": np.array(condition), "x": X})[0].tolist() == wanted


def test_names_of_nodes_and_values_of_a_branch_are_its_own() -> None:
    given = onnx.ModelProto.FromString(ONE.SerializeToString())
    node = given.graph.node[1]
    node.name = "/block/If"
    for inner in node.attribute[0].g.node:
        inner.name = "the same"[: len(inner.output[0]) * 8]
    branch = branches(given)["/block/If.then_branch"]
    alone = taken(given, branch)
    assert alone is not None
    assert branch.name("t1") in {name for inner in alone.graph.node for name in inner.output}
    assert [inner.name for inner in alone.graph.node][1:] == [branch.name("the same"), branch.name("the same"), ""]


def test_values_that_a_body_within_a_branch_reads_are_found_there() -> None:
    given = model(
        """y = If (c) <then_branch = p () => (h) <int64 n = {3}, bool on = {1}> {
            w = Neg (x)
            h = Loop (n, on, x) <body = b (int64 i, bool go, float[2] f) => (again, next) {
                again = Identity (go)  next = Add (f, w)
            }>
        }, else_branch = q () => (x) {}>"""
    )
    assert computed(given, "/If_y.then_branch") == [-2, 4]


@pytest.mark.parametrize("scope", ["/If_y.then_branch", "/If_z.then_branch"])
def test_a_model_without_the_branch_has_none(scope: str) -> None:
    other = model("y = Neg (x)")
    renamed = onnx.ModelProto.FromString(ONE.SerializeToString())
    renamed.graph.node[1].name = "z"
    assert taken(other, branches(ONE)["/If_y.then_branch"]) is None
    assert taken(renamed, branches(ONE)["/If_y.then_branch"]) is None
    assert scope not in branches(other)


LOOP = model(
    """y, z = Loop (n, c, x) <body = b (int64 i, bool go, float[2] f) => (again, next, row) <float[1] w = {3}> {
        again = Identity (go)
        t = Cast <to = 1> (i)
        row = Add (f, w)
        next = Add (row, t)
    }>
    total = ReduceSum <keepdims = 0> (z)""",
    "int64 n, bool c, float[2] x",
)


def scan(opset: int, attributes: str = "") -> onnx.ModelProto:
    return parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": {opset}]>
        g (float[2] x, float[3, 2] rows) => (float[2] y, float[?, ?] z) {{
            y, z = Scan <num_scan_inputs = 1{attributes}, body = b (float[2] s, float[2] r) => (next, out) {{
                next = Add (s, r)  out = Mul (next, next)
            }}> (x, rows)
        }}"""
    )


ROWS = np.array([[1, 2], [3, 4], [5, 6]], np.float32)


def stepped(given: onnx.ModelProto, scope: str, step: int = 0, **feeds: Array) -> list[list[float]]:
    """What a step of a body gives."""
    part = branches(given)[scope].each_step()[step]
    assert part.repeats
    alone = taken(given, part)
    assert alone is not None
    return [value.tolist() for value in run(alone, feeds)]


def test_a_loop_is_its_first_iteration() -> None:
    """Whose number is 0 and whose condition holds, whatever the loop is given."""
    feeds = {"n": np.array(0), "c": np.array(False), "x": X}
    assert stepped(LOOP, "/Loop_y.body", **feeds) == [[4, 1], [[4, 1]]]


def test_a_later_iteration_has_its_number_and_a_later_step_its_row() -> None:
    feeds = {"n": np.array(0), "c": np.array(False), "x": X}
    assert stepped(LOOP, "/Loop_y.body", 1, **feeds) == [[5, 2], [[4, 1]]]
    assert stepped(scan(17), "/Scan_y.body", 1, x=X, rows=ROWS) == [[4, 2], [[16, 4]]]
    backwards = scan(17, ", scan_input_directions = [1]")
    assert stepped(backwards, "/Scan_y.body", 1, x=X, rows=ROWS) == [[4, 2], [[16, 4]]]


def test_a_branch_of_an_if_has_one_step() -> None:
    (branch, *others) = branches(ONE)["/If_y.then_branch"].each_step()
    assert branch.step == 0
    assert others == []


@pytest.mark.parametrize("opset", [11, 17])
def test_a_scan_is_its_first_step(opset: int) -> None:
    assert stepped(scan(opset), "/Scan_y.body", x=X, rows=ROWS) == [[2, 0], [[4, 0]]]
    backwards = scan(opset, ", scan_input_directions = [1]")
    assert stepped(backwards, "/Scan_y.body", x=X, rows=ROWS) == [[6, 4], [[36, 16]]]
    columns = scan(opset, ", scan_input_axes = [1], scan_output_axes = [1]")
    columns.graph.input[1].type.tensor_type.shape.dim[0].dim_value = 2
    columns.graph.input[1].type.tensor_type.shape.dim[1].dim_value = 3
    assert stepped(columns, "/Scan_y.body", x=X, rows=ROWS.T) == [[2, 0], [[4], [0]]]


def test_a_scan_with_a_batch_of_its_own_is_none() -> None:
    assert branches(scan(8)) == {}


def test_a_branch_within_a_loop_is_taken_in_its_first_iteration() -> None:
    given = model(
        """y = Loop (n, c, x) <body = b (int64 i, bool go, float[2] f) => (again, next) {
            again = Identity (go)
            next = If (go) <then_branch = p () => (f) {}, else_branch = q () => (t) { t = Neg (f) }>
        }>""",
        "int64 n, bool c, float[2] x",
    )
    feeds = {"n": np.array(4), "c": np.array(True), "x": X}
    assert stepped(given, "/Loop_y.body/If_next.then_branch", **feeds) == [[1, -2]]
    assert stepped(given, "/Loop_y.body/If_next.else_branch", **feeds) == [[-1, 2]]


def calling(function: str, opset: int = 17) -> onnx.ModelProto:
    """A model with two calls of a function, of which only the second has a name."""
    given = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 17, "own": 1]> g (bool c, float[2] x) => (float[2] y) {{
            t = own.f <a = 3.0> (x)
            y = own.f (t, x)
        }}
        <domain: "own", opset_import: ["": {opset}]> {function}"""
    )
    given.graph.node[1].name = "second"
    return given


SCALED = "f <a: float = 2.0> (p, q) => (r) { w = Constant <value_float: float = @a> ()  r = Mul (p, w) }"


def test_a_function_is_its_first_call_with_the_attributes_of_that() -> None:
    given = calling(SCALED)
    assert branches(given).keys() == {"/own.f"}
    assert computed(given, "/own.f") == [6, -12]
    alone = taken(given, branches(given)["/own.f"])
    assert alone is not None
    assert [node.op_type for node in alone.graph.node] == ["Identity", "Constant", "Mul", "Identity", "f"]
    assert branches(given)["/own.f"].name("w") in alone.graph.node[1].output


def test_what_a_call_omits_its_function_has_not() -> None:
    given = calling("f (p, q) => (r) { r = Clip (p, q) }")
    given.graph.node[0].attribute.pop()
    given.graph.node[1].input.pop()
    assert computed(given, "/own.f") == [1, -2]
    alone = taken(given, branches(given)["/own.f"])
    assert alone is not None
    assert list(alone.graph.node[1].input) == ["/own.f//p", ""]


def test_a_branch_in_a_function_is_taken_there() -> None:
    inner = "then_branch = t () => (k) { k = Neg (p) }, else_branch = e () => (m) { m = Identity (p) }"
    given = calling(
        f"f (p, q) => (r) {{ b = Constant <value_int: int = 1> () h = Cast <to = 9> (b) r = If (h) <{inner}> }}"
    )
    given.graph.node[0].attribute.pop()
    branch = branches(given)["/own.f/If_r.else_branch"]
    assert branch.chosen
    assert not branches(given)["/own.f"].chosen
    assert computed(given, "/own.f/If_r.else_branch") == [-1, 2]


def test_a_function_of_another_opset_stands_for_no_call() -> None:
    assert branches(calling(SCALED, 16)) == {}
    assert not branches(calling(SCALED))["/own.f"].is_in(calling(SCALED, 16))


def test_a_call_within_a_body_may_be_named_as_torch_names_it() -> None:
    """By a path with a slash before it."""
    given = calling("f (p, q) => (r) { s = Neg (p)  r = own.h (s) }")
    given.graph.node[0].attribute.pop()
    given.graph.node[0].name = "/layer/f"
    inner = parser.parse_function('<domain: "own", opset_import: ["": 17]> h (p) => (r) { r = Abs (p) }')
    given.functions.append(inner)
    given.functions[0].node[1].name = "/layer/f/h"
    alone = taken(given, branches(given)["/own.h"])
    assert alone is not None
    assert "Abs" in [node.op_type for node in alone.graph.node]


def test_functions_that_are_always_called_stand_for_their_first_calls_at_once() -> None:
    given = calling("f (p, q) => (r) { s = Neg (p)  r = own.h (s) }")
    given.graph.node[0].attribute.pop()
    inner = parser.parse_function('<domain: "own", opset_import: ["": 17]> h (p) => (r) { r = Abs (p) }')
    given.functions.append(inner)
    given.functions[0].opset_import.add(domain="own", version=1)
    called = called_alike(given, given, ["/own.h"])
    assert [branch.scope for branch in called] == ["/own.f", "/own.h"]
    made = with_calls(given, called)
    onnx.checker.check_model(made)
    assert [node.op_type for node in made.graph.node if node.op_type != "Identity"] == ["Neg", "Abs", "f"]
    assert called[1].name("r") in {name for node in made.graph.node for name in node.output}
    assert run(made, {"c": np.array(True), "x": X})[0].tolist() == [1, 2]


def test_overloads_of_a_function_are_bodies_of_their_own() -> None:
    given = calling("f (p, q) => (r) { r = Neg (p) }")
    for call in given.graph.node[:2]:
        del call.attribute[:]
    other = parser.parse_function('<domain: "own", opset_import: ["": 17]> f (p, q) => (r) { r = Abs (p) }')
    other.overload = given.graph.node[1].overload = "two"
    given.functions.append(other)
    assert {scope: branch.way[0][0] for scope, branch in branches(given).items()} == {
        "/own.f": "f_t",
        "/own.f:two": "second",
    }
    assert [graph.path for graph in roots(given)] == ["", "/own.f", "/own.f:two"]


def test_a_function_whose_first_call_is_another_one_is_called() -> None:
    given, fewer = calling(SCALED), calling(SCALED)
    del fewer.graph.node[0]
    fewer.graph.node[0].input[0] = "x"
    assert called_alike(given, fewer, ["/own.f"]) == []
    assert called_alike(BOTH_CALL, BOTH_CALL, branches(BOTH_CALL)) == []


BOTH_CALL = parser.parse_model(
    """<ir_version: 9, opset_import: ["": 17, "own": 1]> g (bool c, float[2] x) => (float[2] y) {
        y = If (c) <then_branch = p () => (t) { t = own.f (x) }, else_branch = q () => (u) { u = own.f (x) }>
    }
    <domain: "own", opset_import: ["": 17]> f (p) => (r) { r = Neg (p) }"""
)
