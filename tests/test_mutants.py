"""What is almost a pattern is left alone or fused rightly: a fused mutant computes what the mutant computes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxfuse import language
from onnxfuse.float64 import to_float64
from onnxfuse.pipeline import fuse
from tests.spellings import FAMILIES
from tests.spellings.build import Array
from tests.spellings.mutants import feeds, mutants, run

CATALOGUE = language.load()
MODELS = Path(__file__).parents[1] / "models"

TOLERANCE = {np.dtype(np.float32): 1e-5, np.dtype(np.float16): 2e-3}
"""Largest |fused - mutant| / max|mutant|, by the dtype of the output."""

SPELLINGS, MUTANTS = 12, 12
"""Spellings per family, mutants per spelling."""

SMALL_MODELS = ("activations", "softmax", "conv_batchnorm", "gemm_batchnorm", "layernorm_tensorflow", "quick_gelu")
EXPORTS = ("bert.ts", "llama.dynamo", "t5_decoder.ts", "convnext.dynamo")
PER_MODEL = 12
"""Mutants per model of models/."""


def originals(family: str) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Spellings of a family, evenly spread over all that it has."""
    every = list(FAMILIES[family](17))
    for spelling in every[:: max(1, len(every) // SPELLINGS)][:SPELLINGS]:
        yield spelling.name, spelling.model


def agrees(got: Array, want: Array) -> bool:
    """Whether `got` is `want` up to the tolerance of its dtype and up to subnormal numbers, NaN where that is NaN."""
    finite = np.isfinite(want)
    if got.shape != want.shape or got.dtype != want.dtype or (np.isfinite(got) != finite).any():
        return False
    if want.dtype.kind != "f":
        return bool((got == want).all())
    exact, close = want[finite].astype(np.float64), got[finite].astype(np.float64)
    bound = TOLERANCE[want.dtype] * np.abs(exact).max(initial=0) + float(np.finfo(want.dtype).smallest_normal)
    return bool(np.abs(close - exact).max(initial=0) <= bound)


def is_noise(mutant: onnx.ModelProto, inputs: dict[str, Array], results: list[Array]) -> bool:
    """Whether the mutant computes its own rounding errors: such as the root of a sum that is zero but for rounding."""
    wide = {name: value.astype(np.float64) if value.dtype.kind == "f" else value for name, value in inputs.items()}
    exact = run(to_float64(mutant), wide)
    with np.errstate(over="ignore"):
        return not all(agrees(x.astype(y.dtype), y) for x, y in zip(exact, results, strict=True))


def wrong(model: onnx.ModelProto, count: int) -> tuple[list[str], int, int, int]:
    """(mutants that their fused form does not equal, mutants made, those with a fusion, those that are noise)."""
    found, made, with_fusion, noise = [], 0, 0, 0
    inputs = feeds(model)
    for description, mutant in islice(mutants(model, seed=2), count):
        fused = fuse(mutant, CATALOGUE)
        made += 1
        with_fusion += bool(fused.sites)
        want = run(mutant, inputs)
        if all(agrees(a, b) for a, b in zip(run(fused.model, inputs), want, strict=True)):
            continue
        if is_noise(mutant, inputs, want):
            noise += 1
        else:
            found.append(description)
    return found, made, with_fusion, noise


@pytest.mark.parametrize("family", FAMILIES)
def test_a_fused_mutant_computes_what_the_mutant_computes(family: str) -> None:
    failures = {}
    totals = np.zeros(3, int)
    for name, model in originals(family):
        found, *counts = wrong(model, MUTANTS)
        totals += counts
        if found:
            failures[name] = found
    made, with_fusion, noise = (int(total) for total in totals)
    print(f"{family}: {made} mutants, {with_fusion} with a fusion, {noise} of noise")
    assert failures == {}
    assert made >= 30  # of 12 families, most of which have more than 100
    assert noise <= made // 20


@pytest.mark.parametrize("name", SMALL_MODELS + EXPORTS)
def test_a_fused_mutant_of_a_whole_model_computes_what_the_mutant_computes(name: str) -> None:
    model = onnx.load(MODELS / f"{name}.onnx")
    found, made, with_fusion, noise = wrong(model, PER_MODEL)
    print(f"{name}: {made} mutants, {with_fusion} with a fusion, {noise} of noise")
    assert found == []
    assert made == PER_MODEL
    assert with_fusion > made // 2
    assert noise <= 1
