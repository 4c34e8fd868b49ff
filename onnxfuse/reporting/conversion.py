"""What a conversion to half precision did, as a report tells it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class KeptCast:
    """A Cast that a conversion to half precision put in."""

    value: str
    to: str
    """``float16``, ``bfloat16`` or ``float32``."""
    node: str
    """A node that stays in float32 and makes the value or reads it; empty at an input or output of the model."""
    reason: str
    """Why that node is in float32."""


@dataclass(frozen=True, slots=True)
class KeptNodes:
    """Nodes that a conversion to half precision left in float32 for one reason."""

    nodes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Conversion:
    """What a conversion to half precision did."""

    precision: str
    """What was asked for: ``fp16``, ``bf16`` or ``mixed``."""
    type: str
    """``float16`` or ``bfloat16``."""
    half: int
    """Nodes of the main graph that compute in it."""
    float32: int
    """Those that do not, though they have floats."""
    casts: list[KeptCast]
    kept: list[KeptNodes] = field(default_factory=list)
    """Those among the latter that cannot, the most frequent reason first; the others save Casts beside them."""

    @property
    def inner(self) -> list[KeptCast]:
        """The Casts beyond those of inputs and outputs."""
        return [cast for cast in self.casts if cast.node]
