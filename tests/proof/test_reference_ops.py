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
