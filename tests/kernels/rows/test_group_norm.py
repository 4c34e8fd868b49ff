"""Normalization of groups and instances."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxfuse.kernels.rows.group_norm import GroupNormalization, InstanceNormalization
from tests.kernels.rows.test_row_kernels import FAST, FLOAT, GROUPED, HALF
from tests.row_cases import EPSILON, affine, assert_close, normalized, run, values


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
