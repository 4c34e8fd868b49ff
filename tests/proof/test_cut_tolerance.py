"""How far two equations may be apart: as far as rounding of their numbers takes them, and no farther."""

from __future__ import annotations

import numpy as np

from onnxfuse.proof.cut_tolerance import Equation

TRUTH = np.linspace(1, 2, 128).reshape(2, 64)


def equation(fused: np.ndarray, truth: np.ndarray = TRUTH, *, exactly: bool = True) -> Equation:
    return Equation(truth.astype(np.float32), truth, fused, exactly, np.dtype(np.float32))


def test_the_same_numbers_hold_and_the_noise_of_float64_is_allowed() -> None:
    assert equation(TRUTH).holds
    assert equation(TRUTH * (1 + 1e-14)).holds
    assert equation(TRUTH).error == 0


def test_a_difference_that_float32_could_not_show_is_seen() -> None:
    wrong = equation(TRUTH * (1 + 1e-9))
    assert not wrong.holds
    assert 0.9e-9 < wrong.error < 1.1e-9
    distance, allowed = wrong.worst()
    assert 0.9e-9 < distance < 1.1e-9
    assert allowed < distance


def test_what_other_last_digits_do_is_allowed_twice() -> None:
    off = equation(TRUTH + 1e-6)
    off.move(TRUTH, TRUTH + 1.4e-6, tensors=False)  # moved by 4e-7
    assert not off.holds
    off.move(TRUTH, TRUTH + 0.4e-6, tensors=False)  # by 6e-7
    assert off.holds
    assert off.error == 0


def test_what_moves_alike_in_both_allows_nothing() -> None:
    off = equation(TRUTH + 1e-6)
    off.move(TRUTH + 1, TRUTH + 1 + 1e-6, tensors=False)
    assert not off.holds


def test_of_what_runs_in_float64_once_alone_nothing_is_learned() -> None:
    """Among many sites one does not run, and later, among those that are left, it is not there."""
    off = equation(TRUTH * 1.01, exactly=False)
    assert not off.holds
    off.move(TRUTH, TRUTH * 1.01, tensors=True)
    off.move(TRUTH, TRUTH * 1.01, tensors=False)
    assert not off.holds
    other = equation(TRUTH * 1.01)
    other.move(TRUTH, None, tensors=True)
    other.move(TRUTH, None, tensors=False)
    assert not other.holds
    rounded = equation(TRUTH * 1.01, exactly=False)
    rounded.move(TRUTH * 1.006, None, tensors=False)  # what the original does still counts
    assert rounded.holds


def test_what_other_roundings_do_to_the_original_in_float64_is_allowed_to_rows() -> None:
    off = equation(TRUTH + 1e-6 * np.array([[1.0], [0.0]]))
    off.round(TRUTH)
    off.round(TRUTH + 1e-6 * np.array([[0.0], [1.0]]))
    assert not off.holds
    off.round(np.where(np.arange(128).reshape(2, 64) == 5, TRUTH - 2.6e-7, TRUTH))
    assert off.holds
    alone = equation(TRUTH * 1.01, exactly=False)
    alone.round(TRUTH * 1.01)
    assert not alone.holds


def test_an_element_of_a_tensor_that_moves_stands_for_its_row() -> None:
    off = equation(TRUTH + 1e-6)
    moved = TRUTH + 1e-6
    moved[0, 0] += 4e-7
    off.move(TRUTH, moved, tensors=True)
    assert (off.allowed[0] > 1e-6).all()
    assert (off.allowed[1] < 1e-9).all()
    number = equation(TRUTH + 1e-6)
    number.move(TRUTH, moved, tensors=False)
    assert (number.allowed[0] > 7e-7).tolist() == [True] + [False] * 63


def test_of_what_is_no_number_nothing_is_asked() -> None:
    strange, fused = TRUTH.copy(), TRUTH.copy()
    strange[0, 0], fused[1, 1] = np.nan, np.inf
    assert equation(fused, strange).holds


def test_an_op_in_its_own_precision_is_as_near_as_rounding_leaves_it() -> None:
    assert equation(TRUTH * (1 + 1e-6), exactly=False).holds
    assert not equation(TRUTH * (1 + 1e-5), exactly=False).holds


def test_another_shape_tells_nothing() -> None:
    off = equation(TRUTH + 1e-6)
    off.move(np.ones(3), np.zeros(3), tensors=False)
    assert not off.holds
    assert equation(np.zeros((0, 4)), np.zeros((0, 4))).holds
    assert equation(np.zeros((0, 4)), np.zeros((0, 4))).worst() == (0, 0)
