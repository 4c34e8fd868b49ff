"""What is almost a pattern is left alone or fused rightly: a fused mutant computes what the mutant computes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import onnx
import pytest

from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from tests import exports
from tests.exports import MODELS
from tests.side_by_side import fed, side_by_side
from tests.spellings import FAMILIES, spellings
from tests.spellings.mutants import feeds, mutants

CATALOGUE = catalogue.load()

TOLERANCE = 1e-5
"""Largest |fused - mutant| / max|mutant| of any value that both compute, in float32."""

SPELLINGS, MUTANTS = 12, 12
"""Spellings per family, mutants per spelling."""

SMALL_MODELS = ("activations", "softmax", "conv_batchnorm", "gemm_batchnorm", "layernorm_tensorflow", "quick_gelu")
EXPORTS = ("bert.ts", "llama.dynamo", "t5_decoder.ts", "convnext.dynamo")
PER_MODEL = 12
"""Mutants per model of models/."""


def originals(family: str) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Spellings of a family, evenly spread over all that it has."""
    every = spellings(family)
    for spelling in every[:: max(1, len(every) // SPELLINGS)][:SPELLINGS]:
        yield spelling.name, spelling.model


def wrong(model: onnx.ModelProto, inputs: dict[str, Any], count: int) -> tuple[dict[str, dict[str, str]], int, int]:
    """(mutants that their fused form does not equal and where, mutants made, those with a fusion)."""
    found, made, with_fusion = {}, 0, 0
    for description, mutant in islice(mutants(model, seed=2), count):
        fused = fuse(mutant, CATALOGUE)
        onnx.checker.check_model(fused.model, full_check=True)
        made += 1
        with_fusion += bool(fused.sites)
        differing = exports.differing(mutant, fused.model, inputs, TOLERANCE)
        if differing:
            found[description] = differing
    return found, made, with_fusion


@pytest.mark.parametrize("family", FAMILIES)
def test_a_fused_mutant_computes_what_the_mutant_computes(family: str) -> None:
    """Mutants of one spelling are fused together."""
    failures = {}
    total = 0
    for name, model in originals(family):
        made = list(islice(mutants(model, seed=2), MUTANTS))
        together = side_by_side([mutant for _, mutant in made])
        fused = fuse(together, CATALOGUE).model
        onnx.checker.check_model(fused, full_check=True)
        differing = exports.differing(together, fused, fed([feeds(model)] * len(made)), TOLERANCE)
        for value, why in differing.items():
            failures[name, made[int(value.partition("/")[0])][0], value] = why
        total += len(made)
    assert failures == {}
    assert total >= 30  # of 12 families, most of which have more than 100


@pytest.mark.parametrize("name", SMALL_MODELS + EXPORTS)
def test_a_fused_mutant_of_a_whole_model_computes_what_the_mutant_computes(name: str) -> None:
    model = exports.load(MODELS / f"{name}.onnx")
    found, made, with_fusion = wrong(model, exports.feeds(model), PER_MODEL)
    assert found == {}
    assert made == PER_MODEL
    assert with_fusion > made // 2
