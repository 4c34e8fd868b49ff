"""What is taken off a sum, and what a product is divided by, where the normal form adds and multiplies."""

from __future__ import annotations

import math

import numpy as np

from onnxfuse.terms.term import HALF, Term, Terms, is_number, numpy_dtype

NODES = {"Add": "Sub", "Mul": "Div"}
"""The op that takes back what each of these does."""
PRECISE = 2.0**-22
"""By how much a reciprocal may be off that stands for a factor, in itself: some units of single precision."""


def negated(term: Term) -> Term | None:
    """x of (-1) * x, else None."""
    if term.op == "Mul" and len(term.args) == 2 and is_number(term.args[1]) and term.args[1].scalar == -1:
        return term.args[0]
    return None


def inverted(terms: Terms, op: str, operand: Term, dtype: int) -> Term | None:
    """What is taken off a sum for this operand of it, or what a product in this element type is divided by; None where
    the operand is added, or multiplied, as it is."""
    if op == "Add":
        return negated(operand)
    return operand.args[0] if operand.op == "Reciprocal" else _divisor(terms, operand, dtype)


def _divisor(terms: Terms, factor: Term, dtype: int) -> Term | None:
    """The number that half precision has and of which the factor, which it has not, is the reciprocal: scores were
    divided by it, and the factor would be rounded."""
    number = factor.scalar if is_number(factor) and dtype in HALF else None
    if not number or not math.isfinite(number):
        return None
    with np.errstate(over="ignore"):
        here, divisor = (float(np.float64(n).astype(numpy_dtype(dtype))) for n in (number, 1 / number))
    precise = divisor and abs(divisor * number - 1) <= PRECISE < abs(here / number - 1)
    return terms.number(divisor, dtype) if precise else None
