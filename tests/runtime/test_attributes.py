"""Attributes of nodes reach their kernels, of all kinds and through functions."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.bridge_models import Shift, body, model, one_node, shift, value
from tests.runtime.test_session import opened, run

pytestmark = pytest.mark.usefixtures("kernel_of_shift")


def test_a_kernel_gets_attributes_of_all_kinds() -> None:
    table = np.arange(6, dtype=np.int32).reshape(2, 3)
    given = {
        "alpha": 0.5,
        "axis": -1,
        "mode": "größer",
        "axes": [1, 2, 3],
        "scales": [0.5, 2.0],
        "table": numpy_helper.from_array(table),
        "scalar": numpy_helper.from_array(np.float16(3)),
    }
    opened(one_node(**given))
    for seen in Shift.seen[-2:]:  # as the model is looked at, and as onnxruntime tells it
        np.testing.assert_array_equal(seen.pop("table"), table)
        assert seen.pop("scalar") == np.float16(3)
        assert seen == {"alpha": 0.5, "axis": -1, "mode": "größer", "axes": (1, 2, 3), "scales": (0.5, 2.0)}
    opened(one_node())
    assert Shift.seen[-1] == {}


def test_an_attribute_of_a_function_reaches_the_kernel() -> None:
    inner = shift(["X"], ["Y"])
    inner.attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="beta")
    local = helper.make_function("local", "F", ["X"], ["Y"], [inner], [
        helper.make_opsetid("", 17), helper.make_opsetid("onnxfuse", 1)
    ], ["beta"])  # fmt: skip
    call = helper.make_node("F", ["x"], ["y"], domain="local", beta=0.25)
    made = opened(model([call], [value("x")], [value("y")], [body(), local]))
    assert run(made, x=np.zeros((1, 1), np.float32))[0].tolist() == [[100]]
    assert Shift.seen == [{"alpha": 0.25}]
