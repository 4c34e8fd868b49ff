"""Whether two terms compute the same but for the order of sums and the last digits of numbers."""

from __future__ import annotations

import math

import numpy as np

from onnxfuse.model.op_traits import COMMUTATIVE, NEUTRAL
from onnxfuse.terms.fold import value_of
from onnxfuse.terms.term import REAL, Term

DIGITS = 1e-6
"""How far apart numbers may be, relatively: an attribute is of single precision, what is computed here of double."""


def alike(a: Term, b: Term) -> bool:
    """Are they equal, given that a number of one may be rounded in the other?  Bodies of control flow are compared as
    well."""
    known: dict[tuple[int, int], bool] = {}

    def same(a: Term, b: Term) -> bool:
        if a is b:
            return True
        pair = a.id, b.id
        if pair not in known:
            known[pair] = _head(a) == _head(b) and (_numbers(a, b) if a.op == "Constant" else parts(a, b))
        return known[pair]

    def parts(a: Term, b: Term) -> bool:
        bodies = _bodies(a), _bodies(b)
        if not all(bodies) or len(bodies[0]) != len(bodies[1]):
            if a.key != b.key:
                return False
        elif not all(map(same, *bodies)):
            return False
        if a.op not in NEUTRAL and a.op not in COMMUTATIVE:
            return all(map(same, a.args, b.args))
        rest = list(b.args)
        for arg in a.args:
            found = next((other for other in rest if same(arg, other)), None)
            if found is None:
                return False
            rest.remove(found)
        return True

    return same(a, b)


def _head(term: Term) -> tuple[object, ...]:
    """What must be equal of both."""
    attrs = tuple((name, _rounded(value)) for name, value in term.attrs)
    return term.op, len(term.args), attrs, term.shape, term.dtype in REAL or term.dtype


def _rounded(value: object) -> object:
    """A number as single precision has it."""
    if isinstance(value, tuple):
        return tuple(map(_rounded, value))
    return float(np.float32(value)) if isinstance(value, float) else value


def _bodies(term: Term) -> tuple[Term, ...]:
    """What the bodies of a node compute."""
    return tuple(part for part in term.key if isinstance(part, Term)) if isinstance(term.key, tuple) else ()


def _numbers(a: Term, b: Term) -> bool:
    if a.scalar is not None and b.scalar is not None:
        return math.isclose(a.scalar, b.scalar, rel_tol=DIGITS)
    if a.dtype not in REAL:
        return a.key == b.key
    return bool(np.allclose(value_of(a), value_of(b), rtol=DIGITS, atol=DIGITS, equal_nan=True))
