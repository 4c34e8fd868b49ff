"""Ops that onnxruntime has in the domain ai.onnx, and onnx has not, or not yet at a model's opset.

onnxruntime writes them into the files that it saves, and its generators of language models into theirs.  onnx's checker
and version converter refuse them, and its shape inference stops there: what these are given has a stand-in instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from onnx import AttributeProto, ModelProto, NodeProto, defs

IN_AI_ONNX: Mapping[str, Mapping[str, Any]] = {
    # onnxruntime, core/graph/contrib_ops/contrib_defs.cc; both since opset 1 there.
    "LayerNormalization": {"axis": -1, "epsilon": 1e-5, "stash_type": 1},
    "SimplifiedLayerNormalization": {"axis": -1, "epsilon": 1e-5, "stash_type": 1},
}
"""Op → the defaults of its attributes."""
ELSEWHERE = "onnxruntime.ai.onnx"
"""The domain of the stand-ins: a name that no model has."""


@cache
def in_onnx(op: str, opset: int) -> bool:
    """Has ai.onnx this op at this opset?"""
    return bool(defs.has(op, opset, ""))


def added(node: NodeProto, opset: int) -> bool:
    """Is it a node of ai.onnx for onnxruntime alone?"""
    return node.domain in ("", "ai.onnx") and node.op_type in IN_AI_ONNX and not in_onnx(node.op_type, opset)


def hide(model: ModelProto) -> None:
    """Move these nodes of a model to a domain of which onnx knows nothing and asks nothing."""
    nodes = _added(model)
    for node in nodes:
        node.domain = ELSEWHERE
    for proto in (model, *model.functions) if nodes else ():
        proto.opset_import.add(domain=ELSEWHERE, version=1)


def unhide(model: ModelProto) -> None:
    """Take back what `hide` did."""
    for body, _ in _bodies(model):
        for node in _nodes(body):
            if node.domain == ELSEWHERE:
                node.domain = ""
    for proto in (model, *model.functions):
        for i in reversed(range(len(proto.opset_import))):
            if proto.opset_import[i].domain == ELSEWHERE:
                del proto.opset_import[i]


def pass_on(model: ModelProto) -> None:
    """Replace these nodes of a model by Identity, for shape inference: their output is like their first input."""
    for node in _added(model):
        node.op_type = "Identity"
        del node.input[1:], node.output[1:], node.attribute[:]


def _added(model: ModelProto) -> list[NodeProto]:
    return [node for body, opset in _bodies(model) for node in _nodes(body) if added(node, opset)]


def _bodies(model: ModelProto) -> Iterator[tuple[Iterable[NodeProto], int]]:
    """The nodes of the graph and of each function, with the opset that they are of."""
    for proto, nodes in ((model, model.graph.node), *((function, function.node) for function in model.functions)):
        yield nodes, max((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), default=0)


def _nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """These nodes and those of the bodies in them."""
    stack: list[Iterable[NodeProto]] = [nodes]
    while stack:
        for node in stack.pop():
            yield node
            for attribute in node.attribute:
                if attribute.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
                    stack.extend(body.node for body in (attribute.g, *attribute.graphs))
