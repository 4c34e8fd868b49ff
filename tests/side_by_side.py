"""Small models side by side in one: fused, loaded and run at once, which takes less than one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import onnx
from onnx import compose

T = TypeVar("T")

TOGETHER = 12
"""Models that stand side by side; more take no less."""


def batched(things: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """itertools.batched of Python 3.12."""
    return (things[start : start + size] for start in range(0, len(things), size))


def side_by_side(models: Sequence[onnx.ModelProto]) -> onnx.ModelProto:
    """Models of one opset as one; the n-th has a prefix of its own (`within`), and so have its dimensions."""
    whole = onnx.ModelProto()
    for place, model in enumerate(models):
        renamed = compose.add_prefix(model, within(place, ""))
        for info in (*renamed.graph.input, *renamed.graph.output, *renamed.graph.value_info):
            for dim in info.type.tensor_type.shape.dim:
                if dim.dim_param:
                    dim.dim_param = within(place, dim.dim_param)
        if not place:
            whole.CopyFrom(renamed)
            continue
        assert whole.opset_import == renamed.opset_import
        assert not renamed.functions
        whole.graph.MergeFrom(renamed.graph)
    return whole


def within(place: int, name: str) -> str:
    """What a value of the n-th model is called."""
    return f"{place}/{name}"


def fed(inputs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Inputs of each as inputs of all."""
    return {within(place, name): value for place, given in enumerate(inputs) for name, value in given.items()}


def behind(model: onnx.ModelProto, place: int) -> list[onnx.NodeProto]:
    """The nodes that outputs of the n-th model are computed by."""
    writers = {name: node for node in model.graph.node for name in node.output}
    waiting = [output.name for output in model.graph.output if output.name.startswith(within(place, ""))]
    found: dict[str, onnx.NodeProto] = {}
    while waiting:
        node = writers.get(waiting.pop())
        if node is not None and node.output[0] not in found:
            found[node.output[0]] = node
            waiting += node.input
    return list(found.values())
