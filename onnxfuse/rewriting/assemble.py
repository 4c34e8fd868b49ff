"""A draft → the scope: what nobody uses goes, the rest is put into an order as close to the original as possible, and
into the proto."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from onnxfuse.model import protobuf
from onnxfuse.model.graph import captured_names
from onnxfuse.model.standard import STANDARD
from onnxfuse.model.walk import has_bodies

from .duplicates import Duplicates
from .plan import Draft, UnrealisableError
from .provenance import FusedNode, Written, sites
from .restore import restore
from .split_slices import split_slices


def assemble(draft: Draft, duplicates: Duplicates, pinned: Collection[str]) -> list[FusedNode]:
    """Make the scope what its draft says; the fused nodes that are live.  Raises UnrealisableError.

    `duplicates` are the nodes that stay; `pinned` values keep their name."""
    _merge_new(draft, duplicates, pinned)
    restore(draft.graph, draft.nodes, draft.alias, pinned)
    scope = _Scope(draft)
    if split_slices(draft, scope.live):
        scope = _Scope(draft)
    graph, entries, reads, live_nodes = draft.graph, draft.nodes, scope.reads, scope.live
    ordered = _sort(entries, live_nodes, reads, scope.producer, scope.lasting)
    made = {name for i in live_nodes for name in entries[i][2].output}
    alive = {id(entries[i][2]) for i in live_nodes}
    written = [Written(*site) for site in draft.fused if id(site[1]) in alive]
    survivors = {i for i, node in enumerate(graph.nodes) if id(node) in alive}
    traced = sites(draft.view, draft.found, written, survivors, made)
    for i in ordered:
        node = entries[i][2]
        if any(name in draft.alias for name in node.input):
            inputs = [draft.alias.get(name, name) for name in node.input]
            del node.input[:]
            node.input.extend(inputs)
    used = {r for i in ordered for r in reads[i]} | set(graph.outputs)
    stored = _stored(draft, [entries[i][2] for i in ordered])
    _splice(draft, [entries[i][2] for i in ordered if id(entries[i][2]) not in stored], used)
    return traced


def _stored(draft: Draft, nodes: Sequence[NodeProto]) -> set[int]:
    """Nodes, by identity, whose constants become initializers: those that a node which is written anew reads.  Tools
    that work on a file, quantizers first of all, look for the weights of an op among its initializers."""
    graph, stored = draft.graph, set[int]()
    if isinstance(graph.proto, FunctionProto):
        return stored
    own = {id(node) for node in graph.nodes}
    read = {name for node in nodes if id(node) not in own for name in node.input} - set(graph.outputs)
    for node in nodes:
        if node.op_type == "Constant" and node.domain in STANDARD and node.output[0] in read:
            for attribute in node.attribute:
                if attribute.name == "value":
                    tensor = TensorProto()
                    tensor.CopyFrom(attribute.t)
                    tensor.name = node.output[0]
                    draft.constants[tensor.name] = tensor
                    stored.add(id(node))
    return stored


class _Scope:
    """Who reads what in a draft, and what of it is needed."""

    def __init__(self, draft: Draft) -> None:
        graph, entries = draft.graph, draft.nodes
        self.producer = {name: i for i, (_, _, node) in enumerate(entries) for name in node.output if name}
        self.reads = [_reads(draft, node) for _, _, node in entries]
        places = {id(node): i for i, (_, _, node) in enumerate(entries)}
        self.lasting = [places[id(graph.nodes[i])] for i in draft.view.lasting if id(graph.nodes[i]) in places]
        outputs = [draft.alias.get(o, o) for o in graph.outputs]
        needed = [*(self.producer[o] for o in outputs if o in self.producer), *self.lasting]
        self.live = _live(needed, self.reads, self.producer)


def _merge_new(draft: Draft, duplicates: Duplicates, pinned: Collection[str]) -> None:
    """What was written twice, since a value was needed before the place at which it was made first, is one."""
    own, alias = {id(node) for node in draft.graph.nodes}, draft.alias
    for _, _, node in sorted(draft.nodes, key=lambda entry: entry[:2]):
        if id(node) in own or node.domain not in STANDARD or len(node.output) != 1 or node.output[0] in pinned:
            continue
        same, name = duplicates.first(node), node.output[0]
        if same is not None:
            alias |= {value: same for value, stands in alias.items() if stands == name} | {name: same}


def _reads(draft: Draft, node: NodeProto) -> set[str]:
    names = {draft.alias.get(name, name) for name in node.input if name}
    if has_bodies(node):
        names |= captured_names(node)
    return names


def _live(stack: list[int], reads: Sequence[set[str]], producer: Mapping[str, int]) -> set[int]:
    """The nodes that those on the stack need, and they themselves."""
    live_nodes: set[int] = set()
    while stack:
        i = stack.pop()
        if i not in live_nodes:
            live_nodes.add(i)
            stack.extend(producer[r] for r in reads[i] if r in producer)
    return live_nodes


def tidy(draft: Draft) -> None:
    """Make a scope of which every node stays what its draft says: what nothing reads goes all the same."""
    nodes = draft.graph.nodes
    _around(draft, nodes, {name for node in nodes for name in _reads(draft, node)} | set(draft.graph.outputs))


def _splice(draft: Draft, nodes: list[NodeProto], used: set[str]) -> None:
    """Put the nodes of the scope to be into the proto."""
    proto = draft.graph.proto
    heads = []
    if isinstance(proto, FunctionProto):
        for constant in _constants(draft, used):
            heads.append(NodeProto(op_type="Constant", output=[constant.name]))
            heads[-1].attribute.append(helper.make_attribute("value", constant))
    del proto.node[:]
    proto.node.extend([*heads, *nodes])
    _around(draft, nodes, used)


def _constants(draft: Draft, used: set[str]) -> list[TensorProto]:
    """The new constants that something reads."""
    return [draft.constants[name] for name in sorted(draft.constants) if name in used]


def _around(draft: Draft, nodes: Sequence[NodeProto], used: set[str]) -> None:
    """Put what belongs to the nodes of the scope to be, and reads `used`, into the proto."""
    proto = draft.graph.proto
    if isinstance(proto, FunctionProto):
        import_domains(proto, nodes)
        return
    constants = _constants(draft, used)
    inputs = {i.name for i in proto.input}
    used = used | draft.graph.named_elsewhere()
    read = used | inputs
    kept = {name for node in nodes for name in node.output}
    protobuf.remove(proto.initializer, lambda t: t.name not in read or t.name in draft.constants)
    proto.initializer.extend(constants)
    kept |= inputs | {t.name for t in proto.initializer}
    kept -= _turned(draft, nodes)
    protobuf.remove(proto.value_info, lambda info: info.name not in kept or _mistaken(draft, info))
    _declare(draft, proto, {name for _, _, node in draft.nodes for name in node.output} - kept)


def _turned(draft: Draft, nodes: Iterable[NodeProto]) -> set[str]:
    """Initializers whose declared shape would become wrong where a quantizer is to come: onnxruntime's quantize_dynamic
    makes a MatMul of each Gemm, transposes its weight in place, and refuses the model for what it says of that."""
    if not draft.functions.catalogue.target.keeps_products:
        return set()
    return {node.input[1] for node in nodes if node.op_type == "Gemm"} & draft.graph.initializers.keys()


def _mistaken(draft: Draft, info: ValueInfoProto) -> bool:
    """Does a declaration have another rank than its value?  A checker that could not see it before now may."""
    term, declared = draft.found.current.get(info.name), info.type.tensor_type
    rank = None if term is None else term.rank
    return rank is not None and declared.HasField("shape") and len(declared.shape.dim) != rank


def _declare(draft: Draft, proto: GraphProto, gone: Collection[str]) -> None:
    """Give values whose dimensions must be known those that are, where the graph leaves them open; none to what was
    drafted and is `gone` again."""
    known = {info.name: info for info in [*proto.value_info, *proto.output, *proto.input]}
    for name in sorted(draft.declared.keys() - gone):
        term, dtype = draft.declared[name]
        info = known.get(name)
        if info is None:
            info = proto.value_info.add(name=name)
            info.type.tensor_type.elem_type = dtype
        if term.shape is None:
            continue  # an If gives it, whose branches differ in rank
        dims = info.type.tensor_type.shape.dim
        while len(dims) < len(term.shape):
            dims.add()
        for dim, size in zip(dims, term.shape, strict=True):
            if isinstance(size, int) and not dim.HasField("dim_value"):
                dim.dim_value = size


def _sort(
    entries: Sequence[tuple[float, int, NodeProto]],
    live_nodes: set[int],
    reads: Sequence[set[str]],
    producer: Mapping[str, int],
    lasting: Sequence[int],
) -> list[int]:
    """Topological order that follows the original positions wherever it can, and everywhere for nodes that may have
    effects.  Raises UnrealisableError on a cycle."""
    waiting: dict[int, int] = {}
    users: dict[int, list[int]] = {}
    before = {later: {earlier} for earlier, later in pairwise(lasting)}
    for i in live_nodes:
        sources = {producer[r] for r in reads[i] if r in producer} & live_nodes | before.get(i, set())
        waiting[i] = len(sources)
        for s in sources:
            users.setdefault(s, []).append(i)
    heap = [(entries[i][0], entries[i][1], i) for i, count in waiting.items() if not count]
    heapq.heapify(heap)
    ordered = []
    while heap:
        _, _, i = heapq.heappop(heap)
        ordered.append(i)
        for user in users.get(i, ()):
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(heap, (entries[user][0], entries[user][1], user))
    if len(ordered) < len(live_nodes):
        raise UnrealisableError("the fused nodes would wait for each other")
    return ordered


def import_domains(proto: ModelProto | FunctionProto, nodes: Iterable[NodeProto]) -> None:
    """Import, at version 1, the domains of fused nodes that the proto does not import yet."""
    known = {"", *(entry.domain for entry in proto.opset_import)}
    for domain in sorted({node.domain for node in nodes} - known):
        proto.opset_import.add(domain=domain, version=1)
