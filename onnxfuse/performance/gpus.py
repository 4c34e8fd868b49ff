"""What a GPU can do: the figures that times are predicted from.

Those of CARDS are leads, from NVIDIA's data sheets (A100 80GB SXM, H100 SXM, H200 SXM, an eighth of HGX B200; tensor
rates without sparsity), and a launch as a CUDA graph replays it.  Measured figures take their place from a JSON file
such as ::

    {"name": "my H200", "architecture": "sm_90", "multiprocessors": 132, "bandwidth": 4.1e12, "float32": 5.2e13,
     "tensor": 7.9e14, "launch": 2.2e-6}

in which a key that is left out is that of the card named by `"like"`: "h200" unless it says otherwise.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from onnxfuse.errors import UsageError

if TYPE_CHECKING:
    from onnxfuse.targets.target import Target


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU."""

    name: str
    architecture: str
    """Such as "sm_90"."""
    multiprocessors: int
    bandwidth: float
    """Of its memory, in bytes a second."""
    float32: float
    """Operations a second, a fused multiply-add being two."""
    tensor: float
    """The same for products of float16 and bfloat16 matrices, sums in float32."""
    launch: float
    """Seconds that a kernel takes which does nothing."""

    @property
    def clock(self) -> float:
        """Cycles a second, at which its float32 lanes come to that rate."""
        return self.float32 / (2 * LANES.get(self.architecture, 128) * self.multiprocessors)

    @property
    def warp_tensor(self) -> float:
        """What products of a warp (mma.sync) come to of the rate of tensor cores."""
        return self.tensor * WARP_PRODUCTS.get(self.architecture, 1.0)

    @property
    def warpgroup_tensor(self) -> float:
        """What those come to of it that go on by themselves: of a warpgroup (wgmma), or of a tile (tcgen05)."""
        return self.tensor * WARPGROUP_PRODUCTS.get(self.architecture, 1.0)

    @property
    def issued(self) -> float:
        """Instructions of warps a second: each multiprocessor has four schedulers, of one a cycle."""
        return 4 * self.multiprocessors * self.clock

    @property
    def special(self) -> float:
        """Of those, exponentials and reciprocals: each multiprocessor has 16 results a cycle (CUDA C++ Programming
        Guide, throughput of instructions)."""
        return self.multiprocessors * self.clock / 2


LANES = {"sm_80": 64, "sm_90": 128, "sm_100": 128}
"""Float32 multiply-adds of a multiprocessor in a cycle (CUDA C++ Programming Guide, throughput of instructions)."""
WARP_PRODUCTS = {"sm_80": 1.0, "sm_90": 0.63, "sm_100": 0.5}
"""The share of the tensor cores' rate that mma.sync reaches: 62.9 % on Hopper (Luo et al. 2024, "Benchmarking and
Dissecting the Nvidia Hopper GPU Architecture"); of sm_100 a guess."""
WARPGROUP_PRODUCTS = {"sm_90": 1.5 * 0.63, "sm_100": 1.0}
"""The same of wgmma: 1.5 times as much (Luo et al. 2025, "Dissecting the NVIDIA Hopper Architecture through
Microbenchmarking and Multiple Level Analysis"); and of tcgen05, from 128 columns on near the peak of the data sheet
(Chen and Patel 2026, "Dissecting Nvidia Blackwell - Tensor Cores").  Not measured by us."""


CARDS = {
    card.name: card
    for card in (
        Card("a100", "sm_80", 108, 2.039e12, 19.5e12, 312e12, 2.5e-6),
        Card("h100", "sm_90", 132, 3.35e12, 67e12, 989e12, 2.5e-6),
        Card("h200", "sm_90", 132, 4.8e12, 67e12, 989e12, 2.5e-6),
        Card("b200", "sm_100", 148, 7.7e12, 75e12, 2.25e15, 2.5e-6),
    )
}
DEFAULT = "h200"


def given(name: str | None, target: Target) -> Card | None:
    """The card that a user named, if so.  Raises UsageError where it is none, and for a target that has no kernels."""
    if name is None:
        return None
    if not target.functions:
        raise UsageError("estimates are for --target onnxfuse: what other targets run is not onnxfuse's")
    return card(name)


def card(name: str) -> Card:
    """A card of CARDS, or of a JSON file.  Raises UsageError where it is neither."""
    if name in CARDS:
        return CARDS[name]
    path = Path(name)
    if path.suffix != ".json":
        raise UsageError(f"--card {name}: it is {', '.join(CARDS)}, or a .json file with measured figures")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"--card {name}: {error}") from None
    if not isinstance(found, dict) or found.get("like", DEFAULT) not in CARDS:
        raise UsageError(f'--card {name}: an object with the figures of a card, "like" one of {", ".join(CARDS)}')
    known = {**asdict(CARDS[found.pop("like", DEFAULT)]), "name": path.stem}
    kinds = {field.name: type(known[field.name]) for field in fields(Card)}
    for key, value in found.items():
        wanted = kinds.get(key)
        if wanted is None:
            raise UsageError(f"--card {name}: {key} is not one of {', '.join(kinds)}")
        right = isinstance(value, str) if wanted is str else isinstance(value, int | float) and value > 0
        if not right:
            raise UsageError(f"--card {name}: {key} is {value!r}")
        known[key] = wanted(value)
    return Card(**known)
