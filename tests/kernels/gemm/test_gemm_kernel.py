"""Fused products against ONNX in float64: our tiles, their real source run by the emulator, and the pass over the
vendor's product."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import After, TensorType
from onnxfuse.kernels.device.products import products
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.gemm.autotune import VARIABLE
from onnxfuse.kernels.gemm.gemm import FusedMatMul
from tests.gemm_cases import ACTIVATIONS, BFLOAT, DTYPES, FLOAT, HALF, assert_near, assert_right, attributes, operands
from tests.gemm_cases import catalogue as loaded
from tests.kernel_runs import reference, run, types

FAST = Emulated(checked=False)
CHECKED = Emulated(checked=True)

SIZES = {
    "a few rows": (1, 64, 40),
    "a few odd rows": (5, 33, 19),
    "one product": (1, 1, 1),
    "rows of one": (65, 1, 66),
    "medium": (70, 72, 136),
    "medium odd": (67, 37, 71),
    "large": (256, 24, 248),
    "large odd": (251, 35, 255),
    "long sums": (3, 4100, 8),
}
"""m, k, n: each of the tiles with all of its rows and without, and accesses of all widths."""


@pytest.fixture
def vendor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "vendor")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("where", SIZES)
def test_sizes(dtype: np.dtype[Any], where: str) -> None:
    m, k, n = SIZES[where]
    device = FAST if m * n * k > 500_000 else CHECKED
    for transposed in (False, True) if dtype != BFLOAT else (True,):
        given = attributes("Gelu", alpha=0.125, transB=int(transposed))
        arrays = operands((m, k), (k, n), dtype, transposed=transposed)
        (y,) = run(FusedMatMul(given), arrays, device)
        assert_right(y, arrays, given)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("form", ["tiled", "vendor"])
def test_activations(activation: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, form)
    given = attributes(activation)
    for bias in (True, False):
        arrays = operands((9, 8), (8, 64), FLOAT, bias)
        (y,) = run(FusedMatMul(given), arrays, CHECKED)
        assert_right(y, arrays, given)


@pytest.mark.parametrize("activation", ["Gelu", "HardSigmoid", "Mish", "Softplus"])
@pytest.mark.parametrize("dtype", [HALF, BFLOAT], ids=str)
def test_activations_of_half_precision(activation: str, dtype: np.dtype[Any]) -> None:
    given = attributes(activation, alpha=0.5)
    arrays = operands((9, 8), (8, 64), dtype)
    (y,) = run(FusedMatMul(given), arrays, CHECKED)
    assert_right(y, arrays, given)


@pytest.mark.parametrize("activation", ["Relu", "FastGelu"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_vendors_own_epilogue(activation: str, dtype: np.dtype[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "cublaslt")
    device = Emulated(checked=True)
    fused: list[After] = []
    monkeypatch.setattr(device.vendor, "fused", _noting(fused, device.vendor.fused))
    for bias, transposed in ((True, False), (False, True)):
        given = attributes(activation, alpha=0.5, transB=int(transposed))
        arrays = operands((3, 9, 8), (8, 24), dtype, bias, transposed)
        (y,) = run(FusedMatMul(given), arrays, device)
        assert_right(y, arrays, given)
    assert [(after.activation, after.bias is None) for after in fused] == [(activation, False), (activation, True)]
    run(FusedMatMul(attributes("Gelu")), operands((9, 8), (8, 24), dtype), device)
    assert len(fused) == 2


def _noting(fused: list[After], function: Callable[..., None]) -> Callable[..., None]:
    def note(*given: Any) -> None:
        fused.append(given[4])
        function(*given)

    return note


def test_a_bias_without_axes() -> None:
    """Of a product with one column: one number is its row."""
    a, b, bias, _ = operands((9, 8), (8, 1), FLOAT)
    assert bias is not None
    given = attributes("Relu")
    (y,) = run(FusedMatMul(given), [a, b, bias.reshape(())], CHECKED)
    assert y.shape == (9, 1)
    assert_right(y, [a, b, bias.reshape(())], given)


BATCHES: list[tuple[tuple[int, ...], tuple[int, ...], int]] = [
    ((3, 5, 8), (8, 16), 1),
    ((2, 3, 5, 8), (8, 16), 1),
    ((3, 5, 8), (3, 8, 16), 1),
    ((5, 8), (3, 8, 16), 1),
    ((2, 3, 5, 8), (3, 8, 16), 2),
    ((2, 1, 5, 8), (3, 8, 16), 2),
    ((2, 3, 5, 8), (2, 1, 8, 16), 1),
    ((2, 1, 3, 5, 8), (1, 2, 3, 8, 16), 4),
    ((1, 1, 5, 8), (1, 8, 16), 1),
]
"""Shapes of a and b, and how many products of one stride they are."""


RESIDUALS: list[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]] = [
    ((9, 8), (8, 64), (9, 64)),
    ((9, 8), (8, 64), (64,)),
    ((9, 8), (8, 1), ()),
    ((2, 3, 5, 8), (8, 16), (2, 3, 5, 16)),
    ((2, 3, 5, 8), (8, 16), (3, 5, 16)),
    ((2, 3, 5, 8), (8, 16), (1, 1, 5, 16)),
    ((3, 5, 8), (3, 8, 17), (5, 17)),
    ((2, 3, 5, 8), (3, 8, 16), (3, 5, 16)),
    ((2, 1, 3, 5, 8), (1, 2, 3, 8, 16), (2, 3, 5, 16)),
    ((5, 8), (8, 16), (1, 1, 5, 16)),
]
"""Shapes of a, b and a residual."""


@pytest.mark.parametrize(("a", "b", "residual"), RESIDUALS)
@pytest.mark.parametrize("form", ["tiled", "vendor", "cublaslt"])
def test_residuals(
    a: tuple[int, ...], b: tuple[int, ...], residual: tuple[int, ...], form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, form)
    given = attributes("Relu" if len(a) % 2 else "", alpha=0.5)
    arrays = operands(a, b, FLOAT, bias=len(b) == 2, residual=residual)
    (y,) = run(FusedMatMul(given), arrays, CHECKED)
    assert_right(y, arrays, given)


@pytest.mark.parametrize("dtype", [HALF, BFLOAT], ids=str)
def test_residuals_of_half_precision(dtype: np.dtype[Any]) -> None:
    given = attributes("Gelu", transB=1)
    arrays = operands((70, 72), (72, 136), dtype, transposed=True, residual=(70, 136))
    (y,) = run(FusedMatMul(given), arrays, CHECKED)
    assert_right(y, arrays, given)


@pytest.mark.parametrize(("a", "b", "count"), BATCHES)
@pytest.mark.parametrize("form", ["tiled", "vendor"])
def test_batches(
    a: tuple[int, ...], b: tuple[int, ...], count: int, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, form)
    assert len(products(a, b)) == count
    for transposed in (False, True) if len(b) == 2 else (False,):  # the op's meaning transposes a matrix, not a batch
        given = attributes("Relu", transB=int(transposed))
        arrays = operands(a, b, HALF, bias=False, transposed=transposed)
        (y,) = run(FusedMatMul(given), arrays, CHECKED)
        assert_right(y, arrays, given)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [(70, 72, 136), (5, 33, 19), (2, 8, 4104)])
@pytest.mark.usefixtures("vendor")
def test_the_pass_over_the_vendors_product(dtype: np.dtype[Any], size: tuple[int, int, int]) -> None:
    m, k, n = size
    given = attributes("Gelu", alpha=0.125, transB=1)
    arrays = operands((m, k), (k, n), dtype, transposed=True)
    (y,) = run(FusedMatMul(given), arrays, CHECKED)
    a, b, bias, _ = arrays
    assert a is not None
    assert b is not None
    product = (0.125 * (a.astype(np.float64) @ b.astype(np.float64).T)).astype(dtype)
    # A product that is rounded to the op's type before its bias, as where the ops are separate.
    (wanted,) = reference("FusedMatMul", attributes("Gelu"), [product, np.eye(n, dtype=dtype), bias], loaded())
    assert_near(y, wanted, np.abs(product.astype(np.float64)) + 1)


@pytest.mark.parametrize("by", [1, 2, 4])
def test_arrays_that_are_not_aligned(by: int) -> None:
    for dtype in (HALF, FLOAT):
        given = attributes("Relu")
        arrays = operands((20, 32), (32, 64), dtype)
        (y,) = run(FusedMatMul(given), arrays, CHECKED, by=by)
        assert_right(y, arrays, given)


@pytest.mark.parametrize("form", ["tiled", "vendor"])
def test_empty_products(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, form)
    for a, b in (((0, 8), (8, 16)), ((4, 8), (8, 0)), ((0, 4, 8), (8, 16)), ((4, 0), (0, 16)), ((2, 3, 0), (2, 0, 8))):
        for dtype in (FLOAT, HALF):
            arrays = operands(a, b, dtype)
            (y,) = run(FusedMatMul(attributes("Sigmoid")), arrays, CHECKED)
            assert y.shape == (*a[:-1], b[-1])
            assert_right(y, arrays, attributes("Sigmoid"))


def test_infinities_and_nan_go_through() -> None:
    for dtype in DTYPES:
        a, b, bias, _ = operands((20, 8), (8, 16), dtype)
        assert a is not None
        a[3, 2], a[5, 1] = np.inf, np.nan
        (y,) = run(FusedMatMul(attributes("LeakyRelu")), [a, b, bias], CHECKED)
        assert np.isinf(y[3].astype(np.float32)).all()
        assert np.isnan(y[5].astype(np.float32)).all()
        assert np.isfinite(np.delete(y, (3, 5), 0).astype(np.float32)).all()


def test_sums_of_half_precision_are_kept_in_float32() -> None:
    k = 8192
    a, b = np.full((2, k), 1.0, HALF), np.full((k, 8), 2.0**-9, HALF)  # 2048 and more would lose every second one
    a[1], b[:, 1] = 16.0, 2.0**-3  # the sum is past the largest number; its scale brings it back
    given = attributes("Relu", alpha=2.0**-4)
    for form in ("tiled", "vendor"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(VARIABLE, form)
            (y,) = run(FusedMatMul(given), [a, b, None], FAST)
        assert y[0, 0] == 1.0
        assert y[0, 1] == 64.0
        assert y[1, 1] == 1024.0


def test_the_order_of_threads_does_not_matter() -> None:
    for dtype in (FLOAT, HALF):
        arrays = operands((70, 72), (72, 136), dtype)
        results = [
            run(FusedMatMul(attributes()), arrays, Emulated(order=order, seed=1))[0]
            for order in ("forward", "reverse", "random")
        ]
        assert all((results[0] == other).all() for other in results)


def test_work() -> None:
    kernel = FusedMatMul(attributes("Relu", transB=1))
    shapes = [TensorType(HALF, shape) for shape in ((2, 5, 8), (16, 8), (16,))]
    work = kernel.work(shapes)
    assert work.read == 2 * (80 + 128 + 16)
    assert work.written == 2 * 160
    assert work.flops == 2 * 160 * 8 + 2 * 160
    assert kernel.outputs(shapes) == (TensorType(HALF, (2, 5, 16)),)
    assert kernel.outputs([*shapes[:2], TensorType(HALF, (1, 1, 1, 16))])[0].shape == (1, 2, 5, 16)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"activation": "Relu", "beta": 1}, "FusedMatMul has no attribute beta"),
        ({"activation": "Softmax"}, "Softmax is neither elementwise nor a view"),
        ({"activation": "LeakyRelu"}, "FusedMatMul with attributes .*outside the list"),
    ],
)
def test_attributes_that_no_kernel_takes(given: dict[str, Any], message: str) -> None:
    with pytest.raises(KernelError, match=message):
        FusedMatMul(given)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((5, 8), (9, 16)), r"\[5, 8\] by \[9, 16\]: rows of 8 do not fit columns of 9"),
        (((8,), (8, 16)), "matrices have two dimensions"),
        (((2, 5, 8), (3, 8, 16)), "the batches do not fit"),
        (((5, 8), (8, 16), (8,)), r"bias of shape \[8\] is not one row for a product \[5, 16\]"),
        (((5, 8), (8, 16), (5, 16)), r"bias of shape \[5, 16\] is not one row"),
        (((3, 5, 8), (8, 16), (16,), (3, 1, 16)), r"residual of shape \[3, 1, 16\] does not repeat in \[3, 5, 16\]"),
        (((5, 8), (8, 16), (16,), (5, 1)), r"residual of shape \[5, 1\] does not repeat"),
        (((5, 8), (8, 16), (16,), (2, 5, 16)), r"residual of shape \[2, 5, 16\] does not repeat in \[5, 16\]"),
    ],
)
def test_shapes_that_do_not_fit(shapes: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(KernelError, match=message):
        FusedMatMul(attributes()).outputs([TensorType(FLOAT, shape) for shape in shapes])


def test_a_plan_is_made_once_for_shapes_and_alignment() -> None:
    kernel = FusedMatMul(attributes())
    for _ in range(3):
        run(kernel, operands((5, 8), (8, 16), FLOAT), FAST)
    assert len(kernel._run._known) == 1
    run(kernel, operands((6, 8), (8, 16), FLOAT), FAST)
    run(kernel, operands((6, 8), (8, 16), FLOAT), FAST, by=1)
    assert len(kernel._run._known) == 3
    assert math.prod(kernel.outputs(types(operands((6, 8), (8, 16), FLOAT)))[0].shape) == 96
