"""Which values need no more digits than 16 bits keep."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.pointwise.expressions.rounded import rounded
from onnxfuse.kernels.pointwise.loops import loops
from tests.kernel_runs import FLOAT16, FLOAT32

BODY = {
    "cast behind a product": ("(x) => (y) { e = Exp(x) m = Mul(e, x) y = Cast<to = 10>(m) }", {"e", "m", "y"}),
    "cast behind a sum": ("(x) => (y) { e = Exp(x) m = Add(e, x) y = Cast<to = 10>(m) }", {"m", "y"}),
    "an output itself": ("(x) => (y, e) { e = Exp(x) y = Cast<to = 10>(e) }", {"y"}),
    "read by others too": ("(x) => (y, z) { e = Exp(x) y = Cast<to = 10>(e) z = Add(e, x) }", {"y"}),
    "read by nobody": ("(x) => (y) { e = Exp(x) y = Cast<to = 10>(x) }", {"y"}),
}


@pytest.mark.parametrize("name", BODY)
def test_relative_errors_go_through_products_and_not_through_sums(name: str) -> None:
    text, wanted = BODY[name]
    body = parser.parse_function(f'<opset_import: ["": 20], domain: "onnxfuse"> F {text}')
    dtypes = dict.fromkeys(("x", "e", "m", "z"), FLOAT32) | {"y": FLOAT16}
    assert rounded(list(body.node), dtypes, list(body.output)) == wanted


@pytest.mark.parametrize(("dtype", "coarse"), [(FLOAT32, 0), (FLOAT16, 2)], ids=["float32", "float16"])
def test_an_op_is_coarse_where_its_type_has_16_bits(dtype: np.dtype, coarse: int) -> None:
    text = "(x) => (y) { s = Sigmoid(x) t = Tanh(s) y = Add(t, x) }"
    body = parser.parse_function(f'<opset_import: ["": 20], domain: "onnxfuse"> F {text}')
    (made,) = loops("F", list(body.node), {"x": TensorType(dtype, (8, 8))}, ["y"])[1]
    generated = made.source.text.rpartition("__global__")[2]
    assert generated.count("coarse::") == coarse
