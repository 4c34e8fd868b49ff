"""Nodes that compute the same from the same inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx import NodeProto, TensorProto

from onnxfuse.lifting.view import View

_STEPS = ("QuantizeLinear", "DequantizeLinear")


def is_signed_step(view: View, node: NodeProto) -> bool:
    """Does it quantize to bytes with a sign, or convert what was?

    onnxruntime computes with bytes without one, and makes such of others only between a QuantizeLinear and the one
    DequantizeLinear that reads it (core/optimizer/qdq_transformer/qdq_s8_to_u8.cc): two products of one tensor, each
    with steps of its own, run on integers, and where they share them neither does."""
    if node.op_type not in _STEPS:
        return False
    source = view.graph.producer.get(node.input[0])
    if node.op_type == "DequantizeLinear":
        return source is not None and view.dtypes.get(node.input[0]) == TensorProto.INT8
    again = source is not None and view.graph.nodes[source].op_type == "DequantizeLinear"  # it may be no step at all
    return not again and view.dtypes.get(node.output[0]) == TensorProto.INT8


class Duplicates:
    """The nodes of one scope that were seen, with `alias` for the values that are gone."""

    def __init__(self, alias: Mapping[str, str]) -> None:
        self._alias = alias
        self._seen: dict[tuple[Any, ...], NodeProto] = {}

    def first(self, node: NodeProto) -> str | None:
        """The output of a node of one output that computed the same before; None if this is the first."""
        inputs = tuple(self._alias.get(i, i) for i in node.input)
        attrs = tuple(sorted(a.SerializeToString(deterministic=True) for a in node.attribute))
        earlier = self._seen.setdefault((node.op_type, node.domain, inputs, attrs), node)
        return None if earlier is node else self._alias.get(earlier.output[0], earlier.output[0])
