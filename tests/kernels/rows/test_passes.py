"""The launches of several reductions: how often memory is read, and by how many threads."""

from __future__ import annotations

import math

import numpy as np
import pytest

from onnxfuse.kernels import of_region
from onnxfuse.kernels.device.device import Buffer, TensorType
from onnxfuse.kernels.device.recorder import ADDRESS, Recorder
from onnxfuse.kernels.emulator.counts import Counts, by_kernel
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.rows.passes import PARTS
from onnxfuse.kernels.rows.several import several
from tests.region_runs import Case, function, operands

from .test_several import LAST, NORM_GRADIENT, SOFTMAX

FLOAT = np.dtype(np.float32)


def counted(case: Case) -> list[Counts]:
    """What is counted of the kernels that are launched."""
    body, arrays, device = function(case[0]), operands(case), Emulated()
    made = of_region(body, ["float32"] * len(arrays), ["float32"] * len(body.output))({})
    results = [aligned(t) for t in made.outputs([TensorType(x.dtype, x.shape) for x in arrays])]
    inputs = [aligned(TensorType(x.dtype, x.shape)) for x in arrays]
    for to, array in zip(inputs, arrays, strict=True):
        to[...] = array
    with device.counting() as counts:
        made.launch(device, inputs, results)
    return sorted(by_kernel(counts), key=lambda one: "column_sums" in one.kernel)


def aligned(kind: TensorType) -> np.ndarray:
    memory = np.zeros(math.prod(kind.shape) * kind.dtype.itemsize + 256, np.uint8)
    start = -memory.ctypes.data % 256
    return memory[start : start + math.prod(kind.shape) * kind.dtype.itemsize].view(kind.dtype).reshape(kind.shape)


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        (f"(x) => (y) {{ {LAST} {SOFTMAX} }}", [(64, 512)]),
        (f"(x) => (y) {{ {LAST} {SOFTMAX} }}", [(8, 4096)]),
        ("(x) => (y) { s = Softmax<axis = 1>(x) y = LogSoftmax<axis = 1>(s) }", [(2, 128, 64)]),
    ],
)
def test_whatever_waits_for_what_memory_is_read_once(text: str, shapes: list[tuple[int, ...]]) -> None:
    (found,) = counted((text, shapes))
    assert found.total("global", ["read"]).bytes == 4 * math.prod(shapes[0])
    assert found.total("global").excess <= 1.005
    assert found.total("shared").excess <= 1.005
    assert found.moved == found.compulsory


@pytest.mark.parametrize("shape", [(3, 50, 40), (2, 132, 768), (2, 30, 2048)])
def test_sums_of_columns_come_from_the_same_pass(shape: tuple[int, ...]) -> None:
    """Both gradients of a row are read once, beside what rows and columns share; then a part of each block."""
    first, second = counted((NORM_GRADIENT, [shape, shape, shape[-1:], (*shape[:2], 1), (*shape[:2], 1)]))
    assert first.moved <= 1.05 * first.compulsory
    assert first.total("global").excess <= 1.005
    assert second.total("global").excess <= 1.005
    assert first.compulsory <= 4 * (
        3 * math.prod(shape) + 4 * math.prod(shape[:2]) + 2 * shape[-1] * (1 + first.blocks)
    )
    assert second.moved <= 4 * 2 * shape[-1] * (1 + first.blocks)
    assert not first.atomics


def test_a_card_has_a_few_blocks_for_each_multiprocessor_that_sum_columns() -> None:
    body, shape, device = function(NORM_GRADIENT), (64, 128, 768), Recorder(132)
    types = [TensorType(FLOAT, s) for s in (shape, shape, shape[-1:], (*shape[:2], 1), (*shape[:2], 1))]
    (made,) = several(list(body.node), dict(zip(body.input, types, strict=True)), list(body.output))[1]
    made.run(device, [Buffer(ADDRESS, t.shape, t.dtype) for t in types], [Buffer(ADDRESS, shape, FLOAT)] * 3)
    first, second = device.launches
    assert (made.launches, first.grid, second.grid) == (2, (132 * PARTS,), (768 // 32,))
    assert device.scratched == 4 * 2 * 132 * PARTS * 768
