"""Other readings of what reduces rows: sums of exponentials, means, variances (`readings` says what each is)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from onnx import TensorProto

if TYPE_CHECKING:
    from .readings import Edit

REAL = (TensorProto.FLOAT, TensorProto.FLOAT16)
MOVES = frozenset("Identity Expand Reshape Transpose Unsqueeze Squeeze".split())
"""What may lie between an exponential, the sum that it is part of, and the logarithm of that."""
FEW_ULPS = 2.0**-21
"""Four of float32, of a number."""


def poison(edit: Edit) -> None:
    summed = {name for node in edit.nodes if node.op_type in ("ReduceSum", "MatMul") for name in node.input}
    for node in reversed(edit.nodes):
        summed |= {node.input[0]} if node.op_type in MOVES and node.output[0] in summed else set()
    for index, node in enumerate(edit.nodes):
        if (node.op_type == "Exp" and node.output[0] in summed) or node.op_type == "ReduceLogSumExp":
            x = node.input[0]
            infinite = edit.node("Equal", x, edit.number(np.inf, x))
            edit.instead(index, edit.kept(index, edit.node("Where", infinite, edit.number(np.nan, x), x)))


def lost(edit: Edit) -> None:
    for index, node in enumerate(edit.nodes):
        way = edit.climb(node.input[0], MOVES, "ReduceSum") if node.op_type == "Log" else None
        total = edit.nodes[way[-1][0]] if way is not None else node if node.op_type == "ReduceLogSum" else None
        axes = (edit.axes(total) or []) if total is not None else None
        exponential = edit.climb(total.input[0], MOVES, "Exp") if total is not None else None
        if total is None or axes is None or exponential is None:
            continue
        keepdims = next((a.i for a in total.attribute if a.name == "keepdims"), 1)
        x = _moved(edit, exponential, edit.nodes[exponential[-1][0]].input[0])
        whole = _moved(edit, way or [], edit.reduced("ReduceLogSumExp", x, axes, keepdims))
        edit.kinds[whole] = edit.kinds[node.output[0]]
        plain = edit.kept(index)
        infinite = edit.node("Equal", edit.node("Abs", whole), edit.number(np.inf, whole))
        lost = edit.node("And", edit.node("IsNaN", plain), infinite)
        lost = edit.node("Or", lost, edit.node("Equal", edit.node("Abs", plain), edit.number(np.inf, whole)))
        edit.instead(index, edit.node("Where", lost, whole, plain))


def _moved(edit: Edit, way: Sequence[tuple[int, int]], value: str) -> str:
    """The value, moved as what lies at the end of the way is on it."""
    for index, _ in reversed(way[:-1]):
        value = edit.kept(index, value)
    return value


def variance(edit: Edit) -> None:
    for index, node in enumerate(edit.nodes):
        if node.op_type != "Sub" or not _squared(edit, node.input[1]):
            continue
        middle = _squared(edit, node.input[1])
        (squares, axes), (x, same) = _averaged(edit, node.input[0]), _averaged(edit, middle)
        if x and axes and axes == same and squares and _squared(edit, squares) == x:
            rest = edit.node("Sub", x, middle)
            edit.instead(index, edit.reduced("ReduceMean", edit.node("Mul", rest, rest), axes))


def ulps(edit: Edit) -> None:
    for index, node in enumerate(edit.nodes):
        squares, axes = _averaged(edit, node.output[0])
        rest = _squared(edit, squares) if squares and axes else ""
        made = edit.nodes[edit.maker[rest]] if rest in edit.maker else None
        if made is None or axes is None or made.op_type != "Sub" or not _averaged(edit, made.input[1])[0]:
            continue
        most = edit.reduced("ReduceMax", edit.node("Abs", rest), axes)
        size = edit.node("Abs", edit.reduced("ReduceMax", made.input[1], axes))
        ulp = edit.node("Mul", size, edit.number(FEW_ULPS, node.output[0]))
        near = edit.node("Not", edit.node("Greater", most, ulp))
        edit.instead(index, edit.node("Where", near, edit.number(0.0, node.output[0]), edit.kept(index)))


def _squared(edit: Edit, name: str) -> str:
    """What the value is the square of, "" if it is none."""
    node = edit.nodes[edit.maker[name]] if name in edit.maker else None
    two = edit.constant(node.input[1]) if node is not None and node.op_type == "Pow" else None
    is_square = node is not None and node.op_type == "Mul" and node.input[0] == node.input[1]
    return node.input[0] if node is not None and (is_square or (two is not None and (two == 2).all())) else ""


def _averaged(edit: Edit, name: str) -> tuple[str, list[int] | None]:
    """What the value is the mean of, and along which axes; "" if it is none that keeps them."""
    node = edit.nodes[edit.maker[name]] if name in edit.maker else None
    if node is None or node.op_type != "ReduceMean" or any(a.name == "keepdims" and not a.i for a in node.attribute):
        return "", None
    return node.input[0], edit.axes(node)


def constant(edit: Edit) -> None:
    for index, node in enumerate(edit.nodes):
        axes = edit.axes(node) if node.op_type == "ReduceMean" else None
        if axes is not None:
            keepdims = next((a.i for a in node.attribute if a.name == "keepdims"), 1)
            most, least = (edit.reduced(op, node.input[0], axes, keepdims) for op in ("ReduceMax", "ReduceMin"))
            edit.instead(index, edit.node("Where", edit.node("Equal", most, least), most, edit.kept(index)))


def mean(edit: Edit) -> None:
    for index, node in enumerate(edit.nodes):
        if node.op_type in ("ReduceMean", "GlobalAveragePool") and edit.kinds.get(node.output[0]) in REAL:
            infinite = edit.node("Equal", edit.node("Abs", node.input[0]), edit.number(np.inf, node.output[0]))
            share = edit.kept(index, edit.node("Cast", infinite, to=edit.kinds[node.output[0]]))
            some = edit.node("Greater", share, edit.number(0.0, node.output[0]))
            edit.instead(index, edit.node("Where", some, edit.number(np.nan, node.output[0]), edit.kept(index)))


def largest(edit: Edit) -> None:
    for index, node in enumerate(edit.nodes):
        if node.op_type in ("ReduceMax", "ReduceMin") and edit.kinds.get(node.output[0]) in REAL:
            x, least = node.input[0], edit.number(-np.inf if node.op_type == "ReduceMax" else np.inf, node.output[0])
            edit.instead(index, edit.kept(index, edit.node("Where", edit.node("IsNaN", x), least, x)))


def distributed(edit: Edit) -> None:
    for index, node in enumerate(edit.nodes):
        rest = edit.maker.get(node.input[0]) if node.op_type in ("Div", "Mul") else None
        if rest is None or edit.nodes[rest].op_type != "Sub":
            continue
        x, middle = edit.nodes[rest].input
        if edit.climb(middle, frozenset(), "ReduceMean") is not None:
            factor = edit.node("Reciprocal", node.input[1]) if node.op_type == "Div" else node.input[1]
            edit.instead(index, edit.node("Sub", edit.node("Mul", x, factor), edit.node("Mul", middle, factor)))
