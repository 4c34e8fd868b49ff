"""The host side of a fused op: which element types it takes, the shapes of its outputs, and its launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from .device import Array, Device, TensorType

REAL = ("float32", "float16", "bfloat16")
"""Element types of the fused ops.  Sums are always taken in float32."""

EITHER = "T, float32 or bool"
"""The type of an input that is a mask: added, in float32 as well, or saying what is seen."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """An input or output of an op.

    `type` is "T" for the op's real element type, or one that is always the same (int64, bool, float32), or for an input
    EITHER.  What is `optional` may be left out by a node.
    """

    name: str
    type: str = "T"
    optional: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """How an op is called: the same for every node of that op."""

    op: str
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    types: tuple[str, ...] = REAL


@dataclass(frozen=True, slots=True)
class Work:
    """What a launch moves and computes.  The benchmarks and the cost model divide by the same figures."""

    read: int
    """Bytes."""
    written: int
    """Bytes."""
    flops: int


class Kernel(Protocol):
    """One node of a fused op, its attributes known.

    It is called from several threads at a time and keeps no state of a call.
    """

    name: ClassVar[str]
    """What reports call it: one name for ops that share their source."""
    signature: ClassVar[Signature]

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        """Raises KernelError if the op has no kernel for these attributes."""

    def outputs(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        """Types of all outputs.  Raises KernelError if the inputs do not fit the op."""

    def launch(self, device: Device, inputs: Sequence[Array | None], outputs: Sequence[Array | None]) -> None:
        """Compute the outputs; None stands for an input or an output that the node leaves out."""

    def work(self, inputs: Sequence[TensorType | None]) -> Work:
        """What `launch` moves and computes on such inputs, all outputs asked for."""
