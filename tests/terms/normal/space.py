"""Terms over named inputs, and their values, for the tests of the normal form."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from onnxfuse.model.dims import Dim, symbol
from onnxfuse.terms.fold import evaluate, value_of
from onnxfuse.terms.normal.normal import make, reshape, slice_axis, transpose
from onnxfuse.terms.term import Term, Terms

FLOAT, HALF, INT64, BOOL = (
    int(t) for t in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.BOOL)
)
Array = NDArray[np.float64]
b, s, h, d = (symbol(name) for name in "bshd")


class Space:
    """Terms over named inputs; every method answers a normal form."""

    def __init__(self) -> None:
        self.terms = Terms()

    def input(self, name: str, *shape: Dim, dtype: int = FLOAT) -> Term:
        return self.terms.input(name, shape, dtype)

    def unknown(self, name: str) -> Term:
        return self.terms.input(name, None, FLOAT)

    def number(self, value: float, rank: int = 0, dtype: int = FLOAT) -> Term:
        return self.terms.number(value, dtype, rank)

    def ints(self, *values: int) -> Term:
        return self.terms.constant(np.array(values, np.int64), INT64)

    def op(self, op: str, *args: Term, **attrs: object) -> Term:
        return make(self.terms, op, args, attrs)

    def reshape(self, x: Term, *shape: Dim) -> Term:
        return reshape(self.terms, x, shape)

    def transpose(self, x: Term, *perm: int) -> Term:
        return transpose(self.terms, x, perm)

    def slice(self, x: Term, axis: int, start: Dim, stop: Dim, step: int = 1) -> Term:
        return slice_axis(self.terms, x, axis, start, stop, step)


def live(root: Term) -> list[Term]:
    """All terms below the root, arguments before users."""
    found, stack = {root.id: root}, [root]
    while stack:
        new = [arg for arg in stack.pop().args if arg.id not in found]
        found |= {arg.id: arg for arg in new}
        stack += new
    return [found[i] for i in sorted(found)]


def value(term: Term, inputs: dict[Term, Array]) -> Array:
    """The value of a term, in float64."""
    known: dict[int, Array] = {x.id: array for x, array in inputs.items()}
    for part in live(term):
        if part.id not in known:
            if part.op == "Constant":
                known[part.id] = value_of(part)
            else:
                known[part.id] = evaluate(part.op, [known[a.id] for a in part.args], dict(part.attrs), part)
    return known[term.id]
