"""Exports of few layers → the same of many: the last layer comes again, with weights of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from numpy.random import Generator, default_rng
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, numpy_helper

from onnxfuse.fusing.repeats.codes import Codes, Place
from onnxfuse.fusing.repeats.runs import streaks


def stretched(model: ModelProto, times: int) -> ModelProto | None:
    """The model with `times` more layers; None where no two layers are spelled alike."""
    codes = Codes(model.graph, {})
    codes.read()
    found = _layer(codes)
    if found is None:
        return None
    start, period = found
    result = ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    del graph.node[:]
    graph.node.extend(_nodes(codes, start, period, times))
    _add_leaves(codes, graph, range(start, start + period), times)
    _add_declarations(codes, graph, range(start, start + period), times)
    return result


def _layer(codes: Codes) -> tuple[int, int] | None:
    """The first node and the length of the layer to come again: the second of two."""
    best: tuple[int, int, int] | None = None
    count = len(codes.nodes)
    for period in range(8, count // 2):
        alike = np.array([_alike(codes, node, period) for node in range(count - period)])
        for place in streaks(alike, period):
            best = max(filter(None, (best, (period, place.start + period, len(place)))))
    return None if best is None else (best[1], best[0])


def _alike(codes: Codes, node: int, period: int) -> bool:
    first = codes.matches(node, period)
    return first is not None and first <= node


def _name(name: str, copy: int) -> str:
    """A layer's number goes up, be it in a path or at the end; where there is none, the name gets one."""
    parts = list(re.finditer(r"\d+", name))
    if not parts:
        return f"{name}.copy{copy}"
    at = parts[0]
    return f"{name[: at.start()]}{int(at[0]) + 10000 * copy}{name[at.end() :]}"


def _at(codes: Codes, place: Place, start: int, period: int, copy: int) -> str:
    """A value as the copy of a layer calls it; one of the layer before is that of the copy before."""
    node, slot = place
    back = 0
    if start - period <= node < start:
        node, back = node + period, 1
    own = codes.nodes[node]
    name = own.output[slot] if slot >= 0 else own.input[~slot]
    if copy - back > 0:
        return _name(name, copy - back)
    if back and copy < back:
        own = codes.nodes[node - period]
        return str(own.output[slot] if slot >= 0 else own.input[~slot])
    return str(name)


def _nodes(codes: Codes, start: int, period: int, times: int) -> Iterator[NodeProto]:
    place, inside = codes.place, range(start, start + period)
    for index, node in enumerate(codes.nodes):
        if index < start + period:
            yield node
    for copy in range(1, times + 1):
        for index in inside:
            made = NodeProto()
            made.CopyFrom(codes.nodes[index])
            made.name = _name(made.name, copy) if made.name else ""
            for entry in made.metadata_props:
                entry.value = re.sub(r"layers?\.(\d+)", rf"\g<0>{copy}", entry.value)
            edges, twin = codes.edges[index], codes.edges[index - period]
            for slot, edge in enumerate(edges):
                if edge is not None and edge != twin[slot]:
                    made.input[slot] = _at(codes, edge, start, period, copy)
            made.output[:] = [name and _name(name, copy) for name in made.output]
            yield made
    for index in range(start + period, len(codes.nodes)):
        node = NodeProto()
        node.CopyFrom(codes.nodes[index])
        for slot, name in enumerate(node.input):
            known = place.get(name)
            if known is not None and known[0] in inside:
                node.input[slot] = _name(name, times)
        yield node


def _add_leaves(codes: Codes, graph: GraphProto, inside: range, times: int) -> None:
    rng = default_rng(0)
    for name, (node, slot) in codes.place.items():
        if node in inside and slot < 0:
            for copy in range(1, times + 1):
                if name in codes.initializers:
                    graph.initializer.append(_other(codes.initializers[name], name in codes.apart, rng))
                    graph.initializer[-1].name = _name(name, copy)
                if name in codes.inputs:
                    graph.input.append(_renamed(codes.inputs[name], copy))


def _other(tensor: TensorProto, apart: bool, rng: Generator) -> TensorProto:
    copy = TensorProto()
    copy.CopyFrom(tensor)
    large = np.prod(tensor.dims) > 1024 and tensor.data_type == TensorProto.FLOAT
    if (apart or large) and tensor.data_location != TensorProto.EXTERNAL:
        array = numpy_helper.to_array(tensor)
        noise = 1 + 0.01 * rng.standard_normal(array.shape)
        copy = numpy_helper.from_array((array * noise).astype(array.dtype))
    return copy


def _renamed(info: ValueInfoProto, copy: int) -> ValueInfoProto:
    other = ValueInfoProto()
    other.CopyFrom(info)
    other.name = _name(info.name, copy)
    return other


def _add_declarations(codes: Codes, graph: GraphProto, inside: range, times: int) -> None:
    for kind in (graph.value_info, graph.output):
        own = [info for info in kind if codes.place.get(info.name, (-1, 0))[0] in inside]
        kind.extend(
            _renamed(info, copy) for copy in range(1, times + 1) for info in own if codes.place[info.name][1] >= 0
        )
