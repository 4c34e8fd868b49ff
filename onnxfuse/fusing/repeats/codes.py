"""What a node is, whatever it is called: equal codes, and inputs that lie equally far behind, make blocks the same.

A value is known by the node that computes it, or by the first one that reads it: `place`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from onnx import GraphProto, NodeProto, TensorProto, numpy_helper

from onnxfuse.lifting.constants import NUMERIC
from onnxfuse.model.standard import STANDARD
from onnxfuse.model.walk import BODIES
from onnxfuse.terms.term import REAL, SMALL

from .runs import TAIL, Run, periods, runs

Place: TypeAlias = tuple[int, int]
"""(node, slot): slot k is its output k, slot ~k its input k."""
SymbolPlace: TypeAlias = tuple[int, int, int]
"""(node, slot, axis) where a name of a dimension is first declared, slots as those of values."""
ATTEMPTS = 8
"""Times that runs are looked for, each without the places at which those found before it must end."""


class Codes:
    """The nodes of a main graph by what they are and what they read."""

    def __init__(
        self, graph: GraphProto, banned: Mapping[str, frozenset[str]], order: Sequence[int] | None = None
    ) -> None:
        """`order` says where in the file each node stands; it is the file's if it is not given."""
        self.graph, self.banned = graph, banned
        self.order = range(len(graph.node)) if order is None else order
        listed = list(graph.node)
        self.nodes: list[NodeProto] = listed if order is None else [listed[at] for at in order]
        self.initializers = {tensor.name: tensor for tensor in graph.initializer}
        self.inputs = {info.name: info for info in graph.input}
        self.place: dict[str, Place] = {}
        self.aliases = _aliases(self.nodes, self.initializers.keys() - self.inputs.keys())
        """Other names of initializers → theirs: an exporter keeps equal weights of several blocks once."""
        self.alias_place: dict[str, Place] = {}
        """Where each of these names is read first."""
        self.edges: list[list[Place | None]] = []
        self.symbols: dict[str, SymbolPlace] = {}
        """Where each name of a dimension comes from."""
        self.apart: set[str] = set()
        """Small initializers that equal nothing else, told by name."""
        self.types = {info.name: info.type for info in (*graph.value_info, *graph.output, *graph.input)}
        self.periods: list[tuple[int, list[range]]] = []
        """Where ops come again, see `periods`."""
        self._dims: list[list[SymbolPlace]] = []
        self._leaves: dict[str, object] = {}
        self._codes: list[int] = []
        self._alone: set[int] = set()
        """Nodes at which a run must end."""

    def read(self) -> None:
        """Give every node its code."""
        outputs = {info.name for info in self.graph.output}
        contents = self._contents()
        numbers: dict[object, int] = {}
        place, banned = self.place, self.banned
        for index, node in enumerate(self.nodes):
            read: list[object] = []
            edges: list[Place | None] = []
            dims: list[SymbolPlace] = []
            for slot, called in enumerate(node.input):
                if not called:
                    read.append(None)
                    edges.append(None)
                    continue
                name = self.aliases.get(called, called)
                if name != called:
                    self.alias_place.setdefault(called, (index, ~slot))
                known = place.get(name)
                if known is None:
                    known = place[name] = (index, ~slot)
                    read.append(self._leaf(name, contents))
                    if name in self.inputs:
                        read.append(self._type(name, index, ~slot, dims))
                else:
                    read.append(known[1] >= 0)
                edges.append(known)
            made = tuple(node.output)
            for slot, name in enumerate(made):
                if name:
                    place[name] = (index, slot)
            told = [
                (self._type(name, index, slot, dims), name in outputs, banned.get(name), not name)
                for slot, name in enumerate(made)
            ]
            attributes = tuple([a.SerializeToString() for a in node.attribute]) if node.attribute else ()
            code = (node.op_type, node.domain, node.overload, attributes, tuple(read), *told)
            self._codes.append(numbers.setdefault(code, len(numbers)))
            self.edges.append(edges)
            self._dims.append(dims)

    def _type(self, name: str, node: int, slot: int, dims: list[SymbolPlace]) -> object:
        """What is declared of a value, whatever its dimensions are called: where those names come from goes to
        `dims`."""
        kind = self.types.get(name)
        if kind is None:
            return None
        if not kind.HasField("tensor_type") or not kind.tensor_type.HasField("shape"):
            return kind.SerializeToString()
        told: list[int | str | None] = [kind.tensor_type.elem_type]
        for axis, dim in enumerate(kind.tensor_type.shape.dim):
            if dim.dim_param:
                dims.append(self.symbols.setdefault(dim.dim_param, (node, slot, axis)))
                told.append("")
            else:
                told.append(dim.dim_value if dim.HasField("dim_value") else None)
        return tuple(told)

    def symbol(self, place: SymbolPlace, run: Run, blocks: int) -> str:
        """The name of a dimension's counterpart, so many blocks on."""
        name = self.shifted(place[:2], run, blocks)
        return str(self.types[name].tensor_type.shape.dim[place[2]].dim_param)

    def _contents(self) -> Counter[object]:
        """How many constants of few real numbers hold the same."""
        nodes = (a.t for node in self.nodes if node.op_type == "Constant" for a in node.attribute if a.name == "value")
        return Counter(_content(tensor) for tensor in (*self.initializers.values(), *nodes) if _few_reals(tensor))

    def _leaf(self, name: str, contents: Counter[object]) -> object:
        """What a value is that no node computes."""
        if name not in self._leaves:
            self._leaves[name] = self._new_leaf(name, contents)
        return self._leaves[name]

    def _new_leaf(self, name: str, contents: Counter[object]) -> object:
        tensor, info = self.initializers.get(name), self.inputs.get(name)
        if tensor is None or info is not None:
            return tensor is not None if info is not None else name
        kind = (tensor.data_type, *tensor.dims)
        outside = tensor.data_location == TensorProto.EXTERNAL
        if outside or math.prod(tensor.dims) > SMALL:
            return outside, *kind
        if not _few_reals(tensor):
            return *kind, _bytes(tensor)
        content = _content(tensor)
        if contents[content] > 1 or content is None:
            return *kind, _bytes(tensor)
        self.apart.add(name)
        return "apart", *kind

    def matches(self, node: int, period: int) -> int | None:
        """From which node on a run must begin for the node one period on to be this one again; None if it is not."""
        other = node + period
        if self._codes[node] != self._codes[other] or node in self._alone or other in self._alone:
            return None
        first = 0
        for one, two in zip(self.edges[node], self.edges[other], strict=True):
            if one is None or two is None:
                continue
            if one == two:
                first = max(first, one[0] + 1)
            elif two[0] - one[0] != period or two[1] != one[1] or node - one[0] > 2 * period:
                return None
        for a, b in zip(self._dims[node], self._dims[other], strict=True):
            if a == b:
                first = max(first, a[0] + 1)
            elif b[0] - a[0] != period or a[1:] != b[1:] or node - a[0] > 2 * period:
                return None
        return first

    def runs(self, without: Collection[int] = ()) -> list[Run]:
        """The runs of which blocks can be left out, with none of the nodes that stand in the file where `without` says.

        What nodes are is not read where nothing repeats."""
        self.periods = periods([node.op_type for node in self.nodes])
        if not self.periods:
            return []
        self.read()
        self._alone |= {node for node, at in enumerate(self.order) if at in without}
        for _ in range(ATTEMPTS):
            chosen = runs(self.periods, self.matches)
            ends = {*self._read_from_outside(chosen), *(node for run in chosen for node in self._disordered(run))}
            if not ends:
                return chosen
            self._alone |= ends
        return []

    def _read_from_outside(self, chosen: Sequence[Run]) -> set[int]:
        """Nodes in blocks between the first and the last ones whose values something outside the run reads."""
        owner: dict[int, Run] = {node: run for run in chosen for node in range(run.start, run.stop)}
        inner = {node for run in chosen for node in range(run.start + run.period, run.stop - TAIL * run.period)}
        return {
            edge[0]
            for node, edges in enumerate(self.edges)
            for edge in edges
            if edge is not None and edge[0] in inner and owner.get(node) is not owner[edge[0]]
        }

    def _disordered(self, run: Run) -> list[int]:
        """The nodes of blocks whose weights and inputs lie in the file in another order than those of most."""
        order = {name: at for at, name in enumerate((*self.initializers, *self.inputs))}
        slots = [
            (node - run.start, slot)
            for node in range(run.start, run.start + run.period)
            for slot, edge in enumerate(self.edges[node])
            if edge == (node, ~slot)
        ]
        patterns = []
        for block in range(run.start, run.stop, run.period):
            names = [self.shifted((block + node, ~slot), run, 0) for node, slot in slots]
            at = [order.get(name, -1) for name in names]
            patterns.append(tuple(sorted(range(len(at)), key=at.__getitem__)))
        usual = Counter(patterns).most_common(1)[0][0]
        odd = (run.start + n * run.period for n, pattern in enumerate(patterns) if pattern != usual)
        return [node for first in odd for node in range(first, first + run.period)]

    def shifted(self, place: Place, run: Run, blocks: int) -> str:
        """The name of the counterpart, so many blocks on, of a value of a run."""
        node, slot = self.nodes[place[0] + blocks * run.period], place[1]
        name = str(node.output[slot] if slot >= 0 else node.input[~slot])
        return self.aliases.get(name, name)


def _aliases(nodes: Iterable[NodeProto], initializers: Collection[str]) -> dict[str, str]:
    """What an Identity gives of an initializer → its name."""
    found: dict[str, str] = {}
    for node in nodes:
        if node.op_type == "Identity" and node.domain in STANDARD:
            name = found.get(node.input[0], node.input[0])
            if name in initializers:
                found[node.output[0]] = name
    return found


def has_bodies(nodes: Iterable[NodeProto]) -> bool:
    """Is there control flow, or another op with graphs for attributes?"""
    return any(attribute.type in BODIES for node in nodes if node.attribute for attribute in node.attribute)


def _few_reals(tensor: TensorProto) -> bool:
    """Is it a constant of a few real numbers that lies in the file itself?"""
    return (
        tensor.data_type in REAL
        and tensor.data_type in NUMERIC
        and tensor.data_location != TensorProto.EXTERNAL
        and 1 < math.prod(tensor.dims) <= SMALL
    )


def _content(tensor: TensorProto) -> object:
    """What a tensor of real numbers holds; None if all of them are the same, as what a node computes may be too."""
    array = numpy_helper.to_array(tensor).astype(np.float64)
    return None if (array == array.flat[0]).all() else (array.shape, array.tobytes())


def _bytes(tensor: TensorProto) -> bytes:
    """The elements of a tensor, as they are stored."""
    if tensor.HasField("raw_data"):
        return bytes(tensor.raw_data)
    bare = TensorProto()
    bare.CopyFrom(tensor)
    bare.ClearField("name")
    bare.ClearField("doc_string")
    return bytes(bare.SerializeToString())
