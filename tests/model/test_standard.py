"""What onnx has an op for, at which opset."""

from __future__ import annotations

import pytest
from onnx import TensorProto, defs

from onnxfuse.model.schema import allows, is_standard
from onnxfuse.model.standard import in_onnx, newest, parameters, schema_of
from onnxfuse.model.types import type_name, type_of


def test_schemas_are_of_an_opset() -> None:
    assert not in_onnx("LayerNormalization", 16)
    assert in_onnx("LayerNormalization", 17)
    assert not in_onnx("NoSuchOp", 17)
    older, newer = schema_of("ReduceSum", 12), schema_of("ReduceSum", 13)
    assert older is not None
    assert newer is not None
    assert (older.since_version, newer.since_version) == (11, 13)
    latest = newest("ReduceSum")
    assert latest is not None
    assert latest.since_version == defs.get_schema("ReduceSum").since_version
    assert newest("NoSuchOp") is None


def test_parameters_share_the_names_of_their_types() -> None:
    assert parameters("Shape", 17) == (("T",), ("T1",))
    assert parameters("Where", 17) == (("B", "T", "T"), ("T",))
    assert parameters("NoSuchOp", 17) == ((), ())


def test_is_standard_asks_for_attributes_and_inputs() -> None:
    assert is_standard("Gelu", ["approximate"], 20)
    assert not is_standard("Gelu", ["approximate"], 19)
    assert not is_standard("Gelu", ["exact"], 20)
    assert is_standard("Clip", [], 17, inputs=3)
    assert not is_standard("Clip", [], 17, inputs=4)


@pytest.mark.parametrize(("name", "dtype"), [("float", 1), ("bfloat16", 16), ("int64", 7), ("bool", 9)])
def test_names_of_element_types(name: str, dtype: int) -> None:
    assert type_name(dtype) == name
    assert type_of(name) == dtype


def test_an_unknown_type_is_taken_by_no_op() -> None:
    assert type_name(TensorProto.UNDEFINED) == ""
    assert allows("Gelu", 20, TensorProto.FLOAT16)
    assert not allows("Gelu", 20, TensorProto.UNDEFINED)
    assert not allows("NoSuchOp", 20, TensorProto.FLOAT)
