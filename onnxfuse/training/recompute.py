"""Backward computes forward values again instead of keeping them: which, and how that is written.

chosen      within a limit: the values that free most bytes for each operation first, until what is left fits (greedy,
            as Chen et al., arXiv:1604.06174, choose among checkpoints; a value that stays is one)
            without a limit: what one loop over elements makes of kept values, where backward has a loop over as many
            elements, or over rows of as many, that reads one of these, or the value itself, so that both are one launch
            and the value is written on the way; a normalization whose statistics are kept is such a loop (`restated`),
            and one that reduces rows by itself is where backward reduces rows of what it normalizes
guarantees  the same numbers: no node is computed again that draws numbers or has effects; what forward computes stays
            as it is; the same model gives the same bytes
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from onnx import ModelProto, NodeProto, ValueInfoProto

from onnxfuse.lifting.lifted import Lifted
from onnxfuse.lifting.view import View
from onnxfuse.matching.work import flops, tensors
from onnxfuse.model.dims import product
from onnxfuse.model.graph import DOMAIN, Names, family_of
from onnxfuse.model.op_traits import ELEMENTWISE
from onnxfuse.model.standard import STANDARD
from onnxfuse.rewriting.provenance import REPLACED_KEY

from .cones import Cone, Cones
from .kept import bytes_of, is_activation, root_of
from .step import Step, ancestry

SUFFIX = "_again"
"""What is added to the names of values that are computed a second time."""


@dataclass(frozen=True)
class Limit:
    """How many bytes may live between forward and backward."""

    bytes: int
    known: tuple[tuple[str, int], ...] = ()
    """The sizes of symbols of dimensions that this is for."""


@dataclass(frozen=True)
class Recomputed:
    """A copy of a model in which backward computes some values again."""

    model: ModelProto
    values: Sequence[str]
    """Those of forward that are no longer kept."""
    nodes: Mapping[str, str]
    """Nodes that were added, by name → the values that they are for."""


def within(lifted: Lifted, limit: Limit) -> Recomputed | None:
    """As many values computed again as the limit asks for; None where nothing has to be, or can be."""
    cones = _cones(lifted)
    if cones is None:
        return None
    known = dict(limit.known)
    sizes = {name: bytes_of(cones.view, name, known) or 0 for name in cones.saved}
    heap = [(-math.inf, place, name) for place, name in enumerate(cones.saved)]
    live = sum(sizes.values())
    while heap and live > limit.bytes:
        expected, place, name = heapq.heappop(heap)
        cone = cones.of(name) if sizes[name] else None
        if cone is None:
            continue
        worth = -sizes[name] / (1 + sum(_flops(cones.view, index, known) for index in cone))
        if worth != expected and heap and worth > heap[0][0]:
            heapq.heappush(heap, (worth, place, name))  # what it takes has changed since it was put here
            continue
        cones.drop(name, cone)
        live -= sizes[name]
    return _written(lifted, cones)


def beside(lifted: Lifted, banned: Collection[str] = ()) -> Recomputed | None:
    """What a launch of backward gives on its way; None where there is nothing.  Values that are `banned` stay."""
    cones = _cones(lifted)
    if cones is None:
        return None
    view = cones.view
    loops = {index for index, node in enumerate(view.graph.nodes) if _elementwise(view, node)}
    rows = {index for index, node in enumerate(view.graph.nodes) if _of_rows(view, node)}
    behind, stay = ancestry(view.graph), set(banned)
    for index in rows & cones.step.forward:
        stay.update(view.graph.nodes[index].output[1:])  # what a normalization gives besides, and is restated by
    for name in [name for name in cones.saved if name not in stay]:
        cone = cones.of(name)
        late = loops | rows if cone is not None and not rows.isdisjoint(cone) else loops
        if cone is not None and late.issuperset(cone) and _has_host(cones, name, cone, late, behind):
            cones.drop(name, cone)
    return _written(lifted, cones)


def _cones(lifted: Lifted) -> Cones | None:
    step = Step.of(lifted.views[0]) if Step.possible(lifted.model) else None
    return None if step is None else Cones(lifted.views[0], step)


def by_known_statistics(node: NodeProto) -> bool:
    """Is a node a batch normalization that takes mean and variance from elsewhere?"""
    training = any(attribute.name == "training_mode" and attribute.i for attribute in node.attribute)
    return node.op_type == "BatchNormalization" and node.domain in STANDARD and len(node.output) == 1 and not training


def _elementwise(view: View, node: NodeProto) -> bool:
    """Is a node one loop over elements, each of which it gives once?"""
    if node.domain != DOMAIN:
        own = node.op_type in (*ELEMENTWISE, "Transpose") or by_known_statistics(node)
    else:
        rule = view.catalogue.definitions.get(family_of(node)) if view.catalogue is not None else None
        own = rule is not None and rule.cost == "pointwise"
    return own and is_activation(view, node.output[0])


def _of_rows(view: View, node: NodeProto) -> bool:
    """Does a node reduce rows, or a gradient of that?"""
    rule = view.catalogue.definitions.get(family_of(node)) if view.catalogue is not None else None
    own = node.domain == DOMAIN or node.domain in STANDARD
    return own and rule is not None and rule.cost == "row_reduction"


def _has_host(cones: Cones, value: str, cone: Cone, late: AbstractSet[int], behind: Sequence[int]) -> bool:
    """Has backward a launch that can make a value beside its own results: over as many elements, reading the value or
    something that it is made of, and waiting for nothing else that reads the value?  `behind` are the nodes that each
    waits for."""
    view, readers = cones.view, sum(1 << index for index in cones.saved[value].readers)
    size, sources = _elements(view, value), cones.sources(cone) | {value}
    for index in sorted(late - cones.step.forward):
        node = view.graph.nodes[index]
        reads = {root_of(view, name) for name in node.input}
        as_many = size is not None and any(_elements(view, name) == size for name in (*node.output, *reads) if name)
        if as_many and not reads.isdisjoint(sources - {""}) and not behind[index] & readers & ~(1 << index):
            return True
    return False


def _elements(view: View, name: str) -> object:
    shape = view.term(name).shape
    return None if shape is None else product(shape)


def _flops(view: View, index: int, known: Mapping[str, int]) -> int:
    """Operations of a node; where a size is unknown, none that can be weighed."""
    node = view.graph.nodes[index]
    read, made = tensors(view, node.input, known), tensors(view, node.output, known)
    if read is None or made is None:
        return 0
    return flops(node, [each for each in read if each is not None], [each for each in made if each is not None])


def _written(lifted: Lifted, cones: Cones) -> Recomputed | None:
    """The model with copies of nodes in front of the first backward node that needs each."""
    if not cones.dropped:
        return None
    model, views = lifted.copy()
    graph, names = views[0].graph, Names.of(view.graph for view in views)
    roots = set(cones.dropped) | {n for i in cones.again for n in graph.nodes[i].output if n}
    renamed, added, order = dict[str, str](), dict[str, str](), list[NodeProto]()

    def again(name: str) -> str:
        """The name under which backward has a value."""
        root = root_of(cones.view, name)
        if not name or root not in roots or root in cones.saved:
            return name
        if name not in renamed:
            source = graph.nodes[graph.producer[name]]
            left = cones.again.get(graph.producer[name]) if name == source.output[0] else None
            if left is not None:
                made, renamed[name] = left.nodes(source.name or name, again, names.unique)
                added.update((node.name, root) for node in made)
                order.extend(made)
                return renamed[name]
            copy = NodeProto()
            copy.CopyFrom(source)
            copy.name = names.unique(f"{source.name or source.output[0]}{SUFFIX}")
            for entry in [entry for entry in copy.metadata_props if entry.key == REPLACED_KEY]:
                copy.metadata_props.remove(entry)
            for place, each in enumerate(source.input):
                copy.input[place] = again(each)
            for place, each in enumerate(source.output):
                if each:
                    copy.output[place] = renamed[each] = names.unique(f"{each}{SUFFIX}")
            added[copy.name] = root
            order.append(copy)
        return renamed[name]

    for index, node in enumerate(graph.nodes):
        if index not in cones.step.forward:
            for place, name in enumerate(node.input):
                node.input[place] = again(name)
        order.append(node)
    del model.graph.node[:]
    model.graph.node.extend(order)
    declared = {info.name: info for info in model.graph.value_info}
    for name, new in renamed.items():
        if name in declared:
            info = ValueInfoProto()
            info.CopyFrom(declared[name])
            info.name = new
            model.graph.value_info.append(info)
    return Recomputed(model, tuple(cones.dropped), added)
