"""Several products of one operand by one launch, in the emulator, against what their body says in float64."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from onnx import FunctionProto, TensorProto, helper, parser
from onnx.reference import ReferenceEvaluator

from onnxfuse.errors import KernelError
from onnxfuse.kernels import of_region
from onnxfuse.kernels.device.device import Buffer, TensorType
from onnxfuse.kernels.device.kernel import Kernel
from onnxfuse.kernels.device.recorder import ADDRESS, Recorder
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.gemm.siblings import Siblings
from tests.gemm_cases import DTYPES, FLOAT, HALF, Values, assert_near
from tests.kernel_mutants import assert_caught, of_run
from tests.kernel_runs import Erf, run, types

PLAIN = "Region_MatMul_1 (x0, x1, x2) => (y0, y1) { y0 = MatMul(x0, x1) y1 = MatMul(x0, x2) }"
BIASED = """Region_MatMulAdd_1 (x0, x1, x2, x3, x4, x5) => (y0, y1, y2) {
    v0 = MatMul(x0, x1) y0 = Add(v0, x2) y1 = MatMul(x0, x3) v1 = MatMul(x0, x4) y2 = Add(x5, v1) }"""
GATED = """Region_MatMulSigmoid_1 (x0, x1, x2, x3) => (y0, y1, y2) {
    v0 = MatMul(x0, x1) v1 = Sigmoid(v0) y0 = Mul(v1, v0)
    half = Constant<value: tensor = float {0.5}> () like = CastLike(half, x0)
    v2 = MatMul(x0, x2) y1 = Mul(like, v2)
    v3 = MatMul(x0, x3) v4 = Tanh(v3) y2 = Add(v4, v3) }"""
TURNED = """Region_TransposeMatMul_1 (x0, x1, x2) => (y0, y1) {
    t0 = Transpose<perm = [1, 0]>(x1) y0 = MatMul(x0, t0)
    t1 = Transpose(x2) v0 = MatMul(x0, t1) y1 = Relu(v0) }"""
APART = """Region_MatMulAddSplit_1 (x0, x1, x2) => (y0, y1, y2) {
    v0 = MatMul(x0, x1) v1 = Add(x2, v0) sizes = Constant<value: tensor = int64[3] {40, 8, 24}> ()
    v2, y1, v3 = Split<axis = -1>(v1, sizes) y0 = Relu(v2) y2 = Tanh(v3) }"""
PARTS = """Region_MatMulSplitAdd_1 (x0, x1, x2, x3) => (y0, y1, y2) {
    v0 = MatMul(x0, x1) v1, y1 = Split<axis = 2, num_outputs = 2>(v0) y0 = Add(v1, x2) y2 = MatMul(x0, x3) }"""
CASES = {
    "taken apart": (APART, [(70, 32), (32, 72), (72,)]),
    "odd parts": (APART.replace("40, 8, 24", "3, 40, 12"), [(5, 17), (17, 55), (55,)]),
    "equal parts": (PARTS, [(2, 3, 24), (24, 32), (16,), (24, 7)]),
    "parts of odd columns": (PARTS, [(2, 3, 24), (24, 15), (8,), (24, 8)]),
    "plain": (PLAIN, [(2, 5, 24), (24, 16), (24, 40)]),
    "one row": (PLAIN, [(1, 64), (64, 72), (64, 8)]),
    "odd": (PLAIN, [(7, 33), (33, 5), (33, 19)]),
    "biased": (BIASED, [(2, 70, 32), (32, 64), (64,), (32, 72), (32, 8), (1, 8)]),
    "rows of many tiles": (BIASED, [(150, 40), (40, 136), (136,), (40, 8), (40, 64), (64,)]),
    "each with its own epilogue": (GATED, [(3, 1, 20), (20, 12), (20, 12), (20, 4)]),
    "transposed": (TURNED, [(9, 24), (16, 24), (40, 24)]),
}
FAST = Emulated(checked=False)


def function(text: str) -> FunctionProto:
    return parser.parse_function(f'<opset_import: ["": 20], domain: "onnxfuse"> {text}')


def made(text: str, kind: str = "float32") -> Kernel:
    body = function(text)
    return of_region(body, [kind] * len(body.input), [kind] * len(body.output))({})


def arrays(shapes: list[tuple[int, ...]], dtype: np.dtype[Any]) -> list[Values]:
    rng = np.random.default_rng(sum(map(sum, shapes)))
    return [rng.standard_normal(shape).astype(dtype) for shape in shapes]


def wanted(text: str, given: list[Values]) -> list[Values]:
    body = function(text)
    node = helper.make_node(body.name, list(body.input), list(body.output), domain="onnxfuse")
    ends = [[helper.make_tensor_value_info(n, TensorProto.DOUBLE, None) for n in x] for x in (body.input, body.output)]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("onnxfuse", 1)]
    model = helper.make_model(helper.make_graph([node], "g", *ends), opset_imports=opsets, functions=[body])
    wide = [array.astype(np.float64) for array in given]
    return list(ReferenceEvaluator(model, new_ops=[Erf]).run(None, dict(zip(body.input, wide, strict=True))))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("where", CASES)
def test_the_numbers_of_the_body(dtype: np.dtype[Any], where: str) -> None:
    text, shapes = CASES[where]
    given = arrays(shapes, dtype)
    for y, true in zip(run(made(text, dtype.name), given, FAST), wanted(text, given), strict=True):
        assert_near(y, true, 4.0 * np.sqrt(shapes[0][-1]))


@pytest.mark.parametrize("where", ["biased", "transposed"])
def test_no_race_and_no_access_out_of_bounds(where: str) -> None:
    text, shapes = CASES[where]
    given = arrays(shapes, HALF)
    for y, true in zip(run(made(text, "float16"), given, Emulated()), wanted(text, given), strict=True):
        assert_near(y, true, 4.0 * np.sqrt(shapes[0][-1]))


@cache
def checked(where: str) -> Callable[[Any], None]:
    """A launch in half precision, and the check of what it gave."""
    text, shapes = CASES[where]
    given = arrays(shapes, HALF)

    def go(device: Any) -> None:
        for y, true in zip(run(made(text, "float16"), given, device), wanted(text, given), strict=True):
            assert_near(y, true, 4.0 * np.sqrt(shapes[0][-1]))

    return go


MUTANTS = [
    ("rows of many tiles", "part_of(block - tiles, m, width)", "part_of(block - tiles, m, width1)"),
    ("biased", "if (block >= end0)", "if (block > end0)"),
    ("biased", "n = n1,", "n = n0,"),
    ("biased", "bias != nullptr && ", ""),
    ("biased", "bias + skipped + column + start", "bias + start"),
    ("biased", "if (row >= rows) return;", ""),
    ("plain", "column + start >= width", "column + start > width"),
    ("taken apart", "bias + skipped + column", "bias + column"),
    ("taken apart", "column -= first", "column -= 0"),
    ("taken apart", "column + start >= width", "column + start >= columns"),
    ("taken apart", "first + part.column", "part.column"),
    ("each with its own epilogue", "switch (kind)", "switch (0)"),
    ("rows of many tiles", "(row) * width + column", "(row) * width"),
]


@pytest.mark.parametrize(("where", "before", "after"), MUTANTS)
def test_a_mistake_is_caught(where: str, before: str, after: str) -> None:
    assert_caught(checked(where), before, after, of_run(where, MUTANTS))


def test_unaligned_arrays() -> None:
    text, shapes = CASES["biased"]
    given = arrays(shapes, FLOAT)
    for y, true in zip(run(made(text), given, FAST, by=1), wanted(text, given), strict=True):
        assert_near(y, true, 4.0 * np.sqrt(shapes[0][-1]))


def test_nothing_to_compute_launches_nothing() -> None:
    kernel, device = made(PLAIN), Recorder(4)
    given = [Buffer(ADDRESS, shape, FLOAT) for shape in ((0, 24), (24, 16), (24, 40))]
    kernel.launch(device, given, [Buffer(ADDRESS, (0, 16), FLOAT), Buffer(ADDRESS, (0, 40), FLOAT)])
    assert not device.launches


def test_an_empty_sum_is_zero() -> None:
    a, b, c = np.zeros((3, 0), FLOAT), np.zeros((0, 8), FLOAT), np.zeros((0, 4), FLOAT)
    assert not any(y.any() for y in run(made(PLAIN), [a, b, c], FAST))


def test_one_launch_reads_the_operand_once() -> None:
    text, shapes = CASES["biased"]
    kernel, device = made(text), Recorder(4)
    assert isinstance(kernel, Siblings)
    kinds = [TensorType(FLOAT, shape) for shape in shapes]
    outputs = kernel.outputs(kinds)
    assert [y.shape for y in outputs] == [(2, 70, 64), (2, 70, 72), (2, 70, 8)]
    kernel.launch(device, *([Buffer(ADDRESS, t.shape, t.dtype) for t in side] for side in (kinds, outputs)))
    assert [launch.entry for launch in device.launches] == ["siblings"]
    work = kernel.work(kinds)
    assert work.read == 4 * sum(int(np.prod(shape)) for shape in shapes)
    assert work.written == 4 * 140 * (64 + 72 + 8)
    assert work.flops == 140 * 144 * 64 + 140 * (64 + 8)


@pytest.mark.parametrize("where", CASES)
def test_the_vendors_products_are_the_other_form(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.setenv("ONNXFUSE_PRODUCT", "vendor")
    text, shapes = CASES[where]
    given = arrays(shapes, FLOAT)
    for y, true in zip(run(made(text), given, FAST), wanted(text, given), strict=True):
        assert_near(y, true, 4.0 * np.sqrt(shapes[0][-1]))


def test_operands_that_do_not_fit() -> None:
    kernel = made(BIASED)
    shapes = [(2, 7, 32), (32, 64), (7, 1), (32, 72), (32, 8), (8,)]
    with pytest.raises(KernelError, match="not one row"):
        kernel.outputs(types(arrays(shapes, FLOAT)))
    with pytest.raises(KernelError, match="x3 of Region_MatMulAdd_1 must be float32, not float16"):
        kernel.outputs([TensorType(HALF if i == 3 else FLOAT, shape) for i, shape in enumerate(shapes)])
    text = "Region_1 (x0, x1, x2) => (y0, y1) { v0 = MatMul(x0, x1) y0 = Cast<to = 1>(v0) y1 = MatMul(x0, x2) }"
    given = [TensorType(HALF, shape) for shape in ((4, 8), (8, 3), (8, 3))]
    with pytest.raises(KernelError, match="y0 has not the element type of the products"):
        made(text, "float16").outputs(given)
    cube = "Constant<value: tensor = float[1, 1, 1] {2}> ()"
    text = f"Region_1 (x0, x1, x2) => (y0, y1) {{ c = {cube} v0 = MatMul(x0, x1) y0 = Mul(v0, c) y1 = MatMul(x0, x2) }}"
    with pytest.raises(KernelError, match=r"numbers of 3 dimensions with a product \[4, 3\]"):
        made(text).outputs(types(arrays([(4, 8), (8, 3), (8, 3)], FLOAT)))
    with pytest.raises(KernelError, match="not of 2"):
        made(PLAIN).outputs(types(arrays([(2, 4, 8), (2, 8, 3), (8, 3)], FLOAT)))
