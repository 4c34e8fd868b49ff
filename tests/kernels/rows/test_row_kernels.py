"""The row kernels against NumPy in float64, their real source run by the emulator."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from onnx import helper

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.pointwise.device_function import device_function
from onnxfuse.kernels.rows.arrangement import arrange
from onnxfuse.kernels.rows.group_norm import GroupNormalization, InstanceNormalization
from onnxfuse.kernels.rows.launch import Given, launch
from onnxfuse.kernels.rows.norm import (
    LayerNormalization,
    RMSNormalization,
    SkipLayerNormalization,
    SkipSimplifiedLayerNormalization,
)
from onnxfuse.kernels.rows.softmax import LogSoftmax, SafeSoftmax, Softmax, tile
from onnxfuse.kernels.rows.source import Expression, Operand, Program, Reach
from tests.row_cases import DTYPES, EPSILON, Wanted, affine, assert_close, misaligned, normalized, run, softmax, values

WIDTHS = {
    "float32": (1, 2, 7, 31, 32, 33, 64, 127, 768, 1000, 1024, 4096, 5120, 16384 + 5, 65536),
    "float16": (1, 7, 64, 1000, 4096, 16384 + 5, 65536),
    "bfloat16": (33, 768, 4096),
}
"""Each width is another arrangement of threads, and so another kernel to compile."""
ROWS = (0, 1, 3, 70)
"""More than twice the emulator's multiprocessors is another arrangement."""

FAST = Emulated(checked=False)
CHECKED = Emulated(checked=True)

FLOAT, HALF, BFLOAT = DTYPES
widths = pytest.mark.parametrize(
    ("dtype", "width"), [(dtype, width) for dtype in DTYPES for width in WIDTHS[dtype.name]], ids=str
)


def rows_of(width: int) -> tuple[int, ...]:
    return ROWS if width <= 4096 else ROWS[:3]


@widths
def test_layer_normalization(dtype: np.dtype[Any], width: int) -> None:
    rng = np.random.default_rng(width)
    kernel = LayerNormalization({"axis": -1, "epsilon": EPSILON})
    bias = width != 64
    for rows in rows_of(width):
        x, s = values(rng, (rows, width), dtype, 3), values(rng, (width,), dtype)
        b = values(rng, (width,), dtype) if bias else None
        y, mean, inverse = run(FAST, kernel, [x, s, b], wanted=(True, bias, bias))
        if not rows:
            continue
        normal, center, root = normalized(x.astype(np.float64), (-1,))
        assert_close(y, affine(normal, s, b))
        if bias:
            assert_close(mean, Wanted(center, 1.0))
            assert_close(inverse, Wanted(root))
        else:
            assert mean is None
            assert inverse is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [1, 33, 768, 4096, 65536])
def test_skip_simplified_layer_normalization(dtype: np.dtype[Any], width: int) -> None:
    rng = np.random.default_rng(width)
    kernel = SkipSimplifiedLayerNormalization({"epsilon": EPSILON})
    everything = width != 768
    for rows in rows_of(width):
        x, skip = values(rng, (rows, width), dtype), values(rng, (rows, width), dtype)
        s = values(rng, (width,), dtype)
        bias = values(rng, (width,), dtype) if everything else None
        outputs = run(FAST, kernel, [x, skip, s, bias], wanted=(True, everything, everything, True))
        if not rows:
            continue
        total = x.astype(np.float64) + skip.astype(np.float64) + (0 if bias is None else bias.astype(np.float64))
        normal, center, root = normalized(total, (-1,), center=False)
        assert_close(outputs[0], affine(normal, s))
        assert_close(outputs[3], Wanted(total, 3.0))
        if everything:
            assert_close(outputs[1], Wanted(center, 1.0))
            assert_close(outputs[2], Wanted(root))


@pytest.mark.parametrize(("dtype", "width"), [(FLOAT, 1), (HALF, 768)], ids=str)
def test_skip_layer_normalization_in_all_its_forms(dtype: np.dtype[Any], width: int) -> None:
    rng = np.random.default_rng(width)
    kernel = SkipLayerNormalization({"epsilon": EPSILON})
    for given_beta, given_bias, kept in itertools.product((True, False), repeat=3):
        x, skip, s = values(rng, (2, 3, width), dtype), values(rng, (2, 3, width), dtype), values(rng, (width,), dtype)
        beta = values(rng, (width,), dtype) if given_beta else None
        bias = values(rng, (width,), dtype) if given_bias else None
        outputs = run(FAST, kernel, [x, skip, s, beta, bias], wanted=(True, False, False, kept))
        total = x.astype(np.float64) + skip.astype(np.float64) + (0 if bias is None else bias.astype(np.float64))
        normal, _, _ = normalized(total, (-1,))
        assert_close(outputs[0], affine(normal, s, beta))
        if kept:
            assert_close(outputs[3], Wanted(total, 3.0))
    outputs = run(FAST, kernel, [x, skip[:1], s], wanted=(True, True, True, True))
    total = x.astype(np.float64) + skip[:1].astype(np.float64)
    normal, mean, inverse = normalized(total, (-1,))
    for got, want in zip(
        outputs, (affine(normal, s), Wanted(mean, 1.0), Wanted(inverse), Wanted(total, 3.0)), strict=True
    ):
        assert_close(got, want)


@pytest.mark.parametrize(("kernel", "dtype"), [(LayerNormalization, HALF), (RMSNormalization, FLOAT)])
def test_axes_and_the_shapes_that_a_scale_may_have(kernel: type[Any], dtype: np.dtype[Any]) -> None:
    rng = np.random.default_rng(0)
    x = values(rng, (2, 3, 4, 5), dtype)
    for axis, shapes in {
        -1: [(5,), (1,), ()],
        2: [(4, 5), (5,), (4, 1), (1, 1)],
        -3: [(3, 4, 5), (3, 1, 1), (4, 1)],
        0: [(2, 1, 1, 1)],
    }.items():
        axes = tuple(range(axis % 4, 4))
        normal, _, _ = normalized(x.astype(np.float64), axes, kernel.center)
        for shape in shapes:
            s = values(rng, shape, dtype)
            assert_close(run(FAST, kernel({"axis": axis}), [x, s], wanted=(True,))[0], affine(normal, s))


def test_statistics_keep_the_dimensions_they_are_of() -> None:
    x, s = TensorType(np.dtype(np.float16), (2, 3, 4)), TensorType(np.dtype(np.float16), (3, 4))
    y, mean, inverse = LayerNormalization({"axis": 1}).outputs([x, s])
    assert (y, mean) == (x, TensorType(np.dtype(np.float32), (2, 1, 1)))
    assert inverse == mean
    outputs = SkipLayerNormalization({}).outputs([x, x, s])
    assert [o.shape for o in outputs] == [(2, 3, 4), (2, 3, 1), (2, 3, 1), (2, 3, 4)]
    assert {o.dtype.name for o in outputs} == {"float16"}


@pytest.mark.parametrize("width", [64, 4096, 65536])
@pytest.mark.parametrize("mean", [1e4, -1e4])
def test_data_far_from_zero(width: int, mean: float) -> None:
    rng = np.random.default_rng(width)
    x = values(rng, (3, width), DTYPES[0], mean)
    x[1, 0] = 0.0  # one element may be nothing like the others
    ones = np.ones(width, np.float32)
    normal, center, root = normalized(x.astype(np.float64), (-1,))
    y, means, inverse = run(FAST, LayerNormalization({}), [x, ones])
    assert_close(y, affine(normal, ones))
    assert_close(means, Wanted(center))
    assert_close(inverse, Wanted(root))


def test_the_first_columns_of_a_long_row_may_lie_elsewhere() -> None:
    x = np.random.default_rng(0).standard_normal((2, 70001)).astype(np.float32)
    x[0, :16384] += 1000
    x[1, 16384:] += 1000
    s = np.ones(70001, np.float32)
    normal, _, root = normalized(x.astype(np.float64), (-1,))
    y, _, inverse = run(FAST, LayerNormalization({}), [x, s])
    assert_close(y, affine(normal, s))
    assert_close(inverse, Wanted(root))


def test_rows_with_nan_or_infinity_stay_among_themselves() -> None:
    x = np.random.default_rng(0).standard_normal((4, 100)).astype(np.float32)
    x[1, 3], x[2, 5] = np.nan, np.inf
    with np.errstate(all="ignore"):
        normal, _, _ = normalized(x.astype(np.float64), (-1,))
    y, mean, inverse = run(FAST, LayerNormalization({}), [x, np.ones(100, np.float32)])
    assert_close(y, affine(normal, np.ones(100)))
    assert mean is not None
    assert inverse is not None
    assert np.isnan(inverse[1:3]).all()
    assert np.isfinite(mean[[0, 3]]).all()


@widths
def test_softmax(dtype: np.dtype[Any], width: int) -> None:
    rng = np.random.default_rng(width)
    for rows in rows_of(width):
        x = (values(rng, (rows, width), dtype) * np.asarray(10, dtype)).astype(dtype)
        (y,) = run(FAST, Softmax({"axis": -1}), [x])
        if rows:
            assert_close(y, softmax(x, -1, "Softmax"))


@pytest.mark.parametrize("kernel", [Softmax, LogSoftmax, SafeSoftmax])
@pytest.mark.parametrize(("dtype", "width"), [(FLOAT, 33), (HALF, 4096), (BFLOAT, 40000), (FLOAT, 40000)], ids=str)
def test_softmax_of_strange_rows(kernel: type[Any], dtype: np.dtype[Any], width: int) -> None:
    x = np.random.default_rng(width).standard_normal((8, width)).astype(dtype)
    x[1] = -np.inf
    x[2, 1:] = -np.inf
    x[3, : width // 2] = -np.inf
    x[4] = np.asarray(1e4, dtype)
    x[4, 0] = np.asarray(-1e4, dtype)
    x[5, width // 3] = np.nan
    x[6, width // 3] = np.inf
    x[7, -1] = np.asarray(1e4, dtype)
    assert_close(run(FAST, kernel({}), [x])[0], softmax(x, -1, kernel.signature.op))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kernel", [Softmax, LogSoftmax, SafeSoftmax])
def test_softmax_along_another_axis(kernel: type[Any], dtype: np.dtype[Any]) -> None:
    rng = np.random.default_rng(0)
    for shape, axis in [
        ((2, 7, 5), 1),
        ((3, 4, 300), -2),
        ((5, 2), 0),
        ((2, 300, 33), 1),
        ((2, 3, 0), 1),
        ((6, 1, 9), 1),
    ]:
        x = values(rng, shape, dtype)
        if x.size:
            x[0] = -np.inf
            x[-1, -1] = np.asarray(1e4, dtype)
        (y,) = run(FAST, kernel({"axis": axis}), [x])
        assert y is not None
        if x.size:
            assert_close(y, softmax(x, axis, kernel.signature.op))


GROUPED = [
    ((2, 6, 4, 5), 3),
    ((2, 6, 7), 3),
    ((1, 64, 8, 8), 32),
    ((2, 4, 1), 2),
    ((1, 8, 100, 100), 2),
    ((2, 8), 4),
    ((0, 4, 3), 2),
]


@pytest.mark.parametrize("dtype", [FLOAT, HALF], ids=str)
@pytest.mark.parametrize(("shape", "groups"), [*GROUPED, ((3, 5, 2, 4), 5), ((1, 2, 64, 128), 2)], ids=str)
def test_group_and_instance_normalization(shape: tuple[int, ...], groups: int, dtype: np.dtype[Any]) -> None:
    rng = np.random.default_rng(1)
    channels = shape[1]
    x, s, b = values(rng, shape, dtype, 5), values(rng, (channels,), dtype), values(rng, (channels,), dtype)
    (y,) = run(FAST, GroupNormalization({"num_groups": groups, "epsilon": EPSILON}), [x, s, b])
    if not x.size:
        return
    normal, _, _ = normalized(x.astype(np.float64).reshape(shape[0], groups, -1), (-1,))
    along = (-1, *(1 for _ in shape[2:]))
    want = affine(normal.reshape(shape), s.reshape(along), b.reshape(along))
    assert_close(y, want)
    if groups == channels:
        assert_close(run(FAST, InstanceNormalization({"epsilon": EPSILON}), [x, s, b])[0], want)


@pytest.mark.parametrize(("dtype", "width"), [(FLOAT, 64), (HALF, 1024), (HALF, 4096)], ids=str)
def test_misaligned_arrays(dtype: np.dtype[Any], width: int) -> None:
    rng = np.random.default_rng(0)
    x, s = values(rng, (3, width), dtype), values(rng, (width,), dtype)
    normal, _, _ = normalized(x.astype(np.float64), (-1,))
    y = run(CHECKED, LayerNormalization({}), [x, s], wanted=(True,), place=misaligned)[0]
    assert_close(y, affine(normal, s))
    assert_close(run(CHECKED, Softmax({}), [x], place=misaligned)[0], softmax(x, -1, "Softmax"))


@pytest.mark.parametrize("order", ["forward", "reverse", "random"])
@pytest.mark.parametrize(("rows", "width"), [(5, 8), (70, 1500), (1, 33000)])
def test_no_race_and_no_access_out_of_bounds(order: Any, rows: int, width: int) -> None:
    rng = np.random.default_rng(0)
    device = Emulated(checked=True, order=order)
    x, skip = (values(rng, (rows, width), np.dtype(np.float16)) for _ in range(2))
    s, beta, bias = (values(rng, (width,), np.dtype(np.float16)) for _ in range(3))
    outputs = run(device, SkipLayerNormalization({"epsilon": EPSILON}), [x, skip, s, beta, bias])
    total = x.astype(np.float64) + skip.astype(np.float64) + bias.astype(np.float64)
    normal, mean, inverse = normalized(total, (-1,))
    wants = (affine(normal, s, beta), Wanted(mean, 1.0), Wanted(inverse), Wanted(total, 3.0))
    for got, want in zip(outputs, wants, strict=True):
        assert_close(got, want)
    assert_close(run(device, Softmax({}), [x])[0], softmax(x, -1, "Softmax"))
    strided = x.reshape(rows, -1, 2) if width % 2 == 0 else x[:, :, None]
    assert_close(run(device, SafeSoftmax({"axis": 1}), [strided])[0], softmax(strided, 1, "SafeSoftmax"))


def test_expressions_on_read_and_on_write() -> None:
    """Rows of a table, summed with others; after the normalization a bias, an activation and a cast."""
    rng = np.random.default_rng(0)
    table, positions = values(rng, (11, 72), DTYPES[1]), values(rng, (3, 72), DTYPES[1])
    words = rng.integers(-11, 12, (6,))
    words[:2] = 11, -12  # in no row: zeros
    nodes = [helper.make_node("Add", ["value", "bias"], ["sum"]), helper.make_node("Sigmoid", ["sum"], ["gate"])]
    nodes.append(helper.make_node("Mul", ["sum", "gate"], ["y"]))
    after = device_function("swish", nodes, {"value": FLOAT, "bias": BFLOAT}, {"y": "y"})
    program = Program(
        "row_norm.cu",
        "normalise(fused, rows, columns, epsilon)",
        Expression("word + position", (Operand("word", Reach.GATHERED), Operand("position", Reach.GATHERED))),
        Expression.of("swish", after, (Operand("bias", Reach.COLUMN),), ("value",)),
        scalars=(("float", "epsilon"),),
        defines=(("CENTER", 1), ("MEAN", 0)),
    )
    bias, output = values(rng, (72,), DTYPES[2]), np.empty((6, 72), np.float32)
    given = {
        "word": table,
        "word_index": words,
        "position": positions,
        "position_index": np.arange(6, dtype=np.int32) % 3,
        "bias": bias,
        "output": output,
    }
    with CHECKED.fresh(output):
        launch(CHECKED, program, 6, 72, {k: Given(v) for k, v in given.items()}, (np.float32(EPSILON),))
    found = np.where((words >= -11) & (words < 11), words, 0)
    rows = table.astype(np.float64)[found] * (found == words)[:, None] + np.tile(positions.astype(np.float64), (2, 1))
    before = normalized(rows, (-1,))[0] + bias.astype(np.float64)
    assert_close(output, Wanted(before / (1 + np.exp(-before)), 1.0))


def test_every_width_has_threads_for_all_its_columns() -> None:
    for columns, (vector, itemsize), crowded in itertools.product(
        (1, 2, 8, 31, 96, 512, 1000, 1023, 1024, 1032, 4096, 5120, 16384, 16389, 32768, 32776, 10**6),
        ((1, 2), (2, 2), (4, 2), (8, 2), (1, 4), (2, 4), (4, 4)),
        (True, False),
    ):
        if columns % vector:
            continue
        how = arrange(columns, vector, itemsize, crowded)
        threads = how.lanes or how.threads
        held = threads * how.items * how.vector
        assert how.wide == (held < columns)
        assert how.threads % 32 == 0
        assert how.threads <= 1024
        assert how.items * how.vector <= 24
        assert how.wide == (columns > 1024 * min(24, 16 * vector))
        assert how.wide or threads * (how.items - 1) * how.vector < columns  # none is without work
        for rows in (1, 7, 1000):
            assert how.blocks(rows) * (how.threads // how.lanes if how.lanes else 1) >= rows


@pytest.mark.parametrize(("columns", "inner"), list(itertools.product((1, 2, 5, 300, 10**6), (2, 3, 33, 10**6))))
def test_a_tile_is_a_block(columns: int, inner: int) -> None:
    width, depth = tile(columns, inner)
    assert width * depth <= 256
    assert width & (width - 1) == depth & (depth - 1) == 0


def test_one_array_in_two_places_and_then_two() -> None:
    rng = np.random.default_rng(0)
    x, skip = values(rng, (3, 40), FLOAT), values(rng, (3, 40), FLOAT)
    scale = values(rng, (40,), FLOAT)
    kernel = SkipSimplifiedLayerNormalization({"epsilon": EPSILON})
    for other in (x, skip, x):
        y = run(FAST, kernel, [x, other, scale], wanted=(True, False, False, False))[0]
        total = x.astype(np.float64) + other.astype(np.float64)
        assert_close(y, affine(normalized(total, (-1,), center=False)[0], scale))


def test_work_is_what_moves() -> None:
    half = np.dtype(np.float16)
    x, s = TensorType(half, (10, 64)), TensorType(half, (64,))
    work = SkipLayerNormalization({}).work([x, x, s, s, None])
    assert work.read == 2 * (2 * 640 + 2 * 64)
    assert work.written == 2 * (2 * 640 + 2 * 10)
    assert work.flops == 640 * 11
    assert Softmax({}).work([x]).read == 1280
    assert GroupNormalization({"num_groups": 8}).work([x, s, s]).written == 1280


@pytest.mark.parametrize(
    ("kernel", "attributes", "shapes", "message"),
    [
        (LayerNormalization, {"axis": 3}, [(2, 3), (3,)], "LayerNormalization: axis 3 of an input of shape [2, 3]"),
        (LayerNormalization, {}, [(2, 3), (4,)], "scale of shape [4] does not fit dimensions [3]"),
        (LayerNormalization, {"axis": 0}, [(2, 3, 4), (2, 1, 4)], "scale of shape [2, 1, 4] does not fit dimensions"),
        (SkipLayerNormalization, {}, [(2, 3), (4, 3), (3,)], "skip of shape [4, 3] does not fit"),
        (GroupNormalization, {"num_groups": 3}, [(2, 4), (4,), (4,)], "4 channels are not 3 groups"),
        (GroupNormalization, {"num_groups": 2}, [(2, 4), (4,), (2,)], "bias is [2], but X has 4 channels"),
        (Softmax, {"axis": 2}, [(2, 3)], "Softmax: axis 2 of an input of shape [2, 3]"),
    ],
)
def test_inputs_that_do_not_fit(
    kernel: type[Any], attributes: dict[str, Any], shapes: list[tuple[int, ...]], message: str
) -> None:
    with pytest.raises(KernelError) as error:
        run(FAST, kernel(attributes), [np.zeros(shape, np.float32) for shape in shapes])
    assert message in str(error.value)


def test_attributes_that_no_kernel_serves() -> None:
    with pytest.raises(KernelError, match="stash_type is 11"):
        LayerNormalization({"stash_type": 11})
    with pytest.raises(KernelError, match="needs num_groups"):
        GroupNormalization({})
