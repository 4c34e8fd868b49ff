"""Normal form of what repeats one number, or axes of 1: the number, or the tensor, repeated.

A mask of an exporter may hide nothing: ones of the batch's size, in another shape, taken from 1 and read as truths.
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, numpy_helper

from onnxfuse.terms.term import SMALL, Term, numpy_dtype, same_shape, static

from .table import Applied, law, make
from .views import expand, reshape


@law("Add Sub Mul", "f(Expand((2,), (4000,)), (3,)) = Expand(f((2,), (3,)), (4000,))")
@law("Equal Greater GreaterOrEqual", "f(Expand(zero, (64, 64)), 3) = Expand(f(zero, 3), (64, 64))")
@law("Cast", "Cast(Expand(true, (4000,))) = Expand(Cast(true), (4000,))")
def _computed_once(a: Applied) -> Term | None:
    """Of integers and truths; real numbers are for sums and products to say."""
    if a.shape is None or not any(x.op == "Expand" for x in a.args):
        return None
    numbers = [x.args[0] if x.op == "Expand" and len(x.args) == 1 else x for x in a.args]
    if any(x.op != "Constant" or x.scalar is None for x in numbers):
        return None
    return expand(a.terms, make(a.terms, a.op, numbers, a.attrs), a.shape)


@law("Gather", "Gather(Expand(true, (4000,)), (3, 5)) = Expand(true, (2,))")
def _picked(a: Applied) -> Term | None:
    """Whichever element is taken, it is that number."""
    x = a.args[0]
    number = x.args[0] if x.op == "Expand" and len(x.args) == 1 else None
    if number is None or number.op != "Constant" or number.scalar is None or a.shape is None:
        return None
    return expand(a.terms, reshape(a.terms, number, (1,) * len(a.shape)), a.shape)


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


@law("Tile", "Tile(row, (5, 1)) = Expand(row, (5, 4))")
def _tile(a: Applied) -> Term | None:
    x, counts = a.args[0], a.args[1].data
    if a.shape is None or counts is None or x.shape is None:
        return None
    if same_shape(x.shape, a.shape):
        return x
    single = all(n == 1 or d == 1 for n, d in zip(counts, x.shape, strict=True))
    return expand(a.terms, x, a.shape) if single else None
