"""One node as terms: its op as the normal form has it, whatever the opset; leaves where nothing is known."""

from __future__ import annotations

import pytest
from onnx import TensorProto, parser

from onnxfuse.lifting.lift import lift
from onnxfuse.lifting.view import View
from onnxfuse.model.graph import Graph


def lifted(
    nodes: str, opset: int = 17, inputs: str = "float[2, 3, 4] x, float[2, 3, 4] z", constants: str = ""
) -> View:
    model = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}, "d": 1]> g ({inputs}) => (y) {constants} {{ {nodes} }}'
    )
    return lift(Graph(model.graph, model, opset), None)


@pytest.mark.parametrize(
    ("old", "new", "constants"),
    [
        (("y = Squeeze <axes = [0]> (x)", 11), "y = Squeeze (x, a)", "<int64[1] a = {0}>"),
        (("y = ReduceSum <axes = [-1]> (x)", 11), "y = ReduceSum (x, a)", "<int64[1] a = {-1}>"),
        (("y = Slice <starts = [1], ends = [2], axes = [2]> (x)", 9), "y = Slice (x, a, b, c)",
         "<int64[1] a = {1}, int64[1] b = {2}, int64[1] c = {2}>"),
        (("y = Clip <min = 0.0, max = 6.0> (x)", 9), "y = Clip (x, a, b)", "<float a = {0}, float b = {6}>"),
        (("y = Dropout <ratio = 0.5> (x)", 11), "y = Identity (x)", ""),
        (("z = Constant <value_int = 0> () m = Cast <to = 9> (z) y = Dropout (x, , m)", 17), "y = Identity (x)", ""),
        (("y = Softmax <axis = 2> (x)", 11), "y = Softmax <axis = 2> (x)", ""),
    ],
)  # fmt: skip
def test_an_op_of_an_older_opset_is_that_of_a_newer(old: tuple[str, int], new: str, constants: str) -> None:
    inputs = "float[1, 3, 4] x"
    before, after = lifted(*old, inputs=inputs), lifted(new, inputs=inputs, constants=constants)
    assert repr(before.term("y")).partition("#")[0] == repr(after.term("y")).partition("#")[0]
    assert (before.term("y").op, before.term("y").attrs, before.term("y").shape) == (
        after.term("y").op,
        after.term("y").attrs,
        after.term("y").shape,
    )


def test_before_opset_13_softmax_works_on_all_axes_from_one_on() -> None:
    view = lifted("y = Softmax <axis = 1> (x)", 11)
    rows = view.term("y").args[0]
    assert view.term("y").shape == (2, 3, 4)
    assert (rows.op, rows.shape) == ("Softmax", (2, 12))


@pytest.mark.parametrize(
    "nodes",
    [
        "y = Transpose <perm = [0, 5, 1]> (x)",
        "y = Split <axis = 7> (x)",
    ],
)
def test_a_node_that_breaks_the_rules_of_its_op_is_a_leaf(nodes: str, lenient: None) -> None:
    view = lifted(nodes)
    assert view.term("y").op == "Input"
    assert view.hidden[view.term("y").id] == ["x"]


def test_outputs_of_one_node_are_told_apart() -> None:
    view = lifted("p, i = TopK <axis = -1> (x, k)  y = Cast <to = 1> (i)", constants="<int64[1] k = {2}>")
    assert view.term("p").args == view.term("i").args
    assert view.term("p") is not view.term("i")
    assert (view.dtypes["p"], view.dtypes["i"]) == (TensorProto.FLOAT, TensorProto.INT64)


def test_indices_of_a_pool_are_integers_so_that_a_cast_of_them_is_one() -> None:
    view = lifted("p, i = MaxPool <kernel_shape = [2]> (x)  f = Cast <to = 1> (i)  y = Add (p, f)")
    assert view.dtypes["i"] == TensorProto.INT64
    assert view.term("f").op == "Cast"


def test_parts_of_a_split_are_slices() -> None:
    view = lifted("y, b = Split <axis = 2> (x)")
    first, second = view.term("y"), view.term("b")
    assert (first.op, first.attr("start"), second.attr("start")) == ("Slice", 0, 2)
    assert lifted("y, b = Split <axis = 1> (x)", inputs="x").term("b").op == "Output"


def test_an_op_of_another_domain_is_known_by_its_full_name_and_may_have_effects() -> None:
    view = lifted("a = d.F <k = 1> (x)  b = d.F <k = 1> (x)  y = Add (a, b)")
    assert view.term("a").op == "d.F"
    assert view.term("a").attrs == (("k", 1),)
    assert view.term("a") is not view.term("b"), "each call is its own"


def test_random_numbers_are_drawn_by_each_node() -> None:
    view = lifted("a = RandomNormalLike (x)  b = RandomNormalLike (x)  y = Sub (a, b)")
    assert view.term("a") is not view.term("b")
    assert view.term("y").op == "Add"
