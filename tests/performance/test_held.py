"""What a training step holds between forward and backward, before and after."""

from __future__ import annotations

import pytest

import onnxfuse
from onnxfuse.errors import UsageError
from onnxfuse.lifting.lifted import Lifted
from onnxfuse.performance.held import between, limited
from onnxfuse.performance.sizes import Sizes
from onnxfuse.reporting.held import HeldValue
from onnxfuse.training.recompute import Limit
from tests.training.steps import HEAD, STEP, step


def test_a_report_says_what_is_kept_and_what_became_of_the_rest() -> None:
    held = onnxfuse.report(step()).held
    assert held is not None
    assert (held.loss, held.before, held.after, held.unsized, held.limit) == ("loss", 864, 480, 0, None)
    saved = [value.value for value in held.values if value.fate == "saved"]
    assert saved == ["h", "d"]
    assert HeldValue("a", "Sin", ("Transpose",), 384, "recomputed", ("h",)) in held.values
    assert held.fates == {"saved": 2, "recomputed": 1}


def test_other_models_have_nothing_to_keep() -> None:
    assert onnxfuse.report(step(HEAD + "g (float[4] x) => (float[4] y) { y = Neg(x) }")).held is None


def test_bytes_are_those_of_the_shapes_that_are_given() -> None:
    text = STEP.replace("float[6,8] x, float[6,4] t", "float[n,8] x, float[n,4] t")
    held = onnxfuse.report(step(text), shapes={"x": (12, 8)}).held
    assert held is not None
    assert (held.before, held.after) == (2 * 864, 2 * 480)


def test_a_size_that_depends_on_the_data_is_not_counted() -> None:
    """The places of what is not zero, which forward and backward read."""
    places = "nz = NonZero(d) nf = Cast<to = 1>(nz) m = ReduceSum<keepdims = 0>(nf)"
    text = STEP.replace("sq = Mul(d, d)", f"{places} sq = Mul(d, m)")
    text = text.replace("dy = Mul(d, two)", "n = ReduceMax<keepdims = 0>(nf) dy = Mul(d, n)")
    lifted = Lifted.of(step(text))
    held = between(lifted, lifted, [], Sizes.of(lifted.model))
    assert held is not None
    assert held.unsized == 2  # before and after


def test_a_limit_is_for_sizes() -> None:
    text = STEP.replace("float[6,8] x, float[6,4] t", "float[n,8] x, float[n,4] t")
    at = Sizes.of(step(text), {"x": (12, 8)})
    assert limited(step(text), 100, at, None) == Limit(100, tuple(at.known.items()))
    assert dict(limited(step(text), 100, None, None).known)["n"] == Sizes.of(step(text)).known["n"]
    with pytest.raises(UsageError, match="--recompute is for training steps, and this is none"):
        limited(step(HEAD + "g (float[4] x) => (float[4] y) { y = Neg(x) }"), 100, None, None)


def test_a_limit_is_met_and_the_numbers_are_the_same() -> None:
    done = onnxfuse.optimize(step(), recompute=100)
    held = done.report.held
    assert held is not None
    assert (held.before, held.after, held.limit) == (864, 96, 100)
    assert done.report.validation.verdict == "equal"
    with pytest.raises(UsageError, match="leave --precision away"):
        onnxfuse.optimize(step(), recompute=100, precision="fp16")
