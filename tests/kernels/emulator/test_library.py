"""A built library: its entries' parameters, and a launch that says by file and line what is wrong."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import Source
from onnxfuse.kernels.emulator.build import build
from onnxfuse.kernels.emulator.library import Library, ParameterType, RegionEntry, Run

TEXT = """
extern "C" __global__ void typed(const float *x, double *y, int n, float scale, long long far, float2 pair) {
  y[threadIdx.x] = double(x[threadIdx.x]) * scale + n + double(far) + pair.y;
}
extern "C" __global__ void doubled(const float *x, float *y) {
  y[threadIdx.x] = 2.0f * x[threadIdx.x];
}
"""


@pytest.fixture(scope="module", params=[False, True], ids=["fast", "checked"])
def built(request: pytest.FixtureRequest) -> tuple[Path, bool]:
    return build(Source("typed.cu", TEXT), "typed", request.param), request.param


def run(x: np.ndarray, y: np.ndarray, threads: int, checked: bool) -> Run:
    """The launch of one block, and what it may touch."""
    places = [ctypes.c_void_p(array.ctypes.data) for array in (x, y)]
    regions = (RegionEntry * 2)(*(RegionEntry(a.ctypes.data, a.nbytes, None, a is y) for a in (x, y)))
    made = Run(
        arguments=(ctypes.c_void_p * 2)(*map(ctypes.addressof, places)),
        grid=(1, 1, 1),
        block=(threads, 1, 1),
        first_block=0,
        last_block=1,
        regions=regions,
        region_count=2,
        checked=checked,
    )
    made.kept = places  # ctypes keeps what an array of addresses is made of, but not what they are the addresses of
    return made


def test_the_kinds_and_sizes_of_parameters(built: tuple[Path, bool]) -> None:
    library = Library(built[0])
    kinds = [("c", 4), ("p", 8), ("i", 4), ("f", 4), ("i", 8), ("o", 8)]
    assert library.parameters("typed") == tuple(ParameterType(*kind) for kind in kinds)
    assert library.parameters("doubled") == (ParameterType("c", 4), ParameterType("p", 4))


def test_a_launch_and_the_next(built: tuple[Path, bool]) -> None:
    library = Library(built[0])
    for start in (0, 5):
        x, y = np.arange(start, start + 40, dtype=np.float32), np.zeros(40, np.float32)
        library.launch("doubled", run(x, y, 40, built[1]))
        np.testing.assert_array_equal(y, 2 * x)


def test_an_error_names_the_line() -> None:
    library = Library(build(Source("typed.cu", TEXT), "typed", True))
    x, y = np.zeros(8, np.float32), np.zeros(8, np.float32)
    with pytest.raises(KernelError, match=r"typed\.cu:6"):
        library.launch("doubled", run(x, y, 9, True))
    library.launch("doubled", run(x, y, 8, True))
