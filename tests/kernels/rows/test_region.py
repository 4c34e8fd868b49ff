"""The kernel of a region is generated from its function alone."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.rows.region import kernel

FUNCTION = parser.parse_function(
    """<opset_import: ["": 20], domain: "onnxfuse"> Region_1 (x0, x1) => (y0, y1) {
    n = Neg(x1) y0 = Where(x0, x1, n) v = Exp(y0) y1 = Transpose(v) }"""
)
FLOAT, BOOL = np.dtype(np.float32), np.dtype(np.bool_)


def test_each_operand_has_its_own_element_type() -> None:
    made = kernel(FUNCTION, ["bool", "float32"], ["float32", "float32"])
    assert [parameter.type for parameter in made.signature.inputs] == ["bool", "float32"]
    found = made({}).outputs([TensorType(BOOL, (3, 4)), TensorType(FLOAT, (3, 4))])
    assert found == (TensorType(FLOAT, (3, 4)), TensorType(FLOAT, (4, 3)))
    with pytest.raises(KernelError, match="x0 of Region_1 must be bool, not float32"):
        made({}).outputs([TensorType(FLOAT, (3, 4)), TensorType(FLOAT, (3, 4))])


def test_outputs_of_one_size_are_one_launch() -> None:
    made = kernel(FUNCTION, ["bool", "float32"], ["float32", "float32"])({})
    work = made.work([TensorType(BOOL, (3, 4)), TensorType(FLOAT, (3, 4))])
    assert work.read == 12 + 48
    assert work.written == 96


def test_one_function_has_one_kernel() -> None:
    kinds = ["bool", "float32"], ["float32", "float32"]
    assert kernel(FUNCTION, *kinds) is kernel(FUNCTION, *kinds)


def test_a_type_that_no_kernel_has() -> None:
    with pytest.raises(KernelError, match="no kernel takes float64"):
        kernel(FUNCTION, ["bool", "float64"], ["float64", "float64"])
