"""Nodes in the order that ONNX demands: each behind those whose outputs it reads, in itself or in a body of it.

onnxruntime loads a file whatever its order, and tools that go through onnxruntime alone write such files (its float16
converter does).  Everything here needs the order, as does onnx's checker.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from onnx import ModelProto, NodeProto

from onnxfuse.errors import ModelError

from .graph import read_by
from .walk import owners, title


def sort(model: ModelProto) -> None:
    """Sort the graph, its functions and the bodies of both in place; nodes change places only where they must.

    Raises ModelError for a cycle, naming the nodes on it."""
    # Bodies first: sorting what is around them copies them.
    for proto in reversed(list(owners(model.graph, *model.functions))):
        nodes = list(proto.node)
        order = _order(nodes)
        if order is not None:
            del proto.node[:]
            proto.node.extend(nodes[i] for i in order)


def is_sorted(model: ModelProto) -> bool:
    """Is there nothing for `sort` to do?"""
    return all(_order(list(proto.node)) is None for proto in owners(model.graph, *model.functions))


def _order(nodes: Sequence[NodeProto]) -> list[int] | None:
    """The indices of the nodes in order; None if they are in order as they stand.  Raises ModelError for a cycle."""
    producer: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.output:
            producer.setdefault(name, index)
    producer.pop("", None)
    reads = [read_by(node) for node in nodes]
    if all(producer.get(name, -1) < index for index, names in enumerate(reads) for name in names):
        return None
    return _sorted(nodes, [{producer[name] for name in names if name in producer} for names in reads])


def _sorted(nodes: Sequence[NodeProto], sources: Sequence[set[int]]) -> list[int]:
    """Of all topological orders the one that keeps the first nodes first (Kahn 1962, with a heap of what is ready)."""
    waiting = [len(read) for read in sources]
    users: dict[int, list[int]] = {}
    for index, read in enumerate(sources):
        for source in read:
            users.setdefault(source, []).append(index)
    ready = [index for index, count in enumerate(waiting) if not count]
    order = []
    while ready:
        done = heapq.heappop(ready)
        order.append(done)
        for user in users.get(done, ()):
            waiting[user] -= 1
            if not waiting[user]:
                heapq.heappush(ready, user)
    if len(order) < len(nodes):
        left = set(range(len(nodes))) - set(order)
        cycle = [title(nodes[index]) for index in _cycle(sources, left)]
        names = [*cycle, cycle[0]]
        shown = names if len(names) <= 8 else [*names[:6], f"... {len(names) - 7} more ...", names[-1]]
        raise ModelError(f"the graph has a cycle: {' -> '.join(shown)}; ONNX graphs must not have one")
    return order


def _cycle(sources: Sequence[set[int]], left: set[int]) -> list[int]:
    """The nodes of a cycle in the order of data flow; `left` are those that never were ready."""
    # Every node left has a source left, so walking backwards must come round.
    at, seen = min(left), dict[int, int]()
    while at not in seen:
        seen[at] = len(seen)
        at = min(sources[at] & left)
    return list(seen)[seen[at] :][::-1]
