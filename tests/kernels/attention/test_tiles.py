"""How attention is shared among blocks: tiles that fit a card, and the forms that one architecture has."""

from __future__ import annotations

import itertools

import pytest

from onnxfuse.kernels.attention.source import padded
from onnxfuse.kernels.attention.tiles import (
    FORMS,
    TENSOR_MEMORY,
    WARPGROUPS,
    Form,
    Tiles,
    form_of,
    resident,
    shared_bytes,
    splits,
    tiles,
)


@pytest.mark.parametrize("tensor", [True, False])
def test_tiles_fit(tensor: bool) -> None:
    for rows, head, head_v in itertools.product((1, 16, 17, 33, 1000), (16, 64, 128, 192, 256), (16, 64, 128, 256)):
        tile = tiles(rows, head, head_v, tensor)
        assert shared_bytes(tile, head, head_v, 2 if tensor else 4) <= 99 * 1024  # what a block of sm_86 may have
        assert tile.keys % 16 == 0
        assert tile.rows >= min(rows, 64)
    assert [padded(size) for size in (1, 16, 17, 80, 100)] == [16, 16, 32, 80, 112]


@pytest.mark.parametrize(
    ("blocks", "keys", "count"),
    [
        (10**6, 10**6, 1),
        (264, 4096, 1),  # whole waves
        (1, 127, 1),
        (1, 256, 1),  # done before a second launch would begin
        (1, 1024, 8),
        (8, 16384, 16),  # all at a time
        (100, 8192, 5),  # in four waves that are nearly full, where one was three quarters full
        (150, 16384, 3),
        (132, 16384, 1),
    ],
)
def test_keys_are_divided_among_as_many_blocks_as_fill_whole_waves(blocks: int, keys: int, count: int) -> None:
    assert splits(blocks, keys, Tiles(1, 64), 132) == count


@pytest.mark.parametrize(
    ("rows", "pairs", "warps"),
    [(64, 1000, 4), (65, 132, 8), (65, 131, 4), (128, 132, 8), (256, 66, 8), (256, 65, 4), (4096, 1, 4)],
)
def test_two_warpgroups_share_keys_where_blocks_are_enough(rows: int, pairs: int, warps: int) -> None:
    assert WARPGROUPS.widened(rows, pairs, 132) == Tiles(warps, 64)


@pytest.mark.parametrize(
    ("form", "rows", "head", "head_v", "dtype", "vector", "there"),
    [
        (WARPGROUPS, 33, 64, 128, "float16", 8, True),
        (WARPGROUPS, 33, 128, 64, "bfloat16", 8, True),
        (WARPGROUPS, 32, 64, 64, "float16", 8, False),
        (WARPGROUPS, 33, 80, 80, "float16", 8, False),
        (WARPGROUPS, 33, 256, 256, "float16", 8, False),
        (WARPGROUPS, 33, 64, 64, "float16", 4, False),
        (WARPGROUPS, 33, 64, 64, "float32", 4, False),
        (TENSOR_MEMORY, 65, 128, 128, "float16", 8, True),
        (TENSOR_MEMORY, 65, 64, 128, "bfloat16", 8, True),
        (TENSOR_MEMORY, 64, 64, 64, "float16", 8, False),
        (TENSOR_MEMORY, 65, 256, 256, "float16", 8, False),
        (TENSOR_MEMORY, 65, 64, 64, "float16", 4, False),
        (TENSOR_MEMORY, 65, 64, 64, "float32", 4, False),
    ],
)
def test_other_forms_are_for_whole_panels_of_halves(
    form: Form, rows: int, head: int, head_v: int, dtype: str, vector: int, there: bool
) -> None:
    least = form.tiles(rows, head, head_v, dtype, vector)
    assert (least is not None) == there
    if least is not None:
        for made in (least, form.widened(4096, 1000, 132)):
            shared = shared_bytes(made, head, head_v, 2, form)
            assert shared <= 227 * 1024 // 2 - 1024, "two blocks are on a multiprocessor"
            if form is TENSOR_MEMORY:
                assert resident(made, shared, True, form) == resident(made, shared, False, form) == 2


def test_each_architecture_has_its_form() -> None:
    assert [form_of(name) for name in ("sm_80", "sm_90", "sm_110", "sm_120")] == [None, WARPGROUPS, None, None]
    assert form_of("sm_100") is form_of("sm_103") is TENSOR_MEMORY
    assert all(FORMS[form.architecture] is form for form in (WARPGROUPS, TENSOR_MEMORY))
