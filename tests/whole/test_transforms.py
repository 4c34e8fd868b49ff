"""Whatever is done to a model that keeps what it computes keeps its fusions too, and its numbers."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import onnx
import pytest

from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from tests import exports
from tests.exports import MODELS
from tests.transforms import OPAQUE, TRANSFORMS, transformed

CATALOGUE = catalogue.load()

EXPORTS = ("bert.ts", "bert.dynamo", "convnext.dynamo", "gpt2.dynamo", "llama.dynamo", "t5_encoder.dynamo", "vit.ts")
"""Where every transform finds its places."""
SMALL = ("activations", "batchnorm_first", "conv_batchnorm", "gemm_batchnorm", "layernorm_tensorflow", "quick_gelu")
STACKS = 12
"""Random stacks of transforms."""
DEPTH = 6
"""Transforms in a stack."""


@cache
def original(name: str) -> tuple[onnx.ModelProto, dict[str, Any], dict[str, int]]:
    """(model, inputs, fused ops) of a model of models/."""
    model = exports.load(MODELS / f"{name}.onnx")
    return model, exports.feeds(model), dict(exports.fused_ops(fuse(model, CATALOGUE).model))


def assert_same(name: str, names: list[str], seed: int, census: bool = True) -> int:
    """The transformed model computes the same, fused and not, with the same fused ops; how many places changed."""
    model, given, expected = original(name)
    changed, count = transformed(model, names, seed)
    assert exports.changed_outputs(model, changed, given) == {}
    fused = fuse(changed, CATALOGUE).model
    if "unranked" not in names:  # the checker wants a rank of inputs; runtimes do not
        onnx.checker.check_model(fused, full_check=True)
    assert exports.differing(changed, fused, given) == {}
    if census:
        assert exports.fused_ops(fused) == expected
    return count


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_one_transform(transform: str) -> None:
    """On the first export and the first small model where it finds a place."""
    rng = random.Random(transform)
    changed = 0
    for models in (EXPORTS, SMALL):
        names = rng.sample(models, len(models))
        place = next((name for name in names if transformed(original(name)[0], [transform], 1)[1]), None)
        changed += assert_same(place, [transform], 1) if place else 0
    assert changed


@pytest.mark.parametrize("seed", range(STACKS))
def test_transforms_one_upon_the_other(seed: int) -> None:
    rng = random.Random(seed)
    assert assert_same(rng.choice(EXPORTS), rng.sample(list(TRANSFORMS), DEPTH), seed)


@pytest.mark.parametrize("transform", OPAQUE)
@pytest.mark.parametrize("name", ["bert.ts", "llama.dynamo"])
def test_what_hides_a_fusion_changes_no_numbers(name: str, transform: str) -> None:
    assert assert_same(name, [transform], 1, census=False)
