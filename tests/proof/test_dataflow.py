"""Where values go: through bodies and functions, and which of them count positions."""

from __future__ import annotations

import onnx.parser
import pytest

from onnxfuse.proof.dataflow import Dataflow
from tests.proof.test_inputs import parse, table


def test_consumers_are_found_in_bodies() -> None:
    model = parse(
        """g (bool c, float[3] x) => (y) {
            y = If(c) <then_branch = t () => (float[3] a) { a = Neg(x) },
                       else_branch = e () => (float[3] b) { b = Add(x, x) }> }"""
    )
    index = Dataflow(model)
    assert [(node.op_type, place) for node, place in index.consumers["", "x"]] == [("Neg", 0), ("Add", 0), ("Add", 1)]
    assert index.aliases["", "a"] == index.aliases["", "b"] == [("", "y")]


def test_a_formal_parameter_has_the_dims_of_what_is_given() -> None:
    text = """<ir_version: 9, opset_import: ["": 18, "own": 1]> g (float[n, 4] x) => (y) { y = own.F(x) }
        <domain: "own", opset_import: ["": 18]> F (a) => (b) { b = Neg(a) }"""
    index = Dataflow(onnx.parser.parse_model(text))
    assert index.dims_of(("own::F::", "a")) == index.dims_of(("", "x")) == ("n", 4)


@pytest.mark.parametrize(
    ("body", "positions"),
    [
        ("v = Range(zero, n, one)", 0),
        ("r = Range(zero, n, one) c = Cast<to = 1>(r) u = Unsqueeze(c, axis) v = Identity(u)", 0),
        ("v = CumSum(x, zero)", 0),
        ("v = Identity(places)", 4),
        ("v = Identity(levels)", None),
        ("v = Identity(one)", None),
        ("v = Add(places, places)", None),
        ("v = Identity(x)", None),
    ],
)
def test_positions_are_what_counts_up(body: str, positions: int | None) -> None:
    model = table(parse(f"g (int64 n, int64[4] x) => (v) <int64 zero = {{0}}, int64 one = {{1}}> {{ {body} }}"))
    numbers = {"axis": [0], "places": [0, 1, 2, 3], "levels": [0, 1, 1, 3]}
    model.graph.initializer.extend(
        onnx.helper.make_tensor(name, onnx.TensorProto.INT64, [len(values)], values) for name, values in numbers.items()
    )
    assert Dataflow(model).positions(("", "v")) == positions
