"""Products whose sums several blocks share: who does, what it takes in memory, and that nothing else changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxfuse.kernels.device.device import Buffer
from onnxfuse.kernels.device.recorder import ADDRESS, Recorder
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.gemm.gemm import FusedMatMul
from tests.gemm_cases import DTYPES, FLOAT, HALF, Values, assert_right, attributes, operands
from tests.kernel_runs import run, types

FAST = Emulated(checked=False)


def recorded(arrays: list[Values | None], given: dict[str, Any], multiprocessors: int) -> Recorder:
    device, kernel = Recorder(multiprocessors), FusedMatMul(given)
    buffers = [None if t is None else Buffer(ADDRESS, t.shape, t.dtype) for t in types(arrays)]
    kernel.launch(device, buffers, [Buffer(ADDRESS, t.shape, t.dtype) for t in kernel.outputs(types(arrays))])
    return device


def test_extra_memory() -> None:
    for m, splits in ((1, 4), (16, 4), (128, 1)):
        arrays = operands((m, 4096), (4096, 4096), HALF, bias=False)
        device = recorded(arrays, attributes("Relu"), 132)
        assert device.scratched == (splits * m * 4096 * 4 if splits > 1 else 0)
        assert [launch.entry for launch in device.launches] == (["partial", "finish"] if splits > 1 else ["gemm"])


CASES = {
    "one row": ((1, 1100), (1100, 72), None),
    "odd": ((7, 1037), (1037, 33), (7, 33)),
    "all rows of a tile": ((16, 1024), (1024, 64), (64,)),
    "batch": ((2, 3, 1500), (2, 1500, 8), (3, 8)),
    "two products": ((2, 2, 3, 1500), (2, 1500, 8), (2, 3, 8)),
    "medium": ((40, 1600), (1600, 40), (40, 40)),
    "medium odd": ((21, 1501), (1501, 17), None),
}
"""Shapes of a, b and a residual."""


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("where", CASES)
def test_shared_sums_are_sums(dtype: np.dtype[Any], where: str) -> None:
    a, b, residual = CASES[where]
    transposed = len(b) == 2 and b[1] % 2 == 0
    given = attributes("Gelu" if residual else "", alpha=0.125, transB=int(transposed))
    arrays = operands(a, b, dtype, bias=len(where) % 2 == 0, transposed=transposed, residual=residual)
    entries = [launch.entry for launch in recorded(arrays, given, 4).launches]
    assert entries == ["partial"] * (len(entries) - 1) + ["finish"]
    (y,) = run(FusedMatMul(given), arrays, FAST)
    assert_right(y, arrays, given)


class OneMultiprocessor(Emulated):
    multiprocessors = 1


@pytest.mark.parametrize("dtype", [FLOAT, HALF], ids=str)
def test_who_sums_does_not_matter(dtype: np.dtype[Any]) -> None:
    """Products of small integers, whose sums are exact in any order."""
    rng = np.random.default_rng(3)
    a, b, r = (rng.integers(-2, 3, shape).astype(dtype) for shape in ((5, 1100), (1100, 72), (5, 72)))
    arrays: list[Values | None] = [a, b, None, r]
    given = attributes("Relu")
    assert len(recorded(arrays, given, 1).launches) == 1 < len(recorded(arrays, given, 4).launches)
    (alone,) = run(FusedMatMul(given), arrays, OneMultiprocessor(checked=False))
    results = [
        run(FusedMatMul(given), arrays, Emulated(order=order, seed=1))[0] for order in ("forward", "reverse", "random")
    ]
    assert all((alone == other).all() for other in results)
    assert (alone == np.maximum(a.astype(np.float64) @ b.astype(np.float64), 0) + r).all()
