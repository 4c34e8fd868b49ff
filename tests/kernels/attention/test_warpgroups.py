"""Attention by warpgroups, emulated and checked: the numbers, and mistakes that are caught."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.kernels.attention import attention
from onnxfuse.kernels.attention.attention import Attention
from onnxfuse.kernels.attention.tiles import WARPGROUPS
from tests.attention_cases import Case, expected
from tests.attention_noting import Noting
from tests.kernel_mutants import assert_caught, of_run
from tests.row_cases import DTYPES, assert_close, misaligned, run

from .test_attention_mutants import attended

_, HALF, BFLOAT = DTYPES
CAUSAL = {"is_causal": 1, "scale": 0.2}


@pytest.fixture(autouse=True)
def _allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever there is the form, it is taken, proved or not."""
    monkeypatch.setattr(attention, "_allowed", lambda device, form, dtype: form is WARPGROUPS)


CASES: dict[str, tuple[Case, np.dtype[np.generic]]] = {
    "one panel": (Case(70, 200), HALF),
    "three blocks of two warpgroups": (Case(300, 130, 128, batches=1, heads=2, attributes=CAUSAL), HALF),
    "two panels, grouped, causal behind a past": (Case(70, 70, 128, past=65, heads=4, attributes=CAUSAL), BFLOAT),
    "values of two panels, under a mask": (Case(37, 70, 64, mask=(37, 70), hidden=(5,), head_v=128), HALF),
    "a boolean mask by eights": (
        Case(70, 136, 128, mask=(2, 2, 70, 136), boolean=True, attributes={"nan_to_zero": 1}),
        HALF,
    ),
    "an added mask by eights": (Case(70, 136, mask=(70, 136), flat=True, attributes=CAUSAL), BFLOAT),
    "keys in parts": (Case(40, 700, batches=1, heads=1, kv_heads=1, sink=True), HALF),
    "lengths and a window": (
        Case(70, 200, lengths=(200, 77), attributes={"is_causal": 1, "left_window_size": 30}),
        HALF,
    ),
    "scores that grow": (Case(40, 200, attributes={"scale": 8.0}), HALF),
    "capped": (Case(37, 70, attributes={"softcap": 2.0}), HALF),
    "turned": (Case(40, 40, heads=4, angles="chosen", attributes={"is_causal": 1}), HALF),
    "heads of columns that are not there": (Case(40, 70, 120, head_v=56), HALF),
}


@pytest.mark.parametrize("name", CASES)
def test_what_an_attention_may_have(name: str) -> None:
    case, dtype = CASES[name]
    inputs, device = case.inputs(dtype), Noting("sm_90")
    for got, want in zip(run(device, Attention(case.node), inputs), expected(case.node, inputs), strict=True):
        assert_close(got, want)
    assert device.launched == [WARPGROUPS.architecture]


@pytest.mark.parametrize("order", ["reverse", "random"])
def test_the_order_of_threads_does_not_matter(order: str) -> None:
    case, dtype = CASES["a boolean mask by eights"]
    inputs = case.inputs(dtype)
    assert_close(run(Noting("sm_90", order), Attention(case.node), inputs)[0], expected(case.node, inputs)[0])


@pytest.mark.parametrize(
    "case", [Case(1, 200), Case(32, 70), Case(70, 70, 80), Case(70, 70, 256)], ids=["decoding", "32", "80", "256"]
)
def test_other_rows_and_heads_stay_with_warps(case: Case) -> None:
    inputs, device = case.inputs(HALF), Noting("sm_90")
    assert_close(run(device, Attention(case.node), inputs)[0], expected(case.node, inputs)[0])
    assert device.launched == [""]


def test_misaligned_arrays_stay_with_warps() -> None:
    case, device = Case(40, 70), Noting("sm_90")
    inputs = case.inputs(HALF)
    assert_close(run(device, Attention(case.node), inputs, place=misaligned)[0], expected(case.node, inputs)[0])
    assert device.launched == [""]


RUNS = {
    "whole": attended(Case(70, 200, 128, attributes=CAUSAL), HALF),
    "eights": attended(CASES["a boolean mask by eights"][0], HALF),
}
MUTANTS: list[tuple[str, str, str]] = [
    ("whole", "fence_proxy_async();\n        __syncthreads();", "__syncthreads();"),
    ("whole", "stage = STAGES - 1 - stage;", ""),
    ("whole", "keys.copy(key + KEYS, 1 - stage);", "keys.copy(key + KEYS, stage);"),
    ("whole", "values.copy(key + KEYS, 1 - stage);", "values.copy(key + KEYS, 0);"),
    ("whole", "if (STAGES == 2 || Products::AHEAD) values.copy(begin);", ""),
    ("whole", "products_wait<0>(s);", ""),
    ("whole", "products_wait<0>(o);", ""),
    ("whole", "products_begin(o);", ""),
    ("whole", "descriptor(values, NEXT_PANEL, PATTERN)", "descriptor(values, PATTERN, PATTERN)"),
    ("whole", "descriptor(keys, 0, PATTERN)", "descriptor(keys, 0, PATTERN_ROW)"),
    ("whole", "multiply_add<TYPE, true>(o", "multiply_add<TYPE, false>(o"),
    ("whole", "multiply_add<TYPE, false>(s", "multiply_add<TYPE, true>(s"),
    ("whole", "step * INSTRUCTION * PATTERN_ROW / FURTHER", "step * INSTRUCTION / FURTHER"),
    ("whole", "column / PANEL * NEXT_PANEL", "column / PANEL * PATTERN"),
    ("whole", "column % PANEL * static_cast<int>(sizeof(TYPE))", "column % PANEL"),
    ("whole", "column / PANEL * LENGTH * PANEL", "column / PANEL * PANEL"),
    ("whole", "(column % PANEL / CHUNK ^ row % 8)", "(column % PANEL / CHUNK)"),
    ("whole", "&p[2 * step + i / 2][i % 2 * 2]", "&p[2 * step + i % 2][i / 2 * 2]"),
    ("whole", "multiply_add<TYPE, false>(s, held[step]", "multiply_add<TYPE, false>(s, held[0]"),
    ("eights", "(place ^ slot % 8 * CHUNK)", "place"),
    ("eights", "return (place ^ slot % 8 * CHUNK) + slot * PANEL", "return (place ^ slot % 8 * CHUNK) + slot * 8"),
]


@pytest.mark.parametrize(("name", "before", "after"), MUTANTS, ids=lambda text: str(text)[:40])
def test_a_mistake_is_caught(name: str, before: str, after: str) -> None:
    assert_caught(RUNS[name], before, after, of_run(name, MUTANTS))
