"""Which values of a graph several computations use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnxfuse.model.graph import Graph
from onnxfuse.model.op_traits import COMMUTATIVE, SAME_ELEMENTS, SQUARES

from .effects import Effect


def shared_values(graph: Graph, effects: Sequence[Effect]) -> set[str]:
    """The values that are used more than once, where nodes that compute the same count as one."""
    first: dict[tuple[Any, ...], int] = {}
    number: dict[str, object] = {}
    user: dict[object, object] = {}
    several: set[object] = set()

    def use(value: object, by: object) -> None:
        if user.setdefault(value, by) != by:
            several.add(value)

    for index, node in enumerate(graph.nodes):
        operands = [number.get(name, name) for name in node.input]
        if effects[index] or node.op_type in ("Constant", "Dropout") or index in graph.captures:
            own = index
        else:
            ordered = sorted(operands, key=str) if node.op_type in COMMUTATIVE else operands
            attributes = tuple(sorted([a.SerializeToString(deterministic=True) for a in node.attribute]))
            own = first.setdefault((node.op_type, node.domain, node.overload, *ordered, attributes), index)
        for position, operand in enumerate(operands):
            use(operand, (own, position))
        if operands and node.op_type in SQUARES:
            use(operands[0], (own, "again"))
        for name in graph.captures.get(index, ()):
            use(number.get(name, name), index)
        for position, name in enumerate(node.output):
            if name:
                number[name] = (own, position)
    for name in graph.outputs:
        use(number.get(name, name), name)
    for node in reversed(graph.nodes):  # who uses what only passes a value on uses that value
        if node.op_type in SAME_ELEMENTS and node.input and number.get(node.output[0]) in several:
            several.add(number.get(node.input[0], node.input[0]))
    return {name for name, own in number.items() if own in several}
