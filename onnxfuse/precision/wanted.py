"""What is asked for: a type of half precision, and what it can hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import ml_dtypes
import numpy as np
from onnx import TensorProto, helper

Name: TypeAlias = Literal["fp16", "bf16", "mixed"]
CASTS = 2
"""Beyond those of inputs and outputs, there may be so many in a model where numbers or errors ask for float32."""
_AT_ONCE = 1 << 20
"""Numbers of a weight that are looked at at a time, in float64."""


@dataclass(frozen=True)
class Overflow:
    """A number of a model's own that a type cannot hold."""

    node: str
    op: str
    value: float


@dataclass(frozen=True)
class Precision:
    """A conversion to half precision.  In the `mixed` one, as much stays in float32 as its numbers ask for; in the
    others, no more than half of the products and fused ops, with no more than CASTS."""

    name: Name
    io: bool = False
    """Whether inputs and outputs of the model are converted, too."""

    @property
    def dtype(self) -> int:
        """The element type, as TensorProto has it."""
        return int(TensorProto.BFLOAT16 if self.name == "bf16" else TensorProto.FLOAT16)

    @property
    def type_name(self) -> str:
        return "bfloat16" if self.name == "bf16" else "float16"

    @property
    def rtol(self) -> float:
        """How far an output may be from float32's, relative to its largest number: a few units in the last place."""
        return 2e-2 if self.name == "bf16" else 3e-3

    @property
    def largest(self) -> float:
        return float(ml_dtypes.finfo(helper.tensor_dtype_to_np_dtype(self.dtype)).max)  # type: ignore[no-untyped-call]

    @property
    def smallest(self) -> float:
        """Smaller numbers lose digits."""
        kind = helper.tensor_dtype_to_np_dtype(self.dtype)
        return float(ml_dtypes.finfo(kind).smallest_normal)  # type: ignore[no-untyped-call]

    def refusal(self, overflows: Sequence[Overflow]) -> str:
        """Why a model cannot be converted, and what to do."""
        first, more = overflows[0], len(overflows) - 1
        others = f", and {more} more nodes" if more > 1 else ", and one more node" if more else ""
        return (
            f"{first.op} {first.node!r} reaches {first.value:.3g}{others}: {self.type_name} ends at {self.largest:g}: "
            "--precision mixed leaves such nodes in float32, and bf16 holds these numbers"
        )

    def unfit(self, array: np.ndarray) -> float:
        """A number of a constant that the type cannot say, 0 if it can say them: one that is too large, or the largest
        of all where all are too small.  Infinities are what they are."""
        flat, found = array.reshape(-1), 0.0
        for start in range(0, flat.size, _AT_ONCE):
            wide = flat[start : start + _AT_ONCE].astype(np.float64)
            wide = wide[np.isfinite(wide)]
            found = max(found, float(wide[np.abs(wide).argmax()]) if wide.size else 0.0, key=abs)
        return found if abs(found) > self.largest or 0 < abs(found) < self.smallest else 0.0


Ranges: TypeAlias = Mapping[str, float]
"""Values of the main graph → the size of the largest finite number that they were seen to have."""
