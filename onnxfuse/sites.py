"""Where two models differ, cut out: each changed value with the nodes that compute it from values both models share.

The outputs of a whole model hide a local error: a residual stream carries it away, and softmax over small scores hardly
sees a wrong scale.  Cut out and fed with unit normals, the same error is plain, and it names its fusion.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from onnxfuse import numerics

_LARGEST_CONE = 500
_CUTTABLE = 1 << 30
"""Initializers are copied into the cut model: above this size in bytes the whole model's outputs must do."""
_HUGE = 1e4
"""A float of this size fills a mask."""


@dataclass(frozen=True, slots=True)
class Site:
    """One value that the two models compute differently.  `observed` are the values to feed it with, beside `stops`."""

    output: str
    stops: tuple[str, ...]
    """The nearest values behind it that both models have: tensors of any content will do."""
    observed: tuple[str, ...]
    """Shapes taken of other values of the original, which must be what they were in a real run."""
    original: tuple[int, ...]
    """Indices of the nodes of the original that compute it."""
    fused: tuple[int, ...]


class _Graph:
    """A top-level graph by value name."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.nodes = list(graph.node)
        self.producers = {name: index for index, node in enumerate(self.nodes) for name in node.output if name}
        self.constants = {tensor.name for tensor in graph.initializer}
        self.inputs = {info.name for info in graph.input} - self.constants

    def cone(
        self, output: str, stop: Callable[[str], bool], shapes: bool
    ) -> tuple[set[int], set[str], set[str]] | None:
        """The nodes behind `output`, the stops they rest on, and with `shapes` the shapes they take of anything else.

        None where they rest on something else too, or are too many, or have bodies.
        """
        nodes: set[int] = set()
        stops: set[str] = set()
        observed: set[str] = set()
        pending = [output]
        while pending:
            name = pending.pop()
            if name in self.constants or not name:
                continue
            if name != output and stop(name):
                stops.add(name)
                continue
            index = self.producers.get(name)
            if index is None or len(nodes) > _LARGEST_CONE:
                return None
            node = self.nodes[index]
            if shapes and node.op_type in ("Shape", "Size") and not stop(node.input[0]):
                observed.add(name)
                continue
            if any(a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS) for a in node.attribute):
                return None
            if index not in nodes:
                nodes.add(index)
                pending += node.input
        return nodes, stops, observed


def find(original: onnx.ModelProto, fused: onnx.ModelProto) -> list[Site]:
    """Every value of both graphs that they compute differently from common values, in the order of `fused`.

    Left out is what cannot be cut: values in bodies and functions, constants, and values that rest on other values in
    the original than in the fused model.
    """
    if max(original.ByteSize(), fused.ByteSize()) > _CUTTABLE:
        return []
    before, after = _Graph(original.graph), _Graph(fused.graph)
    shared = (before.inputs | before.producers.keys()) & (after.inputs | after.producers.keys())
    sites = []
    for node in after.nodes:
        for output in node.output:
            if output not in before.producers or _same(before.nodes[before.producers[output]], node):
                continue
            new = after.cone(output, shared.__contains__, shapes=False)
            old = new and before.cone(output, new[1].__contains__, shapes=True)
            # Where the fused nodes rest on more than the original's, two values are equal by nature: not under noise.
            if new and old and new[1] and new[1] == old[1]:
                stops, observed = tuple(sorted(new[1])), tuple(sorted(old[2]))
                sites.append(Site(output, stops, observed, tuple(sorted(old[0])), tuple(sorted(new[0]))))
    return sites


def _same(a: onnx.NodeProto, b: onnx.NodeProto) -> bool:
    return (a.op_type, a.domain, a.input, a.output, a.attribute) == (
        b.op_type,
        b.domain,
        b.input,
        b.output,
        b.attribute,
    )


def cut(
    model: onnx.ModelProto, sites: list[Site], cones: list[tuple[int, ...]], feeds: Mapping[str, Any]
) -> onnx.ModelProto:
    """A model of disjoint copies of the `cones` of `sites`; values of site i are called ``i/name``, as in `feeds`."""
    result = onnx.ModelProto(ir_version=model.ir_version)
    result.opset_import.extend(model.opset_import)
    result.functions.extend(model.functions)
    graph = result.graph
    graph.name = "sites"
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    used: set[str] = set()
    for number, (site, cone) in enumerate(zip(sites, cones, strict=True)):
        for index in cone:
            node = graph.node.add()
            node.CopyFrom(model.graph.node[index])
            node.name = ""
            used.update(tensors.keys() & set(node.input))
            node.input[:] = [name if name in tensors or not name else f"{number}/{name}" for name in node.input]
            # Of a node with several outputs one may be a stop, which is fed.
            node.output[:] = [name and f"{number}/{name}" + "/unused" * (name in site.stops) for name in node.output]
        for name in (*site.stops, *site.observed):
            value = feeds[f"{number}/{name}"]
            kind = helper.np_dtype_to_tensor_dtype(value.dtype)
            graph.input.append(helper.make_tensor_value_info(f"{number}/{name}", kind, value.shape))
        graph.output.add(name=f"{number}/{site.output}")
    graph.initializer.extend(tensors[name] for name in sorted(used))
    return result


def feed(sites: list[Site], real: Mapping[str, Any], seed: int) -> dict[str, Any]:
    """Inputs for `cut` models: unit normals of the shapes in `real`, `real` itself where its content has a meaning."""
    feeds: dict[str, Any] = {}
    for number, site in enumerate(sites):
        for name in site.observed:
            feeds[f"{number}/{name}"] = real[name]
        for name in site.stops:
            feeds[f"{number}/{name}"] = _noise(real[name], np.random.default_rng([seed, zlib.crc32(name.encode())]))
    return feeds


def _noise(value: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if not numerics.is_float(value.dtype) or value.dtype.kind == "c" or not value.size:
        return value
    wide = value.astype(np.float64)
    if not np.isfinite(wide).all() or np.abs(wide).max() > _HUGE or np.isin(wide, (0.0, 1.0)).all():
        return value  # a mask
    noise = rng.standard_normal(value.shape)
    # What never is negative may be a variance, or a probability.
    return np.asarray(np.abs(noise) if wide.min() >= 0 else noise).astype(value.dtype)
