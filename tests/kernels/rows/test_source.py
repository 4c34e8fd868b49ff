"""The source of kernels over rows: what is computed on the way in and out."""

from __future__ import annotations

import numpy as np
from onnx import helper

from onnxfuse.kernels.pointwise.device_function import device_function
from onnxfuse.kernels.rows.launch import Given, launch
from onnxfuse.kernels.rows.norm import (
    SkipSimplifiedLayerNormalization,
)
from onnxfuse.kernels.rows.source import Expression, Operand, Program, Reach
from tests.kernels.rows.test_row_kernels import BFLOAT, CHECKED, FAST, FLOAT
from tests.row_cases import DTYPES, EPSILON, Wanted, affine, assert_close, normalized, run, values


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


def test_one_array_in_two_places_and_then_two() -> None:
    rng = np.random.default_rng(0)
    x, skip = values(rng, (3, 40), FLOAT), values(rng, (3, 40), FLOAT)
    scale = values(rng, (40,), FLOAT)
    kernel = SkipSimplifiedLayerNormalization({"epsilon": EPSILON})
    for other in (x, skip, x):
        y = run(FAST, kernel, [x, other, scale], wanted=(True, False, False, False))[0]
        total = x.astype(np.float64) + other.astype(np.float64)
        assert_close(y, affine(normalized(total, (-1,), center=False)[0], scale))
