"""Products on the CPU: what the vendor's library would compute, in float64 and rounded once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxfuse.kernels.device.device import After
from onnxfuse.kernels.device.host_products import ACTIVATED, NumPy
from onnxfuse.kernels.device.products import products

RNG = np.random.default_rng(0)


def array(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("a", "b"), [((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((6, 1, 2, 3), (5, 3, 4))])
def test_a_product_is_that_of_numpy(a: tuple[int, ...], b: tuple[int, ...], transposed: bool) -> None:
    x, w = array(*a), array(*b)
    given = np.ascontiguousarray(w.swapaxes(-1, -2)) if transposed else w
    wanted = 0.5 * (x.astype(float) @ w.astype(float))
    y = np.zeros(wanted.shape, np.float32)
    told: list[Any] = []
    host = NumPy(told.append)
    for product in products(a, given.shape, transposed, 0.5):
        host.product(product, x, given, y)
    np.testing.assert_allclose(y, wanted, rtol=1e-6)
    assert all(one is y for one in told)
    assert told


@pytest.mark.parametrize("activation", sorted(ACTIVATED))
def test_bias_residual_and_activation_come_before_the_one_rounding(activation: str) -> None:
    x, w, bias, residual = array(2, 3), array(3, 4), array(4), array(2, 4)
    host = NumPy(lambda y: None)
    assert host.fuses(activation, np.dtype(np.float16))
    (product,) = products(x.shape, w.shape)
    y = np.zeros((2, 4), np.float16)
    half = [one.astype(np.float16) for one in (x, w, bias, residual)]
    host.fused(product, half[0], half[1], y, After(bias=half[2], residual=half[3], activation=activation), y)
    whole = [one.astype(float) for one in half]
    wanted = ACTIVATED[activation](whole[0] @ whole[1] + whole[3] + whole[2])
    assert np.array_equal(y, wanted.astype(np.float16))


def test_the_gelu_is_that_of_the_library() -> None:
    assert ACTIVATED["FastGelu"](np.array([1.0]))[0] == pytest.approx(0.841192, abs=1e-6)
    assert ACTIVATED["Relu"](np.array([-1.0, 2.0])).tolist() == [0, 2]
    assert not NumPy(print).fuses("Gelu", np.dtype(np.float32))


def test_a_time_is_that_of_what_runs() -> None:
    ran: list[int] = []
    seconds = NumPy(print).clock(lambda: ran.append(1))
    assert not ran
    assert seconds() >= 0
    assert ran == [1]
