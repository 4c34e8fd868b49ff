"""Fused products for tests: inputs, what ONNX makes of them in float64, and how far a result may be from that."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from onnxfuse.language.catalogue import Catalogue, load

from .kernel_runs import reference
from .row_cases import ulps

Values = NDArray[Any]
FLOAT, HALF = np.dtype(np.float32), np.dtype(np.float16)
BFLOAT = np.dtype(ml_dtypes.bfloat16)
DTYPES = (FLOAT, HALF, BFLOAT)

ACTIVATIONS: dict[str, list[float]] = {
    "": [],
    "Clip": [-0.5, 6.0],
    "Elu": [],
    "FastGelu": [],
    "Gelu": [],
    "HardSigmoid": [0.25, 0.4],
    "HardSwish": [],
    "LeakyRelu": [0.1],
    "Mish": [],
    "QuickGelu": [1.702],
    "Relu": [],
    "Sigmoid": [],
    "Softplus": [],
    "Swish": [],
    "Tanh": [],
}


@cache
def catalogue() -> Catalogue:
    return load()


def attributes(activation: str = "Relu", **more: Any) -> dict[str, Any]:
    params = ACTIVATIONS[activation]
    named = {"activation": activation} if activation else {}
    return {**named, **({"activation_params": params} if params else {}), **more}


def operands(
    a: tuple[int, ...],
    b: tuple[int, ...],
    dtype: np.dtype[Any],
    bias: bool = True,
    transposed: bool = False,
    residual: tuple[int, ...] | None = None,
) -> list[Values | None]:
    """A, B (given as [k, n], stored as [n, k] if `transposed`), a bias, whose shape is [1, n], and a residual of the
    given shape."""
    rng = np.random.default_rng(sum(a) + 7 * sum(b))
    stored = (*b[:-2], b[-1], b[-2]) if transposed else b
    arrays = [rng.standard_normal(shape).astype(dtype) for shape in (a, stored, (1, b[-1]))]
    more = None if residual is None else rng.standard_normal(residual).astype(dtype)
    return [*arrays[:2], arrays[2] if bias else None, more]


def assert_right(y: Values, arrays: list[Values | None], given: Mapping[str, Any]) -> None:
    """float32 within 1e-5 of float64, half precision within 2 ulp of float64 rounded once; and a millionth of the sum
    of all magnitudes, which is what counts where they cancel."""
    (wanted,) = reference("FusedMatMul", given, arrays, catalogue())
    a, b, bias, residual, *_ = (None if x is None else np.abs(x.astype(np.float64)) for x in (*arrays, None))
    assert a is not None
    assert b is not None
    size = abs(given.get("alpha", 1.0)) * (a @ (b.swapaxes(-1, -2) if given.get("transB") else b))
    size = size + (0 if bias is None else bias) + (0 if residual is None else residual)
    assert_near(y, wanted, size)


def assert_near(y: Values, wanted: Values, size: Values | float) -> None:
    assert y.shape == wanted.shape
    real = y.astype(np.float64)
    close = np.abs(real - wanted) <= np.maximum(1e-5 * np.abs(wanted) if y.dtype == FLOAT else 0.0, 1e-6 * size)
    if y.dtype.itemsize == 2:
        close |= ulps(y, wanted.astype(y.dtype)) <= 2
    bad = np.argwhere(~close)
    assert not len(bad), f"{len(bad)} of {y.size}, first {bad[0]}: {real[tuple(bad[0])]} for {wanted[tuple(bad[0])]}"
