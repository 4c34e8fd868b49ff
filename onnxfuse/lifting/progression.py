"""Loops that only count: the body that the standard gives Range is a Loop, and here it is a Range again.

n = Cast(Relu(Ceil((limit - start) / delta)))
_, y = Loop(n, n != 0, start), each step giving x and going on with x + delta
"""

from __future__ import annotations

from collections.abc import Mapping

from onnx import AttributeProto, GraphProto, NodeProto

from onnxfuse.model.schema import attributes_of
from onnxfuse.model.standard import STANDARD
from onnxfuse.terms.term import REAL, Term

from .view import View

SINCE = 11
"""The opset that brings Range."""


def progression(view: View, node: NodeProto) -> list[Term] | None:
    """What Range wants to give the second output of a Loop: start, limit and delta; None of a Loop that is none, or of
    which the first output is read."""
    if node.op_type != "Loop" or node.domain not in STANDARD or view.graph.opset < SINCE:
        return None
    if len(node.input) != 3 or len(node.output) != 2 or view.graph.uses.get(node.output[0]):
        return None
    step = next((_step(a.g) for a in node.attribute if a.type == AttributeProto.GRAPH), "")
    bounds = _bounds(view, node.input[0], node.input[1])
    if not step or bounds is None:
        return None
    limit, first, divisor = bounds
    start, delta = view.term(node.input[2]), view.term(step)
    if view.term(first) is not start or not any(view.term(name) is delta for name in (divisor, _source(view, divisor))):
        return None
    return [start, view.term(limit), delta]


def _step(body: GraphProto) -> str:
    """What a body adds to the one value that it carries and gives, if it does nothing else; else the empty string."""
    if len(body.input) != 3 or len(body.output) != 3 or body.initializer:
        return ""
    inside = {name: node for node in body.node for name in node.output}

    def origin(name: str) -> str:
        while name in inside and inside[name].op_type == "Identity":
            name = inside[name].input[0]
        return name

    _, condition, carried = (info.name for info in body.input)
    goes_on, following, given = (origin(info.name) for info in body.output)
    last = inside.get(following)
    if goes_on != condition or given != carried or last is None or last.op_type != "Add":
        return ""
    operands = [origin(name) for name in last.input]
    if carried not in operands:
        return ""
    operands.remove(carried)
    return "" if operands[0] in inside or operands[0] in (carried, condition, body.input[0].name) else operands[0]


def _bounds(view: View, trips: str, condition: str) -> tuple[str, str, str] | None:
    """(limit, start, delta) of a Loop that runs max(ceil((limit - start) / delta), 0) times."""
    number = _operands(view, trips, "Cast")
    if number is None or (condition and not _goes_on(view, condition, number[0])):
        return None
    rounded = _rectified(view, number[0])
    quotient = _operands(view, rounded, "Ceil") if rounded else None
    parts = _operands(view, quotient[0], "Div") if quotient else None
    if parts is None:
        return None
    length = _operands(view, _source(view, parts[0]), "Sub")
    return None if length is None else (length[0], length[1], parts[1])


def _goes_on(view: View, condition: str, number: str) -> bool:
    """Is the condition true, or true where the number of trips is not 0?"""
    term, nonzero = view.term(condition), _operands(view, condition, "Cast")
    return term.scalar == 1 or (nonzero is not None and view.term(nonzero[0]) is view.term(number))


def _rectified(view: View, name: str) -> str:
    """x of Relu(x) or Max(x, 0); else the empty string."""
    plain = _operands(view, name, "Relu")
    if plain is not None:
        return plain[0]
    pair = _operands(view, name, "Max") or []
    zero = [operand for operand in pair if view.term(operand).scalar == 0]
    rest = [operand for operand in pair if operand not in zero]
    return rest[0] if len(zero) == len(rest) == 1 else ""


def _operands(view: View, name: str, op: str) -> list[str] | None:
    """What the node of this op reads that computes a value; None if another does."""
    index = view.graph.producer.get(name)
    node = None if index is None else view.graph.nodes[index]
    return list(node.input) if node is not None and node.op_type == op and node.domain in STANDARD else None


def _source(view: View, name: str) -> str:
    """The value that this one is, but for conversions to a real type."""
    while (index := view.graph.producer.get(name)) is not None:
        node = view.graph.nodes[index]
        if node.domain not in STANDARD or not (node.op_type == "Identity" or _widens(view, node)):
            break
        name = node.input[0]
    return name


def _widens(view: View, node: NodeProto) -> bool:
    kinds: Mapping[str, object] = attributes_of(node, view.graph.opset) if node.op_type == "Cast" else {}
    return kinds.get("to") in REAL
