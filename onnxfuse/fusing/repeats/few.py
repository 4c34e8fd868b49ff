"""The model with few blocks of each run, to be fused in place of the whole."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from onnxfuse.fusing.fused import EVERY, Banned
from onnxfuse.model.graph import DOMAIN
from onnxfuse.model.protobuf import part
from onnxfuse.terms.term import SMALL

from .codes import Codes, has_bodies
from .late import late
from .runs import HEAD, Run

FEW = 3
"""Where less than one of so many nodes is left out, blocks are looked for in another order."""
WORTH = 8
"""One of so many nodes has to be left out, else the search for what repeats takes more than it saves."""


@dataclass(frozen=True)
class Few:
    """A model with few blocks of each run."""

    source: ModelProto
    """All of it."""
    model: ModelProto
    codes: Codes
    """Of all of it."""
    runs: list[Run]

    @staticmethod
    def of(source: ModelProto, banned: Banned, without: Collection[int] = ()) -> Few | None:
        """The model with few blocks; None where it has no runs.  Nodes `without` which is to be done are in none."""
        graph = source.graph
        if any(f.domain != DOMAIN for f in source.functions) or source.training_info:
            return None
        if graph.sparse_initializer or graph.quantization_annotation or ("", EVERY, "") in banned:
            return None
        bans: dict[str, frozenset[str]] = {}
        for _, rule, value in banned:
            bans[value] = bans.get(value, frozenset()) | {rule}
        codes, runs = _found(graph, bans, without)
        gone = _gone(runs)
        if not runs or gone * WORTH < len(codes.nodes) or has_bodies(codes.nodes):
            return None
        if not bans.keys() <= codes.place.keys():
            return None  # what passes have made is called by its number there
        return Few(source, _without_blocks(source, codes, runs), codes, runs)

    def run_of(self, node: int) -> Run | None:
        """The run that a node of the whole lies in."""
        return next((run for run in self.runs if node in run), None)

    def spread(self) -> list[list[NodeProto]]:
        """The nodes of the whole that each node of the few stands for."""
        nodes = self.codes.nodes
        found = []
        for index in _listed(self.codes, self.runs):
            run = self.run_of(index)
            again = run.gap + 1 if run is not None and run.block(index) == HEAD - 1 else 1
            found.append([nodes[index + block * (run.period if run else 0)] for block in range(again)])
        return found


def _found(graph: GraphProto, bans: Mapping[str, frozenset[str]], without: Collection[int]) -> tuple[Codes, list[Run]]:
    """The nodes in the order in which blocks are found, and their runs: that of the file, unless another leaves out
    more."""
    codes = Codes(graph, bans)
    runs = codes.runs(without)
    if not codes.periods or _gone(runs) * FEW > len(codes.nodes):
        return codes, runs
    others = Codes(graph, bans, late(codes.nodes, codes.periods[0][0]))
    found = others.runs(without)
    return (others, found) if _gone(found) > _gone(runs) else (codes, runs)


def _gone(runs: Iterable[Run]) -> int:
    """How many nodes are left out."""
    return sum(len(run.left_out) for run in runs)


def _listed(codes: Codes, runs: Iterable[Run]) -> list[int]:
    """The nodes that are worked on, in the order of the file."""
    gone = {node for run in runs for node in run.left_out}
    return sorted((node for node in range(len(codes.nodes)) if node not in gone), key=codes.order.__getitem__)


def _without_blocks(source: ModelProto, codes: Codes, runs: list[Run]) -> ModelProto:
    """The model in which each block that is left out is skipped by the one behind it."""
    gone = {node for run in runs for node in run.left_out}
    dropped = {name for name, place in codes.place.items() if place[0] in gone} - _first(codes, runs)
    model = part(source, lambda number: number != ModelProto.GRAPH_FIELD_NUMBER)
    graph, whole = model.graph, source.graph
    numbers = {type(whole).DESCRIPTOR.fields_by_name[name].number for name in LISTS}
    part(whole, lambda number: number not in numbers, into=graph)
    graph.node.extend(_kept(codes, runs, gone))
    graph.initializer.extend(tensor for tensor in whole.initializer if tensor.name not in dropped)
    for name in ("value_info", "input", "output"):
        infos = (info for info in getattr(whole, name) if info.name not in dropped)
        getattr(graph, name).extend(_declared(info, codes, runs) for info in infos)
    return model


LISTS = ("node", "initializer", "value_info", "input", "output")
"""Of a graph, what is other for few blocks than for all."""


def _declared(info: ValueInfoProto, codes: Codes, runs: list[Run]) -> ValueInfoProto:
    """What is declared of a value that is worked on; dimensions of blocks left out are those before the gap."""
    found = codes.place.get(info.name)
    run = None if found is None else next((run for run in runs if found[0] in run), None)
    if run is None or not info.type.HasField("tensor_type"):
        return info
    places = [codes.symbols.get(dim.dim_param) for dim in info.type.tensor_type.shape.dim]
    if not any(place is not None and place[0] in run.left_out for place in places):
        return info
    copy = ValueInfoProto()
    copy.CopyFrom(info)
    for dim, place in zip(copy.type.tensor_type.shape.dim, places, strict=True):
        if place is not None and place[0] in run.left_out:
            dim.dim_param = codes.symbol(place, run, -run.gap)
    return copy


def _kept(codes: Codes, runs: list[Run], gone: set[int]) -> Iterator[NodeProto]:
    """The nodes that are worked on; those behind a gap read what lies before it."""
    behind = {node: run for run in runs for node in range(run.left_out.stop, run.stop)}
    for index in _listed(codes, runs):
        node, run = codes.nodes[index], behind.get(index)
        if run is not None and any(edge is not None and edge[0] in gone for edge in codes.edges[index]):
            copy = NodeProto()
            copy.CopyFrom(node)
            for slot, edge in enumerate(codes.edges[index]):
                if edge is not None and edge[0] in run.left_out:
                    copy.input[slot] = codes.shifted(edge, run, -run.gap)
            node = copy
        yield node


def _first(codes: Codes, runs: list[Run]) -> set[str]:
    """Of the constants that blocks hold alike, those that come first in the file: they are read for all of them."""
    order = {name: at for at, name in enumerate(codes.initializers)}
    found = set[str]()
    for run in runs:
        for node in range(run.start, run.start + run.period):
            for slot, edge in enumerate(codes.edges[node]):
                name = codes.shifted((node, ~slot), run, 0)
                if edge == (node, ~slot) and name in order and by_content(codes.initializers[name], codes):
                    alike = (codes.shifted(edge, run, block) for block in range(run.count))
                    found.add(min(alike, key=order.__getitem__))
    return found


def by_content(tensor: TensorProto, codes: Codes) -> bool:
    """Is a constant compared by what it holds?"""
    outside = tensor.data_location == TensorProto.EXTERNAL
    return not outside and math.prod(tensor.dims) <= SMALL and tensor.name not in codes.apart
