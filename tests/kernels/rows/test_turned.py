"""Rows that lie across memory and begin anywhere there: which go through tiles, and that these compute the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import ml_dtypes
import numpy as np
import pytest

from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.rows.passes import Passes
from onnxfuse.kernels.rows.region import planned
from onnxfuse.kernels.rows.turned import SHARED, Turned
from tests.region_runs import Case, computed, function, near

from .test_passes import counted
from .test_several import LAST

HALF, FLOAT = np.dtype(np.float16), np.dtype(np.float32)
TURN = "Transpose<perm = [0, 2, 1]>"
BEFORE = f"(x) => (y) {{ t = {TURN}(x) y = Softmax(t) }}"
BEHIND = f"(x, g, b) => (y) {{ n = LayerNormalization(x, g, b) y = {TURN}(n) }}"
BETWEEN = f"(x, g) => (y) {{ t = {TURN}(x) n = LayerNormalization(t, g) y = {TURN}(n) }}"
CHANNELS = "(x) => (y) { y = Softmax<axis = 1>(x) }"
RESULTS = f"(x, z) => (m, y) {{ {LAST} t = {TURN}(x) e = Add(t, z) m = ReduceMax(e, a) y = Sub(e, m) }}"
IMAGES = (
    "(x, z, g) => (u, y) { t = Transpose<perm = [0, 2, 3, 1]>(x) u = Add(t, z) n = LayerNormalization(u, g) "
    "y = Transpose<perm = [0, 3, 1, 2]>(n) }"
)


def tiles(text: str, shapes: Sequence[tuple[int, ...]], dtype: Any = HALF, aligned: bool = True) -> Turned | None:
    """Those of the one launch."""
    body = function(text)
    types = {n: TensorType(dtype, shape) for n, shape in zip(body.input, shapes, strict=True)}
    (made,) = planned(list(body.node), types, list(body.output), aligned)[1]
    return made.tiles if isinstance(made, Passes) else None


@pytest.mark.parametrize(
    ("text", "shapes", "there"),
    [
        (BEFORE, [(2, 96, 49)], True),
        (BEFORE, [(2, 97, 49)], True),
        (BEFORE, [(2, 96, 64)], False),
        (BEFORE, [(2, 49, 96)], True),  # what is written begins anywhere
        (BEFORE, [(2, 97, 7)], False),  # lanes would rest
        (BEHIND, [(2, 49, 96), (96,), (96,)], True),
        (BEHIND, [(2, 64, 96), (96,), (96,)], False),
        (BETWEEN, [(2, 96, 49), (96,)], True),
        (BETWEEN, [(2, 96, 52), (96,)], False),  # four neighbours at a time, and nothing is turned
        ("(x) => (y) { y = Softmax(x) }", [(2, 96, 49)], False),
    ],
)
def test_tiles_are_for_what_vectors_are_not(text: str, shapes: list[tuple[int, ...]], there: bool) -> None:
    assert (tiles(text, shapes) is not None) == there
    assert tiles(text, shapes, aligned=False) is None


@pytest.mark.parametrize("columns", [96, 768, 1001, 1500])
def test_tiles_are_whole_sectors_as_far_as_there_is_room(columns: int) -> None:
    found = tiles(BEFORE, [(8, columns, 197)])
    assert found is not None
    assert found.shared <= SHARED
    assert found.together == 197
    assert found.rows == {96: 112, 768: 48, 1001: 24, 1500: 24}[columns]
    assert found.blocks(8 * 197) == 8 * -(-197 // found.rows)
    assert all(stride * walk.size // 4 % 2 for stride, walk in zip(found.strides, found.walks, strict=True))


def test_rows_that_no_tile_holds_are_read_as_before() -> None:
    assert tiles(BEFORE, [(2, 5000, 49)]) is None


TEXTS: dict[str, Case] = {
    "before": (BEFORE, [(2, 40, 49)]),
    "before, in several tiles": (BEFORE, [(2, 33, 101)]),
    "before, in rows that a block has": (BEFORE, [(1, 1100, 13)]),
    "before, in rows that begin anywhere": (BEFORE, [(3, 37, 19)]),
    "behind": (BEHIND, [(2, 53, 40), (40,), (40,)]),
    "behind, in rows that a block has": (BEHIND, [(1, 17, 1101), (1101,), (1101,)]),
    "between": (BETWEEN, [(2, 45, 51), (45,)]),
    "channels": (CHANNELS, [(2, 45, 7, 7)]),
    "results of rows": (RESULTS, [(2, 33, 51), (2, 51, 33)]),
    "images": (IMAGES, [(2, 48, 5, 5), (2, 5, 5, 48), (48,)]),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16], ids=["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", TEXTS)
def test_tiles_compute_what_single_elements_do(name: str, dtype: Any) -> None:
    near(*computed(TEXTS[name], dtype))


@pytest.mark.parametrize("order", ["reverse", "random"])
@pytest.mark.parametrize("name", ["before, in several tiles", "behind", "behind, in rows that a block has"])
def test_the_order_of_threads_says_nothing(name: str, order: Literal["reverse", "random"]) -> None:
    near(*computed(TEXTS[name], np.float32, Emulated(order=order)))


@pytest.mark.parametrize("name", ["before", "behind", "between", "images"])
def test_memory_is_moved_in_whole_sectors(name: str) -> None:
    (found,) = counted(TEXTS[name])
    assert found.total("global").excess <= 1.25
    assert found.total("shared").excess <= 1.05
    assert found.moved <= 1.1 * found.compulsory
