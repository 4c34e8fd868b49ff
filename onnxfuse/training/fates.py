"""What became of the values that lived between forward and backward before a model was fused.

    saved        it still does, under its name
    recomputed   backward computes it, or what it was for, again: from what it was made of
    derived      backward has what it was for from something that is made of it, such as an output
    not needed   nothing that reads it is left, or none of what is read instead has to do with it

Said by names alone: a node of the output reads what the nodes did that it stands for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from onnx import NodeProto

from onnxfuse.lifting.view import View
from onnxfuse.model.graph import read_by
from onnxfuse.reporting.held import Fate

from .kept import Kept, root_of
from .step import ancestry


class Fates:
    """A step as it was (`original`) and as it became (`output`).

    `replaced` are, by their names, the nodes of the original that a node of the output stands for; `saved` what lives
    between forward and backward of the output."""

    def __init__(
        self, original: View, output: View, replaced: Mapping[str, Sequence[str]], saved: Iterable[Kept]
    ) -> None:
        self._graph, self._output = original.graph, output
        self._saved = {kept.value for kept in saved}
        self._views = {root_of(original, name) for name in self._saved}
        self._replaced = replaced
        self._stands: dict[str, list[NodeProto]] = {}
        """Nodes of the original, by name → those of the output that stand for them."""
        for node in output.graph.nodes:
            for name in (_name(node), *replaced.get(_name(node), ())):
                self._stands.setdefault(name, []).append(node)
        self._number = {_name(node): number for number, node in enumerate(self._graph.nodes)}
        self._behind = ancestry(self._graph)

    def of(self, value: Kept) -> tuple[Fate, tuple[str, ...]]:
        """What became of a value of the original, and the values that are read instead of it."""
        if value.value in self._views or root_of(self._output, value.value) in self._saved:
            return "saved", ()
        maker = self._graph.producer[value.value]
        behind, above, below, given = self._behind[maker], list[str](), list[str](), list[str]()
        inputs = {name for at, node in enumerate(self._graph.nodes) if behind >> at & 1 for name in read_by(node)}
        for read in self._read_instead(value):
            for name in read:
                makers = self._makers(name)
                if not makers and name in inputs:
                    given.append(name)
                elif any(behind >> at & 1 for at in makers):
                    above.append(name)
                elif any(self._behind[at] >> maker & 1 for at in makers):
                    below.append(name)
            if above or below:
                return ("recomputed", tuple(above)) if above else ("derived", tuple(below))
            if given:  # which nearly everything reads
                return "recomputed", tuple(given)
        return "not needed", ()

    def _read_instead(self, value: Kept) -> Iterator[Iterable[str]]:
        """What the nodes of the output read that stand for the readers of a value, and then what those read that make
        that, as long as these are backward: what is kept, and inputs."""
        nodes, producer = self._output.graph.nodes, self._output.graph.producer
        readers = [self._stands.get(_name(self._graph.nodes[reader]), ()) for reader in value.readers]
        pending, seen = [node for each in readers for node in each], set[str]()
        while pending:
            found, behind = dict[str, None](), list[NodeProto]()
            for root in (root_of(self._output, name) for node in pending for name in read_by(node)):
                if root in self._saved or root not in producer:
                    found[root] = None
                elif root not in seen:
                    behind.append(nodes[producer[root]])
                seen.add(root)
            yield found
            pending = behind

    def _makers(self, name: str) -> Sequence[int]:
        """The nodes of the original that make a value of the output."""
        if name in self._graph.producer:
            return [self._graph.producer[name]]
        index = self._output.graph.producer.get(name)
        old = self._replaced.get(_name(self._output.graph.nodes[index]), ()) if index is not None else ()
        return [self._number[each] for each in old if each in self._number]


def _name(node: NodeProto) -> str:
    """What a node is called: one without a name, after what it makes."""
    return str(node.name or next(filter(None, node.output), ""))
