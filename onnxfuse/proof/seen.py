"""What one site gave on one set of inputs, in the models' own precision and in float64, and what that says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import numerics
from .cut_tolerance import Equation
from .draws import Distance

_PLAUSIBLE = 0.05
"""How far the original may be from itself in float64 on unit normals."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The results of one site."""

    wanted: Any
    got: Any
    truth: Any
    """The original in float64, None where that was not to be had."""
    same: Any
    """The fused model in float64, or None."""
    masked: bool
    """Rows are masked throughout: where the original has NaN, there is nothing to compare."""
    precision: np.dtype[Any] | None
    """The coarsest that the site computes in, as far as that is known; else what it gives."""
    rounding: Callable[[], Distance] = Distance
    """How far rounding alone moves what is wanted; asked where that matters."""

    @property
    def comparable(self) -> bool:
        """Is there a truth that says how large an error is?"""
        real = isinstance(self.wanted, np.ndarray) and numerics.is_float(self.wanted.dtype)
        return real and isinstance(self.truth, np.ndarray) and self.truth.shape == self.wanted.shape

    @property
    def plausible(self) -> bool:
        """Is the truth what the original is near?  A kernel in float64 may have a mistake of its own."""
        return self.comparable and numerics.relative_error(self.wanted, self.truth) <= _PLAUSIBLE

    @property
    def equation(self) -> Equation | None:
        """The equations, in float64 where both can be run in it; None where there is nothing to compare."""
        actual = self.got if self.same is None else self.same
        if not self.comparable or not isinstance(actual, np.ndarray) or actual.shape != self.truth.shape:
            return None
        return Equation(self.wanted, self.truth, actual, self.same is not None, self.precision or self.wanted.dtype)

    def reason(self, rtol: float | None, atol: float | None) -> str:
        """Why the fused site is not what the original is, in the models' own precision; "" if it is."""
        known, precision = self.masked, self.precision
        difference = numerics.compare(self.got, self.wanted, rtol, atol, known=known, precision=precision)
        if not difference.reason or (difference.error is not None and self._off_by_rounding):
            return ""
        if not self.comparable or (isinstance(self.same, np.ndarray) and self.same.shape != self.truth.shape):
            return difference.reason
        rounding = numerics.is_rounding(self.got, self.wanted, self.truth, known=known, precision=precision)
        return "" if rounding else difference.reason

    @property
    def _off_by_rounding(self) -> bool:
        """Does rounding alone move the original as far?"""
        return isinstance(self.got, np.ndarray) and Distance.of(self.got, self.wanted) <= self.rounding()
