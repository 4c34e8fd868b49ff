"""Two products and what makes one result of them, by one launch in the emulator, against the body in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import Buffer, TensorType
from onnxfuse.kernels.device.recorder import ADDRESS, Recorder
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.gemm.gated import Gated
from tests.gemm_cases import DTYPES, FLOAT, HALF, Values, assert_near
from tests.kernel_mutants import assert_caught, of_run
from tests.kernel_runs import run, types

from .test_siblings import FAST, arrays, made, wanted

SWIGLU = """Region_MatMulSigmoidMul_1 (x0, x1, x2) => (y0) {
    v0 = MatMul(x0, x1) v1 = MatMul(x0, x2) v2 = Sigmoid(v0) v3 = Mul(v0, v2) y0 = Mul(v3, v1) }"""
GEGLU = """Region_TransposeMatMul_1 (x0, x1, x2) => (y0) {
    half = Constant<value: tensor = float {0.5}> () like = CastLike(half, x0)
    t0 = Transpose<perm = [1, 0]>(x1) t1 = Transpose<perm = [1, 0]>(x2)
    v0 = MatMul(x0, t0) v1 = MatMul(x0, t1) v2 = Tanh(v1) v3 = Mul(like, v2) y0 = Mul(v0, v3) }"""
PACKED = """Region_MatMulSplit_1 (x0, x1) => (y0) {
    v0 = MatMul(x0, x1) v1, v2 = Split<axis = -1, num_outputs = 2>(v0)
    v3 = Sigmoid(v2) v4 = Mul(v2, v3) y0 = Mul(v4, v1) }"""
CASES = {
    "packed": (PACKED, [(2, 40, 24), (24, 80)]),
    "packed odd": (PACKED, [(6, 33), (33, 38)]),
    "gate": (SWIGLU, [(2, 5, 24), (24, 40), (24, 40)]),
    "one row": (SWIGLU, [(1, 64), (64, 72), (64, 72)]),
    "odd": (SWIGLU, [(7, 33), (33, 19), (33, 19)]),
    "many tiles": (SWIGLU, [(150, 56), (56, 136), (56, 136)]),
    "transposed": (GEGLU, [(70, 24), (72, 24), (72, 24)]),
}


def gated(text: str, kind: str = "float32") -> Gated:
    kernel = made(text, kind)
    assert isinstance(kernel, Gated)
    return kernel


def assert_right(y: Values, text: str, given: list[Values]) -> None:
    """Within what a rounding of each product does to a product of both."""
    (true,) = wanted(text, given)
    assert_near(y, true, 8.0 * given[0].shape[-1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("where", CASES)
def test_the_numbers_of_the_body(dtype: np.dtype[Any], where: str) -> None:
    text, shapes = CASES[where]
    given = arrays(shapes, dtype)
    (y,) = run(gated(text, dtype.name), given, FAST)
    assert_right(y, text, given)


@pytest.mark.parametrize("dtype", [FLOAT, HALF], ids=str)
@pytest.mark.parametrize("where", ["gate", "transposed"])
def test_no_race_and_no_access_out_of_bounds(where: str, dtype: np.dtype[Any]) -> None:
    text, shapes = CASES[where]
    given = arrays(shapes, dtype)
    (y,) = run(gated(text, dtype.name), given, Emulated())
    assert_right(y, text, given)


@cache
def checked(dtype: np.dtype[Any]) -> Callable[[Any], None]:
    text, shapes = CASES["many tiles"]
    given = arrays(shapes, dtype)

    def go(device: Any) -> None:
        (y,) = run(gated(text, dtype.name), given, device)
        assert_right(y, text, given)

    return go


MUTANTS = [
    (FLOAT, "    __syncthreads();  // all have left the last tile\n", ""),
    (HALF, "    __syncthreads();  // all have left the last tile\n", ""),
    (FLOAT, "Gate::of(at[i][j], other.at[i][j])", "Gate::of(other.at[i][j], at[i][j])"),
    (HALF, "Gate::of(at[i][j].x[x], other.at[i][j].x[x])", "Gate::of(at[i][j].x[x], at[i][j].x[x])"),
    (FLOAT, "accumulate(second, tiles, a, c,", "accumulate(second, tiles, a, b,"),
    (FLOAT, "if (row >= rows) return;", ""),
    (HALF, "column + start >= width", "column + start > width"),
]


@pytest.mark.parametrize(("dtype", "before", "after"), MUTANTS, ids=str)
def test_a_mistake_is_caught(dtype: np.dtype[Any], before: str, after: str) -> None:
    assert_caught(checked(dtype), before, after, of_run(dtype, MUTANTS))


@pytest.mark.parametrize("where", CASES)
def test_the_vendors_products_are_the_other_form(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.setenv("ONNXFUSE_PRODUCT", "vendor")
    text, shapes = CASES[where]
    given = arrays(shapes, FLOAT)
    (y,) = run(gated(text), given, FAST)
    assert_right(y, text, given)


def test_unaligned_arrays() -> None:
    text, shapes = CASES["gate"]
    given = arrays(shapes, FLOAT)
    (y,) = run(gated(text), given, FAST, by=1)
    assert_right(y, text, given)


def test_one_launch_writes_no_product() -> None:
    text, shapes = CASES["gate"]
    kernel, device = gated(text), Recorder(4)
    kinds = [TensorType(FLOAT, shape) for shape in shapes]
    outputs = kernel.outputs(kinds)
    assert [y.shape for y in outputs] == [(2, 5, 40)]
    kernel.launch(device, *([Buffer(ADDRESS, t.shape, t.dtype) for t in side] for side in (kinds, outputs)))
    assert [launch.entry for launch in device.launches] == ["gated"]
    work = kernel.work(kinds)
    assert (work.read, work.written) == (4 * (240 + 2 * 960), 4 * 400)
    assert work.flops == 400 * (4 * 24 + 3)


def test_nothing_to_compute_launches_nothing() -> None:
    kernel, device = gated(SWIGLU), Recorder(4)
    given = [Buffer(ADDRESS, shape, FLOAT) for shape in ((0, 24), (24, 16), (24, 16))]
    kernel.launch(device, given, [Buffer(ADDRESS, (0, 16), FLOAT)])
    assert not device.launches


def test_an_empty_sum_is_zero() -> None:
    a, b, c = np.zeros((3, 0), FLOAT), np.zeros((0, 8), FLOAT), np.zeros((0, 8), FLOAT)
    (y,) = run(gated(SWIGLU), [a, b, c], FAST)
    assert not y.any()


def test_parts_of_two_widths() -> None:
    with pytest.raises(KernelError, match="wider than the other"):
        gated(PACKED).outputs(types(arrays([(4, 8), (8, 7)], FLOAT)))


def test_a_part_that_is_read_from_the_first_column_is_caught() -> None:
    text, shapes = CASES["packed"]
    given = arrays(shapes, FLOAT)
    assert_caught(
        lambda device: assert_right(run(gated(text), given, device)[0], text, given), "from_c + column", "column"
    )


def test_weights_of_two_shapes() -> None:
    with pytest.raises(KernelError, match="two matrices of one shape"):
        gated(SWIGLU).outputs(types(arrays([(4, 8), (8, 8), (8, 1)], FLOAT)))


def test_a_result_of_another_type() -> None:
    text = "Region_1 (x0, x1, x2) => (y0) { a = MatMul(x0, x1) b = MatMul(x0, x2) y0 = Greater(a, b) }"
    with pytest.raises(KernelError, match="y0 has not the element type of the products"):
        gated(text).outputs([TensorType(FLOAT, shape) for shape in ((4, 8), (8, 3), (8, 3))])
