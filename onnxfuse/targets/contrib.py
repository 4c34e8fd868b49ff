"""What com.microsoft ops ask of the nodes that stand for them, beyond what a rule says (onnxruntime's
docs/ContribOperators.md and its CUDA kernels)."""

from __future__ import annotations

from collections.abc import Mapping

DOMAIN = "com.microsoft"

REQUIRED_OUTPUTS: Mapping[str, int] = {
    "com.microsoft.EmbedLayerNormalization": 2,
    "com.microsoft.GroupQueryAttention": 3,
}
"""Op → how many of its outputs have a name on every node, though nothing may read them."""

SINGLE_PRECISION: Mapping[str, frozenset[int]] = {
    "com.microsoft.GroupNorm": frozenset({1, 2}),
    "com.microsoft.SkipGroupNorm": frozenset({1, 2}),
}
"""Op → positions of the inputs that are float32 whatever the others are."""

ON_GPU_ALONE = frozenset({"GroupNorm", "SkipGroupNorm"})
"""Ops for which onnxruntime 1.31 has no kernel on a CPU."""
