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
from onnxfuse.terms.fold import value_of
from onnxfuse.terms.term import REAL, Term, Terms, UnknownValueError, is_number, numpy_dtype, same_shape

from .merges import lift_merge
from .ranges import in_range, nonnegative
from .table import Applied, law, make
from .views import expand

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "Equal": operator.eq,
    "Greater": operator.gt,
    "GreaterOrEqual": operator.ge,
}
SMALL_INTEGER = 64
"""Sums of two integers up to here are exact in every precision."""


@law("Cast", "Cast(x) = x")
def _same_type(a: Applied) -> Term | None:
    """Terms do not tell real types apart; a constant is rounded."""
    x = a.args[0]
    if x.dtype == a.dtype or (x.dtype in REAL and a.real and not x.constant):
        return x
    if x.dtype not in REAL or not a.real:
        return None
    if x.scalar is not None:
        return a.terms.number(float(np.float64(x.scalar).astype(numpy_dtype(a.dtype))), a.dtype, x.rank or 0)
    return x


@law("Cast", "Bool(Cast(w > 0)) = w > 0")
def _condition(a: Applied) -> Term | None:
    x = a.args[0]
    return x.args[0] if x.op == "Cast" and x.args[0].dtype == a.dtype == TensorProto.BOOL else None


@law("Cast", "Bool(Where(x > 0, 0.0, 2.0)) = Not(x > 0)")
def _truth_of_choice(a: Applied) -> Term | None:
    found = _chosen(a.args[0]) if a.dtype == TensorProto.BOOL else None
    return _truth(a.terms, found[0], a.shape, *(bool(value) for value in found[1:])) if found is not None else None


@law("Max", "Max(x, 0) = Relu(x)")
def _rectified(a: Applied) -> Term | None:
    for x, zero in (a.args, a.args[::-1]) if len(a.args) == 2 else ():
        if zero.scalar == 0 and same_shape(x.shape, a.shape):
            return a.as_op("Relu", x)
    return None


@law("Max Min", "f(Expand(row, (4, 4)), 2) = Expand(f(row, 2), (4, 4))")
def _of_repeated(a: Applied) -> Term | None:
    """What is repeated is bounded before it is."""
    for x, bound in (a.args, a.args[::-1]) if len(a.args) == 2 else ():
        if x.op == "Expand" and len(x.args) == 1 and is_number(bound) and same_shape(x.shape, a.shape):
            return expand(a.terms, make(a.terms, a.op, [x.args[0], bound], {}), a.shape or ())
    return None


@law("Min", "Min(Reciprocal(x), 4) = Reciprocal(Max(x, 0.25)) if x > 0")
def _bounded_reciprocal(a: Applied) -> Term | None:
    """Of what is never negative: the reciprocal of 0 is infinity, which the bound is below."""
    for x, bound in (a.args, a.args[::-1]) if len(a.args) == 2 and a.real else ():
        inner = x.args[0] if x.op == "Reciprocal" else None
        if inner is None or not is_number(bound) or not bound.scalar or not same_shape(inner.shape, a.shape):
            continue
        if bound.scalar > 0 and in_range(1 / bound.scalar, a.dtype) and nonnegative(inner):
            return a.as_op("Reciprocal", a.as_op("Max", inner, a.number(1 / bound.scalar)))
    return None


@law("Max", "Max(Where(x > 0, 1, 4), 2) = Where(x > 0, 2, 4)")
def _maximum(a: Applied) -> Term | None:
    return _extreme(a.terms, max, a.args, a.shape, a.dtype)


@law("Min", "Min(Where(x > 0, 1, 4), 2) = Where(x > 0, 1, 2)")
def _minimum(a: Applied) -> Term | None:
    return _extreme(a.terms, min, a.args, a.shape, a.dtype)


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


@law("Where", "Where(Not(x > 0), a, b) = Where(x > 0, b, a)")
def _negated(a: Applied) -> Term | None:
    condition, x, y = a.args
    return a.as_op("Where", condition.args[0], y, x) if condition.op == "Not" else None


@law("Where", "Where(true, a, b) = a")
def _decided(a: Applied) -> Term | None:
    """By a condition that is known to hold everywhere, or nowhere."""
    condition, x, y = a.args
    truth = _everywhere(condition)
    return expand(a.terms, x if truth else y, a.shape) if truth is not None and a.shape is not None else None


@law("Where", "Where(x > 0, y, y) = y")
def _either_way(a: Applied) -> Term | None:
    _, x, y = a.args
    return expand(a.terms, x, a.shape) if x is y and a.shape is not None else None


@law("Where", "Where(x > 0, Where(y > 0, a, 7), 7) = Where(And(x > 0, y > 0), a, 7)")
def _nested(a: Applied) -> Term | None:
    for keep, inner, low in _sides(a.terms, *a.args):
        if inner.op == "Where" and low.scalar is not None and a.shape is not None:
            for also, value, other in _sides(a.terms, *inner.args):
                if other is low:
                    return a.as_op("Where", make(a.terms, "And", [keep(), also()], {}), value, low)
    return None


@law("Where", "Where(merge(x > 0), merge(MatMul(x, y)), 7) = merge(Where(x > 0, MatMul(x, y), 7))")
def _of_scores(a: Applied) -> Term | None:
    return lift_merge(a.terms, "Where", a.args, a.shape)


def _sides(terms: Terms, condition: Term, x: Term, y: Term) -> tuple[tuple[Callable[[], Term], Term, Term], ...]:
    """A Where read in both ways: (when the first of these two is taken, that one, the other)."""
    return (lambda: condition, x, y), (lambda: make(terms, "Not", [condition], {}), y, x)


def _everywhere(term: Term) -> bool | None:
    """The truth value that all elements of a condition are known to have."""
    constant = term
    while constant.op == "Expand" and len(constant.args) == 1:  # to lengths that are not known, one after another
        constant = constant.args[0]
    if not constant.constant or constant.dtype != TensorProto.BOOL:
        return None
    try:
        value = value_of(constant)
    except UnknownValueError:
        return None
    if not value.size or value.any() != value.all():
        return None
    return bool(value.all())


@law("Not", "Not(Not(x > 0)) = x > 0")
def _double_negation(a: Applied) -> Term | None:
    return a.args[0].args[0] if a.args[0].op == "Not" else None


@law("Equal Greater GreaterOrEqual", "Greater(Where(x > 0, 1, 4), 2) = Not(x > 0)")
def _compared(a: Applied) -> Term | None:
    """A choice between two numbers compared with a third says whether its condition holds."""
    compare = COMPARISONS[a.op]
    for swapped, (x, number) in enumerate((a.args, a.args[::-1])):
        chosen = _chosen(x) if number.scalar is not None else None
        if chosen is not None and number.scalar is not None:
            pairs = [(value, number.scalar) for value in chosen[1:]]
            return _truth(a.terms, chosen[0], a.shape, *(compare(*(p[::-1] if swapped else p)) for p in pairs))
    return None


@law("And Or", "And(x > 0, true) = x > 0")
def _with_what_is_known(a: Applied) -> Term | None:
    for x, c in (a.args, a.args[::-1]):
        truth = _everywhere(c)
        if truth is not None and x.shape is not None and a.shape is not None:
            return expand(a.terms, x if truth == (a.op == "And") else c, a.shape)
    return None


@law("Equal And Or", "f(a > 0, b > 0) = f(b > 0, a > 0)")
def _in_order(a: Applied) -> Term | None:
    ordered = sorted(a.args, key=lambda t: t.id)
    return make(a.terms, a.op, ordered, a.attrs, a.shape, a.dtype) if a.args != ordered else None
