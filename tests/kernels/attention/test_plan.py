"""How attention's work is divided among blocks, and which inputs are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels.attention import tiles
from onnxfuse.kernels.attention.attention import Attention
from onnxfuse.kernels.device.device import Buffer, TensorType
from onnxfuse.kernels.device.recorder import ADDRESS, Recorder
from onnxfuse.kernels.inspect.launches import LIMITS, occupancy
from tests.attention_cases import INPUTS
from tests.kernels.attention.test_attention_kernel import FLOAT, HALF

# --------------------------------------------------------------------------------- how the work is divided


def recorded(q: tuple[int, ...], kv: tuple[int, ...], dtype: np.dtype[Any] = HALF, **attributes: Any) -> Recorder:
    device, kernel = Recorder(), Attention(attributes)
    types = [TensorType(dtype, shape) for shape in (q, kv, kv)]
    y = kernel.outputs(types)[0]
    inputs = [Buffer(ADDRESS, t.shape, dtype) for t in types]
    kernel.launch(device, inputs, [Buffer(ADDRESS, y.shape, dtype), None, None])
    return device


def test_memory_beyond_the_outputs_grows_with_queries_only() -> None:
    for length in (128, 1024, 16384):
        assert recorded((8, 16, length, 64), (8, 16, length, 64)).scratched == 0
    long = [recorded((1, 8, 1, 128), (1, 8, length, 128)).scratched for length in (8192, 65536, 2**20)]
    assert max(long) <= tiles.MOST_SPLITS * 8 * (128 + 2) * 4
    assert min(long) > 0.9 * tiles.MOST_SPLITS * 8 * (128 + 2) * 4
    for queries, heads in ((1, 32), (16, 8), (300, 2), (1000, 1)):
        device = recorded((1, heads, queries, 128), (1, heads, 2**17, 128))
        assert device.scratched <= tiles.MOST_SPLITS * queries * heads * (128 + 2) * 4
        assert (device.scratched > 0) == (len(device.launches) == 2)


def test_a_long_cache_is_read_by_as_many_blocks_as_the_card_has_room_for() -> None:
    first, second = recorded((1, 32, 1, 128), (1, 8, 16384, 128)).launches
    assert (first.entry, second.entry) == ("attention", "attention_combine")
    assert first.block == (32,)
    assert first.grid == (8 * 64,)
    assert second.grid == (8,)
    (only,) = recorded((16, 32, 1, 128), (16, 32, 64, 128)).launches
    assert only.grid == (16 * 32,)


@pytest.mark.parametrize("head", [64, 128, 256])
@pytest.mark.parametrize("rows", [1, 32, 64])
def test_blocks_that_share_rows_are_few_waves(head: int, rows: int) -> None:
    for heads in (1, 2, 7, 32, 100):
        first, *rest = recorded((1, heads, rows, head), (1, heads, 2**16, head)).launches
        for architecture in LIMITS:
            needs = occupancy(first, architecture)
            assert needs is not None
            assert not rest or first.blocks <= tiles.MOST_WAVES * needs.resident * Recorder().multiprocessors


def test_work_is_what_is_seen() -> None:
    def work(node: dict[str, Any], q: tuple[int, ...], kv: tuple[int, ...]) -> Any:
        return Attention(node).work([TensorType(HALF, shape) for shape in (q, kv, kv)])

    whole = work({}, (2, 4, 10, 64), (2, 2, 10, 64))
    assert whole.flops == 2 * 4 * 100 * (4 * 64 + 5)
    assert whole.read == 2 * 64 * (2 * 4 * 10 + 2 * 2 * 2 * 10)
    assert whole.written == whole.read
    assert work({"is_causal": 1}, (2, 4, 10, 64), (2, 2, 10, 64)).flops == whole.flops * 55 // 100
    window = {"left_window_size": 1, "right_window_size": 1}
    assert work(window, (2, 4, 10, 64), (2, 2, 10, 64)).flops == whole.flops * 28 // 100


# --------------------------------------------------------------------------------------------- refusals


SAME = {"K": (2, 4, 7, 64), "V": (2, 4, 7, 64)}


@pytest.mark.parametrize(
    ("attributes", "shapes", "message"),
    [
        ({}, {"K": (2, 3, 9, 64), "V": (2, 3, 9, 64)}, "do not fit each other"),
        ({}, {"K": (2, 4, 9, 32)}, "do not fit each other"),
        ({}, {"V": (2, 4, 8, 64)}, "do not fit each other"),
        ({}, {"Q": (2, 7, 256)}, "Q of shape [2, 7, 256] with 0 heads"),
        ({"q_num_heads": 3}, {"Q": (2, 7, 256)}, "Q of shape [2, 7, 256] with 3 heads"),
        ({}, {"Q": (2, 4, 7, 320), "K": (2, 4, 9, 320)}, "head sizes from 1 to 256"),
        ({}, {"attn_mask": (7, 10)}, "attn_mask of shape [7, 10] for scores of shape [2, 4, 7, 9]"),
        ({}, {"attn_mask": (3, 9)}, "attn_mask of shape [3, 9]"),
        ({}, {"attn_mask": (1, 1, 1, 7, 9)}, "attn_mask of shape"),
        ({}, {"past_key": (2, 4, 5, 64)}, "past_key and past_value do not fit"),
        ({}, {"past_key": (2, 4, 5, 64), "past_value": (2, 4, 6, 64)}, "past_key and past_value do not fit"),
        ({}, {"nonpad_kv_seqlen": (3,)}, "nonpad_kv_seqlen of shape [3] for 2 batches"),
        ({}, {"head_sink": (3,)}, "head_sink of shape [3] for 4 heads"),
        ({}, {"cos_cache": (2, 7, 32)}, "belong together"),
        ({}, {"position_ids": (2, 7)}, "belong together"),
        ({}, {"cos_cache": (2, 7, 32), "sin_cache": (2, 7, 32)}, "one position for each of 7 queries and 9 keys"),
        ({}, SAME | {"cos_cache": (1, 7, 32), "sin_cache": (1, 7, 32)}, "angles of shapes [[1, 7, 32], [1, 7, 32]]"),
        ({}, SAME | {"cos_cache": (9, 32), "sin_cache": (9, 32)}, "for 2 batches of 7 positions"),
        ({}, SAME | {"cos_cache": (9, 32), "sin_cache": (9, 32), "position_ids": (7,)}, "for 2 batches of 7 positions"),
        ({}, SAME | {"cos_cache": (2, 7, 16), "sin_cache": (2, 7, 16)}, "of which 64 channels are turned"),
        ({"rotary_embedding_dim": 32}, SAME | {"cos_cache": (2, 7, 32), "sin_cache": (2, 7, 32)}, "which 32 channels"),
        ({}, SAME | {"cos_cache": (2, 7, 32), "sin_cache": (2, 7, 16)}, "angles of shapes [[2, 7, 32], [2, 7, 16]]"),
    ],
)  # fmt: skip
def test_inputs_that_do_not_fit(attributes: dict[str, Any], shapes: dict[str, Any], message: str) -> None:
    given = {"Q": (2, 4, 7, 64), "K": (2, 4, 9, 64), "V": (2, 4, 9, 64)} | shapes
    types = [TensorType(FLOAT, given[name]) if name in given else None for name in INPUTS]
    with pytest.raises(KernelError) as error:
        Attention(attributes).outputs(types)
    assert message in str(error.value)


def test_a_softmax_in_float64_is_not_served() -> None:
    with pytest.raises(KernelError, match="softmax_precision is 11"):
        Attention({"softmax_precision": 11})
