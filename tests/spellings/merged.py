"""Merged decoders: one model with an If, whose branches are the decoder without a past and the one with it.

As optimum writes decoder_model_merged.onnx: both branches read the inputs and the weights of the graph around, their
values have the same names, and `use_cache_branch` of shape [1] decides.  Without a past, the inputs for it are there
all the same, and of any length.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.spellings.build import Array
from tests.spellings.decoders import B, D, Decoder

SWITCH = "use_cache_branch"


class First(Decoder):
    """The decoder of the first step: what it keeps is what is new."""

    def feeds(self, past: int, new: int) -> dict[str, Array]:
        return {name: value for name, value in super().feeds(0, new).items() if not name.startswith("past")}

    def _size(self, value: str, axis: int) -> str:
        nothing = value == "past_key"
        return self.g.constant(np.array([0], np.int64)) if nothing else super()._size(value, axis)

    def _kept(self, past: str, new: str) -> str:
        return self.g.Transpose(new, perm=[0, 2, 1, 3]) if self.case.cache == "heads third" else new

    def truth(self, given: dict[str, Array]) -> tuple[Array, Array, Array]:
        shape = (B, 0, self.groups, D) if self.case.cache == "heads third" else (B, self.groups, 0, D)
        return super().truth(given | {name: np.zeros(shape, np.float32) for name in ("past_key", "past_value")})


def merged(past: onnx.ModelProto, first: onnx.ModelProto) -> onnx.ModelProto:
    """One model of a decoder with a past and of one without, which have as many outputs."""
    outputs = [f"output_{number}" for number in range(len(first.graph.output))]
    infos = [onnx.ValueInfoProto.FromString(info.SerializeToString()) for info in first.graph.output]
    for info, name in zip(infos, outputs, strict=True):
        info.name = name
    inputs = {info.name: info for model in (first, past) for info in model.graph.input}
    weights: dict[tuple[int, tuple[int, ...], bytes], onnx.TensorProto] = {}
    branches = {
        name: helper.make_graph(_body(model, outputs, weights), name, [], infos)
        for name, model in (("then_branch", past), ("else_branch", first))
    }
    switch = helper.make_tensor_value_info(SWITCH, TensorProto.BOOL, [1])
    node = helper.make_node("If", [SWITCH], outputs, "optimum::if", **branches)
    graph = helper.make_graph([node], "merged", [*inputs.values(), switch], infos, list(weights.values()))
    return helper.make_model(graph, opset_imports=past.opset_import, ir_version=past.ir_version)


def _body(
    model: onnx.ModelProto,
    outputs: list[str],
    weights: dict[tuple[int, tuple[int, ...], bytes], onnx.TensorProto],
) -> list[onnx.NodeProto]:
    """The nodes of a model, which read weights that another model has, too, by one name."""
    names = {info.name: name for info, name in zip(model.graph.output, outputs, strict=True)}
    for tensor in model.graph.initializer:
        key = tensor.data_type, tuple(tensor.dims), tensor.raw_data
        if key not in weights:
            weights[key] = onnx.TensorProto.FromString(tensor.SerializeToString())
            weights[key].name = f"{tensor.name}_merged_{len(weights)}"
        names[tensor.name] = weights[key].name
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in model.graph.node]
    for node in nodes:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    return nodes


def feeds(decoder: Decoder, past: int, new: int, *, cached: bool) -> dict[str, Array]:
    """Inputs of a merged decoder: of the step with a past, or of the first, for which the past is nothing."""
    given = decoder.feeds(past if cached else 0, new)
    if not cached and "mask" in given:  # a first key that is hidden would leave the first query none
        given["mask"][1, :2] = (1, 0)[:new]
    return given | {SWITCH: np.array([cached])}


def of(decoder: Decoder) -> tuple[onnx.ModelProto, First]:
    """The merged model of a decoder, and its first step."""
    first = First(decoder.g.opset, decoder.name, decoder.case, "none")
    return merged(decoder.spelling().model, first.spelling().model), first


def can_merge(case: Mapping[str, str]) -> bool:
    """Whether a first step without a cache is the same attention: none that writes into a cache of a fixed length, or
    that looks at a tree of guessed tokens."""
    return case["cache"] in ("concat", "heads third") and case["mask"] != "tree"
