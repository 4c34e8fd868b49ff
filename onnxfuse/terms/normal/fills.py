"""Normal form of what repeats one number, or axes of 1: the number, or the tensor, repeated.

A mask of an exporter may hide nothing: ones of the batch's size, in another shape, taken from 1 and read as truths.
"""

from __future__ import annotations

import math

import numpy as np
from onnx import TensorProto, numpy_helper

from onnxfuse.terms.term import SMALL, Term, numpy_dtype, same_shape, static

from .table import Applied, law, make, repeated_constants, storable
from .views import expand, reshape


@law("Add Sub Mul", "f(Expand((2,), (4000,)), (3,)) = Expand(f((2,), (3,)), (4000,))")
@law("Equal Greater GreaterOrEqual", "f(Expand(zero, (64, 64)), 3) = Expand(f(zero, 3), (64, 64))")
@law("Cast Not", "f(Expand(true, (4000,))) = Expand(f(true), (4000,))")
def _computed_once(a: Applied) -> Term | None:
    """Of integers and truths; real numbers are for sums and products to say."""
    if a.shape is None or not any(x.op == "Expand" for x in a.args):
        return None
    numbers = [x.args[0] if x.op == "Expand" and len(x.args) == 1 else x for x in a.args]
    if any(x.op != "Constant" or x.scalar is None for x in numbers):
        return None
    return expand(a.terms, make(a.terms, a.op, numbers, a.attrs), a.shape)


@law("Cast Not", "f(Expand(Reshape(row > 0, (4,)), (4, 4))) = Expand(f(Reshape(row > 0, (4,))), (4, 4))")
def _of_repeated_truths(a: Applied) -> Term | None:
    """What is repeated is converted once: Keras makes a mask as large as the scores before it chooses by it."""
    x = a.args[0]
    if x.op != "Expand" or len(x.args) > 1 or a.shape is None or x.dtype != TensorProto.BOOL or x.constant:
        return None
    return expand(a.terms, make(a.terms, a.op, [x.args[0]], a.attrs), a.shape)


@law(
    "Where",
    "Where(Reshape(Expand(row > 0, (4, 4)), (16,)), 1, 7) = Reshape(Expand(Where(row > 0, 1, 7), (4, 4)), (16,))",
)
def _chosen_once(a: Applied) -> Term | None:
    """Between two numbers, by a condition that is repeated and then seen in the shape of what it is for."""
    condition, *numbers = a.args
    x = condition.args[0] if condition.op == "Reshape" and len(condition.args) == 1 else None
    if x is None or x.op != "Expand" or len(x.args) > 1 or x.shape is None or x.constant:
        return None
    sides = [a.number(number.scalar) for number in numbers if number.scalar is not None]
    if len(sides) < len(numbers) or not a.real or a.shape is None or not same_shape(condition.shape, a.shape):
        return None
    return reshape(a.terms, expand(a.terms, make(a.terms, "Where", [x.args[0], *sides], {}), x.shape), a.shape)


@law("Gather", "Gather(Expand(true, (4000,)), (3, 5)) = Expand(true, (2,))")
def _picked(a: Applied) -> Term | None:
    """Whichever element is taken, it is that number."""
    x = a.args[0]
    number = x.args[0] if x.op == "Expand" and len(x.args) == 1 else None
    if number is None or number.op != "Constant" or number.scalar is None or a.shape is None:
        return None
    return expand(a.terms, reshape(a.terms, number, (1,) * len(a.shape)), a.shape)


@law("Resize", "Resize(Expand(c, (1, 2, 4, 4)), absent, absent, (1, 2, 3, 5)) = Expand(c, (1, 2, 3, 5))")
def _mean_of_equals(a: Applied) -> Term | None:
    """A mask that hides nothing (DETR) is one in the size of every feature map."""
    x = a.args[0]
    number = x.args[0] if x.op == "Expand" and len(x.args) == 1 else None
    if number is None or number.scalar is None or not math.isfinite(number.scalar) or a.shape is None:
        return None
    if a.attrs.get("coordinate_transformation_mode") == "tf_crop_and_resize":  # has another number outside
        return None
    return expand(a.terms, number, a.shape)


@law("CumSum", "CumSum(Expand(row, (4, 4)), 1) = Expand(CumSum(row, 1), (4, 4))")
def _counted_once(a: Applied) -> Term | None:
    """Sums along one axis are the same along all others."""
    x, axis = a.args[0], a.args[1].scalar
    if x.op != "Expand" or len(x.args) > 1 or axis is None or a.shape is None or x.args[0].shape is None:
        return None
    own = (1,) * (len(a.shape) - len(x.args[0].shape)) + x.args[0].shape
    along = int(axis) % len(a.shape)
    inner = (*own[:along], a.shape[along], *own[along + 1 :])
    if inner == a.shape:
        return None
    once = expand(a.terms, reshape(a.terms, x.args[0], own), inner)
    return expand(a.terms, make(a.terms, "CumSum", [once, a.args[1]], a.attrs), a.shape)


@law(
    "MatMul Softmax LayerNormalization Conv",
    "MatMul(Expand(Reshape((3, 4), (1, 1, 2)), (900, 1, 2)), Reshape((1, 0, 0, 1), (2, 2)))"
    " = Expand(Reshape((3, 4), (1, 1, 2)), (900, 1, 2))",
)
def _of_repeated_rows(a: Applied) -> Term | None:
    """Queries that are learned, and the same for each picture, are projected once; so is what attends to itself among
    them."""
    cores, whole = repeated_constants(a.args), a.shape
    if not cores or whole is None or any((x.rank or 0) < 2 for x in a.args if x.op == "Expand"):
        return None
    lead = 1 if a.op == "Conv" else len(whole) - (2 if a.op == "MatMul" else -a.attrs.get("axis", -1))
    owns = [(1,) * (len(whole) - len(core.shape or ())) + (core.shape or ()) for core in cores]
    rows = owns if a.op == "MatMul" else owns[:1]  # what else there is are weights
    once = [all(own[i] == 1 for own in rows) and i < lead for i in range(len(whole))]
    if not any(once):
        return None
    operands = list[Term]()
    for x, core, own in zip(a.args, cores, owns, strict=True):
        if x is core:
            operands.append(x)
            continue
        seen = (1,) * (len(whole) - len(x.shape or ())) + (x.shape or ())
        dims = tuple(1 if single else dim for single, dim in zip(once, seen, strict=True))
        if static(dims) is None:
            return None
        operands.append(expand(a.terms, reshape(a.terms, core, own), dims))
    table = make(a.terms, a.op, operands, a.attrs)
    return expand(a.terms, table, whole) if storable(table) else None


@law("ConstantOfShape", "ConstantOfShape((64, 64)) = Expand(zero, (64, 64))")
def _full(a: Applied) -> Term | None:
    terms, attrs, shape, dtype = a.terms, a.attrs, a.shape, a.dtype
    if shape is None:
        return None
    value = attrs.get("value")
    filler = 0.0
    if value is not None:
        filler = numpy_helper.to_array(TensorProto.FromString(value[1])).item()
    dims = static(shape)
    if dims is not None and int(np.prod(dims)) <= SMALL:
        return terms.constant(np.full(dims, filler, numpy_dtype(dtype)), dtype)
    return expand(terms, terms.constant(np.full((1,) * len(shape), filler, numpy_dtype(dtype)), dtype), shape)


@law("Tile", "Tile(z, (1, 3)) = Reshape(Expand(Reshape(z, (4, 1, 4)), (4, 3, 4)), (4, 12))")
@law("Tile", "Tile(row, (5, 1)) = Expand(row, (5, 4))")
def _tile(a: Applied) -> Term | None:
    x, counts = a.args[0], a.args[1].data
    if a.shape is None or counts is None or x.shape is None:
        return None
    if same_shape(x.shape, a.shape):
        return x
    several = [i for i, (n, d) in enumerate(zip(counts, x.shape, strict=True)) if n != 1 and d != 1]
    if not several:
        return expand(a.terms, x, a.shape)
    if len(several) > 1 or x.constant:
        return None  # a table that a batch repeats, so often as all layers say in one way
    (axis,) = several
    apart = reshape(a.terms, x, (*x.shape[:axis], 1, *x.shape[axis:]))
    wide = (*a.shape[:axis], counts[axis], x.shape[axis], *a.shape[axis + 1 :])
    return reshape(a.terms, expand(a.terms, apart, wide), a.shape)
