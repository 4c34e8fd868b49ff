"""The kernel of cross-entropy's gradient against NumPy in float64, its real source run by the emulator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.rows.cross_entropy_grad import SoftmaxCrossEntropyGrad, SoftmaxCrossEntropyLossGrad
from onnxfuse.language.catalogue import load
from tests.kernel_runs import reference
from tests.row_cases import DTYPES, Values, Wanted, assert_close, misaligned, run

CHECKED = Emulated(checked=True)
FLOAT, HALF, _ = DTYPES
SHAPES = ((1, 1), (5, 7), (9, 64), (3, 1000), (300, 33), (2, 5000))


def inputs(rows: int, classes: int, dtype: np.dtype[Any], ignored: int = -100) -> list[Values | None]:
    rng = np.random.default_rng(rows)
    x = rng.standard_normal((rows, classes))
    logarithms = x - np.log(np.exp(x).sum(1, keepdims=True))
    label = rng.integers(0, classes, rows)
    label[1::3] = ignored
    return [np.asarray([2.5]).astype(dtype), logarithms.astype(dtype), label]


def expected(given: list[Values | None], ignored: int = -100) -> Wanted:
    dy, logarithms, label = (np.asarray(one) for one in given)
    share = np.exp(logarithms.astype(np.float64))
    seen = label != ignored
    share[np.flatnonzero(seen), label[seen]] -= 1
    return Wanted(np.where(seen[:, None], share * (float(dy[0]) / seen.sum()), 0), 2.5 / seen.sum())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "classes"), SHAPES)
def test_rows_of_any_width(rows: int, classes: int, dtype: np.dtype[Any]) -> None:
    given = inputs(rows, classes, dtype)
    (got,) = run(CHECKED, SoftmaxCrossEntropyLossGrad({}), given)
    assert_close(got, expected(given))


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
def test_what_a_loss_may_have(weighted: bool, smoothing: float, reduction: str) -> None:
    """As the function body has it, which is what the NumPy of the other tests comes to."""
    given = inputs(70, 33, FLOAT)
    if weighted:
        given.append(np.random.default_rng(1).random(33).astype(np.float32))
    attributes = {"ignore_index": -100, "reduction": reduction, "label_smoothing": smoothing}
    (want,) = reference("SoftmaxCrossEntropyLossGrad", attributes, given, load())
    (got,) = run(CHECKED, SoftmaxCrossEntropyLossGrad(attributes), given)
    assert_close(got, Wanted(want, np.abs(want).max()))


def test_numpy_and_the_function_body_agree() -> None:
    given = inputs(9, 64, FLOAT)
    (body,) = reference("SoftmaxCrossEntropyLossGrad", {"ignore_index": -100}, given, load())
    np.testing.assert_allclose(body, expected(given).value, rtol=1e-12, atol=1e-15)


def test_another_label_is_ignored_and_classes_count_from_the_end() -> None:
    given = inputs(12, 7, FLOAT, ignored=3)
    label = given[2]
    assert label is not None
    label[0] = -1
    (got,) = run(CHECKED, SoftmaxCrossEntropyLossGrad({"ignore_index": 3}), given)
    assert_close(got, expected(given, 3))


def test_rows_that_are_all_ignored_have_no_gradient() -> None:
    given = inputs(4, 7, FLOAT)
    given[2] = np.full(4, -100)
    (got,) = run(CHECKED, SoftmaxCrossEntropyLossGrad({}), given)
    assert got is not None
    assert not got.any()


@pytest.mark.parametrize("order", ["reverse", "random"])
def test_no_race_and_no_access_out_of_bounds(order: Any) -> None:
    given = inputs(70, 130, HALF)
    (got,) = run(Emulated(checked=True, order=order), SoftmaxCrossEntropyLossGrad({}), given, place=misaligned)
    assert_close(got, expected(given))


def test_nothing_at_all() -> None:
    for rows, classes in ((0, 5), (0, 0)):
        given: list[Values | None] = [
            np.ones(1, np.float32),
            np.zeros((rows, classes), np.float32),
            np.zeros(rows, np.int64),
        ]
        (got,) = run(CHECKED, SoftmaxCrossEntropyLossGrad({}), given)
        assert got is not None
        assert got.shape == (rows, classes)


@pytest.mark.parametrize("shapes", [((2,), (4, 7), (4,)), ((1,), (4, 7), (5,)), ((1,), (4, 7, 3), (4, 3))])
def test_what_does_not_fit_is_refused(shapes: tuple[tuple[int, ...], ...]) -> None:
    types = [TensorType(np.dtype(np.int64) if i == 2 else FLOAT, shape) for i, shape in enumerate(shapes)]
    with pytest.raises(KernelError, match="are not one number, rows and their labels"):
        SoftmaxCrossEntropyLossGrad({}).outputs(types)


def test_what_is_no_loss_is_refused() -> None:
    with pytest.raises(KernelError, match="a reduction is mean or sum, not none"):
        SoftmaxCrossEntropyLossGrad({"reduction": "none"})
    types = [TensorType(FLOAT, (1,)), TensorType(FLOAT, (4, 7)), TensorType(np.dtype(np.int64), (4,))]
    with pytest.raises(KernelError, match="are not the weights of classes"):
        SoftmaxCrossEntropyLossGrad({}).outputs([*types, TensorType(FLOAT, (4,))])


def test_work_is_one_pass() -> None:
    types = [TensorType(FLOAT, (1,)), TensorType(FLOAT, (4, 7)), TensorType(np.dtype(np.int64), (4,))]
    work = SoftmaxCrossEntropyLossGrad({}).work(types)
    assert (work.read, work.written) == (4 + 4 * 28 + 8 * 4, 4 * 28)


# ------------------------------------------------------------------------------------------------ from scores


def scored(rows: int, classes: int, dtype: np.dtype[Any]) -> tuple[list[Values | None], list[Values | None]]:
    """The same with scores that are far from logarithms of probabilities, and with these in float64."""
    dy, _, label = inputs(rows, classes, dtype)
    scores = np.random.default_rng(rows).standard_normal((rows, classes)) * 3 + 20
    scores = scores.astype(dtype)
    wide = scores.astype(np.float64) - scores.max(1, keepdims=True).astype(np.float64)
    return [dy, scores, label], [dy, wide - np.log(np.exp(wide).sum(1, keepdims=True)), label]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "classes"), SHAPES)
def test_scores_of_rows_of_any_width(rows: int, classes: int, dtype: np.dtype[Any]) -> None:
    given, logarithms = scored(rows, classes, dtype)
    (got,) = run(CHECKED, SoftmaxCrossEntropyGrad({}), given)
    assert_close(got, expected(logarithms))


@pytest.mark.parametrize("order", ["reverse", "random"])
def test_more_rows_than_blocks_and_no_race(order: Any) -> None:
    given, logarithms = scored(2000, 9, HALF)
    (got,) = run(Emulated(checked=True, order=order), SoftmaxCrossEntropyGrad({}), given, place=misaligned)
    assert_close(got, expected(logarithms))


def test_scores_that_are_no_numbers_are_as_the_function_body_has_them() -> None:
    (dy, scores, _), _ = scored(8, 600, FLOAT)
    assert scores is not None
    scores[0, 3], scores[2, 4], scores[3, 7:] = np.nan, np.inf, -np.inf
    scores[5] = -np.inf
    given = [dy, scores, np.array([1, 2, -100, 3, 4, 5, -1, 7])]
    (want,) = reference("SoftmaxCrossEntropyGrad", {"ignore_index": -100}, given, load())
    (got,) = run(CHECKED, SoftmaxCrossEntropyGrad({}), given)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    assert np.isnan(want).any(1).tolist() == [True, False, True, False, False, True, False, False]


def test_work_from_scores_is_what_is_read_and_written_once() -> None:
    types = [TensorType(FLOAT, (1,)), TensorType(FLOAT, (4, 7)), TensorType(np.dtype(np.int64), (4,))]
    whole, once = SoftmaxCrossEntropyGrad({}).work(types), SoftmaxCrossEntropyLossGrad({}).work(types)
    assert (whole.read, whole.written, whole.flops > once.flops) == (once.read, once.written, True)
