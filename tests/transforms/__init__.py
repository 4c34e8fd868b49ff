"""Transforms of models that keep what a model computes, and with it everything that can be fused.

Run by hand over any folder: ``python -m tests.transforms FOLDER``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx

from tests.transforms import arithmetic, layout, plumbing
from tests.transforms.editing import Editor
from tests.transforms.plumbing import seeded

Transform = Callable[[Editor], int]
"""Edits a model in place; how many places it changed."""

TRANSFORMS: Mapping[str, Transform] = {
    transform.__name__: transform
    for transform in (
        arithmetic.commuted,
        arithmetic.reassociated,
        arithmetic.subtracted,
        arithmetic.divided,
        arithmetic.squared,
        arithmetic.rooted,
        arithmetic.averaged,
        arithmetic.exponentiated,
        arithmetic.padded,
        layout.unpacked_gemm,
        layout.packed_gemm,
        layout.transposed_product,
        layout.transposed_twice,
        layout.reshaped,
        layout.sliced,
        plumbing.identities,
        plumbing.casts,
        plumbing.renamed,
        plumbing.shuffled,
        plumbing.constant_nodes,
        plumbing.initializers,
        plumbing.copied_constants,
        plumbing.repeated,
        plumbing.old_signature,
        plumbing.expanded,
        plumbing.untyped,
    )
}
"""After each, the same fusions and the same numbers."""

OPAQUE: Mapping[str, Transform] = {
    transform.__name__: transform for transform in (plumbing.outlined, plumbing.symbolic, plumbing.unranked)
}
"""After each, the same numbers, but not always the same fusions: a fusion does not reach across the border of a
function, and where no shape is known, what depends on one is not proved."""


def transformed(
    model: onnx.ModelProto, names: list[str], seed: int, chance: float = 0.5
) -> tuple[onnx.ModelProto, int]:
    """A copy of `model` after these transforms in this order, and how many places changed."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    rng = seeded(seed)
    count = 0
    for name in names:
        count += (TRANSFORMS | OPAQUE)[name](Editor(copy, rng, chance))
    return copy, count
