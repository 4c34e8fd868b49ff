"""What terms cost to run on their own: launches, nodes, bytes."""

from __future__ import annotations

import pytest
from onnx import helper

from onnxfuse.matching.cost import launches, launches_of, nodes, size, traffic
from tests.terms.normal.space import HALF, Space, b, s


@pytest.fixture
def t() -> Space:
    return Space()


def test_launches_are_those_of_the_nodes_that_a_model_has(t: Space) -> None:
    x, y, z = (t.input(name, 2, 8) for name in "xyz")
    assert launches(x) == launches(t.number(2)) == 0
    assert launches(t.op("Tanh", x)) == 1
    assert launches(t.op("Add", t.op("Add", x, y), z)) == 2
    assert launches(t.op("Mul", x, t.number(-1))) == 0, "part of a difference"
    assert launches(t.op("Mul", x, t.number(-2))) == 1
    assert launches(t.op("Reciprocal", x)) == 0, "part of a quotient"
    assert launches(t.reshape(x, 16)) == 0
    assert launches(t.transpose(x, 1, 0)) == 1
    weight = t.terms.stored("w", (2048, 8), 1, lambda: pytest.fail("read"))
    assert launches(t.transpose(weight, 1, 0)) == 0, "folded"


def test_a_reshape_is_half_a_node_and_its_shape_one_if_it_has_to_be_put_together(t: Space) -> None:
    x = t.input("x", b, s, 8)
    assert nodes([t.reshape(x, b, s, 2, 4)]) == 1.5
    assert nodes([t.reshape(x, b, s * 8)]) == 1.5
    assert nodes([t.reshape(t.input("y", b, 8), b, 2, 4)]) == 0.5
    twice = [t.reshape(x, b, s, 2, 4), t.reshape(t.input("z", b, s, 8), b, s, 2, 4)]
    assert nodes(twice) == 2, "one shape for both"
    assert nodes([t.op("Tanh", x)]) == 1


def test_bytes_are_written_and_read_once(t: Space) -> None:
    x, half = t.op("Tanh", t.input("x", 2, 8)), t.op("Tanh", t.input("h", b, 8, dtype=HALF))
    assert size(x) == 64
    assert size(half) == b * 16
    assert size(t.unknown("u")) is None
    assert traffic([x, t.reshape(x, 16)]) == 128
    assert traffic([x, half]) is None


@pytest.mark.parametrize(
    ("op", "outputs", "axes", "count"),
    [
        ("LayerNormalizationGrad_1a", ["x"], [], 1),
        ("LayerNormalizationGrad_1a", ["x", "", "b"], [], 2),
        ("AttentionGrad_1a", ["q"], [], 1),
        ("AttentionGrad_1a", ["q", "k", "v"], [], 2),
        ("AttentionGrad_1a", ["q", "k", "v", "s"], [], 3),
        ("AttentionGrad_1a", ["q", "k", "v", "s"], [-4], 4),
        ("AttentionGrad_1a", ["", "", "", "s"], [-4, -3], 3),
        ("AttentionGrad_1a", ["q", "k", "v", ""], [-4], 2),
    ],
)
def test_what_a_gradient_gives_besides_takes_launches_of_its_own(
    op: str, outputs: list[str], axes: list[int], count: int
) -> None:
    node = helper.make_node(op, ["dy"], outputs, domain="onnxfuse")
    if axes:
        node.attribute.append(helper.make_attribute("bias_axes", axes))
    assert launches_of(node) == count


def test_a_region_says_how_many_launches_it_takes() -> None:
    node = helper.make_node("Region_Add_1a", ["x"], ["y"], domain="onnxfuse")
    assert launches_of(node) == 1
    node.metadata_props.add(key="onnxfuse.launches", value="2")
    assert launches_of(node) == 2
