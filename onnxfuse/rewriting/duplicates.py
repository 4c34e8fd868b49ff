"""Nodes that compute the same from the same inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onnx import NodeProto


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
