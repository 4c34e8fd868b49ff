"""Random nodes that compute each element, and conditions."""

from __future__ import annotations

import numpy as np

from .build import BOOL, FLOAT, HALF, INT64, ONE, REAL, Builder, Dim, Value, broadcast

UNARY = (
    ("Relu", 1), ("Neg", 1), ("Abs", 1), ("Sqrt", 1), ("Exp", 1), ("Log", 1), ("Reciprocal", 1), ("Sigmoid", 1),
    ("Tanh", 1), ("Erf", 1), ("Identity", 1), ("Sign", 1), ("Ceil", 1), ("Floor", 1), ("Round", 11), ("Sin", 1),
    ("Cos", 1), ("LeakyRelu", 1), ("Elu", 1), ("Selu", 1), ("Celu", 12), ("HardSigmoid", 1), ("HardSwish", 14),
    ("Softplus", 1), ("Softsign", 1), ("ThresholdedRelu", 10), ("Mish", 18), ("Gelu", 20), ("Swish", 24),
)  # fmt: skip
"""Ops of one real operand, and the opsets that they came in."""
NUMBERS = (1.0, 2.0, 0.5, -1.0, 3.0, 0.0, 0.3, 1e-5, 1e-12, -0.0, 100.0, 1e30, 1e-30, -1e9, -3.4028235e38)
STRANGE = (float("inf"), float("-inf"), float("nan"))


def constant_number(b: Builder) -> float:
    return b.pick(STRANGE) if b.chance(10) else b.pick(NUMBERS)


def partner(b: Builder, x: Value) -> Value:
    """What broadcasts with x: a number, a constant along its axes, or another value."""
    kind = b.integer(0, 3)
    if kind == 1:
        other = b.value(lambda v: v.dtype == x.dtype and v is not x and _broadcasts(v, x))
        if other is not None:
            return other
    if kind == 2 and x.dims and x.dims[-1].static:
        return b.normal([1] * b.integer(0, 1) * (x.rank > 1) + [x.dims[-1].size], x.dtype)
    if kind == 3 and x.dims:
        sizes = [d.size if d.static and not b.chance(3) else 1 for d in x.dims]
        return b.normal(sizes, x.dtype)
    return b.number(constant_number(b), x.dtype, b.pick((0, 0, 1, min(x.rank, 4), x.rank + 1)))


def _broadcasts(a: Value, b: Value) -> bool:
    dims = broadcast(a.dims, b.dims)
    return dims is not None and len(dims) < 6


def unary(b: Builder) -> bool:
    x = b.real()
    if x is None:
        return False
    op = b.pick([name for name, since in UNARY if since <= b.opset and (name != "Celu" or x.dtype == FLOAT)])
    if op in ("Elu", "Celu", "Swish") and b.chance(2):
        b.add(op, x, alpha=b.pick((1.0, 0.5, 1.5)))
    else:
        b.add(op, x)
    return True


def binary(b: Builder) -> bool:
    x = b.real()
    if x is None:
        return False
    op, y = b.pick(("Add", "Mul", "Sub", "Div", "Max", "Min", "Sum", "Mean", "Pow", "PRelu")), partner(b, x)
    if op == "Pow":
        y = b.number(b.pick((2.0, 1.0, 0.5, -1.0, 3.0, -0.5, 4.0, -2.0, 0.0, 2.5)), x.dtype, b.pick((0, 1)))
    if op == "PRelu":
        if broadcast(x.dims, y.dims) != x.dims or x.dtype == HALF:
            return False
        b.joined(op, x, y)
        return True
    operands = [y, x] if b.chance(3) and op != "Pow" else [x, y]
    if op in ("Max", "Min", "Sum", "Mean") and b.chance(3):
        operands.append(partner(b, x))
        if broadcast(*(v.dims for v in operands)) is None:
            operands.pop()
    b.joined(op, *operands)
    return True


def same_twice(b: Builder) -> bool:
    """A value with itself, where algebra is tempted: x - x, x / x, x * 0."""
    x = b.real()
    if x is None:
        return False
    b.joined(b.pick(("Add", "Mul", "Sub", "Div", "Max", "Min")), x, x)
    return True


def chain(b: Builder) -> bool:
    """Several numbers on one value, whose product or sum may be out of range where their steps are not."""
    x = b.real()
    if x is None:
        return False
    for _ in range(b.integer(2, 3)):
        op = b.pick(("Mul", "Add", "Div", "Sub"))
        x = b.joined(op, x, b.number(b.pick((2.0, 1e30, 1e-30, 3e38, -3e38, 0.0, 1e-20)), x.dtype))
    return True


def clip(b: Builder) -> bool:
    x = b.real()
    if x is None:
        return False
    low = b.pick((0.0, -1.0, None, -0.5))
    high = b.pick((None, 6.0, 1.0, float("inf")))
    bounds = [None if v is None else b.number(v, x.dtype) for v in (low, high)]
    b.add("Clip", x, *bounds)
    return True


def compare(b: Builder) -> bool:
    x = b.real()
    if x is None:
        return False
    ops = ["Greater", "Less", "Equal"] + ["GreaterOrEqual", "LessOrEqual"] * (b.opset >= 12)
    b.joined(b.pick(ops), x, partner(b, x), dtype=BOOL)
    return True


def strange(b: Builder) -> bool:
    x = b.value(lambda v: v.dtype == FLOAT)
    if x is None:
        return False
    b.add(b.pick(("IsNaN", "IsInf")), x, dtype=BOOL)
    return True


def logic(b: Builder) -> bool:
    x = b.value(lambda v: v.dtype == BOOL)
    if x is None:
        return False
    other = b.value(lambda v: v.dtype == BOOL and v is not x and _broadcasts(v, x))
    if other is None or b.chance(3):
        if b.chance(3):
            b.joined(b.pick(("And", "Or", "Xor")), x, b.array(np.array(b.chance(2))))
        else:
            b.add("Not", x)
    else:
        b.joined(b.pick(("And", "Or", "Xor")), x, other)
    return True


def where(b: Builder) -> bool:
    x = b.real()
    c = b.value(lambda v: v.dtype == BOOL and x is not None and _broadcasts(v, x))
    if x is None or c is None:
        return False
    y = b.number(constant_number(b), x.dtype) if b.chance(2) else partner(b, x)
    sides = [y, x] if b.chance(2) else [x, y]
    if broadcast(c.dims, x.dims, y.dims) is None:
        return False
    b.joined("Where", c, *sides, dtype=x.dtype)
    return True


def cast(b: Builder) -> bool:
    x = b.value(lambda v: not v.constant)
    if x is None:
        return False
    to = b.pick((FLOAT, FLOAT, HALF, INT64, BOOL))
    if to == INT64 and x.dtype in REAL:
        # What a cast makes of numbers out of range, and of NaN, no standard says.
        x = b.add("Clip", b.add("Sign", x), b.number(-1, x.dtype), b.number(1, x.dtype))
        x = b.joined("Where", b.joined("Equal", x, x, dtype=BOOL), x, b.number(0, x.dtype), dtype=x.dtype)
    if to == HALF and x.dtype == INT64:
        return False
    b.add("Cast", x, dtype=to, to=to)
    return True


def integer(b: Builder) -> bool:
    """Integer arithmetic: division truncates, sums wrap around."""
    x = b.value(lambda v: v.dtype == INT64 and v.rank > 0 and not v.constant)
    if x is None:
        return False
    op = b.pick(("Add", "Mul", "Sub", "Div", "Mod", "Max", "Min", "Abs", "Neg", "Pow", "Sign"))
    if op in ("Abs", "Neg", "Sign"):
        b.add(op, x)
    elif op in ("Max", "Min", "Pow") and b.opset < 12:
        return False
    elif op == "Pow":
        b.joined(op, x, b.array(np.array(b.pick((2, 1, 0, 3)), np.int64)))
    else:
        numbers = (2, 3, -2, 7, 1, 2**62, -5) if op in ("Div", "Mod") else (2, 0, 1, -1, 2**62, -(2**63), 5)
        operands = [x, b.array(np.array(b.pick(numbers), np.int64))]
        if op in ("Mod",) and b.chance(3):
            b.joined(op, *operands, fmod=1)
        else:
            b.joined(op, *(operands[::-1] if op in ("Add", "Sub", "Mul") and b.chance(2) else operands))
    return True


def dropout(b: Builder) -> bool:
    x = b.real()
    if x is None:
        return False
    b.add("Dropout", x)
    return True


def full(b: Builder) -> bool:
    """A tensor of one number in the shape of another."""
    x = b.real(1)
    if x is None:
        return False
    shape = b.add("Shape", x, dims=(Dim(x.rank),), dtype=INT64)
    number = b.number(constant_number(b), x.dtype, 1)
    if b.chance(2):
        b.add("Expand", number, shape, dims=x.dims)
        return True
    from onnx import numpy_helper

    tensor = next((t for t in b.initializers if t.name == number.name), None)
    if tensor is None:
        return False
    value = numpy_helper.from_array(numpy_helper.to_array(tensor))
    b.add("ConstantOfShape", shape, dims=x.dims, dtype=x.dtype, value=value)
    return True


def positions(b: Builder) -> bool:
    """0, 1, 2, ... along an axis: a Range of a dimension, or a CumSum of ones."""
    x = b.real(2)
    if x is None:
        return False
    axis = b.integer(0, x.rank - 1)
    shape = b.add("Shape", x, dims=(Dim(x.rank),), dtype=INT64)
    length = b.add("Gather", shape, b.array(np.array(axis, np.int64)), dims=(), axis=0)
    zero, one = (b.array(np.array(i, np.int64)) for i in (0, 1))
    run = b.add("Range", zero, length, one, dims=(x.dims[axis],), dtype=INT64)
    if b.chance(2):
        column = b.with_axes("Unsqueeze", run, [1], (x.dims[axis], ONE))
        b.joined(b.pick(("Greater", "Less")), column, run, dtype=BOOL)
    return True
