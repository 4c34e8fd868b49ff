"""Names that are no text, types that are none and tensors of the wrong size are named before anything reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.errors import ModelError
from onnxfuse.model.validity import ITEM_BYTES, check_tensor, check_types

PATH = Path("m.onnx")


def test_items_are_as_large_as_numpys() -> None:
    assert {kind: helper.tensor_dtype_to_np_dtype(kind).itemsize for kind in ITEM_BYTES} == ITEM_BYTES


@pytest.mark.parametrize("kind", sorted(ITEM_BYTES))
@pytest.mark.parametrize("raw", [True, False])
def test_a_tensor_that_is_whole_passes_and_one_cut_off_does_not(kind: int, raw: bool) -> None:
    values = np.ones((2, 3)).astype(helper.tensor_dtype_to_np_dtype(kind))
    if raw:
        tensor = numpy_helper.from_array(values, "w")
    else:
        tensor = helper.make_tensor("w", kind, (2, 3), values.ravel().tolist())
        assert not tensor.HasField("raw_data")
    check_tensor(PATH, tensor)
    tensor.dims[0] = 3
    with pytest.raises(ModelError, match=r"m.onnx is not valid: 'w' has too few (bytes|elements) for \[3, 3\]"):
        check_tensor(PATH, tensor)
    tensor.dims[0] = 1
    with pytest.raises(ModelError, match="too many"):
        check_tensor(PATH, tensor)


@pytest.mark.parametrize("shape", [[-1, 2], [2**40, 2**40], [0, 2**40, 2**40]])
def test_an_impossible_shape_is_named(shape: list[int]) -> None:
    with pytest.raises(ModelError, match="'w' has the impossible shape"):
        check_tensor(PATH, TensorProto(name="w", data_type=TensorProto.FLOAT, dims=shape, raw_data=b""))


@pytest.mark.parametrize("kind", [0, 99])
def test_an_unknown_element_type_is_named(kind: int) -> None:
    with pytest.raises(ModelError, match=f"'w' has element type {kind}, which the installed onnx"):
        check_tensor(PATH, TensorProto(name="w", data_type=kind))


def test_the_size_of_external_data_is_not_known_here() -> None:
    outside = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    check_tensor(PATH, outside)


def test_declared_types_are_known() -> None:
    graph = helper.make_graph([], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])], [])
    check_types(PATH, [graph])
    graph.input[0].type.tensor_type.elem_type = 77
    with pytest.raises(ModelError, match="'x' has element type 77"):
        check_types(PATH, [graph])
