"""Scores to a part of which something is added: attention with a bias, in every spelling, and nothing that slips."""

from __future__ import annotations

from itertools import islice

import numpy as np
import onnx
import pytest

from onnxfuse import optimize
from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from onnxfuse.model.graph import family_of
from tests import exports
from tests.spellings.build import Spelling
from tests.spellings.mutants import mutants, run
from tests.spellings.relative import SLIPS, relative

CATALOGUE = catalogue.load()
TOLERANCE = 2e-5
SPELLED, MUTATED, MUTANTS = 24, 3, 7


def attentions(model: onnx.ModelProto) -> int:
    return sum(family_of(node) == "Attention" for node in model.graph.node)


def far(spelling: Spelling, model: onnx.ModelProto, wanted: list[np.ndarray]) -> float:
    (got,), (want,) = run(model, spelling.inputs), wanted
    return float(np.abs(got - want).max() / np.abs(want).max()) / TOLERANCE


@pytest.mark.parametrize("opset", [13, 17, 23])
def test_positions_are_a_bias_in_every_spelling(opset: int) -> None:
    unmatched, wrong = [], {}
    for spelling in islice(relative(opset, SPELLED), 0, None, 1 if opset == 17 else 4):
        onnx.checker.check_model(spelling.model, full_check=True)
        fused = fuse(spelling.model, CATALOGUE).model
        if attentions(fused) != 1 or any("Scatter" in node.op_type for node in fused.graph.node):
            unmatched.append(spelling.name)
        truth = list(spelling.outputs.values())
        errors = [far(spelling, which, truth) for which in (spelling.model, fused)]
        if max(errors) > 1:
            wrong[spelling.name] = errors
    assert unmatched == []
    assert wrong == {}


@pytest.mark.parametrize("slip", SLIPS[1:])
def test_what_slips_computes_what_it_did(slip: str) -> None:
    other = 0
    for spelling in relative(17, SPELLED, slip):
        wanted = run(spelling.model, spelling.inputs)
        assert far(spelling, fuse(spelling.model, CATALOGUE).model, wanted) <= 1
        other += far(spelling, spelling.model, list(spelling.outputs.values())) > 1
    assert other >= 5


def test_a_part_that_is_read_elsewhere_than_it_is_written_is_no_attention() -> None:
    assert {attentions(fuse(spelling.model, CATALOGUE).model) for spelling in relative(17, SPELLED, "read")} == {0}


def test_a_fused_mutant_computes_what_the_mutant_computes() -> None:
    every, failures, made = list(relative(17, SPELLED)), {}, 0
    for spelling in every[:: len(every) // MUTATED]:
        for description, mutant in islice(mutants(spelling.model, seed=3, given=spelling.inputs), MUTANTS):
            made += 1
            if differing := exports.differing(mutant, fuse(mutant, CATALOGUE).model, spelling.inputs, TOLERANCE):
                failures[spelling.name, description] = differing
    assert failures == {}
    assert made >= MUTATED * MUTANTS


def test_they_are_proved() -> None:
    done = optimize(next(iter(relative(17))).model)
    assert done.report.validation.verdict == "equal"
    assert [fusion.kind for fusion in done.report.fusions] == ["Region", "Attention"]
