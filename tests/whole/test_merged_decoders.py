"""Merged decoders: an If between the decoder with a past and the one without, each fused as it is by itself."""

from __future__ import annotations

from collections import Counter
from itertools import islice

import numpy as np
import onnx
import pytest

from onnxfuse import optimize
from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from onnxfuse.model.graph import family_of
from onnxfuse.model.walk import attribute_graphs
from tests.spellings.build import Case
from tests.spellings.decoders import CHOICES, SLIPS, Decoder, decoders
from tests.spellings.merged import SWITCH, can_merge, feeds, merged, of
from tests.spellings.mutants import run
from tests.whole.test_decoders import far

CATALOGUE = catalogue.load()
EVERY, SLIPPED = 6, 12
"""One in so many spellings; `python -m benchmarks.decoders --merged` takes all."""


def families(graph: onnx.GraphProto) -> Counter[str]:
    return Counter(family_of(node) for node in graph.node if node.op_type != "Constant")


def inside(model: onnx.ModelProto) -> dict[str, Counter[str]]:
    (node,) = (node for node in model.graph.node if node.op_type == "If")
    return {name: families(body) for name, body in attribute_graphs(node)}


def plain(**words: str) -> Decoder:
    case = Case(**{choice: each[0] for choice, each in CHOICES.items()} | words)
    return Decoder(17, "plain", case, "none")


def chosen(slip: str, step: int) -> list[Decoder]:
    return list(islice((d for d in decoders(17, 40, slip) if can_merge(vars(d.case))), 0, None, step))


@pytest.mark.parametrize("decoder", chosen("none", EVERY), ids=lambda decoder: decoder.name)
def test_both_branches_are_fused_as_the_decoders_are_by_themselves(decoder: Decoder) -> None:
    model, first = of(decoder)
    onnx.checker.check_model(model)
    fused = fuse(model, CATALOGUE).model
    alone = [fuse(each.spelling().model, CATALOGUE).model.graph for each in (decoder, first)]
    assert inside(fused) == dict(zip(("then_branch", "else_branch"), map(families, alone), strict=True))
    assert all(each["Attention"] == 1 for each in inside(fused).values())
    for past, new in decoder.lengths():
        for cached in (True, False):
            given = feeds(decoder, past, new, cached=cached)
            truth = (decoder if cached else first).truth(given)
            assert far(run(fused, given), truth) <= 1


def test_a_past_of_no_length_is_nothing_before_the_first_key() -> None:
    decoder = plain()
    model, first = of(decoder)
    fused = fuse(model, CATALOGUE).model
    given = feeds(decoder, 0, 3, cached=False) | {SWITCH: np.array([True])}
    assert far(run(fused, given), first.truth(given)) <= 1


@pytest.mark.parametrize("slip", SLIPS[1:])
def test_what_slips_by_one_in_a_branch_computes_what_it_did(slip: str) -> None:
    for decoder in chosen(slip, SLIPPED):
        model, _ = of(decoder)
        fused = fuse(model, CATALOGUE).model
        for past, new in decoder.lengths():
            for cached in (True, False):
                given = feeds(decoder, past, new, cached=cached)
                assert far(run(fused, given), run(model, given)) <= 1


def test_branches_that_are_exchanged_stay_so() -> None:
    decoder = plain()
    model, first = of(decoder)
    exchanged = merged(first.spelling().model, decoder.spelling().model)
    fused = fuse(exchanged, CATALOGUE).model
    given = feeds(decoder, 5, 3, cached=True)
    assert far(run(fused, given | {SWITCH: np.array([False])}), run(model, given)) <= 1


@pytest.mark.parametrize("target", ["onnxfuse", "onnx", "ort"])
def test_a_merged_decoder_is_proved_in_both_branches(target: str) -> None:
    """Targets without functions raise both to the opset of Attention."""
    done = optimize(of(plain())[0], target=target)
    assert done.report.validation.verdict == "equal"
    assert done.report.left_out == []
    scopes = Counter(fusion.scope for fusion in done.report.fusions if "Attention" in fusion.op)
    assert scopes == {"/optimum::if.then_branch": 1, "/optimum::if.else_branch": 1}
