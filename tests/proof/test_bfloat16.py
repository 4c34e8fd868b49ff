"""bfloat16 in float32: every result is rounded where bfloat16 would round it, whatever onnxruntime optimizes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, numpy_helper

from onnxfuse.proof.bfloat16 import emulated
from onnxfuse.proof.oracle import Oracle
from onnxfuse.runtime.quiet import Session, SessionError

X = np.linspace(-3, 3, 32, dtype=np.float32).reshape(4, 8).astype(ml_dtypes.bfloat16)


def bf16(array: np.ndarray) -> np.ndarray:
    return np.asarray(array.astype(np.float32).astype(ml_dtypes.bfloat16))


def parse(graph: str, tail: str = "") -> onnx.ModelProto:
    """A model whose constants are bfloat16, which onnx's parser does not read."""
    imports = '["": 18, "own": 1, "com.microsoft": 1]'
    model = onnx.parser.parse_model(f"<ir_version: 9, opset_import: {imports}>\n{graph}\n{tail}")
    tensors = [attribute.t for node in model.graph.node for attribute in node.attribute if attribute.name == "value"]
    for tensor in (*model.graph.initializer, *tensors):
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(bf16(numpy_helper.to_array(tensor)), tensor.name))
    return model


def run(model: onnx.ModelProto, optimize: bool = True, **feeds: np.ndarray) -> np.ndarray:
    (value,) = Session(emulated(model), optimize=optimize).run(feeds)
    return np.asarray(value)


SUM = "g (bfloat16[4, 8] x) => (bfloat16[4, 8] y) <float k = {1.7}> { a = Mul(x, k) b = Exp(a) y = Sub(b, a) }"


@pytest.mark.parametrize("optimize", [False, True])
def test_each_result_is_rounded(optimize: bool) -> None:
    wide = X.astype(np.float32)
    a = bf16(wide * np.float32(bf16(np.array(1.7)))).astype(np.float32)
    b = bf16(np.exp(a)).astype(np.float32)
    got = run(parse(SUM), optimize, x=X)
    assert got.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(got.astype(np.float32), bf16(b - a).astype(np.float32))
    assert (bf16(np.exp(a) - a) != got).any(), "these numbers show nothing"
    with pytest.raises(SessionError):
        Session(parse(SUM), optimize=optimize)


def test_a_model_without_bfloat16_is_itself() -> None:
    half = "g (float16[4, 8] x) => (float16[4, 8] y) { a = Exp(x) y = Sub(a, x) }"
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> {half}')
    assert emulated(model) is model


CALL = "g (bfloat16[4, 8] x) => (bfloat16[4, 8] y) { y = own.F(x) }"
BODY = """<domain: "own", opset_import: ["": 18]> F (x) => (y) {
    w = Constant<value_float = 1.7>() k = Cast<to = 16>(w) a = Mul(x, k) b = Exp(a) y = Sub(b, a) }"""
BRANCH = """g (bfloat16[4, 8] x) => (bfloat16[4, 8] y) <bool c = {1}, float k = {1.7}> {
    y = If(c) <then_branch = t () => (bfloat16[4, 8] p) { a = Mul(x, k) b = Exp(a) p = Sub(b, a) },
               else_branch = e () => (bfloat16[4, 8] q) { q = Neg(x) }> }"""


@pytest.mark.parametrize("model", [parse(CALL, BODY), parse(BRANCH)], ids=["function", "If"])
def test_functions_and_bodies_are_rounded_alike(model: onnx.ModelProto) -> None:
    np.testing.assert_array_equal(run(model, x=X), run(parse(SUM), x=X))


@pytest.mark.parametrize(
    "nodes",
    [
        "s = Shape(x) y = ConstantOfShape<value = float[1] {0.3}>(s)",
        "i = Cast<to = 7>(x) w = Cast<to = 1>(i) z = CastLike(w, x) y = Add(x, z)",
        "n, m, v = com.microsoft.SkipLayerNormalization(x, x, k) y = Add(n, x)",
        "n = LayerNormalization<stash_type = 16>(x, k) y = Add(n, x)",
        "b = Less(x, k) y = Where(b, x, k)",
    ],
)
def test_types_stay_what_they_are(nodes: str) -> None:
    row = ", ".join(["0.5"] * 8)
    model = parse(f"g (bfloat16[4, 8] x) => (bfloat16[4, 8] y) <float[8] k = {{{row}}}> {{ {nodes} }}")
    assert run(model, x=X).shape == (4, 8)
    assert [output.type.tensor_type.elem_type for output in emulated(model).graph.output] == [TensorProto.BFLOAT16]


def test_a_model_in_bfloat16_is_an_oracle() -> None:
    oracle = Oracle(parse(SUM))
    assert oracle.compare(parse(SUM)).verdict == "equal"
    verdict = oracle.compare(parse(SUM.replace("Sub", "Add")))
    assert (verdict.verdict, verdict.rtol) == ("mismatch", 5e-2)


def test_float16_is_rounded_likewise() -> None:
    """3 beside -65504 is nothing: the CPU provider's Softmax reads the sum in float32, and the next sum does not."""
    graph = "g (float16[1, 2] x) => (float16[1, 2] y) <float16[1] fill = {0}> { a = Add(x, fill) y = Softmax(a) }"
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> {graph}')
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array([-65504], np.float16), "fill"))
    x = np.array([[0, 3]], np.float16)
    (stored,) = Session(emulated(model, TensorProto.FLOAT16), optimize=False).run({"x": x})
    np.testing.assert_array_equal(stored, np.array([[0.5, 0.5]], np.float16))
    assert emulated(model) is model
