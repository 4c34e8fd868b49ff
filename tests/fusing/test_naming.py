"""What is new is called after where it stands in the file, not after how it came about."""

from __future__ import annotations

import pytest
from onnx import ModelProto, parser

from onnxfuse.fusing.fuse import fuse
from onnxfuse.fusing.fused import Fused
from onnxfuse.fusing.naming import Naming, named
from onnxfuse.language.catalogue import load

HEADER = '<ir_version: 8, opset_import: ["" : 17, "onnxfuse" : 1]>'


def model(text: str, tensors: str = "") -> ModelProto:
    held = f"<{tensors}>" if tensors else ""
    return parser.parse_model(f"{HEADER} g (float[n] x) => (float[n] y) {held} {{ {text} }}")


BEFORE = model("a = Exp(x) b = Neg(a) c = Abs(b) y = Relu(c)")
for number, node in enumerate(BEFORE.graph.node):
    node.name = f"/block/{node.op_type}_{number}"


def after(text: str, names: list[str], tensors: str = "") -> ModelProto:
    result = model(text, tensors)
    for node, name in zip(result.graph.node, names, strict=True):
        node.name = name
    return result


def called(result: ModelProto) -> list[str]:
    fused = named(Fused(result, [], [], frozenset()), Naming.of(BEFORE))
    return [f"{node.name}: {node.output[0]}" for node in fused.model.graph.node]


def test_a_node_has_the_module_of_what_it_stands_for() -> None:
    assert called(after("b = onnxfuse.Gelu(x) y = Relu(b)", ["zzz_9", "/block/Relu_3"])) == [
        "/block/Gelu: b",
        "/block/Relu_3: y",
    ]


def test_a_value_is_called_after_what_is_computed_from_it() -> None:
    text = "v = Sqrt(x) w = Sqrt(v) y = onnxfuse.Gelu(w)"
    assert called(after(text, ["n1", "n7", "n3"])) == [
        "onnxfuse/Sqrt: y_Sqrt",
        "onnxfuse/Sqrt_2: y_Sqrt_2",
        "/block/Gelu: y",
    ]


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_no_value_is_called_as_a_quantizer_calls_its_own(op: str) -> None:
    """onnxruntime's calibration adds y_ReduceMax and y_ReduceMin, without a look at what there is."""
    text = f"v = {op} <keepdims = 1> (x) y = onnxfuse.Gelu(v)"
    assert called(after(text, ["n1", "n3"])) == [f"onnxfuse/{op}: y/{op}", "/block/Gelu: y"]


def test_numbers_follow_the_file() -> None:
    text = "v = Add(x, onnxfuse_9) w = Mul(v, onnxfuse_4) y = Relu(w)"
    tensors = "float[1] onnxfuse_4 = {4}, float[1] onnxfuse_9 = {9}"
    result = after(text, ["a1", "a2", "/block/Relu_3"], tensors)
    called(result)
    assert [tensor.name for tensor in result.graph.initializer] == ["onnxfuse/constant", "onnxfuse/constant_2"]
    assert [list(tensor.float_data) for tensor in result.graph.initializer] == [[9.0], [4.0]]


def test_what_the_original_had_stays() -> None:
    copy = ModelProto()
    copy.CopyFrom(BEFORE)
    named(Fused(copy, [], [], frozenset()), Naming.of(BEFORE))
    assert copy == BEFORE


def test_what_was_fused_in_a_body_that_is_gone_is_no_site() -> None:
    branch = "s = Sigmoid (x)  r = Mul (x, s)"
    branches = (
        f"then_branch = t () => (float[n] r) {{ {branch} }}, else_branch = e () => (float[n] q) {{ q = Neg (x) }}"
    )
    dead = model(f"c = ReduceMax <keepdims = 0> (x)  k = Cast <to = 9> (c)  d = If <{branches}> (k)  y = Relu (x)")
    assert [node.op_type for node in fuse(dead, load()).model.graph.node] == ["Relu"]
    assert fuse(dead, load()).sites == []
