"""What takes the type of an operand, once that is known."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.rows.region import kernel
from onnxfuse.kernels.rows.settled import settled

GENERIC = """<opset_import: ["": 20], domain: "onnxfuse"> Region_1 (x0, x1) => (y0) {
    a = Constant<value = float {2}>() b = CastLike(a, x1) c = CastLike(x0, x1) d = Mul(c, b) y0 = CastLike(d, c) }"""
TYPED = """<opset_import: ["": 20], domain: "onnxfuse"> Region_1 (x0, x1) => (y0) {
    a = Constant<value = float {2}>() c = Cast<to = 1>(x0) d = Mul(c, a) y0 = CastLike(d, c) }"""


def test_float32_is_as_it_was_written() -> None:
    assert settled(parser.parse_function(GENERIC), ["int64", "float32"]) == parser.parse_function(TYPED)


@pytest.mark.parametrize(("kind", "number"), [("float16", 10), ("bfloat16", 16)])
def test_a_constant_of_another_type_is_cast(kind: str, number: int) -> None:
    found = settled(parser.parse_function(GENERIC), ["int64", kind])
    casts = {node.output[0]: node.attribute[0].i for node in found.node if node.op_type == "Cast"}
    assert casts == {"b": number, "c": number}
    assert [list(node.input) for node in found.node if node.op_type == "Mul"] == [["c", "b"]]


def test_an_output_keeps_its_name() -> None:
    text = """<opset_import: ["": 20], domain: "onnxfuse"> Region_1 (x0) => (y0) {
        a = Constant<value = float {2}>() y0 = CastLike(a, x0) }"""
    assert [node.op_type for node in settled(parser.parse_function(text), ["float32"]).node] == ["Constant", "Cast"]


def test_an_operand_may_be_asked_for_its_type_alone() -> None:
    text = """<opset_import: ["": 20], domain: "onnxfuse"> Region_1 (x0, x1) => (y0) {
        a = Abs(x0) y0 = CastLike(a, x1) }"""
    for kind in (np.float32, np.float16):
        made = kernel(parser.parse_function(text), ["int64", kind.__name__], [kind.__name__])({})
        given, result = [np.arange(-3, 3), np.ones((), kind)], np.empty(6, kind)
        device = Emulated()
        with device.fresh(result):
            made.launch(device, given, [result])
        np.testing.assert_array_equal(result, np.abs(given[0]).astype(kind))
