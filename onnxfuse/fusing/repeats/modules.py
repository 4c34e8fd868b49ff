"""The modules of what stands in one block, told of what stands in another."""

from __future__ import annotations

from collections.abc import Sequence

from onnxfuse.rewriting.module_paths import ModulePaths

from .few import Few
from .runs import HEAD, TAIL


class Modules:
    """The modules of a model's nodes, as their names tell them."""

    def __init__(self, few: Few) -> None:
        self.few, self.nodes = few, few.codes.nodes
        self.paths = ModulePaths(self.nodes)
        self._depths: dict[tuple[int, str], int | None] = {}

    def of(self, module: str, before: Sequence[int], after: Sequence[int]) -> str:
        """The module of some nodes, given that of their counterparts: of one of these, or of another of their block."""
        if not module or not before:
            return module
        for one, other in zip(reversed(before), reversed(after), strict=True):
            depth = self._depth(one, module)
            if depth is not None:
                return self._above(other, depth)
        place, run = self.place(module, before[-1]), self.few.run_of(after[-1])
        if isinstance(place, str) or run is None:
            return module
        step, offset, depth = place
        other = run.start + ((after[-1] - run.start) // run.period + step) * run.period + offset
        return self._above(other, depth) if other in run else module

    def place(self, module: str, node: int) -> tuple[int, int, int] | str:
        """Where a module is told from a node of a block: whether by this block or by the one before or behind, of those
        that are worked on, by which of its nodes, and how many steps of its path lead there.  The module itself where
        there is none."""
        run = self.few.run_of(node)
        if run is None or not module:
            return module
        blocks = [(step, run.block(node) + step) for step in (0, -1, 1)]
        for step, block in blocks:
            first = run.start + run.of_whole(block) * run.period
            for offset in range(run.period) if 0 <= block < HEAD + TAIL else ():
                depth = self._depth(first + offset, module)
                if depth is not None:
                    return step, offset, depth
        return module

    def _above(self, node: int, depth: int) -> str:
        """The module so many steps down the path of a node."""
        return _joined(self.paths.path(self.nodes[node])[:depth])

    def _depth(self, node: int, module: str) -> int | None:
        """How many steps of a node's path lead to a module; None if it lies outside."""
        if (node, module) not in self._depths:
            path = self.paths.path(self.nodes[node])
            found = (depth for depth in range(len(path) + 1) if _joined(path[:depth]) == module)
            self._depths[node, module] = next(found, None)
        return self._depths[node, module]


def _joined(path: Sequence[str]) -> str:
    return "".join(f"/{part}" for part in path)
