"""How far the equations of a site may be apart in float64, element by element.

With O what the original gives in float64, F what the fused model does, and D = F - O, they are the same equation where

    |D| <= noise + 2 max_r |D_r - D| + 3 max_row max_s |D_s - D|

D_r is D with every single number of both models moved by one unit in its last place, up or down; equal numbers move
alike, so that those that both models hold cancel, and what is left is what rounding 0.7978846 to float32, or a product
of two numbers that was folded, can do.  D_s is the same for tensors of numbers, such as weights that a scale was folded
into, each of whose elements is rounded by itself: what moves the most in a row stands for all its elements.

The noise is that of float64 itself.  How much of it an equation makes of one rounding, its own precision tells, O'
being the original in that, and e and e' the distances from 1 to the next number in float64 and in the coarsest type
that the site computes in:

    noise = e (256 max_row |O' - O| / e' + 256 max |O|) + LOSS max_row max_c |O_c - O|

The last term is asked for where the others are not enough: O_c is O computed with other roundings in float64 itself
(`roundings`).  Where an exponential of large scores is followed by another, float32 is wrong by all that there is to be
wrong by, so that |O' - O| says too little of how much one rounding does.

Nothing here depends on how large an error a rule might make.  A number that is 1e-5 off, which is 84 units of the last
place of float32, is outside wherever an element depends on it as much as on the others.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import numerics

NOISE = 256.0
"""Units in the last place of float64.  A million numbers between 0 and 1, added one after another or in pairs, were 209
apart."""
NUMBERS, TENSORS = 2.0, 3.0
"""What the moves of numbers and tensors are multiplied by.  Rounding moves each by half a unit, so that 2 bounds the
sum of 16 that all point the same way, and 3 is ten standard deviations of a sum of many."""
ROUNDINGS = 16.0
"""Units in the last place of a row that an op may be off that only runs in its own precision."""
_EPSILON = float(np.finfo(np.float64).eps)


@dataclass
class Equation:
    """One site on one set of inputs: the original in its own precision and in float64, and the fused model in float64,
    or in its own precision if that is all there is (not `exactly`).  All have one shape."""

    rounded: np.ndarray
    truth: np.ndarray
    fused: np.ndarray
    exactly: bool
    precision: np.dtype[Any]
    """The coarsest type that the original computes in."""
    numbers: Any = field(default=0.0, init=False)
    tensors: Any = field(default=0.0, init=False)
    roundings: Any = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._strange = ~np.isfinite(self.truth) | ~np.isfinite(self.fused)
        self._distance = self._finite(np.abs(self._difference(self.fused, self.truth)))
        self._noise = self._own_noise()

    def _difference(self, fused: np.ndarray, truth: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            return np.asarray(fused - truth)

    def _finite(self, array: np.ndarray) -> np.ndarray:
        """The array, with 0 where there is nothing to compare: what is NaN or infinite, kernels in float64 do not tell
        (onnxruntime's Attention guards rows in which every key is masked in float32 only)."""
        return np.where(self._strange | ~np.isfinite(array), 0.0, array)

    def _own_noise(self) -> np.ndarray:
        with np.errstate(all="ignore"):
            rounding = self._finite(np.abs(self.rounded.astype(self.truth.dtype) - self.truth))
        size = self._finite(np.abs(self.truth))
        unit = numerics.epsilon(self.precision)
        if self.exactly:
            return np.asarray(_EPSILON * NOISE * (_of_rows(rounding, _largest) / unit + size.max(initial=0)))
        # Of a row that is all but zero beside the others, nobody sees the last digits.
        scale = np.maximum(_of_rows(size, _mean_size), 1e-3 * _mean_size(_of_rows(size, _largest).ravel()))
        return np.asarray(2 * _of_rows(rounding, _largest) + ROUNDINGS * unit * scale)

    def move(self, truth: np.ndarray, fused: np.ndarray | None, tensors: bool) -> None:
        """Take in what both give with other last digits of their numbers, or of their `tensors` of numbers.

        Of a fused model that runs in float64 in one of the two alone, nothing is learned: beside nothing, all that it
        gives would be what the digits do."""
        if self.exactly and fused is None:
            return
        before = self._difference(self.fused if self.exactly else self.truth * 0, self.truth)
        after = self._difference(truth * 0 if fused is None or not self.exactly else fused, truth)
        if after.shape != before.shape:
            return
        moved = self._finite(np.abs(self._difference(after, before)))
        if tensors:
            self.tensors = np.maximum(self.tensors, _of_rows(moved, _largest))
        else:
            self.numbers = np.maximum(self.numbers, moved)

    def round(self, truth: np.ndarray) -> None:
        """Take in what the original gives in float64 with other roundings.  Nothing is learned where the fused model
        runs in its own precision alone."""
        if self.exactly and truth.shape == self.truth.shape:
            moved = self._finite(np.abs(self._difference(truth, self.truth)))
            self.roundings = np.maximum(self.roundings, _of_rows(moved, _largest))

    @property
    def allowed(self) -> np.ndarray:
        """The distance that each element may have."""
        noise = self._noise + numerics.LOSS * self.roundings
        return np.asarray(noise + NUMBERS * self.numbers + TENSORS * self.tensors)

    @property
    def holds(self) -> bool:
        """Are the two the same equation, as far as these inputs show?"""
        return bool((self._distance <= self.allowed).all())

    @property
    def error(self) -> float:
        """The largest distance that is not allowed, relative to its element."""
        beyond = np.where(self._distance > self.allowed, self._distance, 0)
        return float(np.divide(beyond, np.abs(self.truth), out=beyond.copy(), where=self.truth != 0).max(initial=0))

    def worst(self) -> tuple[float, float]:
        """Of the element that is farthest beyond, the distance and what is allowed, relative to the element."""
        if not self.truth.size:
            return 0.0, 0.0
        at = np.unravel_index(np.argmax(self._distance - self.allowed), self.truth.shape)
        size = float(np.abs(self.truth[at])) or 1.0
        return float(self._distance[at]) / size, float(self.allowed[at]) / size


def _largest(rows: np.ndarray) -> np.ndarray:
    return np.asarray(rows.max(-1, keepdims=True, initial=0))


def _mean_size(rows: np.ndarray) -> np.ndarray:
    return np.asarray(np.sqrt((rows**2).mean(-1, keepdims=True))) if rows.size else np.zeros((*rows.shape[:-1], 1))


def _of_rows(array: np.ndarray, measure: Any) -> np.ndarray:
    """A measure of the row that each element is in."""
    return np.asarray(np.broadcast_to(measure(numerics.rows(array)), numerics.rows(array).shape).reshape(array.shape))
