"""Pieces of a model add up to what protobuf writes."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxfuse.model import protobuf
from tests import broken


def full() -> onnx.ModelProto:
    """A model that uses the fields on both sides of graph and initializer."""
    model = broken.custom_op_in_the_middle()
    model.producer_name = "exporter"
    model.doc_string = "ünïcode"
    model.graph.doc_string = "a graph"
    helper.set_model_props(model, {"key": "value"})
    model.graph.metadata_props.add(key="k", value="v")
    model.graph.value_info.append(broken.value("a", ("batch", 8)))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(70_000, np.float16), "large"))
    model.graph.initializer.append(numpy_helper.from_array(np.array(["text"], object), "string"))
    annotation = onnx.TensorAnnotation(tensor_name="a")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="gamma")
    model.graph.quantization_annotation.append(annotation)
    relu = helper.make_node("Relu", ["p"], ["q"])
    model.functions.append(helper.make_function("d", "F", ["p"], ["q"], [relu], [helper.make_opsetid("", 17)]))
    return model


def with_unknown_fields() -> onnx.ModelProto:
    """Fields that a later version of ONNX might have, in the model and in the graph."""
    unknown = b"\xfa\x3f\x03new"  # field 1023, "new"
    graph = full().graph.SerializeToString() + unknown
    model = full()
    model.graph.ParseFromString(graph)
    return onnx.ModelProto.FromString(model.SerializeToString() + unknown)


@pytest.mark.parametrize(
    "build", [full, with_unknown_fields, broken.good, broken.external, onnx.ModelProto], ids=lambda f: f.__name__
)
def test_pieces_are_what_protobuf_writes(build: object) -> None:
    model: onnx.ModelProto = build()  # type: ignore[operator]
    whole = model.SerializeToString(deterministic=True)
    size, pieces = protobuf.pieces(model)
    assert b"".join(pieces) == whole
    assert size == len(whole)


def test_unknown_fields_are_a_case_of_their_own() -> None:
    assert with_unknown_fields().SerializeToString().count(b"new") == 2


@pytest.mark.parametrize("build", [full, broken.good], ids=lambda f: f.__name__)
def test_part_of_everything_is_everything(build: object) -> None:
    model: onnx.ModelProto = build()  # type: ignore[operator]
    assert protobuf.part(model, lambda field: True) == model


def test_part_leaves_the_original_alone() -> None:
    model = full()
    assert not protobuf.part(model.graph, lambda field: field != protobuf.INITIALIZER).initializer
    assert model == full()


def test_fields_are_those_of_the_file() -> None:
    data = full().SerializeToString()
    spans = {number: data[start:end] for number, start, end in protobuf.fields(data, 0, len(data))}
    assert spans[2] == b"exporter"
    assert onnx.GraphProto.FromString(spans[protobuf.GRAPH]) == full().graph


def test_zeros_are_no_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that was reserved and never filled; and one of more fields than anyone waits for."""
    data = onnx.NodeProto(name="n", op_type="Add").SerializeToString()
    assert len([*protobuf.fields(data, 0, len(data))]) == 2
    assert len([*protobuf.fields(data + bytes(99), 0, len(data) + 99)]) == 2
    with pytest.raises(IndexError):
        protobuf.edited(data + bytes(99), 0, len(data) + 99, number=1, change=lambda *_: b"")
    monkeypatch.setattr(protobuf, "MOST", 1)
    assert len([*protobuf.fields(data, 0, len(data))]) == 1
    with pytest.raises(IndexError):
        protobuf.edited(data, 0, len(data), number=1, change=lambda *_: b"")


def test_unwanted_messages_go_at_once_and_the_others_keep_their_order() -> None:
    graph = onnx.GraphProto()
    for number in range(9):
        graph.initializer.add(name=f"w{number}", raw_data=bytes([number]) * 4)
    last = graph.initializer[8]
    protobuf.remove(graph.initializer, lambda tensor: int(tensor.name[1:]) % 3 == 1)
    assert [tensor.name for tensor in graph.initializer] == ["w0", "w2", "w3", "w5", "w6", "w8"]
    assert [tensor.raw_data[0] for tensor in graph.initializer] == [0, 2, 3, 5, 6, 8]
    assert last.name == "w8"
    protobuf.remove(graph.initializer, lambda tensor: False)
    assert len(graph.initializer) == 6
    protobuf.remove(graph.initializer, lambda tensor: True)
    assert not graph.initializer
