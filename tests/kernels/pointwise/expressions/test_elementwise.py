"""Elementwise ops are what they mean, at their ends as well."""

from __future__ import annotations

from collections.abc import Callable
from math import erfc
from typing import Any

import numpy as np
import pytest

from onnxfuse.kernels.device.device import Launch, Source
from onnxfuse.kernels.pointwise.expressions.elementwise import BETTER, FORMULAS, GELU
from tests.kernel_runs import ATTRIBUTES, BFLOAT16, FLOAT16, FLOAT32, Array, far, run
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


def normal(x: Array) -> Array:
    return 0.5 * np.vectorize(erfc)(-x / 2**0.5)


def logistic(x: Array) -> Array:
    return np.asarray(np.exp(-np.logaddexp(0, -x)))


def softplus(x: Array) -> Array:
    return np.asarray(np.logaddexp(0, x))


COARSE: dict[str, Callable[[Array], Array]] = {
    "coarse::exponential(x)": np.exp,
    "coarse::expm1(x)": np.expm1,
    "coarse::sigmoid(x)": logistic,
    "coarse::swish(x, 1.5f)": lambda x: x * logistic(1.5 * x),
    "coarse::tanh(x)": np.tanh,
    "coarse::softplus(x)": softplus,
    "coarse::mish(x)": lambda x: x * np.tanh(softplus(x)),
    "coarse::elu(x, 1.5f)": lambda x: np.where(x > 0, x, 1.5 * np.expm1(x)),
    "coarse::celu(x, 2.f)": lambda x: np.where(x > 0, x, 2 * np.expm1(x / 2)),
    "coarse::complementary_erf(x)": np.vectorize(erfc),
    "coarse::one_plus_erf(x)": lambda x: np.vectorize(erfc)(-x),
    "coarse::gelu(x)": lambda x: x * normal(x),
    "coarse::gelu_tanh(x)": lambda x: x * logistic(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)),
}
"""What stands for a function where results have 16 bits, and that function in float64."""


def test_every_coarse_function_is_compared() -> None:
    formulas = [*FORMULAS.values(), *GELU.values(), *(one for own in BETTER.values() for _, one in own)]
    used = {name for one in formulas for name in COARSE if name.partition("(")[0] + "(" in one.coarse}
    assert used == set(COARSE)


@pytest.mark.parametrize("dtype", [FLOAT16, BFLOAT16], ids=str)
@pytest.mark.parametrize("call", COARSE)
def test_a_coarse_function_is_right_for_every_number_of_16_bits(call: str, dtype: np.dtype[Any]) -> None:
    """Within an eighth of what rounding the result takes, and of the steps of float16 beneath its normal numbers.

    A quotient by more than 2^126 is 0, and float32 numbers beneath 2^-126 are: of bfloat16 little is beneath 2^-104."""
    x = np.arange(1 << 16, dtype=np.uint16).view(dtype).astype(np.float32)
    entry = f"""extern "C" __global__ void k(const float* in, float* y) {{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const float x = in[i];
    y[i] = {call};
}}
"""
    y = np.empty_like(x)
    CHECKED.launch(Launch(Source("coarse", Source.file("functions.cuh").text + entry), "k", (256,), (256,)), [x, y])
    with np.errstate(all="ignore"):
        wanted = COARSE[call](x.astype(np.float64))
    tiny, large = (2.0**-14, 65504.0) if dtype == FLOAT16 else (2.0**-104, 3.4e38)
    finite = np.isfinite(wanted) & (np.abs(wanted) <= large)
    assert (np.abs(y[finite] - wanted[finite]) <= 2.0**-14 * np.maximum(np.abs(wanted[finite]), tiny)).all()
    infinite = np.abs(wanted) > large
    assert (np.abs(y[infinite]) > large * 0.999).all()
    assert (np.sign(y[infinite]) == np.sign(wanted[infinite])).all()
    assert np.isnan(y[np.isnan(wanted)]).all()
