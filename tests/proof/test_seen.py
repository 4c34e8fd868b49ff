"""Two results of one site, beside what float64 says of both."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from onnxfuse.proof.seen import Seen

TRUTH = np.array([[1.0, 2.0, 4.0]])
ROUNDED = (TRUTH * (1 + 2e-7)).astype(np.float32)
SEEN = Seen(ROUNDED, TRUTH.astype(np.float32), TRUTH, TRUTH, masked=False, precision=None)


def test_what_differs_by_rounding_is_right() -> None:
    assert SEEN.plausible
    assert SEEN.reason(None, None) == ""
    assert SEEN.equation is not None
    assert SEEN.equation.holds


def test_another_number_is_named_and_another_equation_seen() -> None:
    other = replace(SEEN, got=SEEN.got * np.float32(1.01), same=TRUTH * (1 + 1e-5))
    assert other.reason(None, None).startswith("differs by 1.0e-02")
    assert other.equation is not None
    assert not other.equation.holds


def test_what_is_as_near_to_float64_as_the_original_is_right() -> None:
    """1e-3 is beyond the tolerance, and the original is as far from the truth on the other side."""
    assert replace(SEEN, wanted=SEEN.got * np.float32(1.001), got=SEEN.got * np.float32(0.999)).reason(None, None) == ""
    assert replace(SEEN, got=SEEN.got * np.float32(0.999)).reason(None, None) != ""


def test_a_truth_that_is_not_near_or_of_another_shape_is_none() -> None:
    assert not replace(SEEN, truth=TRUTH * 2).plausible
    assert not replace(SEEN, truth=TRUTH[0]).comparable
    assert replace(SEEN, truth=None).equation is None


def test_where_the_original_has_nan_in_a_masked_row_there_is_nothing_to_compare() -> None:
    nan = np.array([[np.nan, 2, 4]], np.float32)
    assert replace(SEEN, wanted=nan, truth=None).reason(None, None) != ""
    assert replace(SEEN, wanted=nan, truth=None, masked=True).reason(None, None) == ""
