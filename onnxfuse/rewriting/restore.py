"""New nodes that compute what a node of the original computes are that node again.

A rule finds what it has written before, and a lowering writes a Gemm where one stood: nothing is gained by a new name.

guarantees   a node that is put back stands for the same values, byte for byte; what reads the new node's values reads
             those of the original; a value that must keep its name keeps it
"""

from __future__ import annotations

from collections.abc import Collection, MutableMapping, Sequence
from typing import TypeAlias

from onnx import NodeProto

from onnxfuse.model.graph import Graph
from onnxfuse.model.op_traits import COMMUTATIVE

Entry: TypeAlias = tuple[float, int, NodeProto]
"""(position, tie-break, node) of a node that is to be in a scope."""


def signature(node: NodeProto, alias: MutableMapping[str, str]) -> tuple[object, ...]:
    """What a node computes, by the names of the values that it reads."""
    attributes = sorted(a.SerializeToString(deterministic=True) for a in node.attribute)
    inputs = [alias.get(name, name) for name in node.input]
    if node.op_type in COMMUTATIVE:
        inputs.sort()
    return (node.domain, node.op_type, node.overload, *inputs, "", *attributes)


def restore(graph: Graph, entries: list[Entry], alias: MutableMapping[str, str], pinned: Collection[str]) -> None:
    """Put original nodes of a scope in the place of new ones in `entries`, and note in `alias` what became of values.

    `alias` are values that are gone, each with the one that stands for it."""
    own = {id(node) for node in graph.nodes}
    kept = {id(node) for _, _, node in entries}
    gone: dict[tuple[object, ...], int] = {}
    for index, node in enumerate(graph.nodes):
        if id(node) not in kept and node.op_type != "Dropout" and index not in graph.captures:
            gone.setdefault(signature(node, {}), index)
    if not gone:
        return
    places = sorted((i for i, entry in enumerate(entries) if id(entry[2]) not in own), key=lambda i: entries[i][:2])
    makers = {name: id(node) for _, _, node in entries for name in node.output if name}
    stand: dict[str, set[str]] = {}
    for value, other in alias.items():
        stand.setdefault(other, set()).add(value)
    for place in places:
        new = entries[place][2]
        found = gone.get(signature(new, alias))
        if found is None:
            continue
        old = graph.nodes[found]
        if not _fits(old, new, makers, pinned):
            continue
        del gone[signature(old, {})]
        entries[place] = (float(found), 0, old)
        for was, now in zip(new.output, old.output, strict=True):
            if was != now:
                alias.pop(now, None)
                followers = stand.pop(was, set()) - {now} | {was}
                alias.update(dict.fromkeys(followers, now))
                stand.setdefault(now, set()).update(followers)


def _fits(old: NodeProto, new: NodeProto, makers: MutableMapping[str, int], pinned: Collection[str]) -> bool:
    """Can the original node stand where the new one does, with no other node of its values' names?"""
    if [bool(name) for name in old.output] != [bool(name) for name in new.output]:
        return False
    pairs: Sequence[tuple[str, str]] = list(zip(new.output, old.output, strict=True))
    return all(was == now or (was not in pinned and makers.get(now, id(new)) == id(new)) for was, now in pairs)
