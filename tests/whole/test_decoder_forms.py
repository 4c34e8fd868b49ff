"""What language models add to a decoder's attention: one op in every spelling, and what slips stays what it is."""

from __future__ import annotations

from itertools import islice

import numpy as np
import onnx
import pytest

from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from onnxfuse.model.graph import family_of
from tests import exports
from tests.spellings.build import Array
from tests.spellings.decoder_forms import SLIPS, forms
from tests.spellings.mutants import mutants, run

CATALOGUE = catalogue.load()
TOLERANCE = 2e-5
"""Largest |got - wanted| / max|wanted|."""
SPELLED, SLIPPED, MUTATED, MUTANTS = 28, 4, 3, 7
"""Spellings, those of which a slip is made, those that are mutated, and mutants of each; `python -m benchmarks.decoders
--forms` takes more."""


def far(got: list[Array], wanted: list[Array]) -> float:
    """Largest error of any output, in units of the tolerance."""
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(got, wanted, strict=True)) / TOLERANCE


@pytest.mark.parametrize(("opset", "step"), [(17, 1), (23, 5)])
def test_every_form_is_one_attention(opset: int, step: int) -> None:
    unmatched, wrong = [], {}
    for spelling in islice(forms(opset, SPELLED), 0, None, step):
        onnx.checker.check_model(spelling.model, full_check=True)
        fused = fuse(spelling.model, CATALOGUE).model
        if sum(family_of(node) == "Attention" for node in fused.graph.node) != 1:
            unmatched.append(spelling.name)
        truth = list(spelling.outputs.values())
        errors = [far(run(which, spelling.inputs), truth) for which in (spelling.model, fused)]
        if max(errors) > 1:
            wrong[spelling.name] = errors
    assert unmatched == []
    assert wrong == {}


@pytest.mark.parametrize("slip", SLIPS[1:])
def test_what_slips_computes_what_it_did(slip: str) -> None:
    every, other = list(forms(17, SPELLED, slip)), 0
    for spelling in every[:: max(1, len(every) // SLIPPED)]:
        wanted = run(spelling.model, spelling.inputs)
        assert far(run(fuse(spelling.model, CATALOGUE).model, spelling.inputs), wanted) <= 1, spelling.name
        other += far(wanted, list(spelling.outputs.values())) > 1
    assert other >= 2


def test_a_fused_mutant_computes_what_the_mutant_computes() -> None:
    every, failures, made = list(forms(17, SPELLED)), {}, 0
    for spelling in every[:: len(every) // MUTATED]:
        for description, mutant in islice(mutants(spelling.model, seed=3, given=spelling.inputs), MUTANTS):
            made += 1
            if differing := exports.differing(mutant, fuse(mutant, CATALOGUE).model, spelling.inputs, TOLERANCE):
                failures[spelling.name, description] = differing
    assert failures == {}
    assert made >= MUTATED * MUTANTS
