"""Which values live between forward and backward, and their bytes."""

from __future__ import annotations

from onnx import helper

from onnxfuse.training.kept import bytes_of, kept, reads, root_of
from onnxfuse.training.step import Step

from .steps import HEAD, STEP, lifted


def values(text: str = STEP) -> list[str]:
    """Those of a step."""
    view = lifted(text).views[0]
    return [each.value for each in kept(view, Step.behind(view.graph, "loss"))]


def test_a_value_of_forward_that_backward_reads_is_kept() -> None:
    assert values() == ["h", "a", "d"]


def test_it_is_read_by_these() -> None:
    view = lifted().views[0]
    (h, a, d) = kept(view, Step.behind(view.graph, "loss"))
    made = [[view.graph.nodes[index].output[0] for index in each.readers] for each in (h, a, d)]
    assert made == [["c"], ["at"], ["dy"]]


def test_a_reshape_is_the_tensor_that_it_is_of() -> None:
    text = STEP.replace("at = Transpose(a)", "a1 = Flatten(a) at = Transpose(a1)").replace(
        "c = Cos(h)", "hh = Identity(h) c = Cos(hh)"
    )
    assert values(text) == ["h", "a", "d"]
    assert root_of(lifted(text).views[0], "a1") == "a"


def test_inputs_constants_and_shapes_are_not_kept() -> None:
    text = STEP.replace("c = Cos(h)", "s = Shape(h) z = ConstantOfShape(s) c = Cos(z)")
    assert values(text) == ["a", "d"]


def test_of_a_fused_op_what_is_asked_for_its_shape_alone_is_not_read() -> None:
    body = lifted(
        HEAD
        + "g (float[4] x) => (float[4] y) { y = Neg(x) }\n"
        + '<domain: "onnxfuse", opset_import: ["": 20]> F (p, q) => (r) { s = Shape(p) r = Expand(q, s) }'
    ).model.functions[0]
    node = helper.make_node("F", ["a", "b"], ["c"], domain="onnxfuse")
    assert reads(node, body) == ["b"]
    assert reads(node) == ["a", "b"]


def test_bytes_are_those_of_the_sizes() -> None:
    view = lifted(STEP.replace("float[6,8] x", "float[n,8] x")).views[0]
    assert bytes_of(view, "a", {"n": 6}) == 6 * 16 * 4
    assert bytes_of(view, "a", {}) is None
