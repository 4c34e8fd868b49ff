"""Mistakes in the attention kernels: the emulator or the numbers catch every one."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

from onnxfuse.kernels.attention.attention import Attention
from onnxfuse.kernels.device.device import Device, TensorType
from onnxfuse.kernels.emulator.device import Emulated
from tests.attention_cases import Case, expected
from tests.kernel_mutants import assert_caught, of_run, survivors
from tests.row_cases import DTYPES, assert_close

FLOAT, HALF, BFLOAT = DTYPES


def attended(
    case: Case, dtype: np.dtype[np.generic], wanted: tuple[bool, ...] = (True, True, True), first: float = 1.0
) -> Callable[[Device], None]:
    """A node, and the check of what it gave, of the outputs that are `wanted`; `first` multiplies its first 64 keys."""

    @cache
    def given() -> tuple[list[Any], tuple[Any, ...]]:
        """The inputs and what comes of them, which no test needs before it runs."""
        inputs = case.inputs(dtype)
        assert inputs[1] is not None
        if first != 1.0:
            inputs[1][:, :, :64] *= np.asarray(first, dtype)
            inputs[3] = None if inputs[3] is None else inputs[3].astype(np.float32)
        return inputs, expected(case.node, inputs)

    def run(device: Device) -> None:
        inputs, wants = given()
        kernel = Attention(case.node)
        types = kernel.outputs([None if i is None else TensorType(i.dtype, i.shape) for i in inputs])
        asked = [*wanted, *[False] * (len(types) - len(wanted))]
        outputs = [np.full(t.shape, np.nan, t.dtype) if a else None for t, a in zip(types, asked, strict=True)]
        kernel.launch(device, inputs, outputs)
        for got, want in zip(outputs, wants, strict=True):
            if got is not None:
                assert_close(got, want)

    return run


CAUSAL = {"is_causal": 1, "scale": 0.2}
WINDOW = {"left_window_size": 20, "right_window_size": 3, "nan_to_zero": 1}
RUNS = {
    "causal": attended(Case(70, 70, 40, past=65, kv_heads=1, flat=True, attributes=CAUSAL), HALF),
    "steep": attended(Case(70, 200, 40, attributes={"scale": -3.0}), HALF),
    "rising": attended(Case(20, 200, 40, attributes={"scale": 1.0}), HALF, first=0.3),
    "rising natural": attended(Case(20, 200, 40, mask=(20, 200), attributes={"scale": 3.0}), HALF, first=0.02),
    "jump": attended(Case(20, 200, 40, attributes={"scale": 8.0}), HALF, first=0.02),
    "scalar": attended(Case(70, 70, 40, past=65, kv_heads=1, flat=True, attributes=CAUSAL), FLOAT),
    "whole": attended(Case(70, 70, 64, past=128, flat=True, attributes=CAUSAL), HALF),
    "kept": attended(Case(70, 70, 80, past=128, flat=True, attributes=CAUSAL), HALF),
    "hidden": attended(Case(70, 70, 40, lengths=(3, 0), attributes={**CAUSAL, "nan_to_zero": 1}), HALF),
    "window": attended(Case(100, 150, 40, mask=(2, 2, 100, 150), attributes=WINDOW), HALF),
    "eights": attended(
        Case(136, 136, 64, mask=(2, 2, 136, 136), boolean=True, attributes={**CAUSAL, "nan_to_zero": 1}), HALF
    ),
    "left": attended(Case(100, 150, 40, attributes={"left_window_size": 20}), HALF),
    "boolean": attended(
        Case(70, 131, 40, mask=(70, 131), boolean=True, attributes={"mask_filter_value": -3.0, "is_causal": 1}), HALF
    ),
    "even": attended(
        Case(20, 70, 40, mask=(20, 70), boolean=True, attributes={"mask_filter_value": -1e9, "scale": 0.0}), HALF
    ),
    "far": attended(Case(70, 200, 40, attributes={"scale": -3e7}), HALF),
    "short eights": attended(Case(20, 131, 40, mask=(20, 72)), HALF),
    "short": attended(Case(20, 131, 40, mask=(20, 66)), HALF),
    "lengths": attended(Case(3, 200, 40, lengths=(200, 77)), HALF),
    "capped": attended(Case(20, 70, 40, sink=True, mask=(20, 70), hidden=(5,), attributes={"softcap": 2.0}), HALF),
    "turned": attended(Case(70, 70, 40, past=65, heads=4, angles="chosen", attributes=CAUSAL), HALF),
    "apart": attended(Case(37, 37, 40, angles="given", turned=16, flat=True), HALF, (True,)),
    "neighbours": attended(Case(37, 37, 40, angles="chosen", interleaved=True), HALF),
    "one query": attended(Case(1, 1, 40, past=700, heads=8, kv_heads=2, sink=True, mask=(2, 8, 1, 701)), HALF),
    "natural": attended(Case(100, 150, 40, mask=(2, 2, 100, 150), attributes=WINDOW), BFLOAT),
    "natural query": attended(Case(1, 1, 40, past=700, heads=8, kv_heads=2, sink=True, mask=(2, 8, 1, 701)), BFLOAT),
}


def test_every_barrier_is_needed() -> None:
    def run(device: Device) -> None:
        for name in ("causal", "hidden", "steep", "jump"):
            RUNS[name](device)

    unused = ("common.cuh", "attention_warpgroup.cuh", "attention_tensor_memory.cuh")  # which none of them calls
    assert survivors(run, unused) == []


ROW = "batch * q_batch + (kv_head * group + r % group) * q_head + r / group * q_row"
MUTANTS: list[tuple[str, str, str]] = [
    ("causal", ROW, ROW.replace("q_batch", "q_head")),
    ("causal", ROW, ROW.replace("r % group", "r / queries")),
    ("causal", ROW, ROW.replace("r / group * q_row", "r / group * q_head")),
    ("causal", "rows - first_row, head, q", "ROWS, head, q"),
    ("causal", "limit - key, columns, aligned", "KEYS, columns, aligned"),
    ("causal", "row < present && column < columns", "row < present"),
    ("causal", "row < present && column < columns", "row <= present && column < columns"),
    ("causal", "j < past ? from", "j <= past ? from"),
    ("causal", "(j - past) * step", "j * step"),
    ("causal", "static_cast<long long>(j) * columns", "static_cast<long long>(j) * COLUMNS"),
    ("causal", "last_query + offset + right + 1)", "last_query + offset + right)"),
    ("causal", "if (ahead || behind)", "if (false)"),
    ("causal", "at[half] + right + 1", "at[half] + right"),
    ("causal", "at[half] + right + 1", "at[half] + right + 2"),
    ("causal", "lengths ? length - queries : start", "0"),
    ("steep", "sum[half] *= factor[half];", ""),
    ("steep", "o[n][i] *= factor[i / 2];", "o[n][i] *= i % 2 ? 1.0f : factor[i / 2];"),
    ("steep", "top[half] = to[half];", ""),
    ("steep", "warp_reduce<4>(peak, Max());", ""),
    ("steep", "if (RAW && (even || times < 0.0f))", "if (false)"),
    ("even", "sign = even ? 0.0f : -1.0f", "sign = -1.0f"),
    ("far", "FAR = 1 << 20", "FAR = 1e38f"),
    ("far", "__fmul_rn(s[n][i], unit) - base[i / 2]", "__fmaf_rn(s[n][i], unit, -base[i / 2])"),
    ("steep", "SLACK = 7.0f", "SLACK = 9.0f"),
    ("rising", "fmaxf(more[0], more[1]) > MOST", "false"),
    ("rising", "s[n][i] *= factor[i / 2];", ""),
    ("rising", "more[0] *= factor[0];", ""),
    ("rising natural", "NATURAL ? by / LOG2_E : by", "by"),
    ("jump", "bold && softmax.lost()", "false"),
    ("jump", "__syncthreads_or(bold && softmax.lost())", "(bold && softmax.lost())"),
    ("causal", "warp_reduce<4>(softmax.sum, Add());", ""),
    ("causal", "lane % 16 * STRIDE_V + lane / 16 * 8", "lane % 8 * STRIDE_V + lane / 16 * 8"),
    ("causal", "load_matrices<true>", "load_matrices<false>"),
    ("causal", "r >= rows || column >= head_v", "column >= head_v"),
    ("causal", "r >= rows || column >= head_v", "r >= rows"),
    ("causal", "r / group * y_row + column", "r / group * y_head + column"),
    ("causal", "fresh < 0 ? past", "fresh <= 0 ? past"),
    ("causal", "head_step + fresh * row_step", "head_step + row * row_step"),
    ("causal", "if (index >= count) return;", ""),
    ("scalar", "quad + key % 8 / 2", "quad + key % 4"),
    ("scalar", "rows + 8 * QUERY_STRIDE + k", "rows + 8 * STRIDE_V / 2 + k"),
    ("scalar", "columns + (8 * n + i) * STRIDE + k", "columns + (8 * n + i) * HEAD + k"),
    ("whole", "read(newer(), past, step, limit)", "read(newer(), past, columns, limit)"),
    ("whole", "from += APART * static_cast<long long>(apart)", "from += APART"),
    ("kept", "read(newer(), past, step, limit)", "read(newer(), 0, step, limit)"),
    ("kept", "Place(tiles, splits, heads, WHOLE).pair", "Place(tiles, splits, heads, WHOLE).batch"),
    ("kept", "from += APART *", "from += 2 * APART *"),
    ("kept", "first + APART > KEYS && first + threadIdx.x / CHUNKS >= KEYS", "false"),
    ("kept", "own = place_of<WIDTH>", "own = place_of<COLUMNS>"),
    ("hidden", "if (nan_to_zero == 2 ? total == 0.0f : nan_to_zero && !(total > 0.0f)) return 0.0f;", ""),
    ("window", "return top == minus_infinity() ? 0.0f : top;", "return top;"),
    ("window", "j < first[half]", "j <= first[half]"),
    ("window", "if (ahead) hide", "if (false) hide"),
    ("left", "key < last_query + offset - left", "key < first_query + offset - left"),
    ("window", "first_query + offset - left) / KEYS * KEYS", "first_query + offset) / KEYS * KEYS"),
    ("window", "s[n][i] = __fmaf_rn(to_float(said), unit, s[n][i]);", ""),
    ("window", "RAW ? LOG2_E / unit", "RAW ? 1.0f"),
    ("eights", "gathered() == ALL", "true"),
    ("window", "batch * mask_batch", "batch * mask_head"),
    ("window", "row / group * mask_row", "row / group * mask_key"),
    ("natural query", "NATURAL ? added(top[half]) : top[half]", "top[half]"),
    ("natural", "(score - base) * LOG2_E", "(score - base)"),
    ("window", "first + key_of(n, i);", "first + 8 * n + threadIdx.x % 4 + i % 2 * 4;"),
    ("eights", "rows[1] += threadIdx.x % 4 * 8;", ""),
    ("eights", "n / 4 * 32 + 8 * t", "n / 4 * 32 + 4 * t"),
    ("eights", "further<WIDTH>(own, slot_of(first))", "further<WIDTH>(own, first)"),
    ("eights", "place_of<WIDTH>(slot_of(threadIdx.x / CHUNKS)", "place_of<WIDTH>((threadIdx.x / CHUNKS)"),
    ("eights", "keys -= threadIdx.x % 4 * 8 + 8;", "keys -= 8;"),
    ("short eights", "min(counted, at[half]", "min(1 << 28, at[half]"),
    ("eights", "keep(bits);", "bits |= 1;"),
    ("eights", "place % WORDS * 4 + bit / 8", "place % WORDS + bit / 8 * 2"),
    ("boolean", "added(filler) / unit", "added(filler)"),
    ("boolean", "MASK == BOOLEAN && filler > minus_infinity()", "false"),
    ("boolean", "behind && everything", "false"),
    ("boolean", "j >= counted_from_own(total)", "j > counted_from_own(total)"),
    ("short", "if (key < keys)", "if (key <= keys)"),
    ("lengths", "min(length, total)", "total"),
    ("capped", "CAPPED ? tanhf(s[n][i] * inner) : s[n][i]", "s[n][i] * inner"),
    ("capped", "exp2f(sink - base)", "0.0f"),
    ("turned", "if (fresh >= 0)", "if (false)"),
    ("turned", "pair + ROTARY : pair", "pair : pair + ROTARY"),
    ("turned", "second ? other[i] : -other[i]", "second ? -other[i] : other[i]"),
    ("turned", "load_floats(sine, sines + angle", "load_floats(sine, cosines + angle"),
    ("turned", "positions ? chosen(positions[index], rows) : index", "index"),
    ("turned", "static_cast<long long>(batch) * queries + (first_row + row) / group", "(first_row + row) / group"),
    ("turned", "batch * (rows - past_rows) + fresh", "fresh"),
    ("turned", "batch * (rows - past_rows) + fresh", "batch * (rows - past_rows) + row"),
    ("turned", "length - queries : start", "length - queries : past"),
    ("apart", "if (column >= 2 * ROTARY) return;", ""),
    ("apart", "row < rows - first_row && column < head", "column < head"),
    ("neighbours", "(column + i) ^ 1", "column + i"),
    ("neighbours", "sines[angle + (column + i) / 2]", "sines[angle + column / 2]"),
    ("neighbours", "(column + i) % 2 : column", "column % 2 : column"),
    ("one query", "(kv_head * group + row % group) * mask_head", "0"),
    ("one query", "pair * splits * rows + row", "pair * rows + row"),
    ("one query", "begin += here.split * share;", ""),
    ("one query", "end = min(end, begin + share);", ""),
    ("one query", "exp2f(statistics[place * 2] - base)", "1.0f"),
    ("one query", "if (lane % 4 == 0) store_floats", "if (lane == 0) store_floats"),
    ("one query", "softmax.sum[half] * unboosted}", "softmax.sum[half]}"),
    ("one query", "const float unboosted = exp2f(-Products::BOOST);", "const float unboosted = 1.0f;"),
    ("one query", "sinks[head]", "sinks[kv_head]"),
    ("one query", "if (row >= rows) continue;", ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "before", "after"), MUTANTS, ids=lambda text: str(text)[:40])
def test_mutants_are_caught(name: str, before: str, after: str) -> None:
    assert_caught(RUNS[name], before, after, of_run(name, MUTANTS))


def test_without_a_mistake_nothing_is_caught() -> None:
    device = Emulated(checked=True)
    for run in RUNS.values():
        run(device)
