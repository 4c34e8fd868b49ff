"""What stands for a node of control flow, before it stands anywhere."""

from __future__ import annotations

import pytest
from onnx import NodeProto, parser

from onnxfuse.model.in_place import defined, in_place, stands
from onnxfuse.model.walk import attribute_graphs


def node(text: str, opset: int = 18) -> NodeProto:
    model = parser.parse_model(
        f'<ir_version: 9, opset_import: ["": {opset}]> g (bool c, int64 n, float[2] x) => (float[2] y) {{ {text} }}'
    )
    return model.graph.node[0]


LOOP = """y, z = Loop (n, c, x) <body = b (int64{} i, bool{} go, float[2] f) => (again, next, row) {{
    again = Identity (go)  next = Add (f, w)  row = Abs (f) }}>"""


def spelled(loop: NodeProto, opset: int = 18) -> list[str]:
    ((_, body),) = attribute_graphs(loop)
    names = {name: f"b/{name}" for name in defined(body)}
    made = in_place(loop, body, names, str.upper, opset)
    return [f"{each.op_type}({', '.join(each.input)}) {', '.join(each.output)}" for each in made]


def test_a_loop_is_its_first_iteration() -> None:
    assert spelled(node(LOOP.format("", ""))) == [
        "Constant() b/i",
        "Constant() b/go",
        "Identity(x) b/f",
        "Identity(b/go) b/again",
        "Add(b/f, w) b/next",
        "Abs(b/f) b/row",
        "Identity(b/next) y",
        "Constant() z//axes",
        "Unsqueeze(b/row, z//axes) z",
    ]


def test_axes_are_an_attribute_where_they_were_one() -> None:
    assert spelled(node(LOOP.format("", ""), 11), 11)[-1] == "Unsqueeze(b/row) z"


@pytest.mark.parametrize(("rank", "shape"), [("", ()), ("[1]", (1,))])
def test_number_and_condition_are_of_the_rank_that_the_body_declares(rank: str, shape: tuple[int, ...]) -> None:
    loop = node(LOOP.format(rank, rank))
    ((_, body),) = attribute_graphs(loop)
    first, second = in_place(loop, body, {name: name for name in defined(body)}, str, 18)[:2]
    assert [tuple(each.attribute[0].t.dims) for each in (first, second)] == [shape, shape]


def test_what_is_nothing_by_itself_is_left_out() -> None:
    """An output that nobody wants, a copy of a value to its own name."""
    loop = node(LOOP.format("", "").replace("y, z", "y, "))
    ((_, body),) = attribute_graphs(loop)
    names = {name: name for name in defined(body)} | {"f": "x", "next": "y"}
    assert [each.op_type for each in in_place(loop, body, names, str, 18)][2:] == ["Identity", "Add", "Abs"]


def test_only_what_runs_its_body_as_it_is_can_be_stood_for() -> None:
    scan = node("y = Scan <num_scan_inputs = 1, body = b (float r) => (q) { q = Neg (r) }> (x)")
    assert stands(scan)
    assert not stands(scan, opset=8)  # has a batch axis of its own
    assert not stands(node("y = Neg (x)"))
