"""Expressions as C++: sizes are arguments, positions as wide as they need to be, divisions exact."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.kernels.pointwise.expressions import source
from tests.kernel_runs import FLOAT16, far, reference, run
from tests.kernels.pointwise.test_pointwise import CATALOGUE, CHECKED, ROTARY, kernel, rotary, texts


def test_sizes_are_no_part_of_the_source() -> None:
    made = kernel("PRelu")
    assert len({texts(made, [np.empty((3, n), np.float32), np.empty(n, np.float32)])[0] for n in (64, 96, 4100)}) == 1


def test_more_than_31_bits_of_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in 64-bit arithmetic."""
    monkeypatch.setattr(source, "NARROW_LIMIT", 16)
    for case in (ROTARY[0], ROTARY[4]):
        attributes, arrays = rotary(case, FLOAT16)
        made = kernel("RotaryEmbedding", **attributes)
        assert "typedef long long Index" in texts(made, arrays)[0]
        (actual,) = run(made, arrays, CHECKED)
        assert not far(actual, reference("RotaryEmbedding", attributes, arrays, CATALOGUE)[0])


def test_division_by_multiplication_is_exact() -> None:
    rng = np.random.default_rng(0)
    for n in [2, 3, 5, 7, 10, 641, 2**16 + 1, 2**29 - 1, *rng.integers(2, 2**30, 200).tolist()]:
        _, multiplier, shift = (int(v) for v in source.division(n))
        x = np.unique(np.concatenate([rng.integers(0, 2**31, 200), np.arange(1, 40) * n - 1, np.arange(40) * n]))
        x = x[(x >= 0) & (x < 2**31)].astype(object)
        assert multiplier < 2**32
        assert all(((v * multiplier >> 32) + v) >> shift == v // n for v in x)
        assert all((v * multiplier >> 32) + v < 2**32 for v in x)
