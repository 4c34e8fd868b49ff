"""Reductions have one spelling: axes from the end, dims kept."""

from __future__ import annotations

import numpy as np
import pytest

from tests.terms.normal.space import FLOAT, HALF, Space, b, s


@pytest.mark.parametrize(("dtype", "factor"), [(FLOAT, 1 / 768), (HALF, float(np.float16(1 / 768)))])
def test_a_sum_over_its_count_is_a_mean(t: Space, dtype: int, factor: float) -> None:
    x = t.input("x", b, s, 768, dtype=dtype)
    total = t.op("ReduceSum", x, axes=(-1,))
    mean = t.op("ReduceMean", x, axes=(-1,))
    assert t.op("Mul", total, t.number(factor, dtype=dtype)) is mean
    assert t.op("Mul", total, t.number(1 / 767, dtype=dtype)) is not mean


def test_reductions_count_from_the_end_and_keep_dims(t: Space) -> None:
    x = t.input("x", b, s, 8)
    assert t.op("ReduceMean", x, axes=(2,)) is t.op("ReduceMean", x, axes=(-1,), keepdims=1)
    dropped = t.op("ReduceMean", x, axes=(-1,), keepdims=0)
    assert dropped is t.reshape(t.op("ReduceMean", x, axes=(-1,)), b, s)
    assert t.op("ReduceSumSquare", x, axes=(-1,)) is t.op("ReduceSum", t.op("Mul", x, x), axes=(-1,))
    assert t.op("ReduceL2", x, axes=(2,)) is t.op("Sqrt", t.op("ReduceSumSquare", x, axes=(2,)))
    assert t.op("ReduceSum", x, noop_with_empty_axes=1) is x
    assert t.op("ReduceSum", x) is t.op("ReduceSum", x, axes=(0, 1, 2))
    image = t.input("image", b, 3, 5, 5)
    assert t.op("GlobalAveragePool", image) is t.op("ReduceMean", image, axes=(2, 3))
