"""A model whose exponentials and squares overflow nowhere: what they make is held as r * exp(m), r of moderate size.

The equations are those of the original, for real numbers:

    exp(x)                          = 1 * exp(x); Softmax(x) = exp(LogSoftmax(x)) where its logarithm is taken
    (r exp(m))^2                    = (r exp(-n))^2 * exp(2 m + 2 n), n = log|r| where r^2 is out of range, else 0
    r exp(m) + s exp(n)             = (r exp(m - k) + s exp(n - k)) exp(k), k the larger of m and n; sums of rows alike
    r exp(m) * s exp(n), / s exp(n) = r s exp(m + n), r / s exp(m - n)
    log(r exp(m)), sqrt(r exp(m))   = log(r) + m, sqrt(r) exp(m / 2)

An infinite m stands for enormous numbers: a quotient of two such has a limit, as (e^x - e^-x) / (e^x + e^-x) has.  A
sum along an axis that holds one has none, nor has a difference of two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

if TYPE_CHECKING:
    from .readings import Edit

REAL = (TensorProto.FLOAT, TensorProto.FLOAT16)
ULP_OF_ONE = 2.0**-23


class Magnitude(NamedTuple):
    """The names of r and m; both broadcast to the value's shape."""

    factor: str
    exponent: str


@dataclass
class Magnitudes:
    """The values of a graph that are held so."""

    edit: Edit
    held: dict[str, Magnitude]
    index: int = 0
    """Of the node that is rewritten."""

    def number(self, value: float) -> str:
        return self.edit.number(value, self.edit.nodes[self.index].output[0])

    def of(self, name: str) -> Magnitude:
        """Of any operand: what is not held has an exponent of 0."""
        return self.held.get(name) or Magnitude(name, self.number(0.0))

    def _apart(self, a: str, b: str) -> str:
        """a - b, 0 where both are the same infinity."""
        same = self.edit.node("Equal", a, b)
        return self.edit.node("Where", same, self.number(0.0), self.edit.node("Sub", a, b))

    def _under(self, x: Magnitude, exponent: str) -> str:
        """The factor of a number beside this larger exponent."""
        return self.edit.node("Mul", x.factor, self.edit.node("Exp", self._apart(x.exponent, exponent)))

    def exponential(self, node: onnx.NodeProto) -> Magnitude:
        x = node.input[0]
        nothing = self.edit.node("Equal", x, self.number(-np.inf))
        return Magnitude(self.edit.node("Where", nothing, self.number(0.0), self.number(1.0)), x)

    def weights(self, node: onnx.NodeProto) -> Magnitude:
        """Softmax(x) = exp(LogSoftmax(x)), along the axes that both have at this opset."""
        x, attributes = node.input[0], {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        nothing = self.edit.node("Equal", x, self.number(-np.inf))
        exponent = self.edit.node("LogSoftmax", x, **attributes)
        return Magnitude(self.edit.node("Where", nothing, self.number(0.0), self.number(1.0)), exponent)

    def square(self, node: onnx.NodeProto) -> Magnitude:
        """That of infinity is infinity, and no enormous number."""
        edit, x, infinity = self.edit, self._powered(node), self.number(np.inf)
        size, plain = edit.node("Abs", x.factor), edit.node("Mul", x.factor, x.factor)
        over = edit.node("And", edit.node("Equal", plain, infinity), edit.node("Less", size, infinity))
        half = edit.node("Mul", edit.node("Log", size), self.number(0.5))
        exponent = edit.node("Where", over, half, self.number(0.0))
        small = edit.node("Exp", edit.node("Neg", exponent))
        near = edit.node("Mul", edit.node("Mul", x.factor, small), small)
        factor = edit.node("Where", over, edit.node("Mul", near, near), plain)
        own = edit.node("Mul", x.exponent, self.number(2.0))
        return Magnitude(factor, edit.node("Add", edit.node("Mul", exponent, self.number(4.0)), own))

    def _powered(self, node: onnx.NodeProto) -> Magnitude:
        """What is squared, of the rank that the exponent of a Pow may have instead."""
        x = self.of(node.input[0])
        exponent = self.edit.constant(node.input[1]) if node.op_type == "Pow" else None
        if exponent is None or not exponent.ndim:
            return x
        ones = self.edit.node("Constant", value=numpy_helper.from_array(np.ones(exponent.ndim, np.int64)))
        return Magnitude(self.edit.node("Expand", x.factor, ones), x.exponent)

    def add(self, node: onnx.NodeProto) -> Magnitude:
        edit = self.edit
        x, y = (self.of(name) for name in node.input)
        if node.op_type == "Sub":
            y = Magnitude(edit.node("Neg", y.factor), y.exponent)
        largest = edit.node("Max", x.exponent, y.exponent)
        total = edit.node("Add", self._under(x, largest), self._under(y, largest))
        infinite = edit.node("Equal", largest, self.number(np.inf))
        unknown = edit.node("And", infinite, edit.node("Equal", total, self.number(0.0)))
        return Magnitude(edit.node("Where", unknown, self.number(np.nan), total), largest)

    def multiply(self, node: onnx.NodeProto) -> Magnitude:
        x, y = (self.of(name) for name in node.input)
        product = self.edit.node("Mul", x.factor, y.factor)
        return Magnitude(product, self.edit.node("Add", x.exponent, y.exponent))

    def divide(self, node: onnx.NodeProto) -> Magnitude:
        x, y = (self.of(name) for name in node.input)
        return Magnitude(self.edit.node("Div", x.factor, y.factor), self._apart(x.exponent, y.exponent))

    def invert(self, node: onnx.NodeProto) -> Magnitude:
        x = self.of(node.input[0])
        return Magnitude(self.edit.node("Reciprocal", x.factor), self.edit.node("Neg", x.exponent))

    def negate(self, node: onnx.NodeProto) -> Magnitude:
        x = self.of(node.input[0])
        return Magnitude(self.edit.node("Neg", x.factor), x.exponent)

    def keep(self, node: onnx.NodeProto) -> Magnitude:
        return self.of(node.input[0])

    def root(self, node: onnx.NodeProto) -> Magnitude:
        x = self.of(node.input[0])
        return Magnitude(self.edit.node("Sqrt", x.factor), self.edit.node("Mul", x.exponent, self.number(0.5)))

    def logarithm(self, node: onnx.NodeProto) -> Magnitude:
        x = self.of(node.input[0])
        return Magnitude(self.edit.node("Add", self.edit.node("Log", x.factor), x.exponent), "")

    def reduce(self, node: onnx.NodeProto) -> Magnitude | None:
        """A sum, or a mean, that keeps the axes which are reduced."""
        axes = self.edit.axes(node)
        if axes is None or any(a.name == "keepdims" and not a.i for a in node.attribute):
            return None
        x = self._whole(self.of(node.input[0]))
        return self._summed(x, self.edit.largest(x.exponent, axes))

    def mix(self, node: onnx.NodeProto) -> Magnitude | None:
        """A product of matrices, the first of which is held."""
        if node.input[0] not in self.held or node.input[1] in self.held:
            return None
        x = self._whole(self.of(node.input[0]))
        return self._summed(x, self.edit.largest(x.exponent))

    def _summed(self, x: Magnitude, largest: str) -> Magnitude:
        edit = self.edit
        infinite = edit.node("Equal", largest, self.number(np.inf))
        result = edit.kept(self.index, self._under(x, largest))
        return Magnitude(edit.node("Where", infinite, self.number(np.nan), result), largest)

    def _whole(self, x: Magnitude) -> Magnitude:
        """The same, both of the value's shape."""
        edit, parts = self.edit, list[str]()
        for part, other in (x, x[::-1]):
            same = edit.node("Equal", other, other)
            parts.append(edit.node("Where", edit.node("Or", same, edit.node("Not", same)), part, part))
        return Magnitude(*parts)

    def value(self, x: Magnitude) -> str:
        """r * exp(m), where neither exp(m) alone nor 0 times it is out of range."""
        edit = self.edit
        half = edit.node("Exp", edit.node("Mul", x.exponent, self.number(0.5)))
        product = edit.node("Mul", edit.node("Mul", x.factor, half), half)
        finite = edit.node("Less", x.exponent, self.number(np.inf))
        nothing = edit.node("And", finite, edit.node("Equal", x.factor, self.number(0.0)))
        return edit.node("Where", nothing, x.factor, product)


Equation = Callable[[Magnitudes, onnx.NodeProto], Magnitude | None]
OPS: dict[str, Equation] = {
    "Add": Magnitudes.add,
    "Sub": Magnitudes.add,
    "Mul": Magnitudes.multiply,
    "Div": Magnitudes.divide,
    "Reciprocal": Magnitudes.invert,
    "Neg": Magnitudes.negate,
    "Identity": Magnitudes.keep,
    "Sqrt": Magnitudes.root,
    "Log": Magnitudes.logarithm,
    "ReduceSum": Magnitudes.reduce,
    "ReduceMean": Magnitudes.reduce,
    "MatMul": Magnitudes.mix,
}


def enormous(edit: Edit, *, quotients: bool = False) -> None:
    """Hold all that is computed of exponentials and squares so, and give the others its value; or of `quotients` alone,
    so that what they are of stays as it is for others."""
    values, left = Magnitudes(edit, {}), list[int]()
    for index, node in enumerate(edit.nodes):
        if node.domain or edit.kinds.get(node.output[0]) not in REAL:
            continue
        values.index = index
        held = any(name in values.held for name in node.input)
        result = take(values, node) if (take := _equation(edit, node, held)) is not None else None
        if result is None:
            edit.made = []
            continue
        ends = quotients and node.op_type == "Div"
        if result.exponent and not ends:
            values.held[node.output[0]] = result
        if node.op_type in ("Exp", "Softmax") or not held or (quotients and not ends):
            edit.instead(index, edit.kept(index))
            left.append(index)
        else:
            made = values.value(result) if result.exponent else result.factor
            if node.op_type.startswith(
                "Reduce"
            ):  # the sum of an enormous number and another is one, whatever their ratio
                made = edit.node("Where", edit.node("IsNaN", made), edit.kept(index), made)
            edit.instead(index, made)
    if len(left) == len(edit.replaced):
        edit.replaced.clear()


def small(edit: Edit) -> None:
    """log(1 + x) = x where x is less than an ulp of 1, as Softplus has it of e^x at -50."""
    for index, node in enumerate(edit.nodes):
        made = edit.nodes[edit.maker[node.input[0]]] if node.op_type == "Log" and node.input[0] in edit.maker else None
        if made is None or made.op_type != "Add" or edit.kinds.get(node.output[0]) not in REAL:
            continue
        ones = [place for place, name in enumerate(made.input) if _is_one(edit, name)]
        if ones:
            x = made.input[1 - ones[0]]
            near = edit.node("Less", edit.node("Abs", x), edit.number(ULP_OF_ONE, node.output[0]))
            edit.instead(index, edit.node("Where", near, x, edit.kept(index)))


def _is_one(edit: Edit, name: str) -> bool:
    number = edit.constant(name)
    return number is not None and number.size == 1 and number.item() == 1


def _equation(edit: Edit, node: onnx.NodeProto, held: bool) -> Equation | None:
    if node.op_type == "Exp":
        return Magnitudes.exponential
    if node.op_type == "Softmax" and any(n.op_type == "Log" and node.output[0] in n.input for n in edit.nodes):
        return Magnitudes.weights
    return Magnitudes.square if _is_square(edit, node) else OPS.get(node.op_type) if held else None


def _is_square(edit: Edit, node: onnx.NodeProto) -> bool:
    if node.op_type == "Mul":
        return bool(node.input[0] == node.input[1])
    exponent = edit.constant(node.input[1]) if node.op_type == "Pow" else None
    return exponent is not None and exponent.size == 1 and exponent.item() == 2
