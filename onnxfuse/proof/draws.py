"""What the outputs of a model do when it is computed again with something moved that must not matter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto

from onnxfuse.runtime.quiet import Session

from . import numerics
from .bfloat16 import emulated


@dataclass(frozen=True)
class Distance:
    """How far an array is from another: its farthest element, and all of them (root of the mean square), relative to
    the largest number."""

    most: float = 0.0
    all: float = 0.0

    @staticmethod
    def of(actual: np.ndarray, expected: np.ndarray) -> Distance:
        """Of two arrays of one shape, where both are finite."""
        seen = np.isfinite(actual) & np.isfinite(expected)
        scale = float(np.abs(expected[seen]).max(initial=0)) or 1.0
        off = (actual[seen].astype(np.float64) - expected[seen].astype(np.float64)) / scale
        return Distance(float(np.abs(off).max(initial=0)), float(np.sqrt((off**2).mean())) if off.size else 0.0)

    def __or__(self, other: Distance) -> Distance:
        return Distance(max(self.most, other.most), max(self.all, other.all))

    def __mul__(self, times: float) -> Distance:
        return Distance(self.most * times, self.all * times)

    def __le__(self, other: Distance) -> bool:
        return self.most <= other.most and self.all <= other.all


class Draws:
    """The distance of each output, at most, over some draws of one more input of a model, which is made and run when a
    case is first asked of."""

    def __init__(
        self, make: Callable[[], ModelProto], base_dir: Path | None, name: str, values: Sequence[float]
    ) -> None:
        self._make, self._base_dir, self._name, self._values = make, base_dir, name, values
        self._known: dict[str, list[Distance]] = {}

    def __call__(self, case: str, inputs: Mapping[str, Any], expected: Sequence[Any]) -> list[Distance]:
        """From what is expected; 0 of what is no tensor of real numbers.  Raises SessionError where it does not run."""
        if case not in self._known:
            # Not kept: it holds the weights.
            session = Session(emulated(self._make()), self._base_dir, optimize=False)
            self._known[case] = self._draw(session, inputs, expected)
        return self._known[case]

    def _draw(self, session: Session, inputs: Mapping[str, Any], expected: Sequence[Any]) -> list[Distance]:
        found = [Distance()] * len(expected)
        for draw in self._values:
            given = session.run({**inputs, self._name: np.array(draw, np.float32)})
            for index, (value, own) in enumerate(zip(given, expected, strict=True)):
                if isinstance(own, np.ndarray) and numerics.is_float(own.dtype) and value.shape == own.shape:
                    found[index] = found[index] | Distance.of(value, own)
        return found

    @property
    def most(self) -> float:
        """The largest of all that was asked for."""
        return max((one.most for found in self._known.values() for one in found), default=0.0)
