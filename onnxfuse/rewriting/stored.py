"""What is computed from constants alone and is stored instead, as long as the file does not grow by more than it may.

Of a chain only what something else reads is stored: the rest of it goes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from math import prod

from onnx import ModelProto, NodeProto

from onnxfuse.lifting.lifted import Lifted
from onnxfuse.lifting.view import View
from onnxfuse.matching.search import Found
from onnxfuse.model import inside
from onnxfuse.model.graph import read_by
from onnxfuse.model.standard import STANDARD
from onnxfuse.model.walk import has_bodies
from onnxfuse.terms.fold import folded
from onnxfuse.terms.term import SMALL, Term, UnknownValueError, numpy_dtype, static

LARGEST = 1 << 26
"""Elements of a constant that is computed: in float64 it takes up half a gigabyte."""


@dataclass
class Room:
    """Bytes that constants may still add to a file."""

    left: int
    before: int = 0
    """Bytes that were added before."""
    short: bool = False
    """Was there a constant for which there was none?"""
    taken: dict[str, int] = field(default_factory=dict)
    """The values that are stored → the bytes that each adds."""

    def takes(self, name: str, growth: int) -> bool:
        """Take what a value needs, if there is room for it."""
        if growth > self.left:
            self.short = True
            return False
        self.left -= growth
        self.taken[name] = growth
        return True

    @staticmethod
    def of(model: ModelProto, original: Lifted, growth: int) -> Room:
        """What is left of the growth that is allowed to an original when the file is what it is now."""
        if model is original.model:
            return Room(growth)
        before = max(inside.total(model) - original.bytes, 0)
        return Room(growth - before, before)


def stored(
    view: View, found: Found, nodes: Collection[int], reads: Iterable[str], kept: Collection[str], room: Room
) -> set[str]:
    """The values to be stored among those that `nodes`, by their positions, compute.

    `reads` are values that others need, `kept` values that must not be constants."""
    graph = view.graph
    folded = {index for index in nodes if _folds(view, found, index, kept)}
    wanted = set(reads).union(*(read_by(graph.nodes[i]) for i in nodes if i not in folded))
    claimed: set[str] = set()
    made: set[str] = set()
    for index in sorted(folded, reverse=True):
        node = graph.nodes[index]
        for name in wanted.intersection(node.output):
            growth = size(found.current[name], view.dtypes[name]) - _freed(view, node, wanted, claimed)
            room.short = room.short or growth > room.left
            if growth <= room.left and known(found.current[name]):
                room.left -= max(growth, 0)
                room.taken[name] = max(growth, 0)
                made.add(name)
            else:
                wanted.update(read_by(node))
    return made


def _folds(view: View, found: Found, index: int, kept: Collection[str]) -> bool:
    """Does a node compute nothing but large constants?  Small ones are folded in any case."""
    node = view.graph.nodes[index]
    outputs = [name for name in node.output if name and view.graph.uses.get(name)]
    if node.domain not in STANDARD or node.op_type == "Constant" or view.effects[index] or has_bodies(node):
        return False
    return bool(outputs) and all(found.current[n].constant and n not in kept for n in outputs)


def size(term: Term, dtype: int) -> int:
    """Bytes of a constant; those of a small one do not count."""
    count = prod(static(term.shape) or (LARGEST + 1,))
    return 0 if count <= SMALL else count * numpy_dtype(dtype).itemsize


def known(term: Term) -> bool:
    """Can a constant be computed?"""
    if prod(static(term.shape) or (LARGEST + 1,)) > LARGEST:
        return False
    try:
        folded(term)
    except UnknownValueError:
        return False
    return True


def _freed(view: View, node: NodeProto, wanted: Collection[str], claimed: set[str]) -> int:
    """Bytes of initializers that go with a node, since nothing else reads them; each is claimed once."""
    graph, stack, freed = view.graph, [node], 0
    while stack:
        for name in set(read_by(stack.pop())) - claimed:
            if name in wanted:
                continue
            claimed.add(name)
            if name in graph.initializers:
                freed += inside.size(graph.initializers[name])
            elif name in graph.producer:
                stack.append(graph.nodes[graph.producer[name]])
    return freed
