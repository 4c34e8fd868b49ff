"""Which values of a graph several computations use, and which are the same as those."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from onnxfuse.model.graph import Graph
from onnxfuse.model.op_traits import COMMUTATIVE, ELEMENTWISE, LIKE_FIRST, SAME_ELEMENTS, SHAPE_QUERIES, SQUARES
from onnxfuse.terms.term import Term

from .effects import Effect

PASSED_ON = SAME_ELEMENTS & (ELEMENTWISE | LIKE_FIRST)
"""Ops whose first output is their first input, of another type at most.  What is seen in another shape is closed there:
laws may first move the view into a sum."""

VIEWED = ("Reshape", "Transpose")
"""Ops that give the elements of their operand in another shape or order."""


def shared_values(graph: Graph, effects: Sequence[Effect]) -> set[str]:
    """The values that are used more than once, where nodes that compute the same count as one."""
    seen: dict[tuple[Any, ...], dict[Any, int]] = {}
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
            own = _first(graph, seen.setdefault((node.op_type, node.domain, node.overload, *ordered), {}), index)
        if node.op_type not in SHAPE_QUERIES:  # who asks for a shape alone gets it without the value
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
        if node.op_type in PASSED_ON and node.input and number.get(node.output[0]) in several:
            several.add(number.get(node.input[0], node.input[0]))
    return {name for name, own in number.items() if own in several}


def _first(graph: Graph, seen: dict[Any, int], index: int) -> int:
    """The first node with the attributes of this one, among those `seen` of its op and operands: most are alone, and
    the attributes of what is alone (None) are not read."""
    if not seen:
        seen[None] = index
        return index
    if None in seen:
        alone = seen.pop(None)
        seen[_attributes(graph, alone)] = alone
    return seen.setdefault(_attributes(graph, index), index)


def _attributes(graph: Graph, index: int) -> tuple[bytes, ...]:
    return tuple(sorted([a.SerializeToString(deterministic=True) for a in graph.nodes[index].attribute]))


def alike(terms: Iterable[Term], values: Mapping[str, Term]) -> frozenset[str]:
    """Those of the values that are the same sum or product as a closed one, and are not closed."""
    closed = {(term.op, term.args) for term in terms if term.closed}
    return frozenset(name for name, term in values.items() if closed and _is_open(term, closed))


def _is_open(term: Term, closed: set[tuple[str, tuple[Term, ...]]]) -> bool:
    term = seen(term)
    return not term.closed and (term.op, term.args) in closed


def seen(term: Term) -> Term:
    """What a term is in another shape or order; itself if it is none of these."""
    while term.op in VIEWED and len(term.args) == 1:
        term = term.args[0]
    return term
