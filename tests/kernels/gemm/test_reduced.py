"""One product and the reduction of its rows as one launch, beside onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels import of_region as kernel
from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.device.kernel import Work
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.gemm import reduced
from onnxfuse.kernels.gemm.autotune import VARIABLE
from tests.kernel_runs import run
from tests.region_runs import at_odd_addresses, computed, function, launches

SKIP = "p = MatMul(a, b) q = Add(p, c) s = Add(q, x)"
RMS = (
    "q = Mul(s, s) axes = Constant<value = int64[1] {-1}>() m = ReduceMean(q, axes) "
    "e = Constant<value = float {0.001}>() v = Add(m, e) d = Sqrt(v) r = Div(g, d) n = Mul(s, r)"
)
CASES = {
    "bias, residual sum and norm": (
        f"(a, b, c, x, g, h) => (y) {{ {SKIP} y = LayerNormalization(s, g, h) }}",
        [(2, 5, 16), (16, 24), (24,), (2, 5, 24), (24,), (24,)],
    ),
    "and the sum itself": (
        f"(a, b, c, x, g, h) => (y, s) {{ {SKIP} y = LayerNormalization<epsilon = 0.25>(s, g, h) }}",
        [(3, 7, 33), (33, 70), (70,), (3, 7, 70), (70,), (70,)],
    ),
    "by its root mean square, and what is behind it": (
        f"(a, b, x, g, z) => (y, s) {{ p = MatMul(a, b) s = Add(p, x) {RMS} y = Add(z, n) }}",
        [(40, 20), (20, 130), (40, 130), (130,), (40, 130)],
    ),
    "few rows, whose sums are shared": (
        "(a, b, x, g) => (y, s) { p = MatMul(a, b) s = Add(p, x) y = LayerNormalization(s, g) }",
        [(3, 2048), (2048, 40), (3, 40), (40,)],
    ),
    "weights turned, a number, and turned on the way out": (
        "(a, b, g) => (y) { w = Transpose(b) p = MatMul(a, w) t = Tanh(p) n = LayerNormalization(t, g) "
        "y = Transpose<perm = [0, 2, 1]>(n) }",
        [(2, 70, 17), (21, 17), (21,)],
    ),
    "seen as another matrix": (
        "(a, b, g, x) => (y) { p = MatMul(a, b) n = Constant<value = int64[3] {2, 5, 24}>() r = Reshape(p, n) "
        "s = Add(x, r) y = LayerNormalization(s, g) }",
        [(10, 16), (16, 24), (24,), (2, 5, 24)],
    ),
    "and the product itself behind it": (
        "(a, b, g) => (y, p) { p = MatMul(a, b) t = Exp(p) n = LayerNormalization(t, g) y = Add(n, p) }",
        [(2, 5, 16), (16, 24), (24,)],
    ),
    "a softmax": (
        "(a, b, c) => (y, s) { p = MatMul(a, b) s = Add(p, c) y = Softmax(s) }",
        [(2, 5, 16), (16, 24), (24,)],
    ),
    "its logarithm, of what is far from 0": (
        "(a, b) => (y) { p = MatMul(a, b) h = Constant<value = float {20.0}>() s = Mul(p, h) y = LogSoftmax(s) }",
        [(5, 16), (16, 70)],
    ),
    "the largest of each row": (
        "(a, b, z) => (y, e) { p = MatMul(a, b) e = Abs(p) axes = Constant<value = int64[1] {-1}>() "
        "m = ReduceMax<keepdims = 0>(e, axes) y = Add(m, z) }",
        [(2, 5, 16), (16, 24), (2, 5)],
    ),
    "an empty sum": (
        "(x, g, a, b) => (y) { p = MatMul(a, b) s = Add(p, x) y = LayerNormalization(s, g) }",
        [(3, 8), (8,), (3, 0), (0, 8)],
    ),
}
TILED, AFTER = ["product_rows"], ["region_rows"]


@pytest.mark.parametrize("form", ["tiled", "vendor"])
@pytest.mark.parametrize("name", CASES)
def test_it_computes_what_its_nodes_do(name: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, form)
    made = launches(monkeypatch)
    for found, wanted in zip(*computed(CASES[name]), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=5e-5)
    assert [one.entry for one in made] == (TILED if form == "tiled" or name == "an empty sum" else AFTER)


@pytest.mark.parametrize("form", ["tiled", "vendor"])
@pytest.mark.parametrize("name", ["bias, residual sum and norm", "a softmax"])
def test_arrays_at_odd_addresses(name: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, form)
    for found, wanted in zip(*at_odd_addresses(CASES[name]), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=5e-5)


def test_rows_are_read_and_written_by_vectors_where_they_may_be() -> None:
    body = function(CASES["bias, residual sum and norm"][0])
    for columns, aligned, width in ((24, True, 4), (26, True, 2), (24, False, 1)):
        shapes = [(10, 16), (16, columns), (columns,), (10, columns), (columns,), (columns,)]
        types = {n: TensorType(np.dtype(np.float32), shape) for n, shape in zip(body.input, shapes, strict=True)}
        own = reduced.reduced(list(body.node), types, list(body.output), aligned)[1]
        assert isinstance(own, reduced.Reduction)
        assert own.width == width
        assert ("store(out0 + 4 * (" in own.text) == (width == 4)


@pytest.mark.parametrize("seed", range(3))
def test_whichever_block_is_the_last(seed: int) -> None:
    """Of many blocks, in several tiles down and across."""
    device = Emulated(order="random", seed=seed)
    for found, wanted in zip(
        *computed(CASES["by its root mean square, and what is behind it"], device=device), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=5e-5)


@pytest.mark.parametrize("name", ["and the sum itself", "few rows, whose sums are shared"])
def test_half_precision_is_rounded_once(name: str) -> None:
    for found, wanted in zip(*computed(CASES[name], np.float16), strict=True):
        assert found.dtype == np.float16
        np.testing.assert_allclose(found, wanted, rtol=4e-3, atol=2e-2)


def test_few_rows_have_their_sums_from_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    device, made = Emulated(), launches(monkeypatch)
    device.multiprocessors = 132
    monkeypatch.setenv(VARIABLE, "tiled")
    for found, wanted in zip(*computed(CASES["few rows, whose sums are shared"], device=device), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=5e-5)
    (one,) = made
    assert one.grid[1] > 1


def test_rows_far_from_zero_lose_nothing() -> None:
    text = "(a, b, x, g) => (y) { p = MatMul(a, b) s = Add(p, x) y = LayerNormalization(s, g) }"
    body, rng = function(text), np.random.default_rng(3)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((5, 4), (4, 64)))
    x, g = np.full((5, 64), 4096, np.float32), np.ones(64, np.float32)
    result = np.empty((5, 64), np.float32)
    kernel(body, ["float32"] * 4, ["float32"])({}).launch(Emulated(), [a, b, x, g], [result])
    total = (a.astype(np.float64) @ b).astype(np.float32) + x
    exact = total.astype(np.float64)
    exact = (exact - exact.mean(1, keepdims=True)) / np.sqrt(exact.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(result, exact, atol=2e-3)  # half a digit of 4096 beside a deviation of 2


def test_indices_of_64_bits_are_the_same_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduced, "MOST_NARROW", 1)
    for found, wanted in zip(*computed(CASES["weights turned, a number, and turned on the way out"]), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=5e-5)


def test_nothing_to_normalise_is_nothing_to_launch() -> None:
    body = function(CASES["seen as another matrix"][0].replace("int64[3] {2, 5, 24}", "int64[3] {0, 5, 24}"))
    made = kernel(body, ["float32"] * 4, ["float32"])({})
    arrays = [np.zeros(shape, np.float32) for shape in ((0, 16), (16, 24), (24,), (1, 1, 24))]
    types = [TensorType(x.dtype, x.shape) for x in arrays]
    (type,) = made.outputs(types)
    assert type.shape == (0, 5, 24)
    assert made.work(types) == Work(0, 0, 0)
    made.launch(Emulated(), arrays, [np.empty(type.shape, np.float32)])


def test_rows_without_columns_have_a_result_all_the_same() -> None:
    text = """(a, b, z) => (y, e) { p = MatMul(a, b) e = Abs(p) axes = Constant<value = int64[1] {-1}>()
        m = ReduceMax(e, axes) y = Add(m, z) }"""
    made = kernel(function(text), ["float32"] * 3, ["float32"] * 2)({})
    shapes = ((2, 5, 16), (16, 0), (2, 5, 1))
    found, empty = run(made, [np.ones(shape, np.float32) for shape in shapes], Emulated())
    np.testing.assert_array_equal(found, np.full((2, 5, 1), -np.inf, np.float32))
    assert empty.shape == (2, 5, 0)


def test_work_is_that_of_the_product_and_the_rows() -> None:
    text, shapes = CASES["and the sum itself"]
    made = kernel(function(text), ["float32"] * 6, ["float32"] * 2)({})
    work = made.work([TensorType(np.dtype(np.float32), shape) for shape in shapes])
    assert work.flops > 2 * 21 * 33 * 70
    assert work.written == 2 * 21 * 70 * 4


@pytest.mark.parametrize(
    ("text", "shapes", "reason"),
    [
        (
            "(a, b, g) => (y) { p = MatMul(a, b) t = Transpose(p) y = LayerNormalization(t, g) }",
            [(4, 4), (4, 4), (4,)],
            "another",
        ),
        (
            "(a, b, g) => (y) { p = MatMul(a, b) n = Constant<value = int64[2] {8, 2}>() r = Reshape(p, n) "
            "y = LayerNormalization(r, g) }",
            [(4, 4), (4, 4), (2,)],
            "rows of the product",
        ),
        (
            "(a, b, g) => (y) { p = MatMul(a, b) y = LayerNormalization(p, g) }",
            [(3, 4, 4), (3, 4, 4), (4,)],
            "batch",
        ),
        (
            "(a, b, g) => (y) { p = MatMul(a, b) s = Softmax(p) y = LayerNormalization(s, g) }",
            [(4, 4), (4, 4), (4,)],
            "second",
        ),
        (
            "(a, b, g) => (y) { p = MatMul(a, b) s = Softmax<axis = 0>(p) y = Mul(s, g) }",
            [(4, 4), (4, 4), (4,)],
            "axis",
        ),
        (
            "(a, b, g) => (y) { n = LayerNormalization(a, g) y = MatMul(n, b) }",
            [(4, 4), (4, 4), (4,)],
            "computed|another",
        ),
        (
            "(a, b, c) => (y) { p = MatMul(a, b) q = Add(p, c) axes = Constant<value = int64[1] {-1}>() "
            "m = ReduceMean(q, axes) y = Sub(q, m) }",
            [(1, 4), (4, 1), (1,)],
            "needs the product",
        ),
    ],
)
def test_what_is_no_normalization_of_a_product(text: str, shapes: list[tuple[int, ...]], reason: str) -> None:
    made = kernel(function(text), ["float32"] * len(shapes), ["float32"])({})
    with pytest.raises(KernelError, match=reason):
        made.outputs([TensorType(np.dtype(np.float32), shape) for shape in shapes])
