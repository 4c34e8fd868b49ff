"""Random uses of the ops that the standard defines by bodies: each body folds back to its op, and computes the same."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from benchmarks.standard_draws.__main__ import drawn_as, one
from benchmarks.standard_draws.expand import body_versions
from benchmarks.standard_draws.judge import FOLDED, IMPOSSIBLE, LEFT, REFUSED, draw, judged
from benchmarks.standard_draws.oracle import NEWEST_OPSETS
from benchmarks.standard_draws.table import DRAWERS

OPEN = {"Attention", "Range"}
"""Ops of which some uses do not fold (benchmarks/README.md says why); none may be wrong."""
NEVER = {"Bernoulli", "SequenceMap"}
"""Ops that cannot fold: random numbers, sequences."""


@pytest.fixture(autouse=True, scope="module")
def _newest_opsets() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in NEWEST_OPSETS.items():
            patch.setenv(name, value)
        yield


class Drawn:
    """Decisions that hypothesis takes, and makes simpler where something fails."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))


def functions() -> Iterator[str]:
    """The ops that the installed standard defines by bodies."""
    for schema in onnx.defs.get_all_schemas_with_history():
        if not schema.domain and body_versions(schema):
            yield schema.name


def test_every_op_that_has_a_body_is_drawn() -> None:
    assert set(functions()) == set(DRAWERS)
    assert len(DRAWERS) == 48


@pytest.mark.parametrize("op", sorted(DRAWERS))
@settings(
    max_examples=2,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_a_body_folds_back_and_computes_the_same(op: str, data: st.DataObject) -> None:
    drawn = draw(Drawn(data.draw), op)
    verdict = judged(drawn, deep=data.draw(st.booleans()))
    if op in NEVER:
        assert verdict.outcome == IMPOSSIBLE
    elif op in OPEN:
        assert verdict.outcome in (FOLDED, LEFT, IMPOSSIBLE, REFUSED), verdict.reason
    else:
        assert verdict.outcome in (FOLDED, IMPOSSIBLE, REFUSED), verdict.reason


@pytest.mark.parametrize(
    "seed",
    [
        950326,  # LinearAttention in half precision, whose body computes in float32 and casts both results
        950881,  # Attention with a window that leaves some rows nothing, so that mask and guard are constants
        970129,  # Attention whose keys and values are split into heads by one computed target
        970280,  # Clip of int8 from 0
        1000039,  # CenterCropPad whose length is cut to the smaller of two
        972067,  # LayerNormalization over a dimension of 1 and another, of which scale and bias have both
        974209,  # Attention with a mask of booleans and sequences of their own lengths, which may leave a row nothing
        976046,  # GroupNormalization in bfloat16 of groups of one, at an opset whose InstanceNormalization has none
        976232,  # Clip of uint8 from 0, without a maximum
        978373,  # Selu with a gamma of 1, which is an Elu
        992179,  # LayerNormalization of one element
        990289,  # Attention whose causal order is zeros, since one query sees all, beside a mask
        993217,  # Attention with a mask of each head, whose heads lie side by side
        996097,  # Attention with a window that hides nothing, beside a mask
        1000177,  # Attention whose products are an output, and squashed
        1400065,  # Attention whose products are an output, scaled, and squashed behind that
        1101331,  # LayerNormalization of a scale that is seen as [1, d]
        1104163,  # LayerNormalization over all axes, of which the first is 1
        1200307,  # LayerNormalization of one row, whose scale is [1, b]
        1301059,  # LayerNormalization of one number, whose scale is a constant and whose bias is none
        1115173,  # Selu with an alpha of 0
        1500027,  # PRelu of slope 1
        1500049,  # Attention in bfloat16 whose products are an output, scaled by a rounded number, and squashed
        1105265,  # HardSigmoid of a line through 0
    ],
)
def test_draws_that_did_not_fold(seed: int) -> None:
    assert one(drawn_as(seed, sorted(DRAWERS))).outcome == FOLDED


@pytest.mark.parametrize(
    "seed",
    [
        5100001,  # keys of one head that are present keys as well: the same elements with an axis more
        5100184,  # rows that a guard sets to 0, whose mask has an axis more
        5100511,  # masked scores that are shown, of a mask of each head, whose heads lie side by side
    ],
)
def test_draws_of_attention_that_did_not_fold(seed: int) -> None:
    assert one(drawn_as(seed, ["Attention"])).outcome == FOLDED


@pytest.mark.parametrize(
    ("seed", "version"),
    [
        (991249, "1.28"),  # keys shared by heads with masks of their own, in bfloat16, and rows that a mask may hide
        (1104961, "1.25"),  # keys shared by heads, in a causal order, in bfloat16
    ],
)
def test_what_older_versions_of_onnxruntime_compute_wrong_and_no_newer_one_runs_is_said_so(
    seed: int, version: str
) -> None:
    verdict = one(drawn_as(seed, sorted(DRAWERS)))
    assert verdict.outcome == IMPOSSIBLE
    assert (
        verdict.reason
        == f"an onnxruntime below {version} loads it and computes it wrong, and no newer one runs it in bfloat16"
    )


def test_what_no_onnxruntime_runs_in_an_element_type_is_said_so() -> None:
    verdict = one(drawn_as(1201717, sorted(DRAWERS)))
    assert (verdict.outcome, verdict.reason) == (IMPOSSIBLE, "no onnxruntime runs Selu of this opset in double")


def test_masked_scores_that_onnxruntime_shows_otherwise_are_said_so() -> None:
    verdict = one(drawn_as(1400113, sorted(DRAWERS)))  # a causal order of one query beside booleans, in half precision
    assert verdict.outcome == IMPOSSIBLE
    assert verdict.reason == "onnxruntime shows the lowest number, not -inf, where lengths or an order hide scores"
    assert "Attention" in verdict.nodes
