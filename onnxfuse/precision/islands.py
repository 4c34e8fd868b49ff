"""What stays in float32, and why.

    counts        arithmetic on what comes from integers and booleans alone: positions, masks and sizes.  Half precision
                  counts to 2048 (bfloat16 to 256), and a sum of two masks leaves its range
    statistics    sums, exponentials and squares that no fused op has inside
    range         numbers and constants that the type cannot say
    rounding      a stretch of nodes that is asked for: what they round, all others pass on
    runtime       ops without the type: at this opset, or for who is to run them, or control flow

In the body of a fused op products of matrices and what moves numbers are in half precision, and all else is not.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from onnxfuse.model.graph import label
from onnxfuse.model.op_traits import CASTS, PRODUCTS, RANDOM, WIDE_RANGE
from onnxfuse.model.standard import STANDARD
from onnxfuse.model.walk import has_bodies

from .ports import SHARED, since_opset
from .scope import MOVES, Scope
from .wanted import Overflow, Precision, Ranges

_FREE = frozenset({"Constant", "ConstantOfShape"})


@dataclass
class Islands:
    """Nodes that stay in float32, by number → why."""

    reasons: dict[int, str] = field(default_factory=dict)
    overflows: list[Overflow] = field(default_factory=list)
    opsets: set[int] = field(default_factory=set)
    """Those that have the type for an op that lacks it."""


def islands(scope: Scope, precision: Precision, ranges: Ranges, opset: int, kept: range = range(0)) -> Islands:
    """What of a scope must stay in float32, the nodes that are `kept` among it; `ranges` are the numbers seen."""
    found = Islands()
    for index, node in enumerate(scope.nodes):
        if node.op_type in _FREE or not (scope.read(index) or any(map(scope.real, node.output))):
            continue
        for reason in _reasons(scope, index, precision, ranges, found.overflows):
            found.reasons[index] = reason
            break
        else:
            if who := scope.ports[index].lacks:
                found.reasons[index] = f"{who} has no {node.op_type} of opset {opset} in {precision.type_name}"
            elif not scope.ports[index].half:
                since = since_opset(node.op_type, precision.dtype) if node.domain in STANDARD else 0
                higher = f": --opset {since} has" if since > opset else ""
                found.reasons[index] = f"{node.op_type} of opset {opset} has no {precision.type_name}{higher}"
                found.opsets |= {since} - {0}
            elif index in kept:
                found.reasons[index] = f"what {precision.type_name} rounds here is too much in the end"
    return found


def _reasons(
    scope: Scope, index: int, precision: Precision, ranges: Ranges, overflows: list[Overflow]
) -> Iterator[str]:
    node, ports, kind = scope.nodes[index], scope.ports[index], precision.type_name
    op = node.op_type
    if has_bodies(node) and not ports.half:
        yield f"what goes into the bodies of {label(node)} and comes out of them"
    elif op in RANDOM:
        yield "random numbers are drawn as they were"
    if scope.body:
        if op not in MOVES | CASTS | PRODUCTS or index in scope.scores:
            yield "inside a fused op"
        return
    yield from _counts(scope, index)
    if op in WIDE_RANGE or (op == "Mul" and len(set(node.input)) == 1):
        yield f"sums and squares leave {kind}"
    shared = [name for name, port in zip(node.input, ports.inputs, strict=False) if port == SHARED]
    constant = [name for name in shared if name in scope.constants]
    yield from _constants(scope, index, constant, precision, ranges)
    yield from _numbers(scope, index, shared, precision, ranges, overflows)


def _counts(scope: Scope, index: int) -> Iterator[str]:
    """A Cast of integers may give half precision itself: those that read it round as well."""
    node = scope.nodes[index]
    arithmetic = scope.read(index) and node.op_type not in MOVES | CASTS
    if any(name in scope.counted for name in node.output) and (node.op_type == "Range" or arithmetic):
        yield "positions, masks and sizes"


def _constants(scope: Scope, index: int, names: list[str], precision: Precision, ranges: Ranges) -> Iterator[str]:
    """Too small a constant matters where it is a factor, and what is made with it is not as small."""
    node, biases = scope.nodes[index], scope.ports[index].biases
    made = [ranges.get(name, math.inf) for name in node.output]
    factors = {name for at, name in enumerate(node.input) if at not in biases}
    for name in names:
        array = scope.array(name)
        unfit = 0.0 if array is None else precision.unfit(array)
        if abs(unfit) > 1 or (unfit and name in factors and max(made, default=0.0) >= precision.smallest):
            yield f"its constant {unfit:.3g} is beyond {precision.type_name}"


def _numbers(
    scope: Scope, index: int, read: list[str], precision: Precision, ranges: Ranges, overflows: list[Overflow]
) -> Iterator[str]:
    node, limit = scope.nodes[index], precision.largest
    given = [ranges.get(name, 0.0) for name in read]
    made = max((ranges.get(name, 0.0) for name in node.output), default=0.0)
    if max([made, *given]) <= limit:
        return
    if max(given, default=0.0) <= limit and not any(name in scope.counted for name in node.output):
        overflows.append(Overflow(node.name or node.output[0], node.op_type, made))
    yield f"numbers up to {max([made, *given]):.3g} are beyond {precision.type_name}"
