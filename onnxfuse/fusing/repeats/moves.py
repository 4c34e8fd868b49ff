"""Which node and value of the whole model one is that was read or written with few blocks.

With `blocks` 0 what is before the gap is meant, with as many as are left out what is behind it, and with fewer the
block so many after the last one before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from onnx import NodeProto

from onnxfuse.model.walk import name_of
from onnxfuse.terms.blockwise import Blockwise, Family

from .alike import DifferentError, Template
from .few import Few
from .runs import HEAD, TAIL, Run


class Moves:
    """The nodes and values of a model of which blocks were left out."""

    def __init__(self, few: Few, templates: Sequence[Template], given: Mapping[str, tuple[str, str]]) -> None:
        """`given` are the names of values that passes have made, see `Naming`."""
        self.few, self.codes, self.templates, self._given = few, few.codes, templates, given
        self._of_run = {template.run: template for template in templates}

    def node_at(self, node: int, at: int) -> int:
        """The node of the whole that node `node` of it is meant to be where the node written `at` speaks of it."""
        run = self.few.run_of(node)
        if run is None:
            return node
        return self._moved(node, run, at >= self._of_run[run].stop)

    def _moved(self, node: int, run: Run, behind: bool) -> int:
        block = run.block(node)
        if behind:
            return node + run.gap * run.period if 1 <= block < HEAD else node
        return node - run.gap * run.period if block >= HEAD else node

    def value_at(self, name: str, at: int) -> str:
        """The same of a value of the original."""
        place = self.codes.place.get(name)
        run = None if place is None else self.few.run_of(place[0])
        if place is None or run is None:
            return name
        template = self._of_run[run]
        if name in template.same or place[0] in run.left_out:
            return name
        node = self._moved(place[0], run, at >= template.stop)
        return self.codes.shifted((node, place[1]), run, 0)

    def constant_at(self, own: Blockwise, at: int) -> tuple[Family, int]:
        """A new constant and the block of the whole that it is of, where the node written `at` reads it."""
        for run, template in self._of_run.items():
            if run == own.family.row:
                behind = at >= template.stop and own.block >= 1
                return own.family, own.block + run.gap if behind else own.block
        raise DifferentError("a constant is of no run")

    def constant_of(self, own: Blockwise, like: str, name: str) -> tuple[Family, int]:
        """The same of what is called `name`, a value of the original, if it is like another of these."""
        one, other = self.codes.place[like][0], self.codes.place[name][0]
        run = self.few.run_of(one)
        if run is None or run != own.family.row:
            raise DifferentError(f"{like} is computed of what is in no block of its own")
        return own.family, own.block - run.block(one) + (other - run.start) // run.period

    def node_in(self, node: int, run: Run, blocks: int) -> int:
        """The counterpart of a node, so many blocks on.  Raises DifferentError where it has none."""
        if node not in run:
            raise DifferentError("a block stands for what is outside it", run)
        block = run.block(node) + blocks
        if not 0 <= block < run.count:
            raise DifferentError("a block stands for what is far from it", run)
        return run.start + block * run.period + (node - run.start) % run.period

    def value_in(self, name: str, run: Run, blocks: int) -> str:
        """The same of a value."""
        place = self.codes.place.get(name)
        if place is None:
            raise DifferentError(f"{name} is none of the original's values", run)
        return self.codes.shifted((self.node_in(place[0], run, blocks), place[1]), run, 0)

    def told(self, name: str) -> tuple[str, str]:
        """The value of the original that a value is, or that it is called after, and what is added.

        Raises DifferentError for one that is called after none."""
        value, added = (name, "") if name in self.codes.place else self._given.get(name, (name, ""))
        if value not in self.codes.place:
            raise DifferentError(f"{name} is none of the original's values")
        return value, added

    def to_the_end(self, values: Iterable[str], near: Iterable[str], step: int, blocks: int) -> set[str]:
        """Of the values that name a match, so many blocks on, those of all blocks from one to the last, if it is named
        by all of these that are worked on: it is part of a sum that goes on through all of them.

        `near` are the values that name the match of the block before it (`step` -1) or behind it (1): those of one
        block more or less, where a match that is named by so many blocks would have as many."""
        found, others = self._by_offset(values), self._by_offset(near)
        result = set[str]()
        for key, few in found.items():
            (run, offset, slot, added), first = key, min(few)
            other, wanted = others.get(key, set()), range(first + step, HEAD + TAIL)
            if first <= HEAD and few == {*range(first, HEAD + TAIL)} and (other == {*wanted} or len(few) > HEAD):
                nodes = (run.start + block * run.period + offset for block in range(first + blocks, run.count))
                result |= {self.codes.shifted((node, slot), run, 0) + added for node in nodes}
        return result

    def _by_offset(self, values: Iterable[str]) -> dict[tuple[Run, int, int, str], set[int]]:
        """Which blocks values are of, by where in them and by what is added to a name."""
        found: dict[tuple[Run, int, int, str], set[int]] = {}
        for name in values:
            value, added = self.told(name)
            node, slot = self.codes.place[value]
            if (run := self.few.run_of(node)) is not None:
                found.setdefault((run, (node - run.start) % run.period, slot, added), set()).add(run.block(node))
        return found

    def index(self, name: str) -> int:
        """The node of a name, or of a first output where it has none.  Raises DifferentError if there are several."""
        found = self._named.get(name)
        if found is None:
            raise DifferentError(f"several nodes are called {name}")
        return found

    @cached_property
    def _named(self) -> Mapping[str, int | None]:
        """The nodes by their names; None for several of one name."""
        known: dict[str, int | None] = {}
        for index, node in enumerate(self.codes.nodes):
            own = name_of(node)
            known[own] = None if own in known else index
        return known

    def name_in(self, name: str, run: Run, blocks: int) -> str:
        """What a node is called in another block if one of the original has lent it its name; else the empty string."""
        return self.codes.nodes[self.node_in(self.index(name), run, blocks)].name if name in self._named else ""

    def names(self, nodes: Sequence[int]) -> tuple[str, ...]:
        """What nodes are called."""
        return tuple(name_of(self.codes.nodes[node]) for node in nodes)


def entries(node: NodeProto) -> Mapping[str, str]:
    """What exporters noted of a node."""
    return {entry.key: entry.value for entry in node.metadata_props}
