"""Several reductions of rows and sums of columns in one kernel, beside onnxruntime and float64."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.pointwise.expressions import carried
from onnxfuse.kernels.rows.samples import BATCH_NORM, BATCH_NORM_GRADIENT
from onnxfuse.kernels.rows.several import several
from tests.region_runs import Case, computed, function, given, launches, near, operands

LAST = "a = Constant<value = int64[1] {-1}>()"
SOFTMAX = "m = ReduceMax(x, a) d = Sub(x, m) e = Exp(d) s = ReduceSum(e, a) y = Div(e, s)"
NORM = (
    "m = ReduceMean(x, a) d = Sub(x, m) q = Mul(d, d) v = ReduceMean(q, a) h = Constant<value = float {0.001}>() "
    "w = Add(v, h) r = Sqrt(w) n = Div(d, r) o = Mul(n, g) y = Add(o, b)"
)
NORM_GRADIENT = (
    f"(dy, x, g, mean, inverse) => (dx, dg, db) {{ {LAST} k = Mul(dy, g) c = Sub(x, mean) n = Mul(c, inverse) "
    "s = ReduceMean(k, a) p = Mul(k, n) t = ReduceMean(p, a) u = Mul(n, t) v = Sub(k, s) w = Sub(v, u) "
    "dx = Mul(inverse, w) rows = Constant<value = int64[2] {0, 1}>() z = Mul(dy, n) "
    "dg = ReduceSum<keepdims = 0>(z, rows) db = ReduceSum<keepdims = 0>(dy, rows) }"
)
RMS_GRADIENT = (
    f"(dy, x, g) => (dx, dg) {{ {LAST} q = Mul(x, x) m = ReduceMean(q, a) h = Constant<value = float {{0.00001}}>() "
    "w = Add(m, h) e = Sqrt(w) r = Reciprocal(e) k = Mul(dy, g) n = Mul(x, r) p = Mul(k, n) t = ReduceMean(p, a) "
    "u = Mul(n, t) v = Sub(k, u) dx = Mul(r, v) rows = Constant<value = int64[1] {0}>() z = Mul(dy, n) "
    "dg = ReduceSum<keepdims = 0>(z, rows) }"
)


def channels(*x: int, operands: int = 1, each: int = 3) -> list[tuple[int, ...]]:
    """As many tensors of a shape, and of what there is of each channel."""
    return [x] * operands + [(x[1], *(1,) * (len(x) - 2))] * each


CASES: dict[str, Case] = {
    "softmax from its parts": (f"(x) => (y) {{ {LAST} {SOFTMAX} }}", [(5, 70)]),
    "and what its parts are": (f"(x) => (y, m, s, e) {{ {LAST} {SOFTMAX} }}", [(3, 5, 33)]),
    "of rows that no block holds": (f"(x) => (y) {{ {LAST} {SOFTMAX} }}", [(2, 30000)]),
    "a norm from its parts": (f"(x, g, b) => (y) {{ {LAST} {NORM} }}", [(3, 5, 700), (700,), (700,)]),
    "two side by side": (f"(x) => (y, z) {{ {LAST} y = ReduceMax(x, a) z = ReduceMean(x, a) }}", [(9, 33)]),
    "the same twice": (f"(x) => (y) {{ {LAST} m = ReduceMin(x, a) n = ReduceMin(x, a) y = Add(m, n) }}", [(9, 33)]),
    "norms and softmaxes": (
        "(x, g, b) => (y, z) { n = LayerNormalization(x, g, b) t = Tanh(n) s = Softmax(t) y = LogSoftmax(s) "
        "z = Transpose<perm = [0, 2, 1]>(s) }",
        [(3, 4, 40), (40,), (40,)],
    ),
    "along an axis in the middle": (
        "(x) => (y) { s = Softmax<axis = 1>(x) y = LogSoftmax<axis = 1>(s) }",
        [(3, 11, 7)],
    ),
    "along the first": ("(x) => (y) { y = Softmax<axis = 0>(x) }", [(130, 35)]),
    "a norm of channels": (
        f"(x, g, b) => (y) {{ {NORM.replace('a)', 'c)')} }}".replace(
            "{ m", "{ c = Constant<value = int64[1] {1}>() m", 1
        ),
        [(2, 48, 5, 7), (48, 1, 1), (48, 1, 1)],
    ),
    "a norm of channels of few pixels": (
        f"(x, g, b) => (y) {{ {NORM.replace('a)', 'c)')} }}".replace(
            "{ m", "{ c = Constant<value = int64[1] {1}>() m", 1
        ),
        [(6, 48, 7), (48, 1), (48, 1)],
    ),
    "a norm of pixels": (
        f"(x, g, b) => (y, m) {{ {NORM.replace('a)', 'c)')} }}".replace(
            "{ m", "{ c = Constant<value = int64[1] {1}>() m", 1
        ),
        [(3, 150, 4, 6), (150, 1, 1), (150, 1, 1)],
    ),
    "of more pixels than a block holds": ("(x) => (y) { y = Softmax<axis = 1>(x) }", [(1, 1600, 16)]),
    "of more channels than a block holds": ("(x) => (y) { y = Softmax<axis = 1>(x) }", [(2, 1100, 9)]),
    "along two axes in the middle": (
        "(x) => (y, m) { c = Constant<value = int64[2] {1, 2}>() m = ReduceMean(x, c) d = Sub(x, m) q = Mul(d, d) "
        "v = ReduceSum(q, c) y = Div(d, v) }",
        [(2, 3, 5, 7)],
    ),
    "a norm of a batch": (BATCH_NORM, channels(3, 10, 5, 7, each=2)),
    "of one in vectors": (BATCH_NORM, channels(4, 6, 4, 8, each=2)),
    "of one of more pixels than a block holds": (BATCH_NORM, channels(5, 3, 60, 61, each=2)),
    "of one of one sample": (BATCH_NORM, channels(1, 20, 3, 3, each=2)),
    "of one of one pixel": (BATCH_NORM, channels(40, 6, 1, 1, each=2)),
    "of one of one channel": (BATCH_NORM, channels(4, 1, 3, 5, each=2)),
    "the gradient of that of a batch": (BATCH_NORM_GRADIENT, channels(3, 10, 5, 7, operands=2)),
    "of that in vectors": (BATCH_NORM_GRADIENT, channels(2, 300, 4, 8, operands=2)),
    "of that of more pixels than a block holds": (BATCH_NORM_GRADIENT, channels(3, 5, 70, 71, operands=2)),
    "the gradient of the bias of channels": (
        "(dy) => (s) { c = Constant<value = int64[2] {0, 2}>() s = ReduceSum<keepdims = 0>(dy, c) }",
        [(6, 5, 33)],
    ),
    "of rows of one element": (f"(x) => (y) {{ {LAST} {SOFTMAX} }}", [(9, 1)]),
    "of one row": (f"(x) => (y) {{ {LAST} {SOFTMAX} }}", [(1, 600)]),
    "the gradient of a norm": (NORM_GRADIENT, [(3, 50, 40), (3, 50, 40), (40,), (3, 50, 1), (3, 50, 1)]),
    "of one of few rows": (NORM_GRADIENT, [(1, 1, 40), (1, 1, 40), (40,), (1, 1, 1), (1, 1, 1)]),
    "of one of an odd width": (NORM_GRADIENT, [(3, 5, 701), (3, 5, 701), (701,), (3, 5, 1), (3, 5, 1)]),
    "of one that a block holds": (NORM_GRADIENT, [(2, 9, 2050), (2, 9, 2050), (2050,), (2, 9, 1), (2, 9, 1)]),
    "of one that no block holds": (NORM_GRADIENT, [(2, 9, 9001), (2, 9, 9001), (9001,), (2, 9, 1), (2, 9, 1)]),
    "the gradient by a root mean square": (RMS_GRADIENT, [(70, 33), (70, 33), (33,)]),
    "a value of each row beside a norm": (
        "(x, g, m) => (y, z) { y = LayerNormalization(x, g) z = Mul(m, m) }",
        [(2, 35, 3), (3,), (2, 35, 1)],
    ),
    "sums of one row before its norm": (
        "(x, g) => (dg, y) { c = Constant<value = int64[1] {0}>() dg = ReduceSum<keepdims = 0>(x, c) "
        "y = LayerNormalization(x, g) }",
        [(1, 70), (70,)],
    ),
    "of a scale and a shift alone": (
        "(dy, n) => (dg, db) { c = Constant<value = int64[2] {0, 1}>() z = Mul(dy, n) "
        "dg = ReduceSum<keepdims = 0>(z, c) s = ReduceSum(dy, c) db = Neg(s) }",
        [(3, 50, 40), (3, 50, 40)],
    ),
}
HALF = [
    "softmax from its parts",
    "a norm of channels",
    "a norm of pixels",
    "a norm of a batch",
    "the gradient of that of a batch",
    "of that in vectors",
    "of more pixels than a block holds",
    "the gradient of a norm",
    "of one of an odd width",
    "of one that no block holds",
    "the gradient by a root mean square",
]


@pytest.mark.parametrize("name", CASES)
def test_it_computes_what_its_nodes_do(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = launches(monkeypatch)
    near(*computed(CASES[name]))
    assert [one.entry for one in made] == ["row_passes", *(["column_sums"] if "dg" in CASES[name][0] else [])]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("name", HALF)
def test_half_precision_is_rounded_once(name: str, dtype: Any) -> None:
    """Statistics are float32: as if what is read had been that, and each result rounded."""
    found, wanted = computed(CASES[name], dtype)
    assert {own.dtype for own in found} == {np.dtype(dtype)}
    near(found, wanted)


@pytest.mark.parametrize("name", ["the gradient of a norm", "of one that a block holds", "of one that no block holds"])
def test_sums_of_columns_do_not_depend_on_which_block_is_first(name: str) -> None:
    arrays = operands(CASES[name])
    first, *others = (given(CASES[name], arrays, Emulated(order="random", seed=seed)) for seed in range(3))
    for other in others:
        for a, b in zip(first, other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("columns", [0, 1])
def test_nothing_to_reduce(rows: int, columns: int) -> None:
    """Sums over no rows are 0, and no elements no launch."""
    shapes = [(2, rows, columns), (2, rows, columns), (columns,), (2, rows, 1), (2, rows, 1)]
    for found, wanted in zip(*computed((NORM_GRADIENT, shapes)), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_rows_of_no_elements() -> None:
    case = (f"(x) => (y, m, s) {{ {LAST} {SOFTMAX} }}", [(3, 5, 0)])
    for found, wanted in zip(*computed(case), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_nan_and_infinity_go_where_the_equations_say() -> None:
    case = (f"(x) => (y, m) {{ {LAST} {SOFTMAX} }}", [(3, 4)])
    x = np.array([[1, np.nan, 3, 2], [-np.inf] * 4, [1, -np.inf, 2, 0]], np.float32)
    with np.errstate(invalid="ignore"):
        e = np.exp(x - x.max(1, keepdims=True))
        y, m = given(case, [x])
        np.testing.assert_allclose(y, e / e.sum(1, keepdims=True), rtol=1e-6)
    np.testing.assert_array_equal(m, x.max(1, keepdims=True))


def test_rows_far_from_zero_lose_nothing() -> None:
    case = (f"(x, g, b) => (y) {{ {LAST} {NORM.replace('0.001', '0.0')} }}", [(5, 300), (300,), (300,)])
    x = operands(case, shift=4096.0)[0]
    (y,) = given(case, [x, np.ones(300, np.float32), np.zeros(300, np.float32)])
    exact = x.astype(np.float64)
    exact = (exact - exact.mean(1, keepdims=True)) / exact.std(1, keepdims=True)
    np.testing.assert_allclose(y, exact, atol=2e-3)  # half a digit of 4096 beside a deviation of 1


@pytest.mark.parametrize(
    "name",
    [
        "norms and softmaxes",
        "a norm of channels",
        "a norm of pixels",
        "the gradient of a norm",
        "the gradient of that of a batch",
    ],
)
def test_indices_of_64_bits_are_the_same_indices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carried, "NARROW_LIMIT", 1)
    near(*computed(CASES[name]))


@pytest.mark.parametrize(
    ("text", "shape", "reason"),
    [
        ("(x) => (y) { s = Softmax<axis = 0>(x) y = Softmax(s) }", (3, 4), "other rows than those"),
        (
            "(x) => (y) { c = Constant<value = int64[2] {0, 2}>() y = ReduceMax(x, c) }",
            (3, 4, 5, 6),
            "do not follow each other",
        ),
        ("(x) => (y) { c = Constant<value = int64[1] {0}>() y = ReduceMax(x, c) }", (3, 4), "of columns"),
        (
            f"(x) => (y) {{ {LAST} c = Constant<value = int64[1] {{0}}>() m = ReduceMax(x, a) "
            "s = ReduceSum(x, c) y = Add(m, s) }",
            (3, 4),
            "is written at no one place|needs",
        ),
        (
            "(x) => (y, z) { c = Constant<value = int64[1] {0}>() y = ReduceSum(x, c) t = Transpose(x) "
            "z = ReduceSum(t, c) }",
            (3, 4),
            "of another matrix",
        ),
        (
            f"(x) => (y) {{ {LAST} c = Concat<axis = 1>(x, x) m = ReduceMax(c, a) d = Sub(c, m) y = ReduceSum(d, a) }}",
            (3, 4),
            "under a condition",
        ),
        (
            "(x) => (y) { s = Softmax<axis = 0>(x) t = Transpose(s) y = Add(s, t) }",
            (4, 4),
            "another row's|at no one place",
        ),
    ],
)
def test_what_one_kernel_does_not_compute(text: str, shape: tuple[int, ...], reason: str) -> None:
    body = function(text)
    with pytest.raises(KernelError, match=reason):
        several(list(body.node), {"x": TensorType(np.dtype(np.float32), shape)}, list(body.output))


def test_outputs_that_are_not_wanted_are_not_computed() -> None:
    body, shapes = function(NORM_GRADIENT), CASES["the gradient of a norm"][1]
    types = {n: TensorType(np.dtype(np.float32), s) for n, s in zip(body.input, shapes, strict=True)}
    (whole,), (alone,) = (several(list(body.node), types, ["dx", *more])[1] for more in (("dg", "db"), ("", "")))
    assert (whole.launches, alone.launches) == (2, 1)
    assert "sum0_" not in alone.source.text
