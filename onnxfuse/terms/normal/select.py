"""Normal forms of conditions, of choices by them, and of what has two values only.

conditions      a number of two values compared with another, or taken as a truth, is the condition that chose between
                them, or its negation; And and Or with what holds everywhere, or nowhere, are no such
choices         Where by a condition that is known is one of its sides; nested ones that give the same number are one;
                the larger or smaller of a choice between two numbers and a third is such a choice
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
from onnx import TensorProto

from onnxfuse.model.dims import Shape
from onnxfuse.terms.term import REAL, Attributes, Term, Terms, is_number, numpy_dtype, same_shape

from .algebra import lift_merge
from .table import Form, form, make
from .views import expand

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "Equal": operator.eq,
    "Greater": operator.gt,
    "GreaterOrEqual": operator.ge,
}
SMALL_INTEGER = 64
"""Sums of two integers up to here are exact in every precision."""


@form("Cast")
def _cast(terms: Terms, args: list[Term], attrs: Attributes, shape: Shape | None, dtype: int) -> Term | None:
    x = args[0]
    if x.dtype == dtype or (x.dtype in REAL and dtype in REAL and not x.constant):
        return x
    if x.dtype in REAL and dtype in REAL and x.scalar is not None:
        return terms.number(float(np.float64(x.scalar).astype(numpy_dtype(dtype))), dtype, x.rank or 0)
    if x.op == "Cast" and x.args[0].dtype == dtype == TensorProto.BOOL:
        return x.args[0]
    if dtype == TensorProto.BOOL and (chosen := _chosen(x)) is not None:
        return _truth(terms, chosen[0], shape, *(bool(value) for value in chosen[1:]))
    return x if x.constant and x.dtype in REAL and dtype in REAL else None


@form("Max")
def _maximum(terms: Terms, args: list[Term], attrs: Attributes, shape: Shape | None, dtype: int) -> Term | None:
    if len(args) == 2:
        for x, zero in (args, args[::-1]):
            if zero.scalar == 0 and same_shape(x.shape, shape):
                return make(terms, "Relu", [x], {}, shape, dtype)
    return _extreme(terms, max, args, shape, dtype)


@form("Min")
def _minimum(terms: Terms, args: list[Term], attrs: Attributes, shape: Shape | None, dtype: int) -> Term | None:
    return _extreme(terms, min, args, shape, dtype)


def _extreme(
    terms: Terms, which: Callable[[float, float], float], args: list[Term], shape: Shape | None, dtype: int
) -> Term | None:
    """The larger or the smaller of a choice between two numbers and of a third; of a value and an infinity."""
    for x, bound in (args, args[::-1]) if len(args) == 2 and dtype in REAL else ():
        if bound.scalar == -which(np.inf, -np.inf) and same_shape(x.shape, shape):
            return x
        chosen = _chosen(x) if bound.scalar is not None and same_shape(x.shape, shape) else None
        if chosen is not None and bound.scalar is not None:
            sides = [terms.number(which(value, bound.scalar), dtype) for value in chosen[1:]]
            return make(terms, "Where", [chosen[0], *sides], {}, shape, dtype)
    return None


def _chosen(term: Term) -> tuple[Term, float, float] | None:
    """(condition, a, b) of a term that is a where the condition holds and b elsewhere, in any precision."""
    if term.op == "Where" and term.args[1].scalar is not None and term.args[2].scalar is not None:
        return term.args[0], term.args[1].scalar, term.args[2].scalar
    if term.op == "Cast" and term.args[0].dtype == TensorProto.BOOL:
        return term.args[0], 1.0, 0.0
    if term.op in ("Add", "Mul") and len(term.args) == 2 and is_number(term.args[1]) and term.dtype in REAL:
        inner, number = _chosen(term.args[0]), term.args[1].scalar
        if inner is None or number is None or not same_shape(term.args[0].shape, term.shape):
            return None
        condition, *values = inner
        if term.op == "Mul" and abs(number) < np.inf and all(value in (-1, 0, 1) for value in values):
            return condition, values[0] * number, values[1] * number
        if term.op == "Add" and all(value.is_integer() and abs(value) <= SMALL_INTEGER for value in (*values, number)):
            return condition, values[0] + number, values[1] + number
    return None


def _truth(terms: Terms, condition: Term, shape: Shape | None, first: bool, second: bool) -> Term | None:
    """What is `first` where the condition holds and `second` elsewhere, if it says whether that is so."""
    if first == second or shape is None:
        return None
    return expand(terms, condition if first else make(terms, "Not", [condition], {}), shape)


@form("Where")
def _where(terms: Terms, args: list[Term], attrs: Attributes, shape: Shape | None, dtype: int) -> Term | None:
    condition, x, y = args
    if condition.op == "Not":
        return make(terms, "Where", [condition.args[0], y, x], {}, shape, dtype)
    truth = _everywhere(condition)
    if truth is not None and shape is not None:
        return expand(terms, x if truth else y, shape)
    for keep, inner, low in _sides(terms, condition, x, y):
        if inner.op == "Where" and low.scalar is not None and same_shape(inner.shape, shape):
            for also, value, other in _sides(terms, *inner.args):
                if other is low:
                    both = make(terms, "And", [keep(), also()], {})
                    return make(terms, "Where", [both, value, low], {}, shape, dtype)
    return lift_merge(terms, "Where", args, shape)


def _sides(terms: Terms, condition: Term, x: Term, y: Term) -> tuple[tuple[Callable[[], Term], Term, Term], ...]:
    """A Where read in both ways: (when the first of these two is taken, that one, the other)."""
    return (lambda: condition, x, y), (lambda: make(terms, "Not", [condition], {}), y, x)


def _everywhere(term: Term) -> bool | None:
    """The truth value that all elements of a condition are known to have."""
    constant = term.args[0] if term.op == "Expand" and len(term.args) == 1 else term
    if constant.op != "Constant" or constant.data is None or not constant.data.size:
        return None
    values = {bool(b) for b in constant.data.ravel()}
    return values.pop() if len(values) == 1 else None


@form("Not")
def _not(terms: Terms, args: list[Term], attrs: Attributes, shape: Shape | None, dtype: int) -> Term | None:
    return args[0].args[0] if args[0].op == "Not" else None


def compared(terms: Terms, op: str, args: list[Term], shape: Shape | None) -> Term | None:
    """The condition that a choice between two numbers is, compared with a third; None for anything else."""
    compare = COMPARISONS[op]
    for swapped, (x, number) in enumerate((args, args[::-1])):
        chosen = _chosen(x) if number.scalar is not None else None
        if chosen is not None and number.scalar is not None:
            pairs = [(value, number.scalar) for value in chosen[1:]]
            return _truth(terms, chosen[0], shape, *(compare(*(p[::-1] if swapped else p)) for p in pairs))
    return None


@form("Equal")
def _equal(terms: Terms, args: list[Term], attrs: Attributes, shape: Shape | None, dtype: int) -> Term | None:
    return compared(terms, "Equal", args, shape) or _ordered(terms, "Equal", args, attrs, shape, dtype)


def _conjunction(op: str) -> Form:
    def joined(terms: Terms, args: list[Term], attrs: Attributes, shape: Shape | None, dtype: int) -> Term | None:
        for x, c in (args, args[::-1]):
            truth = _everywhere(c)
            if truth is not None and x.shape is not None and shape is not None:
                return expand(terms, x if truth == (op == "And") else c, shape)
        return _ordered(terms, op, args, attrs, shape, dtype)

    return joined


def _ordered(
    terms: Terms, op: str, args: list[Term], attrs: Attributes, shape: Shape | None, dtype: int
) -> Term | None:
    """The operands of what is commutative in a fixed order."""
    if args == sorted(args, key=lambda t: t.id):
        return None
    return make(terms, op, sorted(args, key=lambda t: t.id), attrs, shape, dtype)


for _op in ("And", "Or"):
    form(_op)(_conjunction(_op))
