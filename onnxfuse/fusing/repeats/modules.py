"""The modules of what stands in one block, told of what stands in another."""

from __future__ import annotations

from collections.abc import Sequence

from onnxfuse.rewriting.module_paths import ModulePaths

from .few import Few


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
        node, shift = before[-1], after[-1] - before[-1]
        run = self.few.run_of(node)
        if run is not None and node + shift in run:
            first = node - (node - run.start) % run.period
            for other in range(first, first + run.period):
                depth = self._depth(other, module)
                if depth is not None:
                    return self._above(other + shift, depth)
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
