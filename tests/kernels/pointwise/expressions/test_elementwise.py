"""Elementwise ops are what they mean, at their ends as well."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernel_runs import ATTRIBUTES, BFLOAT16, FLOAT32, far, run
from tests.kernels.pointwise.test_pointwise import CATALOGUE, CHECKED, LIMITS, OPS, kernel


def test_every_unary_op_has_its_limits() -> None:
    assert set(LIMITS) == {op for op in OPS if len(CATALOGUE.definitions[op].tensors) == 1}


@pytest.mark.parametrize("op", LIMITS)
def test_an_op_is_right_at_the_ends(op: str) -> None:
    x = np.array([1e30, -100, -np.inf, np.nan], np.float32)
    (actual,) = run(kernel(op, **ATTRIBUTES.get(op, {})), [x], CHECKED)
    at_nan = 0.0 if op in ("Shrink", "ThresholdedRelu") else np.nan  # nothing is greater than NaN
    assert not far(actual, np.array([*LIMITS[op], at_nan]))


@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=str)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_does_not_cancel_in_its_tail(approximate: str, dtype: np.dtype[Any]) -> None:
    """1 + erf(x / sqrt 2) has lost all digits at -6, and 1 + tanh with it."""
    from math import erfc, exp

    x = np.linspace(-9, -2, 64).astype(dtype)
    (actual,) = run(kernel("Gelu", approximate=approximate), [x], CHECKED)
    if approximate == "none":
        expected = [0.5 * v * erfc(-v / 2**0.5) for v in x.astype(float)]
    else:
        expected = [v / (1 + exp(-2 * 0.7978845608028654 * (v + 0.044715 * v**3))) for v in x.astype(float)]
    wanted = np.array(expected)
    if dtype == FLOAT32:
        assert (np.abs(actual - wanted) <= 1e-5 * np.abs(wanted)).all()
    else:
        assert not far(actual, wanted)
