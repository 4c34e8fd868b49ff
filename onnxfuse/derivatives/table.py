"""The transposition table: for each op of the equations what the gradient of its result gives to each of its operands.

An entry is an equation of the rule language over

    g        the gradient of the result
    y        the result itself
    a, b, c  the operands
    axes, axis, back  attributes of those names; the permutation that undoes `perm`

`None` stands for an operand that no gradient reaches, such as a condition or an index.  Where an operand was broadcast,
what reaches it is summed over those axes besides (`reverse`).
"""

from __future__ import annotations

import ast
from functools import cache

ELEMENTWISE: dict[str, tuple[str | None, ...]] = {
    "Add": ("g", "g"),
    "Sub": ("g", "-g"),
    "Mul": ("g * b", "g * a"),
    "Div": ("g / b", "-g * y / b"),
    "Pow": ("b * g * a**(b - 1)", "g * y * Log(a)"),
    "Neg": ("-g",),
    "Reciprocal": ("-g * y**2",),
    "Sqrt": ("0.5 * g / y",),
    "Rsqrt": ("-0.5 * g * y**3",),
    "Exp": ("g * y",),
    "Log": ("g / a",),
    "Tanh": ("g * (1 - y**2)",),
    "Sigmoid": ("g * y * (1 - y)",),
    "Erf": ("1.1283791670955126 * g * Exp(-a**2)",),
    "Softplus": ("g * Sigmoid(a)",),
    "Sin": ("g * Cos(a)",),
    "Cos": ("-g * Sin(a)",),
    "Abs": ("g * Sign(a)",),
    "Relu": ("Where(LessOrEqual(y, 0), 0, g)",),
    "Where": (None, "Where(a, g, 0)", "Where(a, 0, g)"),
    "Cast": ("g",),
    "CastLike": ("g", None),
    "Identity": ("g",),
}
"""Each element of the result depends on those of its own place alone."""

ROWS: dict[str, tuple[str | None, ...]] = {
    "ReduceSum": ("g",),
    "ReduceMean": ("g / size(a, axes)",),
    "Softmax": ("y * (g - ReduceSum(g * y, axes=[axis]))",),
    "LogSoftmax": ("g - Exp(y) * ReduceSum(g, axes=[axis])",),
}
"""The others.  A reduction keeps its dims, as it does wherever rules write one."""

MOVED: dict[str, tuple[str | None, ...]] = {
    "MatMul": ("Einsum(g, b, equation='...ij,...kj->...ik')", "Einsum(a, g, equation='...ji,...jk->...ik')"),
    "Reshape": ("Reshape(g, Shape(a))", None),
    "Flatten": ("Reshape(g, Shape(a))",),
    "Squeeze": ("Unsqueeze(g, axes=axes)",),
    "Unsqueeze": ("Squeeze(g, axes=axes)",),
    "Transpose": ("Transpose(g, perm=back)",),
    "ReduceMax": ("g * CastLike(Equal(a, y), g) / ReduceSum(CastLike(Equal(a, y), g), axes=axes)",),
    "ReduceMin": ("g * CastLike(Equal(a, y), g) / ReduceSum(CastLike(Equal(a, y), g), axes=axes)",),
    "Gather": (
        "ScatterND(CastLike(ConstantOfShape(Shape(a)), g), Unsqueeze(b, axes=[-1]), g, reduction='add')",
        None,
    ),
    "GatherElements": (
        "ScatterElements(CastLike(ConstantOfShape(Shape(a)), g), b, g, axis=axis, reduction='add')",
        None,
    ),
}
"""Products of matrices, and what takes elements to other places: each gradient has the shape of its operand, but that
of a matrix which several batches share, which is one for each of them.  Of equal largest elements each has its share,
as in torch's amax.  Concat and Slice, which depend on dimensions, are in `reverse`."""

REFUSED = {
    "Conv": "its gradients are a ConvTranspose and a ConvWeightGrad, whose pads depend on dimensions",
    "ConvTranspose": "its gradients are a Conv and a ConvWeightGrad, whose pads depend on dimensions",
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear", "Round"), "it is constant but for its steps"),
    **dict.fromkeys(("MatMulInteger", "ConvInteger"), "it is of integers"),
    **dict.fromkeys(("ScatterND", "ScatterElements"), "what is written depends on places that may be named twice"),
}
"""Ops that have no entry, and why."""

OPERANDS = "abc"


@cache
def transposed(op: str) -> tuple[ast.expr | None, ...] | None:
    """The entry of an op, read; None if there is none."""
    entry = ELEMENTWISE.get(op) or ROWS.get(op) or MOVED.get(op)
    return None if entry is None else tuple(None if e is None else ast.parse(e, mode="eval").body for e in entry)
