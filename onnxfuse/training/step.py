"""A training step: what its loss waits for is forward, everything else backward.

    forward(loss) = the nodes from which a way leads to the loss, the one that makes it among them
    backward      = all others: gradients, and the updates that they are for

A forward pass is run for its loss, so whatever the loss does not wait for need not be there before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onnx import ModelProto

from onnxfuse.lifting.view import View
from onnxfuse.model.dims import Shape
from onnxfuse.model.graph import Graph, read_by
from onnxfuse.terms.term import REAL


@dataclass(frozen=True)
class Step:
    """A main graph that is a training step."""

    loss: str
    """The output that the others are gradients of, or updates by these."""
    forward: frozenset[int]
    """The nodes that the loss waits for, by their index."""

    @staticmethod
    def of(view: View) -> Step | None:
        """The step that a scope is, None where it is none.

        A loss is an output of one real number.  Of the real outputs that it does not wait for, at least half have
        shape and element type of a real input or an initializer: each parameter has its gradient, or is given back
        updated.  Of several numbers the first that fits is the loss."""
        graph = view.graph
        if view.parent is not None or graph.is_function:
            return None
        given = {_kind(view, name) for name in (*graph.inputs, *graph.initializers)}
        real = [name for name in graph.outputs if name in graph.producer and _kind(view, name)[0] in REAL]
        for loss in real:
            shape = view.term(loss).shape
            if shape is None or any(dim != 1 for dim in shape):
                continue
            step = Step.behind(graph, loss)
            others = [name for name in real if graph.producer[name] not in step.forward]
            fitting = sum(_kind(view, name) in given for name in others)
            if others and 2 * fitting >= len(others):
                return step
        return None

    @staticmethod
    def possible(model: ModelProto) -> bool:
        """May a model be a step, by the types alone that its outputs are declared to have?"""
        outputs = [output.type.tensor_type for output in model.graph.output]
        numbers = [
            each.elem_type in REAL and all(dim.HasField("dim_value") and dim.dim_value == 1 for dim in each.shape.dim)
            for each in outputs
        ]
        return len(outputs) > 1 and any(numbers)

    @staticmethod
    def behind(graph: Graph, loss: str) -> Step:
        """The step whose loss is known."""
        return Step(loss, ancestors(graph, [loss]))


def ancestors(graph: Graph, names: Iterable[str]) -> frozenset[int]:
    """The nodes that values wait for, those that make them among them."""
    pending, found = list(names), set[int]()
    while pending:
        index = graph.producer.get(pending.pop())
        if index is not None and index not in found:
            found.add(index)
            pending += read_by(graph.nodes[index])
    return frozenset(found)


def ancestry(graph: Graph) -> list[int]:
    """For each node the set of those that it waits for and itself: bit i is node i."""
    found: list[int] = []
    for index, node in enumerate(graph.nodes):
        whole = 1 << index
        for name in read_by(node):
            if name in graph.producer:
                whole |= found[graph.producer[name]]
        found.append(whole)
    return found


def _kind(view: View, name: str) -> tuple[int, Shape | None]:
    """Element type and shape of a value."""
    term = view.term(name)
    return view.dtypes.get(name, 0) or term.dtype, term.shape
