"""Quotients by what is the same throughout a row, as products.

    x / y = (x · s) · (1 / (y · s))      s a power of two

A division takes ten instructions: these are two for each element, and the others once for a row.  s is 1, or moves y
away from where its reciprocal has no digits or is infinite; whatever x · s loses is nothing in the quotient.
"""

from __future__ import annotations

from collections.abc import Callable

from onnxfuse.kernels.pointwise.expressions.elementwise import FORMULAS, Formula
from onnxfuse.kernels.pointwise.expressions.scalars import FLOAT, Scalar, Scalars
from onnxfuse.kernels.pointwise.expressions.substitute import Substitution

SCALE = Formula(
    "Scale", "fabsf({0}) > 1e30f ? 5.42101086e-20f : fabsf({0}) < 1e-30f ? 1.84467441e19f : 1.f", 0
)  # 2^-64, 2^64
INVERSE = Formula("Inverse", "1.f / ({0} * {1})", 2)


class Quotients(Substitution):
    """`same` says of an element that it is the same throughout a row."""

    def __init__(self, scalars: Scalars, same: Callable[[Scalar], bool]) -> None:
        super().__init__(scalars, {})
        self.same = same

    def _made(self, s: Scalar) -> Scalar:
        made = super()._made(s)
        if s.kind != "call" or s.payload[0] != "Div" or s.type != FLOAT:
            return made
        if self.same(s.args[0]) or not self.same(s.args[1]):
            return made
        x, y = made.args
        scale = self.scalars.call("Scale", SCALE, [y])
        inverse = self.scalars.call("Inverse", INVERSE, [y, scale])
        times = FORMULAS["Mul"]
        return self.scalars.call("Mul", times, [self.scalars.call("Mul", times, [x, scale]), inverse])
