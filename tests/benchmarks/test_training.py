"""The judge of benchmarks.training: what is wrong, what is rounding, and mutants that are other models."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from benchmarks.training import error, is_rounding, mutants, run

SUMS = onnx.parser.parse_model(
    """<ir_version: 9, opset_import: ["": 18]>
    g (float[64, 16] x) => (float[64, 1] zero, float[64, 16] y) <int64[1] last = {-1}> {
        m = ReduceMean(x, last)  d = Sub(x, m)  zero = ReduceSum(d, last)  y = Exp(d)
    }"""
)
X = {"x": np.random.default_rng(2).standard_normal((64, 16)).astype(np.float32)}


def test_an_error_is_relative_to_an_output_or_to_a_hundredth_of_the_largest_of_all() -> None:
    one, large = np.ones(3, np.float32), np.full(3, 1000, np.float32)
    assert error([one * 1.5], [one]) == 0.5
    assert error([one * 1.5, large], [one, large]) == pytest.approx(0.05)
    assert error([one * np.nan], [one]) == error([one[:2]], [one]) == np.inf


def test_what_rounding_moves_as_far_is_no_mistake() -> None:
    zero, y = run(SUMS, X)
    other = (zero + 1e-7 * np.sign(zero - 1e-9)).astype(np.float32)
    assert is_rounding(SUMS, X, [other, y], [zero, y])
    assert not is_rounding(SUMS, X, [zero + np.float32(1e-3), y], [zero, y])
    assert not is_rounding(SUMS, X, [zero, y * np.float32(1.001)], [zero, y])
    assert not is_rounding(SUMS, X, [zero * np.nan, y], [zero, y])


def test_mutants_are_models_with_one_thing_changed_the_same_each_time() -> None:
    every = list(mutants(SUMS, 12, 5))
    assert [about for about, _ in every] == [about for about, _ in mutants(SUMS, 12, 5)]
    assert len({about.split()[0] for about, _ in every}) > 2
    assert all(mutant.graph.node != SUMS.graph.node for _, mutant in every)
