"""What backward has to compute again to have a forward value that is not kept for it.

    cone(v) = {}                                   where v is kept, an input, a constant or arithmetic with shapes
            = {node that makes v} + cone(its reads)  elsewhere

Nothing is in a cone that draws numbers, has an effect or has bodies: what depends on these is kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from onnxfuse.lifting.effects import Effect
from onnxfuse.lifting.view import View
from onnxfuse.model.graph import read_by
from onnxfuse.model.walk import has_bodies

from .kept import Kept, is_activation, kept, root_of
from .step import Step


@dataclass
class Cones:
    """A training step, with what lives between its sides and what is computed again."""

    view: View
    step: Step
    saved: dict[str, Kept] = field(init=False)
    """Values that backward reads as forward made them."""
    again: set[int] = field(default_factory=set)
    """Forward nodes that are computed a second time."""
    dropped: list[str] = field(default_factory=list)
    """Values that are no longer kept, in the order in which that was decided."""

    def __post_init__(self) -> None:
        self.saved = {each.value: each for each in kept(self.view, self.step)}

    def of(self, value: str) -> list[int] | None:
        """The nodes that must be computed again besides those that already are, were a value not kept; None where
        something on the way must not be."""
        graph, found = self.view.graph, set[int]()
        if not self._free(value):
            return None
        pending = [value]
        while pending:
            name = pending.pop()
            root = root_of(self.view, name)
            index = graph.producer.get(root)
            if index is None or index in found or index in self.again or not is_activation(self.view, root):
                continue
            if root in self.saved and root != value:
                continue
            node = graph.nodes[index]
            if index not in self.step.forward or self.view.effects[index] is not Effect.NONE or has_bodies(node):
                return None
            found.add(index)
            pending += read_by(node)
        return sorted(found)

    def drop(self, value: str, cone: Iterable[int]) -> None:
        """Keep a value no longer."""
        self.again |= set(cone)
        self.dropped.append(value)
        del self.saved[value]

    def sources(self, value: str, cone: Collection[int]) -> set[str]:
        """The tensors that a cone reads from outside: what is kept, and inputs."""
        graph = self.view.graph
        roots = {root_of(self.view, name) for index in cone for name in read_by(graph.nodes[index])}
        return {root for root in roots if graph.producer.get(root) not in cone and is_activation(self.view, root)}

    def _free(self, value: str) -> bool:
        """May a value go after forward?  An output stays, and so does what the bodies of backward nodes name."""
        graph = self.view.graph
        if any(root_of(self.view, name) == value for name in graph.outputs):
            return False
        return not any(has_bodies(graph.nodes[index]) for index in self.saved[value].readers)
