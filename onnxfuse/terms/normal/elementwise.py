"""Laws of functions of one element: their other names, and merges of axes that float up through them."""

from __future__ import annotations

import math

from onnxfuse.terms.term import Term

from .merges import lift_merge, merges_rows
from .table import Applied, law, make, scaled, split_scalar
from .views import reshape


@law("Clip", "Clip(x, 0, inf) = Relu(x)")
def _rectified(a: Applied) -> Term | None:
    low, high = (a.args[i] if len(a.args) > i and a.args[i].op != "Absent" else None for i in (1, 2))
    if low is None or low.scalar != 0 or high is None or high.scalar != math.inf:
        return None  # without a maximum, inf becomes the largest number
    return a.as_op("Relu", a.args[0])


@law("Less", "Less(a, b) = Greater(b, a)")
def _less(a: Applied) -> Term | None:
    return a.as_op("Greater", *a.args[::-1])


@law("LessOrEqual", "LessOrEqual(a, b) = GreaterOrEqual(b, a)")
def _less_or_equal(a: Applied) -> Term | None:
    return a.as_op("GreaterOrEqual", *a.args[::-1])


@law("Or", "Or(Greater(a, b), Equal(a, b)) = GreaterOrEqual(a, b)")
def _greater_or_equal(a: Applied) -> Term | None:
    for greater, equal in (a.args, a.args[::-1]):
        if greater.op == "Greater" and equal.op == "Equal" and set(greater.args) == set(equal.args):
            return a.as_op("GreaterOrEqual", *greater.args)
    return None


@law("Tanh IsNaN", "f(merge(MatMul(x, y))) = merge(f(MatMul(x, y)))")
def _of_scores(a: Applied) -> Term | None:
    return lift_merge(a.terms, a.op, a.args, a.args[0].shape)


@law("Erf Tanh Sin", "f(-2 * x) = -1 * f(2 * x)")
def _odd(a: Applied) -> Term | None:
    """TensorFlow and JAX have erfc(-x) in a GELU, which an exporter writes as 1 - erf(-x)."""
    split = split_scalar(a.args[0])
    if split is None or not split[1] < 0:
        return None
    return scaled(a.terms, a.as_op(a.op, scaled(a.terms, split[0], -split[1])), -1)


@law("Gelu FastGelu QuickGelu Swish Mish HardSwish", "f(merge(x)) = merge(f(x))")
def _of_rows(a: Applied) -> Term | None:
    """A merge of all axes but the last floats up through an activation."""
    if len(a.args) != 1 or not merges_rows(a.args[0]) or a.shape is None:
        return None
    return reshape(a.terms, make(a.terms, a.op, [a.args[0].args[0]], a.attrs), a.shape)


@law("Identity", "Identity(x) = x")
def _identity(a: Applied) -> Term | None:
    return a.args[0]


@law("Dropout", "Dropout(x) = x")
def _dropout(a: Applied) -> Term | None:
    return a.args[0] if len(a.args) == 1 else None
