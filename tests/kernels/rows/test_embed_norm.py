"""Embedding and normalization in one kernel against NumPy in float64, its real source run by the emulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.rows.embed_norm import EmbedLayerNormalization, EmbedSimplifiedLayerNormalization
from tests.kernel_mutants import assert_caught
from tests.row_cases import DTYPES, EPSILON, Values, Wanted, affine, assert_close, misaligned, normalized, run, values

FAST = Emulated(checked=False)
CHECKED = Emulated(checked=True)
FLOAT, HALF, BFLOAT = DTYPES
ROWS = (True, False, True)
"""The outputs without mask_index."""


def gathered(table: Values, ids: Values) -> Values:
    """The rows in float64; zeros where there is no such row."""
    found = np.where((ids >= -len(table)) & (ids < len(table)), ids, 0)
    return np.asarray(table.astype(np.float64)[found] * (found == ids)[..., None])


def check(outputs: list[Values | None], total: Values, gamma: Values, beta: Values | None = None) -> None:
    normal, _, _ = normalized(total, (-1,))
    assert_close(outputs[0], affine(normal, gamma, beta))
    assert_close(outputs[2], Wanted(total, 3.0))
    assert outputs[1] is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [1, 7, 64, 768, 1000, 16389])
@pytest.mark.parametrize("ids_dtype", [np.int64, np.int32], ids=["int64", "int32"])
def test_words_positions_and_segments(dtype: np.dtype[Any], width: int, ids_dtype: type[Any]) -> None:
    rng = np.random.default_rng(width)
    kernel = EmbedLayerNormalization({"epsilon": EPSILON})
    word, position, segment = (values(rng, (n, width), dtype) for n in (11, 9, 2))
    gamma, beta = values(rng, (width,), dtype), values(rng, (width,), dtype)
    for batch, length in ((1, 1), (2, 7), (0, 3), (3, 0)):
        ids = rng.integers(0, 11, (batch, length)).astype(ids_dtype)
        segments = rng.integers(0, 2, (batch, length)).astype(ids_dtype)
        outputs = run(FAST, kernel, [ids, segments, word, position, segment, gamma, beta], wanted=ROWS)
        if ids.size:
            total = gathered(word, ids) + position[:length].astype(np.float64) + gathered(segment, segments)
            check(outputs, total, gamma, beta)


@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("form", ["own", "one", "none", "row", "vector"])
@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_positions_in_all_their_forms(form: str, length: int, order: Any) -> None:
    rng = np.random.default_rng(3)
    word, position, gamma = values(rng, (11, 40), HALF), values(rng, (9, 40), HALF), values(rng, (40,), HALF)
    ids = rng.integers(0, 11, (3, length))
    given: Values | None = rng.integers(0, 9, {"own": (3, length), "one": (1, length)}.get(form, (length,)))
    rows = {"none": 0.0, "row": position[:1].astype(np.float64)}.get(form)
    if form in ("none", "row"):
        given = None
    table = None if form == "none" else position[:1] if form == "row" else position
    total = gathered(word, ids) + (gathered(position, np.asarray(given)) if rows is None else rows)
    device = Emulated(checked=True, order=order)
    inputs = [ids, None, word, table, None, gamma, None, None, given]
    check(run(device, EmbedLayerNormalization({"epsilon": EPSILON}), inputs, wanted=ROWS), total, gamma)
    outputs = run(device, EmbedLayerNormalization({"epsilon": EPSILON}), inputs, wanted=(True, False, False))
    assert outputs[1:] == [None, None]
    assert_close(outputs[0], affine(normalized(total, (-1,))[0], gamma))


def test_segments_may_be_those_of_one_sequence_and_ids_of_any_rank() -> None:
    rng = np.random.default_rng(4)
    word, segment, gamma = values(rng, (11, 24), FLOAT), values(rng, (3, 24), FLOAT), values(rng, (24,), FLOAT)
    segments = rng.integers(0, 3, (1, 5))
    for shape in ((5,), (2, 5), (2, 3, 5)):
        ids = rng.integers(0, 11, shape)
        own = segments[0] if len(shape) == 1 else segments
        outputs = run(CHECKED, EmbedLayerNormalization({}), [ids, own, word, None, segment, gamma], wanted=ROWS)
        check(outputs, gathered(word, ids) + gathered(segment, segments[0]), gamma)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_ids_count_from_the_end_and_those_of_no_row_give_zeros(dtype: np.dtype[Any]) -> None:
    rng = np.random.default_rng(5)
    word, position, gamma = values(rng, (11, 33), dtype), values(rng, (4, 33), dtype), values(rng, (33,), dtype)
    ids = np.array([[0, -1, -11, -12], [10, 11, 2**40, -(2**40)]])
    outputs = run(CHECKED, EmbedLayerNormalization({}), [ids, None, word, position, None, gamma], wanted=ROWS)
    check(outputs, gathered(word, ids) + position.astype(np.float64), gamma)


@pytest.mark.parametrize(("dtype", "width"), [(FLOAT, 1), (HALF, 768), (BFLOAT, 4096), (FLOAT, 33000)], ids=str)
def test_rows_by_their_root_mean_square(dtype: np.dtype[Any], width: int) -> None:
    rng = np.random.default_rng(6)
    kernel = EmbedSimplifiedLayerNormalization({"epsilon": EPSILON})
    word, gamma = values(rng, (11, width), dtype), values(rng, (width,), dtype)
    ids = rng.integers(0, 11, (2, 3))
    for kept in (True, False):
        outputs = run(CHECKED, kernel, [ids, word, gamma], wanted=(True, kept))
        rows = gathered(word, ids)
        assert_close(outputs[0], affine(normalized(rows, (-1,), center=False)[0], gamma))
        if kept:
            assert outputs[1] is not None
            assert (outputs[1] == word[ids]).all(), "what is not computed is copied"


@pytest.mark.parametrize("width", [64, 1024])
def test_misaligned_tables(width: int) -> None:
    rng = np.random.default_rng(7)
    word, position, gamma = (values(rng, s, HALF) for s in ((11, width), (6, width), (width,)))
    ids = rng.integers(0, 11, (2, 6))
    inputs = [ids, None, word, position, None, gamma]
    placed = [a if a is None or a is ids else misaligned(a) for a in inputs]
    outputs = run(CHECKED, EmbedLayerNormalization({}), placed, wanted=ROWS)
    check(outputs, gathered(word, ids) + position.astype(np.float64), gamma)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({3: np.zeros((2, 8), np.float32)}, "3 positions, but position_embedding has 2"),
        ({3: np.zeros((4, 6), np.float32)}, "position_embedding of shape [4, 6] has no rows of 8"),
        ({3: np.zeros((4, 8), np.float32), 8: np.zeros((2, 1), np.int64)}, "position ids of shape [2, 1] do not fit"),
        ({4: np.zeros((4, 8), np.float32)}, "has a segment_embedding, but no segment_ids"),
        ({5: np.zeros((4,), np.float32)}, "gamma of shape [4] does not fit dimensions [8]"),
        ({7: np.zeros((2, 3), np.int64)}, "has no lengths of masks: mask must be absent"),
        ({0: np.zeros((2, 3), np.int16)}, "must be int32 or int64, not int16"),
    ],
)
def test_inputs_that_do_not_fit(changes: dict[int, Values], message: str) -> None:
    inputs: list[Values | None] = [np.zeros((2, 3), np.int64), None, np.zeros((5, 8), np.float32), None, None]
    inputs += [np.ones(8, np.float32), None, None, None]
    for place, array in changes.items():
        inputs[place] = array
    with pytest.raises(KernelError) as error:
        run(FAST, EmbedLayerNormalization({}), inputs, wanted=ROWS)
    assert message in str(error.value)


def test_mask_index_is_not_computed() -> None:
    ids, word, gamma = np.zeros((2, 3), np.int64), np.zeros((5, 8), np.float32), np.ones(8, np.float32)
    with pytest.raises(KernelError, match="mask_index must be absent"):
        run(FAST, EmbedLayerNormalization({}), [ids, None, word, None, None, gamma])


def test_work_is_the_rows_that_are_asked_for() -> None:
    half, ids = np.dtype(np.float16), TensorType(np.dtype(np.int64), (10, 8))
    word, position, gamma = (TensorType(half, shape) for shape in ((30000, 64), (512, 64), (64,)))
    work = EmbedLayerNormalization({}).work([ids, None, word, position, None, gamma])
    assert work.read == 80 * 8 + 2 * (80 * 64 + 80 * 64 + 64)
    assert work.written == 2 * 2 * 80 * 64
    assert work.flops == 80 * 64 * 10
    few = EmbedSimplifiedLayerNormalization({}).work([ids, TensorType(half, (4, 64)), gamma])
    assert few.read == 80 * 8 + 2 * (4 * 64 + 64)


MUTANTS = [
    ("word_index[row]", "word_index[row + 1]"),
    ("word_index[row]", "word_index[row / 2]"),
    ("row % position_period", "row"),
    ("row % position_period", "row / position_period"),
    ("segment_index[row % segment_period]", "segment_index[row]"),
    ("row < rows ? row : -1", "row"),
    ("index < 0 ? index + rows : index", "index"),
    ("row % position_period, position_rows", "row % position_period + 1, position_rows"),
]


def ragged(device: Any) -> None:
    rng = np.random.default_rng(8)
    word, position, segment = (values(rng, (n, 40), FLOAT) for n in (11, 4, 3))
    gamma = values(rng, (40,), FLOAT)
    ids, segments = np.array([[0, -1, 11, 10], [3, 4, 5, 6]]), np.array([[0, 1, 2, 2]])
    outputs = [np.full((2, 4, 40), np.nan, np.float32), None, np.full((2, 4, 40), np.nan, np.float32)]
    inputs = [ids, segments, word, position, segment, gamma]
    EmbedLayerNormalization({}).launch(device, inputs, outputs)
    check(outputs, gathered(word, ids) + position.astype(np.float64) + gathered(segment, segments), gamma)


@pytest.mark.parametrize(("before", "after"), MUTANTS)
def test_a_mistake_is_caught(before: str, after: str) -> None:
    assert_caught(ragged, before, after, MUTANTS)


def test_without_a_mistake_nothing_is() -> None:
    ragged(CHECKED)
