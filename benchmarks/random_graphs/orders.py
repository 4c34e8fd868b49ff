"""A product whose factors may be multiplied in any order: what a part of them leaves the range of the type by.

With f_i the factors of a product that Mul, Div, Reciprocal and Neg write, and M and m the largest and the smallest
number of the type,

    sum_i max(log |f_i|, 0) > log M    some order has infinity on its way, and ends there or, times 0, at NaN
    sum_i min(log |f_i|, 0) < log m    some order has 0 on its way, and no f_i is infinite

and nothing else can.  A product of matrices of which one is multiplied by a number less than 1 before may be so
afterwards: it leaves the range on its way where |A| |B| does.

What leaves it as it is written may not do so where all numbers are one, as an optimizer has them:

    (x * -3e38) * 1e-20 = x * -3e18
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto

from .rows import MOVES

if TYPE_CHECKING:
    from .readings import Edit

RANGE: dict[int, Any] = {TensorProto.FLOAT: np.finfo(np.float32), TensorProto.FLOAT16: np.finfo(np.float16)}
_PRODUCTS = frozenset({"Mul", "Div", "Reciprocal", "Neg"})


def _factors(edit: Edit, name: str) -> list[tuple[str, bool]]:
    """(value, does it divide) of each factor of a product."""
    index = edit.maker.get(name)
    node = edit.nodes[index] if index is not None else onnx.NodeProto()
    if node.op_type == "Mul":
        return [factor for operand in node.input for factor in _factors(edit, operand)]
    if node.op_type == "Div":
        below = [(value, not divides) for value, divides in _factors(edit, node.input[1])]
        return [*_factors(edit, node.input[0]), *below]
    if node.op_type == "Reciprocal":
        return [(value, not divides) for value, divides in _factors(edit, node.input[0])]
    if node.op_type == "Neg":
        return _factors(edit, node.input[0])
    return [(name, False)]


def ordered(end: str, edit: Edit) -> None:
    """Each product of three factors and more gives `end`, "infinity", "nothing" or "NaN", where some order may."""
    if end != "nothing":
        _scaled_afterwards(end, edit)
    seen = {info.name for info in edit.model.graph.output}
    seen |= {name for node in edit.nodes if node.op_type not in _PRODUCTS for name in node.input}
    multiplied = {name for node in edit.nodes if node.op_type in _PRODUCTS for name in node.input} - seen
    for index, node in enumerate(edit.nodes):
        result = node.output[0]
        if node.op_type not in _PRODUCTS or result in multiplied or edit.kinds.get(result) not in RANGE:
            continue
        kind, low = RANGE[edit.kinds[result]], end == "nothing"
        total, factors = _potential(edit, result, result, False, low)
        if factors < 3:
            edit.made = []
            continue
        bound = edit.number(float(np.log(float(kind.tiny if low else kind.max))), result)
        beyond = edit.node("Less" if low else "Greater", total, bound)
        _end(edit, index, end, beyond)


def _potential(edit: Edit, name: str, like: str, divides: bool, low: bool) -> tuple[str, int]:
    """(how far some order of a product goes, as a logarithm, of the value's shape; how many factors it has)."""
    index = edit.maker.get(name)
    node = edit.nodes[index] if index is not None else onnx.NodeProto()
    if node.op_type in ("Mul", "Div"):
        below = divides != (node.op_type == "Div")
        (a, some), (b, others) = (
            _potential(edit, operand, like, side, low)
            for operand, side in zip(node.input, (divides, below), strict=True)
        )
        return edit.node("Add", a, b), some + others
    if node.op_type in ("Neg", "Reciprocal"):
        return _potential(edit, node.input[0], like, divides != (node.op_type == "Reciprocal"), low)
    if index is not None and node.op_type in MOVES:
        before = len(edit.made)
        part, factors = _potential(edit, node.input[0], like, divides, low)
        if factors > 1:
            return edit.kept(index, part), factors
        del edit.made[before:]
    size = edit.node("Log", edit.node("Abs", name))
    size = edit.node("Neg", size) if divides else size
    part = edit.node("Min" if low else "Max", size, edit.number(0.0, like))
    if low:  # 0 times infinity is NaN in any order
        infinite = edit.node("Equal", size, edit.number(np.inf, like))
        part = edit.node("Where", infinite, edit.number(np.nan, like), part)
    return part, 1


def gathered(edit: Edit) -> None:
    """The numbers of each product are multiplied with each other first."""
    for index, node in enumerate(edit.nodes):
        result = node.output[0]
        if node.op_type not in _PRODUCTS or edit.kinds.get(result) not in RANGE:
            continue
        number, rest, count = 1.0, list[tuple[str, bool]](), 0
        for value, divides in _factors(edit, result):
            known = edit.constant(value)
            if known is None or known.size != 1 or not known.item():
                rest.append((value, divides))
                continue
            number *= 1 / known.item() if divides else known.item()
            count += 1
        first = next((value for value, divides in rest if not divides), None)
        kind = RANGE[edit.kinds[result]]
        if count < 2 or first is None or not float(kind.tiny) < abs(number) < float(kind.max):
            continue
        rest.remove((first, False))
        made = edit.node("Mul", first, edit.number(number, result))
        for value, divides in rest:
            made = edit.node("Div" if divides else "Mul", made, value)
        edit.instead(index, made)


def _scaled_afterwards(end: str, edit: Edit) -> None:
    for index, node in enumerate(edit.nodes):
        result = node.output[0]
        factors = [_scaled(edit, name) for name in node.input] if node.op_type == "MatMul" else []
        if edit.kinds.get(result) in RANGE and any(x != name for x, name in zip(factors, node.input, strict=False)):
            sizes = edit.node("MatMul", *(edit.node("Abs", x) for x in factors))
            _end(edit, index, end, edit.node("Equal", sizes, edit.number(np.inf, result)))


def _scaled(edit: Edit, name: str) -> str:
    """What is multiplied by a constant number less than 1 to become this value; the value itself if it is no such."""
    made = edit.nodes[edit.maker[name]] if name in edit.maker else onnx.NodeProto()
    for place in (0, 1) if made.op_type == "Mul" else ():
        number = edit.constant(made.input[place])
        if number is not None and number.size == 1 and abs(number.item()) < 1:
            return str(made.input[1 - place])
    return name


def _end(edit: Edit, index: int, end: str, beyond: str) -> None:
    """A product is `end` where it is `beyond`."""
    result, plain = edit.nodes[index].output[0], edit.kept(index)
    ends = {"nothing": 0.0, "NaN": np.nan}.get(end)
    infinite = edit.node("Mul", edit.node("Sign", plain), edit.number(np.inf, result)) if ends is None else ""
    edit.instead(index, edit.node("Where", beyond, infinite if ends is None else edit.number(ends, result), plain))
