"""Numbers that are moved by a unit in their last place."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from onnxfuse.proof import last_digits, numerics
from onnxfuse.proof.last_digits import moved


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_numbers_move_by_a_unit_of_their_last_place_and_equal_ones_alike(dtype: type) -> None:
    array = np.array([0.3, 1.7, -0.3, 0.3, 0.5, 1, 0, 3, np.inf, np.nan], dtype)
    made = np.array([moved(array, seed) for seed in range(20)])
    wide = array.astype(np.float64)
    np.testing.assert_array_equal(made[:, 4:], np.broadcast_to(wide[4:], made[:, 4:].shape))
    steps = (made[:, :4] / wide[:4] - 1) / numerics.epsilon(array.dtype)
    assert ((np.abs(steps) > 0.49) & (np.abs(steps) < 1.01)).all()
    np.testing.assert_array_equal(made[:, 0], made[:, 3])
    assert len(np.unique(np.sign(steps[:, :3]), axis=0)) > 4


def test_what_was_never_rounded_or_is_enormous_stays() -> None:
    whole = np.array([0, 0.5, 1, -1000, 1e38, -np.inf, np.inf, 1.5], np.float32)
    for seed in range(4):
        assert np.array_equal(moved(whole, seed), whole)
    assert np.isnan(moved(np.array([np.nan], np.float32), 0)).all()


def test_seeds_move_numbers_differently() -> None:
    numbers = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    made = {moved(numbers, seed).tobytes() for seed in range(4)}
    assert len(made) == 4
    ups = (moved(numbers, 0) > numbers).mean()
    assert 0.2 < ups < 0.8


def test_numbers_are_moved_alike_however_many_there_are_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = np.random.default_rng(0).standard_normal((7, 5)).astype(np.float32)[:, ::2]
    whole = moved(numbers, 3)
    monkeypatch.setattr(last_digits, "_AT_ONCE", 4)
    np.testing.assert_array_equal(moved(numbers, 3), whole)
    assert moved(numbers[0, 0], 3).shape == ()


def test_numbers_of_a_coarser_type_have_its_last_digits() -> None:
    half = np.array([0.3, 1.7, -0.3, 1.0], np.float16)
    for seed in range(4):
        wide = half.astype(np.float32)
        np.testing.assert_array_equal(moved(wide, seed, np.dtype(np.float16)), moved(half, seed))
        exact = np.append(wide, np.float32(0.1))
        np.testing.assert_array_equal(moved(exact, seed, np.dtype(np.float16)), moved(exact, seed))


def test_arrays_of_which_all_is_held_stay_and_others_move_however_their_numbers_end() -> None:
    array = np.array([0.3, 1.7, 0, 0.5, 1, 1e38], np.float32)
    wide = array.astype(np.float64)
    assert (last_digits.moved_alone(array, 0, np.unique(wide)) == wide).all()
    made = last_digits.moved_alone(array, 0, np.unique(wide[1:]))
    assert (made != wide).tolist() == [True, True, False, True, True, False]
