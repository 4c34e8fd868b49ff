"""Ops of the reference as the proof computes them."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.proof.float64 import evaluate
from onnxfuse.runtime.quiet import Session
from tests.proof.test_float64 import parse


@pytest.mark.parametrize("axis", [0, 1])
def test_the_evaluator_gathers_elements_as_onnxruntime_does(axis: int) -> None:
    model = parse(
        f"g (double[3, 4] x, int64[2, 2] i) => (double[2, 2] y) {{ y = GatherElements<axis = {axis}>(x, i) }}"
    )
    feed = {"x": np.arange(12.0).reshape(3, 4), "i": np.array([[2, 0], [-1, 1]])}
    (expected,) = Session(model, None, optimize=False).run(feed)
    np.testing.assert_array_equal(evaluate(model, [feed])[0][0], expected)


@pytest.mark.parametrize(
    "op", "Abs Elu Erf Gelu HardSigmoid HardSwish LeakyRelu Mish Relu Selu Sign Softplus Softsign".split()
)
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_the_evaluator_takes_scalars_and_nothing(op: str, shape: tuple[int, ...]) -> None:
    sizes = ", ".join(map(str, shape))
    model = parse(f"g (double[{sizes}] x) => (double[{sizes}] y) {{ y = {op}(x) }}".replace("[]", ""))
    (y,) = evaluate(model, [{"x": np.full(shape, 0.5)}])[0]
    assert (y.shape, y.dtype) == (shape, np.float64)


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("Max", [[3, 5, 9], [7, 7, 9]]),
        ("Mean", [[2, 10 / 3, 14 / 3], [11 / 3, 5, 19 / 3]]),
        ("Min", [[1, 2, 2], [1, 3, 3]]),
        ("Sum", [[6, 10, 14], [11, 15, 19]]),
    ],
)
def test_operands_are_broadcast_to_each_other(op: str, expected: list[list[float]]) -> None:
    model = parse(f"g (double[1, 3] x, double[2, 1] y, double z) => (double[2, 3] r) {{ r = {op}(x, y, z) }}")
    (actual,) = evaluate(model, [{"x": np.array([[1.0, 5, 9]]), "y": np.array([[2.0], [7]]), "z": np.array(3.0)}])[0]
    assert actual.dtype == np.float64
    np.testing.assert_allclose(actual, expected)
