"""Binaries with instructions that not all later cards have: for one compute capability ("a"), or for a family ("f").

CUDA Programming Guide, "Feature Availability": what is compiled for sm_90a runs on compute capability 9.0 alone, what
is compiled for sm_100f on 10.0 and 10.3.
"""

from __future__ import annotations

WARPGROUPS, TENSOR_MEMORY = "sm_90a", "sm_100f"
"""Those with products by warpgroups (wgmma), and with sums in tensor memory (tcgen05)."""
OWN = {"sm_90": WARPGROUPS, "sm_100": TENSOR_MEMORY, "sm_103": TENSOR_MEMORY}
"""Of a card."""


def own(card: str) -> str:
    """The one whose binaries a card ("sm_90") runs besides those for all; empty where there is none."""
    return OWN.get(card, "")
