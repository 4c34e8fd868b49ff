"""Ops that onnxruntime has in the domain ai.onnx, and onnx has not, or not yet at a model's opset.

onnxruntime writes them into the files that it saves, and its generators of language models into theirs.  onnx's checker
and version converter refuse them, and its shape inference stops there: what these are given has a stand-in instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx import FunctionProto, ModelProto, NodeProto

from .standard import STANDARD, in_onnx
from .walk import nodes, nodes_of

IN_AI_ONNX: Mapping[str, Mapping[str, Any]] = {
    # onnxruntime, core/graph/contrib_ops/contrib_defs.cc; both since opset 1 there.
    "LayerNormalization": {"axis": -1, "epsilon": 1e-5, "stash_type": 1},
    "SimplifiedLayerNormalization": {"axis": -1, "epsilon": 1e-5, "stash_type": 1},
}
"""Op → the defaults of its attributes."""
NAMED: Mapping[str, str] = {"RMSNormalization": "SimplifiedLayerNormalization"}
"""Op of a later ai.onnx → what onnxruntime calls it at every opset."""
ELSEWHERE = "onnxruntime.ai.onnx"
"""The domain of the stand-ins: a name that no model has."""


def added(node: NodeProto, opset: int) -> bool:
    """Is it a node of ai.onnx for onnxruntime alone?"""
    return node.domain in STANDARD and node.op_type in IN_AI_ONNX and not in_onnx(node.op_type, opset)


def named(op: str, opset: int) -> str:
    """What onnxruntime has for an op at an opset of ai.onnx that may not have it yet."""
    return op if in_onnx(op, opset) else NAMED.get(op, op)


def hide(model: ModelProto) -> None:
    """Move these nodes of a model to a domain of which onnx knows nothing and asks nothing."""
    found = _added(model)
    for node in found:
        node.domain = ELSEWHERE
    for proto in (model, *model.functions) if found else ():
        proto.opset_import.add(domain=ELSEWHERE, version=1)


def unhide(model: ModelProto) -> None:
    """Take back what `hide` did."""
    for node in nodes_of(model):
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
    """Nodes of each graph and function, at the opset that it is of."""
    owners = ((model, model.graph), *((function, function) for function in model.functions))
    found = ((node, proto) for proto, owner in owners for node in nodes(owner) if node.op_type in IN_AI_ONNX)
    return [node for node, proto in found if added(node, _opset(proto))]


def _opset(proto: ModelProto | FunctionProto) -> int:
    return max((entry.version for entry in proto.opset_import if entry.domain in STANDARD), default=0)
