"""Which line of a program nodes come from."""

from __future__ import annotations

import onnx
import pytest
from onnx import NodeProto, helper

from onnxfuse import pipeline
from onnxfuse.rewriting.stack_traces import TORCH_STACK, common, frames, place, written
from tests.exports import MODELS

FORWARD = 'File "train.py", line 3, in forward\n  y = self.encoder(x)\n'
LAYER = 'File "/lib/model.py", line {}, in layer\n  x = x + y\n'
LINEAR = 'File "/site-packages/torch/nn/modules/linear.py", line 134, in forward\n  return F.linear(x)'


def traced(*stacks: str) -> list[NodeProto]:
    nodes = []
    for stack in stacks:
        node = helper.make_node("Add", ["a", "b"], ["c"])
        node.metadata_props.add(key=TORCH_STACK, value=stack)
        nodes.append(node)
    return nodes


@pytest.mark.parametrize(
    ("stacks", "expected"),
    [
        ([FORWARD + LAYER.format(7)], "/lib/model.py:7"),
        ([FORWARD + LAYER.format(7) + LINEAR], "/lib/model.py:7"),
        ([FORWARD + LAYER.format(7), FORWARD + LAYER.format(9), FORWARD + LAYER.format(8)], "/lib/model.py:8"),
        ([FORWARD + LAYER.format(7), FORWARD + LAYER.format(7), FORWARD], "/lib/model.py:7"),
        ([FORWARD, FORWARD, FORWARD + LAYER.format(7)], "train.py:3"),
        ([LINEAR], ""),
        (["not a stack"], ""),
        ([], ""),
    ],
)
def test_the_line_that_nodes_have_in_common(stacks: list[str], expected: str) -> None:
    assert place(common(traced(*stacks))) == expected


def test_a_trace_is_written_as_it_is_read() -> None:
    (node,) = traced(FORWARD + LAYER.format(7))
    assert frames(*traced(written(frames(node)))) == frames(node)


def test_every_fusion_of_a_dynamo_export_names_a_line_of_the_model() -> None:
    found = pipeline.report(onnx.load(MODELS / "bert.dynamo.onnx"))
    assert [fusion for fusion in found.fusions if "modeling_bert.py:" not in fusion.code] == []
    (attention, *_) = [fusion for fusion in found.fusions if fusion.rule == "Attention"]
    fused = pipeline.optimize(onnx.load(MODELS / "bert.dynamo.onnx")).model
    (node,) = [node for node in fused.graph.node if node.name == attention.node]
    assert place(frames(node)) == attention.code
