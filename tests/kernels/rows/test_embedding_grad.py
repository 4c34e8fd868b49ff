"""The kernel of an embedding's gradient against NumPy in float64, its real source run by the emulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import Device, TensorType
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.rows.embedding_grad import EmbeddingGrad
from onnxfuse.language.catalogue import load
from tests.kernel_mutants import assert_caught, of_run, survivors
from tests.kernel_runs import reference
from tests.row_cases import DTYPES, Values, Wanted, assert_close, embedding_gradient, misaligned, run

CHECKED = Emulated(checked=True)
FLOAT, HALF, _ = DTYPES
SHAPES = ((1, 1, 1), (5, 7, 3), (9, 64, 20), (300, 33, 40), (70, 1000, 9), (40, 2304, 5), (2100, 8, 600), (3000, 4, 2))
"""(tokens, columns, rows): rows that few threads have and that no block has, and more tokens than one round."""


def inputs(tokens: int, columns: int, rows: int, dtype: np.dtype[Any]) -> list[Values | None]:
    rng = np.random.default_rng(tokens)
    indices = rng.integers(0, rows, tokens)
    indices[3::17], indices[5::23], indices[7::29] = -4, rows, -(2**32) + 1
    return [rng.standard_normal((tokens, columns)).astype(dtype), indices]


def expected(given: list[Values | None], rows: int, padding: int = -1) -> Wanted:
    dy, indices = (np.asarray(one) for one in given)
    return embedding_gradient(dy, indices, rows, padding)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("tokens", "columns", "rows"), SHAPES)
def test_rows_of_any_width(tokens: int, columns: int, rows: int, dtype: np.dtype[Any]) -> None:
    given = inputs(tokens, columns, rows, dtype)
    (got,) = run(CHECKED, EmbeddingGrad({"num_embeddings": rows}), given)
    assert_close(got, expected(given, rows))


def test_rows_are_added_up_in_their_order() -> None:
    """The same bits as one addition after another in float32, whichever block comes first."""
    dy = np.random.default_rng(3).standard_normal((3000, 8)).astype(np.float32)
    indices = np.random.default_rng(4).integers(0, 3, 3000)
    wanted = np.zeros((3, 8), np.float32)
    for index, row in zip(indices, dy, strict=True):
        wanted[index] += row
    for order in ("forward", "reverse", "random"):
        device: Any = Emulated(order=order)
        np.testing.assert_array_equal(run(device, EmbeddingGrad({"num_embeddings": 3}), [dy, indices])[0], wanted)


def test_numpy_and_the_function_body_agree() -> None:
    given = inputs(9, 64, 20, FLOAT)
    (body,) = reference("EmbeddingGrad", {"num_embeddings": 20, "padding_idx": 3}, given, load())
    np.testing.assert_allclose(body, expected(given, 20, 3).value, rtol=1e-12, atol=1e-15)


def test_what_is_padding_gives_nothing() -> None:
    given = inputs(300, 33, 5, FLOAT)
    (got,) = run(CHECKED, EmbeddingGrad({"num_embeddings": 5, "padding_idx": 2}), given)
    assert_close(got, expected(given, 5, 2))
    assert got is not None
    assert not got[2].any()


def test_indices_have_the_axes_of_what_they_are_of() -> None:
    dy, indices = inputs(30, 8, 5, FLOAT)
    assert dy is not None
    assert indices is not None
    (flat,) = run(CHECKED, EmbeddingGrad({"num_embeddings": 5}), [dy, indices])
    given: list[Values | None] = [dy.reshape(5, 6, 8), indices.reshape(5, 6)]
    (got,) = run(CHECKED, EmbeddingGrad({"num_embeddings": 5}), given)
    np.testing.assert_array_equal(got, flat)


@pytest.mark.parametrize("order", ["reverse", "random"])
def test_no_race_and_no_access_out_of_bounds(order: Any) -> None:
    given = inputs(1100, 130, 90, HALF)
    (got,) = run(Emulated(checked=True, order=order), EmbeddingGrad({"num_embeddings": 90}), given, place=misaligned)
    assert_close(got, expected(given, 90))


@pytest.mark.parametrize(("tokens", "columns", "rows"), [(0, 5, 3), (4, 0, 3), (4, 5, 0)])
def test_nothing_at_all(tokens: int, columns: int, rows: int) -> None:
    given: list[Values | None] = [np.zeros((tokens, columns), np.float32), np.zeros(tokens, np.int64)]
    (got,) = run(CHECKED, EmbeddingGrad({"num_embeddings": rows}), given)
    assert got is not None
    assert got.shape == (rows, columns)
    assert not got.any()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(KernelError, match="needs num_embeddings"):
        EmbeddingGrad({})
    types = [TensorType(FLOAT, (4, 7)), TensorType(np.dtype(np.int64), (5,))]
    with pytest.raises(KernelError, match=r"\[5\] are not the indices of \[4, 7\]"):
        EmbeddingGrad({"num_embeddings": 3}).outputs(types)


def test_work_is_one_pass() -> None:
    types = [TensorType(FLOAT, (4, 7)), TensorType(np.dtype(np.int64), (4,))]
    work = EmbeddingGrad({"num_embeddings": 3}).work(types)
    assert (work.read, work.written, work.flops) == (4 * 28 + 8 * 4, 4 * 21, 28)


# -------------------------------------------------------------------------------------------------- mistakes


def launched(tokens: int, columns: int, rows: int) -> Callable[[Device], None]:
    """A launch, and the check of what it gave."""
    given = inputs(tokens, columns, rows, FLOAT)
    wanted = expected(given, rows)

    def check(device: Device) -> None:
        dw = np.full((rows, columns), np.nan, np.float32)
        EmbeddingGrad({"num_embeddings": rows}).launch(device, given, [dw])
        assert_close(dw, wanted)

    return check


SEVERAL_ROUNDS, WIDE = launched(2100, 8, 600), launched(70, 1100, 20)
MUTANTS = [
    (SEVERAL_ROUNDS, "start + item * THREADS", "start + item"),
    (SEVERAL_ROUNDS, "token < tokens ?", "true ?"),
    (WIDE, "row >= 0 && row < ROWS", "row >= 0 && row <= ROWS"),
    (SEVERAL_ROUNDS, "row >= 0 && row < ROWS", "row < ROWS"),
    (SEVERAL_ROUNDS, "((1u << lane) - 1)", "((2u << lane) - 1)"),
    (SEVERAL_ROUNDS, "other == warp &&", "other == 0 &&"),
    (SEVERAL_ROUNDS, "next + k < count ?", "next + k <= count ?"),
    (SEVERAL_ROUNDS, "% GROUPS == group ?", "% GROUPS != group ?"),
    (SEVERAL_ROUNDS, "(start + entry % ROUND)", "(entry % ROUND)"),
    (SEVERAL_ROUNDS, "&& first + row < rows", ""),
    (WIDE, "if (column >= columns) return;", ""),
    (WIDE, "if (column >= columns) continue;", ""),
    (WIDE, "blockIdx.y * LANES", "blockIdx.y"),
]


@pytest.mark.parametrize(("check", "before", "after"), MUTANTS, ids=[f"{b} → {a}" for _, b, a in MUTANTS])
def test_a_mistake_is_caught(check: Callable[[Any], None], before: str, after: str) -> None:
    assert_caught(check, before, after, of_run(check, MUTANTS))


def test_every_barrier_is_needed() -> None:
    assert [barrier for barrier in survivors(SEVERAL_ROUNDS) if barrier.startswith("embedding_grad.cu")] == []
