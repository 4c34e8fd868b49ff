"""What is no model is told as what it is, with the next step."""

from __future__ import annotations

import gzip
import pickle

import onnx
import pytest
from onnx import TensorProto, helper

from onnxfuse.model.diagnosis import invalid, unreadable

INFO = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])


def model(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    return helper.make_model(helper.make_graph(nodes, "g", [INFO], [INFO]))


@pytest.mark.parametrize(
    ("data", "clause"),
    [
        (b"", "is empty: export it again"),
        (b"PK\x03\x04rest", "is a zip archive, as torch.save writes it"),
        (pickle.dumps({}, protocol=2), "is a Python pickle"),
        (b"\0\0\0\0TFL3", "is a TensorFlow Lite model"),
        (b'\x10\0\0\0\0\0\0\0{"a":', "is a safetensors file"),
        (gzip.compress(b"x", mtime=0), "is compressed with gzip: run gunzip first"),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
        (b"<html>not found</html>", "is text, not an ONNX model"),
        (bytes(range(256)), "is not an ONNX model"),
    ],
)
def test_what_is_no_model_is_named(data: bytes, clause: str) -> None:
    assert unreadable(data).startswith(clause)


def test_a_model_that_is_cut_off_is_told_with_what_is_missing() -> None:
    data = model(helper.make_node("Relu", ["x"], ["y" * 200])).SerializeToString()
    assert unreadable(data[:-10]).startswith("is cut off: at least ")


def test_what_reads_nothing_is_named_in_any_body() -> None:
    complaint = "Nodes in a graph must be topologically sorted"
    dangling = helper.make_node("Relu", ["nowhere"], ["y"], name="lost")
    assert invalid(model(dangling), complaint).startswith("node 'lost' reads 'nowhere', which nothing produces")
    body = helper.make_graph([helper.make_node("Add", ["x", "gone"], ["z"])], "b", [], [])
    choice = helper.make_node("If", ["x"], ["y"], then_branch=body, else_branch=body)
    assert invalid(model(choice), complaint).startswith("node 'z' reads 'gone'")


def test_a_complaint_is_one_line_with_its_node_in_front() -> None:
    complaint = (
        "Unrecognized attribute: axs\nfor operator Relu\n\n==> Context: Bad node spec for node. Name: n OpType: Relu"
    )
    assert invalid(model(), complaint) == "node 'n' (Relu): Unrecognized attribute: axs for operator Relu"
    assert invalid(model(), "something  else.\n") == "something else"
