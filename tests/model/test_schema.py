"""An op is read in one form whatever its opset, and what is read is written back as it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.model import schema

VALUES = [3, 0.5, "tanh", (1, 2), (), (0.5, 1.5), ("a", "b")]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_an_attribute_is_written_as_it_was_read(value: Any) -> None:
    made = schema.make_attribute("a", value)
    assert schema.attribute_value(made) == value
    assert hash(schema.attribute_value(made)) == hash(value)


def test_tensors_and_graphs_are_attributes_too() -> None:
    tensor = numpy_helper.from_array(np.arange(3), "t")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [], [])
    for given in (helper.make_attribute("a", tensor), helper.make_attribute("a", graph)):
        assert schema.make_attribute("a", schema.attribute_value(given)) == given


def test_what_equals_its_default_is_left_out() -> None:
    def read(opset: int, **given: Any) -> dict[str, Any]:
        return schema.attributes_of(helper.make_node("Softmax", ["x"], ["y"], **given), opset)

    assert read(13, axis=-1) == read(11, axis=1) == {}
    assert read(13, axis=1) == {"axis": 1}
    assert read(11, axis=-1) == {"axis": -1}


def test_what_says_how_and_not_what_is_left_out() -> None:
    norm = helper.make_node("LayerNormalization", ["x", "w"], ["y"], stash_type=0, axis=1)
    assert schema.attributes_of(norm, 17) == {"axis": 1}


def test_an_op_has_the_attributes_and_inputs_of_its_opset() -> None:
    assert schema.is_standard("Gelu", ["approximate"], 20)
    assert not schema.is_standard("Gelu", ["approximate"], 19)
    assert not schema.is_standard("Gelu", ["alpha"], 20)
    assert schema.is_standard("Clip", [], 11, inputs=3)
    assert not schema.is_standard("Clip", [], 11, inputs=4)
    assert schema.standard_attributes("QuickGelu", 20) is None


def test_an_op_that_was_withdrawn_is_none() -> None:
    assert schema.is_standard("GroupNormalization", ["num_groups"], 21)
    assert not schema.is_standard("GroupNormalization", ["num_groups"], 18)


def test_element_types_are_those_of_the_opset() -> None:
    assert schema.allows("Erf", 13, TensorProto.BFLOAT16)
    assert not schema.allows("Erf", 9, TensorProto.BFLOAT16)
    assert not schema.allows("QuickGelu", 13, TensorProto.FLOAT)


@pytest.mark.parametrize(
    ("op", "opset", "expected"),
    [("Squeeze", 12, None), ("Squeeze", 13, (1, "axes")), ("ReduceMean", 17, None), ("ReduceMean", 18, (1, "axes"))],
)
def test_integers_are_an_input_from_an_opset_on(op: str, opset: int, expected: tuple[int, str] | None) -> None:
    assert schema.integers_as_input(op, opset) == expected
    assert schema.integers_as_input("Add", opset) is None


def test_old_bounds_come_in_the_order_of_the_inputs() -> None:
    attributes = {"ends": (4,), "starts": (1,), "other": 2}
    assert schema.old_bounds("Slice", attributes) == [("starts", (1,)), ("ends", (4,)), ("axes", None)]
    assert attributes == {"other": 2}
    assert schema.old_bounds("Slice", {}) == ()


def test_a_mask_too_low_for_half_precision_is_minus_infinity() -> None:
    made = schema.tensor(np.array([[-3.4e38, 1.0]]), "m", TensorProto.FLOAT16)
    assert numpy_helper.to_array(made).tolist() == [[-np.inf, 1.0]]
    assert schema.tensor(np.array(2), "s", TensorProto.INT64).dims == []


def test_some_inputs_are_float32_whatever_the_others_are() -> None:
    assert schema.single_precision("Resize", 18) == {2}
    assert schema.single_precision("Upsample", 9) == {1}
    for op in ("Conv", "Where", "QuantizeLinear", "NonZero", "NoSuchOp"):
        assert schema.single_precision(op, 18) == frozenset()
