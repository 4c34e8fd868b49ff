"""How wide the vectors of a row's elements are, and that kernels of them compute the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onnxfuse.kernels import of_region
from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.rows.region import planned
from tests.kernel_runs import run
from tests.region_runs import computed, expected, function, near, operands

from .test_several import LAST, NORM_GRADIENT

HALF, FLOAT, BOOL = (np.dtype(kind) for kind in (np.float16, np.float32, np.bool_))
SLICE = (
    "a = Constant<value = int64[1] {%d}>() b = Constant<value = int64[1] {%d}>() c = Constant<value = int64[1] {1}>() "
    "s = Slice(x, a, b, c) y = Softmax(s)"
)


def vector(text: str, types: Sequence[tuple[tuple[int, ...], np.dtype[Any]]], aligned: bool = True) -> int:
    """Elements of an access of the one launch."""
    body = function(text)
    given = {n: TensorType(dtype, shape) for n, (shape, dtype) in zip(body.input, types, strict=True)}
    (loop,) = planned(list(body.node), given, list(body.output), aligned)[1]
    return int(loop.how.vector)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("text", "types", "width"),
    [
        ("(x) => (y) { y = Softmax(x) }", [((3, 64), HALF)], 8),
        ("(x) => (y) { y = Softmax(x) }", [((3, 64), FLOAT)], 4),
        ("(x) => (y) { y = Softmax(x) }", [((3, 36), HALF)], 4),
        ("(x) => (y) { y = Softmax(x) }", [((3, 35), HALF)], 1),
        ("(x) => (y) { c = Cast<to = 1>(x) y = Softmax(c) }", [((3, 64), HALF)], 4),
        ("(x, m, z) => (y) { w = Where(m, x, z) y = Softmax(w) }", [((3, 64), HALF), ((3, 64), BOOL), ((1,), HALF)], 8),
        ("(x, z) => (y) { w = Add(x, z) y = Softmax(w) }", [((3, 64), HALF), ((3, 1), HALF)], 8),
        (f"(x) => (y) {{ {SLICE % (8, 40)} }}", [((3, 64), HALF)], 8),
        (f"(x) => (y) {{ {SLICE % (2, 34)} }}", [((3, 64), HALF)], 2),
        (f"(x) => (y) {{ {SLICE % (1, 33)} }}", [((3, 64), HALF)], 1),
    ],
)
def test_an_access_is_as_wide_as_all_that_lies_beside_each_other_allows(
    text: str, types: Sequence[tuple[tuple[int, ...], np.dtype[Any]]], width: int
) -> None:
    assert vector(text, types) == width
    assert vector(text, types, aligned=False) == 1


TEXTS = {
    "residual, norm and heads": (
        "(x, z, g, b) => (t, y) { t = Add(x, z) n = LayerNormalization(t, g, b) "
        "h = Constant<value = int64[4] {0, 0, 4, 16}>() r = Reshape(n, h) y = Transpose<perm = [0, 2, 1, 3]>(r) }",
        [(3, 5, 64), (3, 5, 64), (64,), (64,)],
    ),
    "softmax behind a bias": (
        "(x, z) => (e, y) { t = Add(x, z) e = Exp(t) y = Softmax(t) }",
        [(2, 3, 5, 48), (2, 1, 5, 48)],
    ),
    "a mean beside its rows": (
        f"(x) => (m, y, e) {{ {LAST} e = Exp(x) m = ReduceMean(e, a) y = Sub(e, m) }}",
        [(5, 72)],
    ),
    "of rows that no block holds": (
        "(x, g) => (t, y) { t = Tanh(x) y = LayerNormalization(t, g) }",
        [(2, 26000), (26000,)],
    ),
    "sums of rows that no block holds": (
        f"(x) => (m, y, e) {{ {LAST} e = Exp(x) m = ReduceMean(e, a) y = Sub(e, m) }}",
        [(2, 26000)],
    ),
    "the same of what is turned": (
        "(x, g) => (y) { t = Transpose<perm = [0, 2, 1]>(x) y = LayerNormalization(t, g) }",
        [(3, 40, 24), (40,)],
    ),
    "what all lanes share": (
        f"(x, z) => (y) {{ {LAST} e = Mul(x, z) m = ReduceMax<keepdims = 1>(e, a) y = Sub(m, z) }}",
        [(5, 16), (5, 1)],
    ),
    "the gradient of a norm": (NORM_GRADIENT, [(3, 50, 40), (3, 50, 40), (40,), (3, 50, 1), (3, 50, 1)]),
    "and of rows that no block holds": (
        NORM_GRADIENT,
        [(1, 3, 26000), (1, 3, 26000), (26000,), (1, 3, 1), (1, 3, 1)],
    ),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", TEXTS)
def test_lanes_compute_what_single_elements_do(name: str, dtype: Any) -> None:
    """As near as `test_fused` and `test_several` want them."""
    near(*computed(TEXTS[name], dtype))


@pytest.mark.parametrize("name", ["residual, norm and heads", "the gradient of a norm"])
def test_arrays_that_begin_anywhere_are_read_element_by_element(name: str) -> None:
    body, arrays = function(TEXTS[name][0]), operands(TEXTS[name])
    made = of_region(body, ["float32"] * len(arrays), ["float32"] * len(body.output))({})
    results = run(made, arrays, Emulated(), by=1)
    near(results, expected(body, arrays))
