"""Constants of a model: read when somebody asks, and known to be unknown where they are not there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, parser

from onnxfuse.lifting.constants import constant_node, constant_term, reader
from onnxfuse.lifting.view import View
from onnxfuse.model.graph import Graph
from onnxfuse.terms.fold import value_of
from onnxfuse.terms.term import Terms


@pytest.fixture
def view(tmp_path: Path) -> View:
    model = parser.parse_model('<ir_version: 8, opset_import: ["": 17]> g (x) => (y) { y = Neg (x) }')
    return View(Graph(model.graph, model, 17), Terms(), tmp_path)


def external(array: np.ndarray, name: str) -> TensorProto:
    tensor = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=name)
    return tensor


def test_a_small_constant_is_known_by_its_content(view: View) -> None:
    tensors = [
        numpy_helper.from_array(np.array([1, 2], kind), name) for kind, name in ((np.float32, "a"), (np.float16, "b"))
    ]
    first, second = (constant_term(view, tensor.name, tensor) for tensor in tensors)
    assert first is second


def test_a_large_one_is_known_by_its_name(view: View) -> None:
    large = numpy_helper.from_array(np.zeros(2000, np.float32), "a")
    first, second = constant_term(view, "a", large), constant_term(view, "b", large)
    assert first is not second
    assert value_of(first).shape == (2000,)


def test_external_data_is_read_when_somebody_asks(view: View, tmp_path: Path) -> None:
    path = tmp_path / "w"
    path.write_bytes(bytes(8))
    term = constant_term(view, "w", external(np.zeros(2, np.float32), "w"))
    path.write_bytes(np.array([3, 4], np.float32).tobytes())
    assert value_of(term).tolist() == [3, 4]
    assert view.unread == set()


def test_weights_that_are_not_there_equal_nothing(view: View) -> None:
    first, second = (constant_term(view, name, external(np.zeros(2, np.float32), name)) for name in ("w", "v"))
    assert view.unread == set(), "nobody asked yet"
    values = [value_of(term) for term in (first, second)]
    assert view.unread == {"w", "v"}
    assert np.isnan(values).all()
    assert values[0].tobytes() != values[1].tobytes()


def test_integers_that_are_not_there_are_like_an_input(view: View) -> None:
    term = constant_term(view, "i", external(np.zeros(2, np.int64), "i"))
    assert (term.op, term.constant, view.unread) == ("Input", False, {"i"})


def test_types_that_cannot_be_computed_with_are_only_passed_on(view: View) -> None:
    text = helper.make_tensor("t", TensorProto.STRING, [1], [b"a"])
    assert constant_term(view, "t", text).op == "Input"


def test_bfloat16_is_read_as_float32() -> None:
    tensor = helper.make_tensor("w", TensorProto.BFLOAT16, [2], [1.5, -2.0])
    array = reader(tensor, None)()
    assert (array.dtype, array.tolist()) == (np.float32, [1.5, -2])


@pytest.mark.parametrize(
    ("attribute", "dtype", "shape"),
    [
        ({"value_float": 2.0}, TensorProto.FLOAT, ()),
        ({"value_ints": [1, 2, 3]}, TensorProto.INT64, (3,)),
        ({"value": numpy_helper.from_array(np.zeros((2, 2), np.float16))}, TensorProto.FLOAT16, (2, 2)),
    ],
)
def test_constant_nodes_say_what_they_hold(
    view: View, attribute: dict[str, object], dtype: int, shape: tuple[int, ...]
) -> None:
    term, kind = constant_node(view, helper.make_node("Constant", [], ["c"], **attribute))
    assert (kind, term.dtype, term.shape, term.constant) == (dtype, dtype, shape, True)


def test_a_constant_that_a_call_gives_is_unknown(view: View) -> None:
    node = helper.make_node("Constant", [], ["c"], value_float=0.0)
    node.attribute[0].ref_attr_name = "alpha"
    term, kind = constant_node(view, node)
    assert (term.op, term.shape, kind) == ("Input", (), TensorProto.FLOAT)
