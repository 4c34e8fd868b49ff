"""How many elements one access to memory takes."""

from __future__ import annotations

import itertools

import numpy as np

from onnxfuse.kernels.device.access import aligned, vector_of
from onnxfuse.kernels.device.device import Buffer


def test_the_widest_access_that_sizes_and_addresses_allow() -> None:
    """All of them, against trying every width."""
    for itemsize, size, at, wide in itertools.product((2, 4), (0, 1, 2, 6, 8, 24), (0, 2, 4, 8, 24), (2, 4, 8)):
        if at % itemsize or at % wide:
            continue  # no array begins there
        arrays = [Buffer(4096 + at, (1,), np.dtype(f"V{wide}")), None]
        allowed = [
            n for n in (1, 2, 4, 8) if n * itemsize <= 16 and size % n == 0 and (4096 + at) % min(16, n * wide) == 0
        ]
        assert vector_of(itemsize, [size, 16], arrays) == max(allowed)


def test_arrays_are_aligned_where_the_largest_access_may_begin() -> None:
    at = [Buffer(4096 + by, (1,), np.dtype(np.float32)) for by in (0, 16, 8)]
    assert aligned([*at[:2], None])
    assert not aligned(at)
