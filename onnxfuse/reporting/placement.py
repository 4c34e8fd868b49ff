"""Which nodes of a model fall back to the CPU when onnxruntime's CUDA provider runs it, by the provider's own table.

A node that onnxruntime runs on the CPU costs copies there and back, and it breaks a CUDA graph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from onnx import ModelProto, NodeProto

from onnxfuse.model.graph import Graph, roots
from onnxfuse.model.op_traits import SHAPE_QUERIES
from onnxfuse.model.standard import STANDARD, in_onnx, parameters
from onnxfuse.targets.contrib import DOMAIN
from onnxfuse.targets.cuda_provider import refusal, table, version

from .records import Placement

WRITTEN_OUT = frozenset(
    """Bernoulli CastLike CenterCropPad GroupNormalization Mish NegativeLogLikelihoodLoss SequenceMap
    SoftmaxCrossEntropyLoss SwiGLU Swish""".split()
)
"""Functions of the standard for which onnxruntime 1.31 has no kernel anywhere: it runs the ops that they consist of."""


def placement(before: ModelProto, after: ModelProto) -> Placement:
    """What of a model, and of what it became, the CUDA provider does not run."""
    was, was_host = fallbacks(before)
    now, now_host = fallbacks(after)
    return Placement(version(), was, now, (was_host, now_host))


def fallbacks(model: ModelProto) -> tuple[dict[str, int], int]:
    """Op, and why there is no kernel → how many nodes; and how many lack one but only compute with shapes.

    Nodes of domains that onnxruntime does not have do not count."""
    found: Counter[str] = Counter()
    host = 0
    for root in roots(model):
        for graph in root.scopes():
            there = set[str]()
            for node in graph.nodes:
                if node.op_type == "Constant" and node.domain in STANDARD:
                    continue
                from_shapes = _on_host(graph, node, there)
                if from_shapes or node.op_type in SHAPE_QUERIES:
                    there.update(node.output)
                reason = _refused(graph, node) if _judged(node) else ""
                if reason and from_shapes:
                    host += 1
                elif reason:
                    found[f"{_name(node)}: {reason}"] += 1
    return dict(sorted(found.items())), host


def _judged(node: NodeProto) -> bool:
    return node.op_type not in WRITTEN_OUT if node.domain in STANDARD else node.domain == DOMAIN


def _name(node: NodeProto) -> str:
    return node.op_type if node.domain in STANDARD else f"{node.domain}.{node.op_type}"


def _on_host(graph: Graph, node: NodeProto, there: set[str]) -> bool:
    """Does a node compute with nothing but shapes and constants?"""
    inputs = [name for name in node.input if name and not _constant(graph, name)]
    return bool(inputs) and all(name in there for name in inputs)


def _constant(graph: Graph, name: str) -> bool:
    index = graph.producer.get(name)
    return graph.constant_tensor(name) is not None or (index is not None and graph.nodes[index].op_type == "Constant")


def _refused(graph: Graph, node: NodeProto) -> str:
    return refusal(_name(node), graph.opset, dict(_types(graph, node)))


def _types(graph: Graph, node: NodeProto) -> Iterator[tuple[str, int]]:
    """(type parameter, element type) of a node's inputs, and of its outputs where onnx knows the op."""
    if node.domain in STANDARD and in_onnx(node.op_type, graph.opset):
        inputs, outputs = parameters(node.op_type, graph.opset)
        yield from _bound(graph, node.output, outputs)
        yield from _bound(graph, node.input, inputs)
    else:
        yield from _bound(graph, node.input, table().get(_name(node), ((), ()))[0])


def _bound(graph: Graph, names: Sequence[str], formals: Sequence[str]) -> Iterator[tuple[str, int]]:
    for i, name in enumerate(names):
        if name and formals:
            yield formals[min(i, len(formals) - 1)], element_type(graph, name)


def element_type(graph: Graph, name: str) -> int:
    """The element type of a value here or in an enclosing scope; 0 if unknown."""
    scope: Graph | None = graph
    while scope is not None:
        tensor: Any = scope.initializers.get(name)
        dtype = tensor.data_type if tensor is not None else scope.type_of(name)[0]
        if dtype:
            return int(dtype)
        scope = scope.parent
    return 0
