"""Attention of decoders with caches: fused in every spelling, and what slips by one computes what it did."""

from __future__ import annotations

from itertools import islice

import numpy as np
import onnx
import pytest

from onnxfuse.fusing.fuse import fuse, lower
from onnxfuse.language import catalogue
from onnxfuse.model.graph import family_of
from onnxfuse.targets.target import Target
from tests import exports
from tests.spellings import decoders
from tests.spellings.build import Array, Case, Graph
from tests.spellings.decoders import SLIPS, Decoder
from tests.spellings.mutants import mutants, run

CATALOGUE = catalogue.load()
TOLERANCE = 2e-5
"""Largest |got - wanted| / max|wanted|."""
SPELLED, SLIPPED, MUTATED, MUTANTS = 30, 5, 4, 10
"""Spellings, those of which every slip is made, those that are mutated at random, and mutants of each;
`python -m benchmarks.decoders` takes more."""


def attentions(model: onnx.ModelProto) -> int:
    return sum(family_of(node) == "Attention" for node in model.graph.node)


def far(got: list[Array], wanted: list[Array] | tuple[Array, ...]) -> float:
    """Largest error of any output, in units of the tolerance."""
    assert [a.shape for a in got] == [a.shape for a in wanted]
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(got, wanted, strict=True)) / TOLERANCE


@pytest.mark.parametrize(("opset", "step"), [(17, 1), (20, 5), (23, 5), (24, 5)])
def test_a_decoder_is_fused_in_every_spelling_and_computes_the_same_at_every_length(opset: int, step: int) -> None:
    unmatched, wrong = [], {}
    for decoder in islice(decoders.decoders(opset, SPELLED), 0, None, step):
        model = decoder.spelling().model
        onnx.checker.check_model(model, full_check=True)
        fused = fuse(model, CATALOGUE).model
        if attentions(fused) != 1:
            unmatched.append(decoder.name)
        for past, new in decoder.lengths():
            given = decoder.feeds(past, new)
            errors = [far(run(which, given), decoder.truth(given)) for which in (model, fused)]
            if max(errors) > 1:
                wrong[decoder.name, past, new] = errors
    assert unmatched == []
    assert wrong == {}


def slipped(decoder: Decoder) -> tuple[int, int]:
    """(lengths at which a slipped decoder computes something else than it should, lengths at which its fused form does
    not compute what it does)."""
    model = decoder.spelling().model
    fused = fuse(model, CATALOGUE).model
    other = wrong = 0
    for past, new in decoder.lengths():
        given = decoder.feeds(past, new)
        wanted = run(model, given)
        truth = decoder.truth(given)
        other += [a.shape for a in wanted] != [a.shape for a in truth] or far(wanted, truth) > 1
        wrong += far(run(fused, given), wanted) > 1
    return other, wrong


@pytest.mark.parametrize("slip", SLIPS[1:])
def test_what_slips_by_one_computes_what_it_did(slip: str) -> None:
    every = list(decoders.decoders(17, SPELLED, slip))
    told = [slipped(decoder) for decoder in every[:: len(every) // SLIPPED]]
    assert [wrong for _, wrong in told] == [0] * len(told)
    assert sum(other > 0 for other, _ in told) >= 3


def test_a_fused_mutant_of_a_decoder_computes_what_the_mutant_computes() -> None:
    every = list(decoders.decoders(17, SPELLED))
    failures, made = {}, 0
    for decoder in every[:: len(every) // MUTATED]:
        given = decoder.feeds(*decoder.lengths()[0])
        for description, mutant in islice(mutants(decoder.spelling().model, seed=3, given=given), MUTANTS):
            made += 1
            differing = exports.differing(mutant, fuse(mutant, CATALOGUE).model, given, TOLERANCE)
            if differing:
                failures[decoder.name, description] = differing
    assert failures == {}
    assert made >= MUTATED * MUTANTS


def test_one_key_that_is_broadcast_over_a_mask_and_several_values() -> None:
    """No decoder means that, and Attention has it not: its function body computes it, what has the op refuses."""
    words = {choice: each[0] for choice, each in decoders.CHOICES.items()}
    case = Case(**words | {"tokens": "one", "lengths": "own names", "heads": "all", "rotary": "none"})
    model = Decoder(17, "one key", case, "none").spelling().model
    given = Decoder(17, "one key", case, "none").feeds(3, 1)
    given["past_key"] = given["past_key"][:, :, :0]
    wanted = run(model, given)
    fused = fuse(model, CATALOGUE).model
    assert attentions(fused) == 1
    assert far(run(fused, given), wanted) <= 1
    _, lowered = lower(model, CATALOGUE.serving(Target("onnx")))
    assert attentions(lowered.model) == 1
    with pytest.raises(Exception, match="Attention"):  # what onnxruntime raises has no common base
        run(lowered.model, given)


@pytest.mark.parametrize(("shape", "grouped"), [([2, 1, 6, 5], True), ([1, 2, 6, 5], False)])
def test_rows_of_a_group_become_heads_where_the_mask_is_one_for_all_of_them(shape: list[int], grouped: bool) -> None:
    """A mask for each of a batch, or by its view one for each head of keys: then no head of queries has it alone."""
    g, rng = Graph(17), np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 2, n, 8)).astype(np.float32) for n in (6, 5, 5))
    heads = g.input("heads", q.reshape(2, 4, 3, 8))
    mask = g.input("mask", np.where(rng.random((2, 1, 1, 3, 5)) < 0.7, 0, -1e9).astype(np.float32))
    rows = g.Reshape(heads, np.array(q.shape, np.int64))
    scores = g.Mul(g.MatMul(rows, g.Transpose(g.input("k", k), perm=[0, 1, 3, 2])), 0.5)
    seen = g.Reshape(g.Expand(mask, np.array([2, 1, 2, 3, 5], np.int64)), np.array(shape, np.int64))
    y = g.MatMul(g.Softmax(g.Add(scores, seen), axis=-1), g.input("v", v))
    g.output(y, np.zeros(q.shape), ["a", "b", "c", "d"])
    spelling = g.spelling("rows", {})
    fused = fuse(spelling.model, CATALOGUE).model
    assert attentions(fused) == 1
    assert far(run(fused, g.inputs), run(spelling.model, g.inputs)) <= 1
    (node,) = [node for node in fused.graph.node if family_of(node) == "Attention"]
    assert (node.input[0] == "heads") == grouped
