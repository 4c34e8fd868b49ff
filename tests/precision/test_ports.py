"""Which inputs and outputs of a node share its type, and whether it may be half precision."""

from __future__ import annotations

import pytest
from onnx import FunctionProto, TensorProto, helper

from onnxfuse.precision.ports import ANY, MASK, SHARED, SINGLE, ports, since_opset
from onnxfuse.targets import runtimes
from onnxfuse.targets.target import Target

HALF, BRAIN = int(TensorProto.FLOAT16), int(TensorProto.BFLOAT16)


@pytest.mark.parametrize(
    ("op", "inputs", "outputs", "opset", "domain", "given", "made"),
    [
        ("MatMul", 2, 1, 17, "", [SHARED, SHARED], [SHARED]),
        ("LayerNormalization", 3, 3, 17, "", [SHARED] * 3, [SHARED, SINGLE, SINGLE]),
        ("Attention", 4, 1, 23, "", [SHARED, SHARED, SHARED, ANY], [SHARED]),
        ("Resize", 3, 1, 18, "", [SHARED, SHARED, SINGLE], [SHARED]),
        ("Cast", 1, 1, 17, "", [ANY], [SHARED]),
        ("Shape", 1, 1, 17, "", [ANY], [ANY]),
        ("MultiHeadAttention", 6, 1, 17, "com.microsoft", [*[SHARED] * 5, MASK], [SHARED]),
        ("SkipLayerNormalization", 3, 4, 17, "com.microsoft", [SHARED] * 3, [SHARED, SINGLE, SINGLE, SHARED]),
        ("Attention_attn_mask_12", 4, 1, 17, "onnxfuse", [SHARED, SHARED, SHARED, ANY], [SHARED]),
    ],
)
def test_ports(op: str, inputs: int, outputs: int, opset: int, domain: str, given: list[str], made: list[str]) -> None:
    names = [f"x{i}" for i in range(inputs)]
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], domain=domain)
    body = FunctionProto(input=["Q", "K", "V", "attn_mask"], output=["Y"])
    found = ports(node, opset, HALF, {"Attention_attn_mask_12": body})
    assert (list(found.inputs), list(found.outputs), found.half) == (given, made, True)


@pytest.mark.parametrize(
    ("op", "opset", "dtype", "half"),
    [("Conv", 17, HALF, True), ("Conv", 17, BRAIN, False), ("Conv", 22, BRAIN, True), ("Range", 17, HALF, False)],
)
def test_an_opset_may_not_have_the_type(op: str, opset: int, dtype: int, half: bool) -> None:
    assert ports(helper.make_node(op, ["x", "y", "z"], ["w"]), opset, dtype, {}).half == half


def test_an_input_that_is_left_out_lacks_no_type() -> None:
    """Resize has bfloat16, and its region of interest has not."""
    assert ports(helper.make_node("Resize", ["x", "", "scales"], ["y"]), 22, BRAIN, {}).half
    assert not ports(helper.make_node("Resize", ["x", "roi", "scales"], ["y"]), 22, BRAIN, {}).half


def test_the_first_opset_with_the_type() -> None:
    assert [since_opset(op, BRAIN) for op in ("Conv", "MatMul", "NonMaxSuppression")] == [22, 13, 0]


def test_control_flow_and_strangers_stay_in_float32() -> None:
    body = helper.make_graph([], "b", [], [])
    for node in (
        helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body),
        helper.make_node("Magic", ["c"], ["y"], domain="unheard.of"),
    ):
        found = ports(node, 17, HALF, {})
        assert (set(found.inputs), set(found.outputs), found.half) == ({SINGLE}, {SINGLE}, False)


@pytest.mark.parametrize(
    ("op", "opset", "dtype", "target", "who"),
    [
        ("Clip", 17, 16, Target("ort", "cuda"), "the CUDA provider"),
        ("Clip", 17, 10, Target("ort", "cuda"), ""),
        ("Conv", 22, 16, Target("ort", "cuda"), ""),
        ("Tanh", 17, 16, Target("onnx", runtime=runtimes.of("1.23")), "onnxruntime 1.23"),
        ("Tanh", 17, 10, Target("onnx", runtime=runtimes.of("1.23")), ""),
        ("Tanh", 17, 16, Target("ort"), ""),
    ],
)
def test_a_provider_or_a_runtime_may_lack_the_type(op: str, opset: int, dtype: int, target: Target, who: str) -> None:
    found = ports(helper.make_node(op, ["x"], ["y"]), opset, dtype, {}, (), target)
    assert (found.lacks, found.half) == (who, not who)


def test_biases() -> None:
    assert ports(helper.make_node("Conv", ["x", "w", "b"], ["y"]), 17, HALF, {}).biases == {2}
    node = helper.make_node("SkipLayerNormalization_12", ["x", "s", "g", "b", "c"], ["y"], domain="onnxfuse")
    assert ports(node, 17, HALF, {}).biases == {3, 4}
