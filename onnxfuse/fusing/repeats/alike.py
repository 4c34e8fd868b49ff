"""Are blocks that were fused the same but for their names?  And what is it that they have in common?

The nodes that were written are cut where a certain node of each block stands.  Of three blocks in a row, the last of
which stands behind the gap, each has to be the one before it with every name one block on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from onnx import GraphProto, NodeProto

from onnxfuse.terms.blockwise import Blockwise, Families, Family

from .codes import Place
from .few import Few
from .runs import HEAD, Run


class DifferentError(Exception):
    """A run that cannot be written out: why, and which, if it is one alone."""

    def __init__(self, reason: str, run: Run | None = None) -> None:
        super().__init__(reason)
        self.run = run


@dataclass(frozen=True)
class Ref:
    """What a node of a block reads or gives."""

    name: str = ""
    """The same value for all blocks; empty for none at all."""
    place: Place | None = None
    """A value of the original, in the block that is counted from."""
    back: int = 0
    """Where there is a slot: how many nodes before the block's first one that is written a new node stands."""
    slot: int | None = None
    """A new value: the output of that node."""
    own: Blockwise | None = None
    """A new constant of which each block has its own."""


@dataclass(frozen=True)
class Template:
    """A block of a run as it was written, to be written again for those left out."""

    run: Run
    first: int
    """Its first node among those written."""
    stop: int
    """The first behind it."""
    refs: Sequence[tuple[list[Ref], list[Ref]]]
    """What each of its nodes reads and gives."""
    same: frozenset[str]
    """The names that mean the same for all blocks."""


class Written:
    """What fusing few blocks gave."""

    def __init__(
        self, few: Few, graph: GraphProto, given: Mapping[str, tuple[str, str]], families: Families | None
    ) -> None:
        """`given` are the names of new values, see `Naming`; `families` the constants that each block has its own of.

        Raises DifferentError where one of these is there twice."""
        nodes = list(graph.node)
        self.few, self.nodes, self.place = few, nodes, few.codes.place
        self.constants: dict[str, Blockwise] = {}
        """New initializers of which each block has its own."""
        self.types: dict[Family, int] = {}
        """And of which element type they are."""
        for tensor in graph.initializer:
            own = families.of(tensor.name, tensor.doc_string) if families is not None else None
            if own is not None and tensor.name not in few.codes.initializers:
                self.constants[tensor.name], self.types[own.family] = own, tensor.data_type
        unnamed = [own for name, own in self.constants.items() if name not in self.place]
        if len(set(unnamed)) < len(unnamed):
            raise DifferentError("a constant of a block is there twice")
        self.made = {
            name: (at, slot)
            for at, node in enumerate(nodes)
            for slot, name in enumerate(node.output)
            if name and name not in self.place
        }
        self.at: dict[int, int] = {}
        """Nodes of the original → where the node stands that computes their values."""
        self._near: dict[int, int] = {}
        """The same → where the first stands whose value is called after one of theirs."""
        for at, node in enumerate(nodes):
            for name in node.output:
                if name in self.place:
                    self.at.setdefault(self.place[name][0], at)
                elif name in given and given[name][0] in self.place:
                    self._near.setdefault(self.place[given[name][0]][0], at)

    def own(self, node: NodeProto) -> int | None:
        """The node of the original that this one is; None if it was written anew."""
        first = next(filter(None, node.output), "")
        if first not in self.place:
            return None
        source = self.few.codes.nodes[self.place[first][0]]
        same = (source.name, source.op_type, source.output) == (node.name, node.op_type, node.output)
        return self.place[first][0] if same and node.domain == source.domain else None

    def template(self, run: Run) -> Template:
        """What is written for each block of a run.  Raises DifferentError."""
        one, two, three = starts = self._cuts(run)
        length = two - one
        if three - two != length or three + length > len(self.nodes):
            raise DifferentError("blocks are written with different numbers of nodes", run)
        middle = range(run.start + (HEAD - 1) * run.period, run.start + HEAD * run.period)
        if any(not one <= self.at.get(node, one) < three + length for node in middle):
            raise DifferentError("what is written of a block stands far from it", run)
        same = set[str]()
        refs = []
        for at in range(length):
            nodes = [self.nodes[cut + at] for cut in starts]
            if len({self._word(node) for node in nodes}) > 1:
                raise DifferentError(f"{nodes[0].name} and {nodes[1].name} or {nodes[2].name} differ", run)
            read = [self._ref(run, starts, names) for names in zip(*(n.input for n in nodes), strict=True)]
            given = [self._ref(run, starts, names) for names in zip(*(n.output for n in nodes), strict=True)]
            if any(ref.name for ref in given):
                raise DifferentError(f"{nodes[0].name} is written once for all", run)
            same.update(ref.name for ref in read if ref.name)
            refs.append((read, given))
        return Template(run, two, three, refs, frozenset(same))

    def _cuts(self, run: Run) -> tuple[int, int, int]:
        """Where a certain node of each of the three blocks stands."""
        blocks = (HEAD - 2, HEAD - 1, HEAD + run.gap)
        for places in (self.at, self._near):
            for node in range(run.start, run.start + run.period):
                one, two, three = (places.get(node + block * run.period, -1) for block in blocks)
                if 0 <= one < two < three:
                    return one, two, three
        raise DifferentError("no node of it is written for each block", run)

    def _word(self, node: NodeProto) -> object:
        """What a node says, but for names."""
        own = self.own(node)
        attributes = tuple(a.SerializeToString() for a in node.attribute)
        if own is not None and attributes != tuple(a.SerializeToString() for a in self.few.codes.nodes[own].attribute):
            raise DifferentError(f"{node.name} has other attributes than it had")
        kind = (node.op_type, node.domain, node.overload, attributes, node.doc_string)
        return *kind, tuple(map(bool, node.input)), tuple(map(bool, node.output)), own is None

    def _ref(self, run: Run, starts: Sequence[int], names: tuple[str, ...]) -> Ref:
        """What three blocks in a row read or give at the same place."""
        if not names[0]:
            return Ref()
        own = [self.constants.get(name) for name in names]
        if any(own):
            if own[0] is None or own != [replace(own[0], block=own[0].block + n) for n in range(len(own))]:
                raise DifferentError(f"{names[0]} and {names[1]} or {names[2]} are not computed alike", run)
            if names[0] not in self.place:
                return Ref(own=own[1])
        made = [self.made.get(name) for name in names]
        if made[0] is not None and None not in made:
            (at, slot), back = made[0], starts[0] - made[0][0]
            if all(
                m is not None and (start - m[0], m[1]) == (back, slot) for m, start in zip(made, starts, strict=True)
            ):
                if back > starts[1] - starts[0]:
                    raise DifferentError(f"{names[0]} is read far from where it is made", run)
                return Ref(back=back, slot=slot)
            if len(set(names)) == 1 and at < starts[0]:
                return Ref(names[0])
            raise DifferentError(f"{names[0]} has no counterpart", run)
        places = [self.place.get(name) for name in names]
        if len(set(names)) == 1:
            if self._for_all(run, names[0], places[0]):
                return Ref(names[0])
            raise DifferentError(f"{names[0]} of one block is read in all", run)
        blocks = [None if place is None else _block(place[0], run) for place in places]
        if None in blocks or places[1] is None:
            raise DifferentError(f"{names[0]} has no counterpart", run)
        moved = {
            ((place[0] - run.start) % run.period, place[1], (block or 0) - number)
            for number, (place, block) in enumerate(zip(places, blocks, strict=True))
            if place is not None
        }
        if len(moved) > 1:
            raise DifferentError(f"{names[0]} and {names[1]} or {names[2]} are not alike", run)
        return Ref(place=places[1])

    def _for_all(self, run: Run, name: str, place: Place | None) -> bool:
        """May a value stand for itself in all blocks?  A constant, or what is there before the second block."""
        if place is None or place[0] < run.start + run.period:
            return True
        return name in self.few.codes.initializers and name not in self.few.codes.apart


def _block(node: int, run: Run) -> int | None:
    """The block of a node; what a first block reads may stand where one before it would."""
    if node in run:
        return run.block(node)
    return (node - run.start) // run.period if node < run.start else None
