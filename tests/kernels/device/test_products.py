"""Matrix products with the broadcasting of MatMul, as few products of strided batches."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.products import multiplications, products, result

SHAPES = [
    ((2, 3), (3, 4), 1),
    ((5, 2, 3), (3, 4), 1),  # more rows of one matrix
    ((5, 2, 3), (5, 3, 4), 1),
    ((1, 2, 3), (5, 3, 4), 1),
    ((6, 5, 2, 3), (6, 5, 3, 4), 1),
    ((6, 1, 2, 3), (5, 3, 4), 6),  # stays along one axis, goes on along the other
    ((6, 5, 2, 3), (6, 1, 3, 4), 1),
    ((6, 5, 2, 3), (1, 5, 3, 4), 6),
    ((2, 1, 2, 2, 3), (1, 3, 1, 3, 4), 2),
]


@pytest.mark.parametrize(("a", "b", "count"), SHAPES)
@pytest.mark.parametrize("transposed", [False, True])
def test_products_are_those_of_matmul(a: tuple[int, ...], b: tuple[int, ...], count: int, transposed: bool) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal(a), rng.standard_normal(b)
    given = np.ascontiguousarray(w.swapaxes(-1, -2)) if transposed else w
    found = products(a, given.shape, transposed, 2.0)
    y = np.full(result(a, given.shape, transposed), np.nan)
    for one in found:
        for n in range(one.batch):
            left = x.ravel()[one.offset_a + n * one.stride_a :][: one.m * one.k].reshape(one.m, one.k)
            right = given.ravel()[one.offset_b + n * one.stride_b :][: one.k * one.n]
            right = right.reshape(one.n, one.k).T if one.transposed else right.reshape(one.k, one.n)
            y.ravel()[one.offset_y + n * one.m * one.n :][: one.m * one.n] = one.scale * (left @ right).ravel()
    np.testing.assert_allclose(y, 2 * (x @ w))
    assert len(found) == count
    assert multiplications(a, given.shape, transposed) == y.size * a[-1]


def test_nothing_is_computed_where_the_result_is_empty() -> None:
    assert products((0, 3), (3, 4)) == []
    assert products((2, 3), (0, 3, 4)) == []


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        ((3,), (3, 4), "matrices have two dimensions"),
        ((2, 3), (4, 5), "rows of 3 do not fit columns of 4"),
        ((2, 2, 3), (3, 3, 4), "the batches do not fit"),
    ],
)
def test_what_does_not_fit_is_named(a: tuple[int, ...], b: tuple[int, ...], message: str) -> None:
    with pytest.raises(KernelError, match=message):
        result(a, b, False)
