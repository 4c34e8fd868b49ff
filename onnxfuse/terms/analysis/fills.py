"""Which lowest numbers an additive mask may hold: -inf, or the lowest finite one, by which exporters hide a key.

The answer errs on the side of yes.  What reaches neither are results of products, norms and bounded functions, whose
magnitude is that of activations.
"""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np

from onnxfuse.model.op_traits import MODERATE
from onnxfuse.terms.fold import decided
from onnxfuse.terms.term import HALF, REAL, Array, Term, static

LARGEST = 1 << 24
"""Elements of a constant that are looked at; one with more may hold anything."""
_NEAR = 0.96
"""From this share of the lowest number on, a fill counts as lowest: half precision rounds to it, and sums reach it."""
_CHOICES = {"Where": 1}
"""Ops whose first inputs choose among the others."""


def may_hold(mask: Term, low: float) -> bool:
    """May an element of a real term be -inf, if `low` is that, else as low as the finite number `low`?"""
    return _Fills(low).of(mask)[0 if math.isfinite(low) else 1]


class _Fills:
    """For each term whether it may hold the lowest finite number, and whether -inf."""

    def __init__(self, low: float) -> None:
        self.bound = _NEAR * (low if math.isfinite(low) else float(np.finfo(np.float32).min))
        self.known: dict[int, tuple[bool, bool]] = {}

    def of(self, term: Term) -> tuple[bool, bool]:
        pending = [term]
        while pending:
            top = pending[-1]
            missing = [] if top.id in self.known else [a for a in _parts(top) if a.id not in self.known]
            if missing:
                pending += missing
                continue
            pending.pop()
            if top.id not in self.known:
                self.known[top.id] = self._of(top)
        return self.known[term.id]

    def _of(self, term: Term) -> tuple[bool, bool]:
        if term.dtype not in REAL or term.op in MODERATE:
            return False, False
        if term.constant:
            return self._constant(term)
        parts = [self.known[a.id] for a in _parts(term)]
        if not parts:
            # Of a Cast of booleans or integers neither is to be feared, of an input anything.
            return (term.op == "Input",) * 2
        finite, infinite = (sum(flags) for flags in zip(*parts, strict=True))
        match term.op:
            case "Add" | "Sum":
                return finite > 0, infinite > 0 or finite > 1  # the sum of two overflows
            case "Mul" if self._shrinks(term):
                return False, infinite > 0
            case "Max" if any(self._falls(line, of) for line, of in permutations(term.args, 2)):
                return False, infinite == len(parts)
            case "Max":
                return finite > 0 and all(any(low) for low in parts), infinite == len(parts)
            case "Log":
                return finite > 0, True
        return finite > 0, infinite > 0

    def _shrinks(self, term: Term) -> bool:
        """Is this a tensor times a number, by which the lowest fill of its type comes nearer to 0 than this one?  Of
        doubles that is float32's: exporters widen it.  Of bfloat16 half of the lowest is no longer that, either."""
        largest = 65504.0 if term.dtype in HALF else float(np.finfo(np.float32).max)
        numbers = [abs(a.scalar) for a in term.args if a.scalar is not None]
        return len(term.args) == 2 and any(number * largest < -self.bound for number in numbers)

    def _falls(self, line: Term, of: Term) -> bool:
        """Is this the other term times a number that keeps it finite, and a number added?"""
        return any(self._shrinks(part) and of in part.args for part in line.args if line.op == "Add")

    def _constant(self, term: Term) -> tuple[bool, bool]:
        dims = static(term.shape)
        if dims is None or math.prod(dims) > LARGEST:
            return True, True
        return decided(term, _fills, self.bound)


def _fills(values: Array, bound: float) -> tuple[bool, bool]:
    """A factor of either sign makes a fill."""
    sizes = np.abs(values.astype(np.float64))
    return bool((np.isfinite(sizes) & (sizes >= -bound)).any()), bool(np.isinf(sizes).any())


def _parts(term: Term) -> list[Term]:
    """The real arguments that the elements of a term come from."""
    if term.constant or term.op in MODERATE:
        return []
    return [a for a in term.args[_CHOICES.get(term.op, 0) :] if a.dtype in REAL and a.op != "Absent"]
