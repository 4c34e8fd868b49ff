"""The nodes of a graph, each that is read only blocks behind where it stands moved to its first reader.

Exporters compute some of what a layer reads before all layers: shapes of what the encoder gave, indices of positions,
entries of a cache.  In this order the layer has them with it.  It is one in which blocks are looked for and counted; no
file is written in it.

    a(i) = min a(j) over the nodes j that read node i, where that is more than a block behind i; else i
    i stands before j if a(i) < a(j), and what has moved before what it moved to: each node before all that read it

Of a chain that moves, LONG nodes do and the constants that they read: a longer one is the layers themselves, of which
the last is read far behind.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnx import NodeProto

LONG = 8


def late(nodes: Sequence[NodeProto], block: int) -> list[int]:
    """The places of nodes in that order, for blocks of so many."""
    first: dict[str, tuple[int, int]] = {}
    """Values → where their first reader comes to stand, and how many nodes a chain has that moved there with it."""
    anchors = list(range(len(nodes)))
    for index in reversed(range(len(nodes))):
        node, moved = nodes[index], 0
        anchor, behind = min((first[name] for name in node.output if name in first), default=(index, 0))
        if anchor - index > block and (behind < LONG or not node.input):
            anchors[index], moved = anchor, behind + 1
        for name in node.input:
            first[name] = min(first.get(name, (len(nodes), 0)), (anchors[index], moved))
    return sorted(range(len(nodes)), key=lambda index: (anchors[index], anchors[index] == index, index))
