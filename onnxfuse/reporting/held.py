"""What lives between forward and backward of a training step, as reports have it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

Fate = Literal["saved", "recomputed", "derived", "not needed"]
"""What backward does: it reads a value; it computes again what that was for, or has it from something that is made of
it; or it has no use for it."""


@dataclass(frozen=True, slots=True)
class HeldValue:
    """A value that lives between forward and backward of a training step, or did before fusing."""

    value: str
    """Its name: that of the output where it is saved, else that of the original."""
    op: str
    """``domain.op_type`` of what makes it."""
    readers: tuple[str, ...]
    """Those of the backward nodes that read it."""
    bytes: int | None
    """None where a size depends on the data."""
    fate: Fate
    of: tuple[str, ...] = ()
    """The values of the output that are read instead."""


@dataclass(frozen=True, slots=True)
class Held:
    """What lives between forward and backward of a training step (`onnxfuse.training`)."""

    loss: str
    """The output that the others are gradients of, or updates by these."""
    before: int
    """Bytes of the original."""
    after: int
    """Bytes of the output."""
    unsized: int
    """Values of both whose bytes are not among them, since a size depends on the data."""
    limit: int | None
    """Bytes that were asked to be enough (`--recompute`); more live where nothing else could be computed again."""
    values: tuple[HeldValue, ...]
    """Those that are saved, in order, then those of the original that are not."""

    @property
    def fates(self) -> Counter[str]:
        """How many values have each fate."""
        return Counter(value.fate for value in self.values)
