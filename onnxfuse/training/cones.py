"""What backward has to compute again to have a forward value that is not kept for it.

    cone(v) = {}                                   where v is kept, an input, a constant or arithmetic with shapes
            = {node that makes v} + cone(its reads)  elsewhere; of what is `restated`, what is read for that

Nothing is in a cone that draws numbers, has an effect or has bodies: what depends on these is kept.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TypeAlias

from onnxfuse.lifting.effects import Effect
from onnxfuse.lifting.view import View
from onnxfuse.model.graph import read_by
from onnxfuse.model.walk import has_bodies

from .kept import Kept, is_activation, kept, root_of
from .restated import Restated, restated
from .step import Step

Cone: TypeAlias = dict[int, Restated | None]
"""Forward nodes → what is left of each where it is computed again; None for the whole node."""


@dataclass
class Cones:
    """A training step, with what lives between its sides and what is computed again."""

    view: View
    step: Step
    saved: dict[str, Kept] = field(init=False)
    """Values that backward reads as forward made them."""
    again: dict[int, Restated | None] = field(default_factory=dict)
    """Forward nodes that are computed a second time → what is left of each; None for the whole node."""
    dropped: list[str] = field(default_factory=list)
    """Values that are no longer kept, in the order in which that was decided."""

    _restated: dict[tuple[int, tuple[str, ...]], Restated | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.saved = {each.value: each for each in kept(self.view, self.step)}

    def of(self, value: str) -> Cone | None:
        """What must be computed again besides what already is, were a value not kept; None where something on the way
        must not be."""
        graph, found = self.view.graph, Cone()
        if not self._free(value):
            return None
        pending = [value]
        while pending:
            root = root_of(self.view, pending.pop())
            index = graph.producer.get(root)
            if index is None or not is_activation(self.view, root) or (root in self.saved and root != value):
                continue
            left = self._left(index, value) if root == graph.nodes[index].output[0] else None
            if any(index in there and (there[index] is None or left is not None) for there in (self.again, found)):
                continue
            node = graph.nodes[index]
            if index not in self.step.forward or self.view.effects[index] is not Effect.NONE or has_bodies(node):
                return None
            found[index] = left
            pending += self._reads(index, left)
        return found

    def _left(self, index: int, value: str) -> Restated | None:
        """What is left of a node where those of its other results are there that are kept but for a value."""
        node = self.view.graph.nodes[index]
        there = tuple(name for name in node.output[1:] if name in self.saved and name != value)
        if (index, there) not in self._restated:
            self._restated[index, there] = restated(self.view, node, there) if there else None
        return self._restated[index, there]

    def _reads(self, index: int, left: Restated | None) -> Collection[str]:
        return read_by(self.view.graph.nodes[index]) if left is None else left.reads.values()

    def drop(self, value: str, cone: Cone) -> None:
        """Keep a value no longer."""
        self.again |= cone
        self.dropped.append(value)
        del self.saved[value]

    def sources(self, cone: Cone) -> set[str]:
        """The tensors that a cone reads from outside: what is kept, and inputs."""
        producer = self.view.graph.producer
        roots = {root_of(self.view, name) for index, left in cone.items() for name in self._reads(index, left)}
        outside = {root for root in roots if root in self.saved or producer.get(root) not in cone}
        return {root for root in outside if is_activation(self.view, root)}

    def _free(self, value: str) -> bool:
        """May a value go after forward?  An output stays, and so does what the bodies of backward nodes name."""
        graph = self.view.graph
        if any(root_of(self.view, name) == value for name in graph.outputs):
            return False
        return not any(has_bodies(graph.nodes[index]) for index in self.saved[value].readers)
