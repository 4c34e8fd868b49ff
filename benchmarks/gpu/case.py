"""A launch that is checked, and its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxfuse.kernels.device.kernel import REAL
from onnxfuse.kernels.device.types import DTYPES as NAMED

Values = NDArray[Any]
Inputs = list[Values | None]
Maker = Callable[[np.random.Generator], Inputs]

DTYPES = tuple(NAMED[name] for name in REAL)
SMALL = 1 << 16
"""Elements of a case that a checker of memory accesses can afford."""


@dataclass(frozen=True)
class Case:
    """One launch.  `outputs` says which outputs are asked for; those past its end are."""

    op: str
    label: str
    inputs: Maker
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: tuple[bool, ...] = ()
    by: int = 0
    """Elements by which all arrays lie behind a multiple of 256 bytes."""
    size: int = 0
    """Elements of the largest input."""
    product: str = ""
    """The form of a product that is checked; one that cannot have it has the vendor's."""

    @property
    def name(self) -> str:
        return f"{self.op} {self.label}"

    def make(self) -> Inputs:
        """The inputs, the same each time."""
        return self.inputs(np.random.default_rng(sum(self.name.encode())))


def draw(
    rng: np.random.Generator, shape: Sequence[int], dtype: np.dtype[Any], size: float = 1.0, mean: float = 0.0
) -> Values:
    """Normally distributed numbers."""
    return np.asarray(mean + size * rng.standard_normal(tuple(shape))).astype(dtype)


def drawn(dtype: np.dtype[Any], *shapes: Sequence[int] | None, size: float = 1.0) -> Maker:
    """Inputs of these shapes."""
    return lambda rng: [None if shape is None else draw(rng, shape, dtype, size) for shape in shapes]


def text(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
