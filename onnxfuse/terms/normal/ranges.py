"""Where numbers lie, and so which laws of algebra hold for them: those of real numbers fail where one is infinite."""

from __future__ import annotations

import ml_dtypes
import numpy as np

from onnxfuse.model.op_traits import MONOTONOUS, NONNEGATIVE
from onnxfuse.terms.fold import decided
from onnxfuse.terms.term import Array, Term, is_number, numpy_dtype

MODERATE = 2.0**24
"""Factors up to here, and down to its inverse, leave a product of matrices."""
DEEP = 8
"""Steps that are looked below a term at most."""


def in_range(number: float, dtype: int) -> bool:
    """Is the number, rounded to a real type, neither infinite nor 0, unless it is 0 itself?  Two whose product is not
    stay two: 0 * inf is no number, where (0 * 1e30) * 1e30 is 0."""
    info = ml_dtypes.finfo(numpy_dtype(dtype))  # type: ignore[no-untyped-call]
    return not number or float(info.tiny) <= abs(number) <= float(info.max)


def moderate(number: float) -> bool:
    """May the number be multiplied in before a sum of products or after it?  Others may take one of the two out of
    range, and 0 hides that it is."""
    return 1 / MODERATE <= abs(number) <= MODERATE


def all_moderate(term: Term) -> bool:
    """Is each element of a constant `moderate`, 0, or NaN, which a product is with its factor before or after it?  What
    external data would say is NaN where a report does without it."""
    return decided(term, _all_moderate)


def _all_moderate(values: Array) -> bool:
    sizes = np.abs(values.astype(np.float64))  # half precision has no number as large as MODERATE
    return not bool((((sizes > 0) & (sizes < 1 / MODERATE)) | (sizes > MODERATE)).any())


def every(term: Term, number: float) -> bool:
    """Is a term this number throughout: a constant, or a number that is expanded?"""
    if term.op == "Expand" and term.args[0].scalar is not None:
        return bool(term.args[0].scalar == number)
    return term.constant and decided(term, _every, number)


def _every(values: Array, number: float) -> bool:
    return bool((values == number).all())


def throughout(values: Array) -> float | None:
    """The number that all elements are; None where there are several."""
    first = values.flat[0]
    return float(first) if (values == first).all() else None


def misfit(term: Term) -> int:
    """How badly a type holds the elements of a constant: 0 where it does, 1 where the largest is too small for all its
    digits, 2 where one is infinite or NaN."""
    return decided(term, _misfit, term.dtype)


def _misfit(values: Array, dtype: int) -> int:
    largest = float(np.abs(values).max(initial=0))
    if in_range(largest, dtype):
        return 0
    return 1 if largest < 1 else 2


def nonnegative(term: Term, depth: int = DEEP) -> bool:
    """Is no element below 0, but for rounding?  NaN may be among them.

    A mean of squares less the square of the mean counts: what rounding leaves of it below 0 is never infinite."""
    if is_number(term):
        return bool(term.scalar is not None and term.scalar >= 0)
    if term.op in NONNEGATIVE:
        return True
    if not depth:
        return False
    if term.op == "Mul":
        odd = [a for a in set(term.args) if term.args.count(a) % 2]
        return all(nonnegative(a, depth - 1) for a in odd)
    if term.op == "Max":
        return any(nonnegative(a, depth - 1) for a in term.args)
    if term.op == "Add":
        below = [a for a in term.args if not nonnegative(a, depth - 1)]
        return not below or (len(below) == 1 and any(_is_less(below[0], a) for a in term.args))
    return term.op in MONOTONOUS and nonnegative(term.args[0], depth - 1)


def _is_less(term: Term, squares: Term) -> bool:
    """Is the one the negative square of a mean, and the other the mean of the squares?"""
    if term.op != "Mul" or [a.scalar for a in term.args if is_number(a)] != [-1]:
        return False
    rest = [a for a in term.args if not is_number(a)]
    means = rest[0].args if len(rest) == 1 and rest[0].op == "Mul" else rest
    if len(means) != 2 or means[0] is not means[1]:
        return False
    (mean, *how), (of_squares, *same) = _reduced(means[0]), _reduced(squares)
    return how == same and of_squares.op == "Mul" and of_squares.args == (mean, mean)


def _reduced(term: Term) -> tuple[Term, object, object, object, object]:
    """What is reduced, by which op, along which axes, seen in which shape and times what."""
    shape, factor = term.shape, 1.0
    while term.op == "Reshape" or (term.op == "Mul" and len(term.args) == 2 and is_number(term.args[1])):
        factor *= 1.0 if term.op == "Reshape" else term.args[1].scalar or 0.0
        term = term.args[0]
    return (term.args[0] if term.op in ("ReduceMean", "ReduceSum") else term), term.op, term.attrs, shape, factor
