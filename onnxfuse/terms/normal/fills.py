"""Normal form of what repeats one number: the number, repeated.

A mask of an exporter may hide nothing: ones of the batch's size, in another shape, taken from 1 and read as truths.
"""

from __future__ import annotations

from onnxfuse.terms.term import Term

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
