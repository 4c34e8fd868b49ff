"""Which nodes compute in float32, with as few Casts as that takes: a minimum cut.

Nodes that must stay in float32 are given.  The others are in half precision unless that takes more Casts than it is
worth: a node that could be, and is not, costs its weight, and a value that is read in the type that it is not computed
in costs a Cast, once for all that read it so.

    from half's side to n      weight of n                           n computes in float32
    from n to float32's side   infinite                              n must
    for a value of n           n -> H (cost of a Cast), H -> each reader (infinite)      n in half, some reader not
                               each reader -> F (infinite), F -> n (cost of a Cast)      some reader in half, n not

The cheapest cut between the two sides is found as a largest flow (Dinic, Algorithm for Solution of a Problem of Maximum
Flow in Networks with Power Estimation, 1970).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

CAST = 1000
"""What a Cast costs."""
INFINITE = 1 << 60
HALF_SIDE, SINGLE_SIDE = 0, 1
"""What stands for an input or an output of a given type, among producers and readers."""


@dataclass(frozen=True)
class Crossing:
    """A value: what makes it and what reads it, by number from 2 on, or one of the sides; `cost` is that of a Cast."""

    producer: int
    readers: tuple[int, ...]
    cost: int = CAST


def in_single(weights: Mapping[int, int], must: Collection[int], values: Sequence[Crossing]) -> set[int]:
    """The nodes that compute in float32, of those that have `weights`; those that `must` are among them."""
    flow = _Flow(max([1, *weights]) + 1)
    for node, weight in weights.items():
        flow.edge(HALF_SIDE, node, weight)
    for node in must:
        flow.edge(node, SINGLE_SIDE, INFINITE)
    for value in values:
        readers = set(value.readers) - {value.producer}
        if readers - {HALF_SIDE}:
            half = flow.node()
            flow.edge(value.producer, half, value.cost)
            for reader in sorted(readers - {HALF_SIDE}):
                flow.edge(half, reader, INFINITE)
        if readers - {SINGLE_SIDE}:
            single = flow.node()
            flow.edge(single, value.producer, value.cost)
            for reader in sorted(readers - {SINGLE_SIDE}):
                flow.edge(reader, single, INFINITE)
    return {node for node in weights if node not in flow.cut(HALF_SIDE, SINGLE_SIDE)}


@dataclass
class _Flow:
    """A network of `count` nodes; edge i goes back as i ^ 1."""

    count: int
    heads: list[int] = field(default_factory=list)
    rooms: list[int] = field(default_factory=list)
    leaving: dict[int, list[int]] = field(default_factory=dict)

    def node(self) -> int:
        self.count += 1
        return self.count - 1

    def edge(self, tail: int, head: int, room: int) -> None:
        for a, b, free in ((tail, head, room), (head, tail, 0)):
            self.leaving.setdefault(a, []).append(len(self.heads))
            self.heads.append(b)
            self.rooms.append(free)

    def cut(self, source: int, sink: int) -> set[int]:
        """The nodes on the source's side of a smallest cut: the fewest that there can be on the other."""
        while sink in (levels := self._levels(source)):
            self._fill(source, sink, levels)
        reaching = self._reaching(sink)
        return set(range(self.count)) - reaching

    def _levels(self, source: int) -> dict[int, int]:
        levels, pending = {source: 0}, deque([source])
        while pending:
            tail = pending.popleft()
            for edge in self.leaving.get(tail, ()):
                head = self.heads[edge]
                if self.rooms[edge] and head not in levels:
                    levels[head] = levels[tail] + 1
                    pending.append(head)
        return levels

    def _reaching(self, sink: int) -> set[int]:
        """What flow could still reach the sink from."""
        found, pending = {sink}, [sink]
        while pending:
            head = pending.pop()
            for edge in self.leaving.get(head, ()):
                tail = self.heads[edge]
                if self.rooms[edge ^ 1] and tail not in found:
                    found.add(tail)
                    pending.append(tail)
        return found

    def _fill(self, source: int, sink: int, levels: Mapping[int, int]) -> None:
        """Flow along shortest paths until none is left."""
        untried = {node: list(edges) for node, edges in self.leaving.items()}
        path: list[int] = []
        while True:
            at = self.heads[path[-1]] if path else source
            if at == sink:
                room = min(self.rooms[edge] for edge in path)
                for edge in path:
                    self.rooms[edge] -= room
                    self.rooms[edge ^ 1] += room
                full = next(i for i, edge in enumerate(path) if not self.rooms[edge])
                del path[full:]
                continue
            edges = untried.get(at, [])
            while edges:
                edge = edges[-1]
                if self.rooms[edge] and levels.get(self.heads[edge]) == levels[at] + 1:
                    path.append(edge)
                    break
                edges.pop()
            else:
                if not path:
                    return
                untried[self.heads[path[-1] ^ 1]].pop()
                path.pop()
