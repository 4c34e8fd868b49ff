"""Products of one operand, read from a body: what each is, and why others are no family."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import FunctionProto, parser

from onnxfuse.errors import KernelError
from onnxfuse.kernels.gemm.members import MOST, Gate, Member, gate_of, is_family, is_gate, members

FLOAT = np.dtype(np.float32)


def function(text: str) -> FunctionProto:
    return parser.parse_function(f'<opset_import: ["": 20], domain: "onnxfuse"> Region_1 {text}')


def found(text: str) -> list[Member]:
    body = function(text)
    return members(list(body.node), dict.fromkeys(body.input, FLOAT), list(body.output))


def test_each_product_with_what_is_done_to_it() -> None:
    first, second = found(
        """(x0, x1, x2, x3) => (y0, y1) {
        y1 = MatMul(x0, x3) v0 = MatMul(x0, x1) v1 = Add(x2, v0) y0 = Relu(v1) }"""
    )
    assert (first.product, first.a, first.b, first.bias, first.plain) == ("v0", "x0", "x1", "x2", False)
    assert (second.product, second.a, second.b, second.bias, second.plain) == ("y1", "x0", "x3", "", True)
    assert first.after.flops == 2
    assert second.after.flops == 0


def test_the_same_is_the_same_text() -> None:
    one, other, third = found(
        """(x0, x1, x2, x3, x4, x5) => (y0, y1, y2) {
        v0 = MatMul(x0, x1) y0 = Add(v0, x2) y2 = MatMul(x0, x5) v1 = MatMul(x0, x3) y1 = Add(v1, x4) }"""
    )
    assert one.after == other.after
    assert one.after.text != third.after.text


def test_a_number_of_the_operands_type_reads_no_operand() -> None:
    (one,) = found(
        """(x0, x1) => (y0) {
        half = Constant<value: tensor = float {0.5}> () like = CastLike(half, x0)
        v0 = MatMul(x0, x1) y0 = Mul(like, v0) }"""
    )
    assert one.bias == ""
    assert "0.5f" in one.after.text


def test_transposed_weights() -> None:
    (one,) = found("(x0, x1) => (y0) { t = Transpose<perm = [1, 0]>(x1) y0 = MatMul(x0, t) }")
    assert (one.b, one.transposed) == ("x1", True)


REFUSED = {
    "of several operands": "(x0, x1, x2) => (y0, y1) { y0 = MatMul(x0, x2) y1 = MatMul(x1, x2) }",
    "some are not": "(x0, x1, x2) => (y0, y1) { t = Transpose(x1) y0 = MatMul(x0, t) y1 = MatMul(x0, x2) }",
    "of one product": "(x0, x1) => (y0, y1) { y0 = MatMul(x0, x1) y1 = Relu(y0) }",
    "2 products, not of one$": "(x0, x1, x2) => (y0) { a = MatMul(x0, x1) b = MatMul(x0, x2) y0 = Add(a, b) }",
    "0 products, not of one$": "(x0, x1) => (y0) { y0 = Add(x0, x1) }",
    "x2 and x3 besides": "(x0, x1, x2, x3) => (y0) { a = MatMul(x0, x1) b = Mul(a, x2) y0 = Add(b, x3) }",
    "x0 and x1 besides": "(x0, x1) => (y0) { a = MatMul(x0, x1) b = Mul(a, x0) y0 = Mul(b, x1) }",
    "in the region itself": "(x0, x1) => (y0) { a = Relu(x0) y0 = MatMul(a, x1) }",
    "what Relu gives": "(x0, x1) => (y0) { w = Relu(x1) y0 = MatMul(x0, w) }",
    "what Transpose gives": "(x0, x1) => (y0) { w = Transpose<perm = [0, 1]>(x1) y0 = MatMul(x0, w) }",
    "Softmax is neither": "(x0, x1) => (y0) { a = MatMul(x0, x1) y0 = Softmax(a) }",
    "Unsqueeze behind": "(x0, x1) => (y0) { axis = Constant<value: tensor = int64[1] {0}> () "
    "a = MatMul(x0, x1) b = Unsqueeze(a, axis) y0 = Relu(b) }",
    "Reshape behind": "(x0, x1) => (y0) { all = Constant<value: tensor = int64[1] {-1}> () "
    "a = MatMul(x0, x1) b = Reshape(a, all) y0 = Relu(b) }",
    "Transpose behind": "(x0, x1) => (y0) { a = MatMul(x0, x1) b = Transpose<perm = [1, 0]>(a) y0 = Relu(b) }",
    "Size behind": "(x0, x1) => (y0) { a = MatMul(x0, x1) n = Size(a) b = CastLike(n, a) y0 = Div(a, b) }",
    "make tensors": "(x0, x1) => (y0) { a = MatMul(x0, x1) "
    "two = Constant<value: tensor = float[2] {1, 2}> () y0 = Mul(a, two) }",
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_no_family(reason: str) -> None:
    with pytest.raises(KernelError, match=reason):
        found(REFUSED[reason])


def test_too_many() -> None:
    names = [f"y{i}" for i in range(MOST + 1)]
    with pytest.raises(KernelError, match="too many"):
        found(f"(x0, x1) => ({', '.join(names)}) {{ {' '.join(f'{name} = MatMul(x0, x1)' for name in names)} }}")


def gate(text: str) -> Gate:
    body = function(text)
    assert is_family(list(body.node))
    assert is_gate(list(body.output))
    return gate_of(list(body.node), dict.fromkeys(body.input, FLOAT), body.output[0])


def test_a_gate() -> None:
    one = gate("(x0, x1, x2) => (y0) { v0 = MatMul(x0, x2) v1 = MatMul(x0, x1) v2 = Tanh(v1) y0 = Mul(v2, v0) }")
    assert (one.a, one.b, one.c, one.transposed, one.flops) == ("x0", "x2", "x1", False, 2)
    assert [node.op_type for node in one.after] == ["Tanh", "Mul"]


NO_GATE = {
    "of two products": "(x0, x1, x2) => (y0) { a = MatMul(x0, x1) b = MatMul(x0, x2) y0 = Relu(a) }",
    "x3 besides": "(x0, x1, x2, x3) => (y0) { a = MatMul(x0, x1) b = MatMul(x0, x2) c = Add(a, x3) y0 = Mul(c, b) }",
    "of several operands": "(x0, x1, x2) => (y0) { a = MatMul(x0, x2) b = MatMul(x1, x2) y0 = Mul(a, b) }",
    "one is not": "(x0, x1, x2) => (y0) { t = Transpose(x1) a = MatMul(x0, t) b = MatMul(x0, x2) y0 = Mul(a, b) }",
    "Transpose behind": "(x0, x1, x2) => (y0) "
    "{ a = MatMul(x0, x1) b = MatMul(x0, x2) c = Transpose(a) y0 = Mul(c, b) }",
    "Softmax is neither": "(x0, x1, x2) => (y0) "
    "{ a = MatMul(x0, x1) b = MatMul(x0, x2) c = Softmax(a) y0 = Mul(c, b) }",
    "in the region itself": "(x0, x1, x2) => (y0) { a = MatMul(x0, x1) b = MatMul(a, x2) y0 = Mul(a, b) }",
}


@pytest.mark.parametrize("reason", NO_GATE)
def test_what_is_no_gate(reason: str) -> None:
    with pytest.raises(KernelError, match=reason):
        gate(NO_GATE[reason])
