"""Attention with scores in tensor memory, emulated and checked: the numbers, and mistakes that are caught."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxfuse.kernels.attention import attention
from onnxfuse.kernels.attention.attention import Attention
from onnxfuse.kernels.attention.tiles import TENSOR_MEMORY
from onnxfuse.kernels.device.device import Launch, Source
from onnxfuse.kernels.emulator.device import Emulated
from tests.attention_cases import Case, expected
from tests.attention_noting import Noting
from tests.kernel_mutants import assert_caught, of_run, survivors
from tests.row_cases import DTYPES, assert_close, misaligned, run

from .test_attention_mutants import attended

_, HALF, BFLOAT = DTYPES
CAUSAL = {"is_causal": 1, "scale": 0.2}


@pytest.fixture(autouse=True)
def _allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever there is the form, it is taken, proved or not."""
    monkeypatch.setattr(attention, "_allowed", lambda device, form, dtype: form is TENSOR_MEMORY)


CASES: dict[str, tuple[Case, np.dtype[np.generic]]] = {
    "one panel": (Case(70, 200), HALF),
    "three blocks": (Case(300, 130, 128, batches=1, heads=2, attributes=CAUSAL), HALF),
    "two panels, grouped, causal behind a past": (Case(70, 70, 128, past=65, heads=4, attributes=CAUSAL), BFLOAT),
    "values of two panels, under a mask": (Case(67, 170, 64, mask=(67, 170), hidden=(5,), head_v=128), HALF),
    "keys of two panels": (Case(67, 300, 128, head_v=64), BFLOAT),
    "a boolean mask by eights": (
        Case(70, 136, 128, mask=(2, 2, 70, 136), boolean=True, attributes={"nan_to_zero": 1}),
        HALF,
    ),
    "an added mask by eights": (Case(70, 264, mask=(70, 264), flat=True, attributes=CAUSAL), BFLOAT),
    "keys in parts": (Case(80, 1400, batches=1, heads=1, kv_heads=1, sink=True), HALF),
    "lengths and a window": (
        Case(70, 400, lengths=(400, 77), attributes={"is_causal": 1, "left_window_size": 30}),
        HALF,
    ),
    "scores that grow": (Case(80, 400, attributes={"scale": 8.0}), HALF),
    "a scale below 0": (Case(67, 270, attributes={"scale": -0.5}), HALF),
    "capped": (Case(67, 270, attributes={"softcap": 2.0}), HALF),
    "turned": (Case(80, 80, heads=4, angles="chosen", attributes={"is_causal": 1}), HALF),
    "heads of columns that are not there": (Case(80, 170, 120, head_v=56), HALF),
}


@pytest.mark.parametrize("name", CASES)
def test_what_an_attention_may_have(name: str) -> None:
    case, dtype = CASES[name]
    inputs, device = case.inputs(dtype), Noting("sm_100")
    for got, want in zip(run(device, Attention(case.node), inputs), expected(case.node, inputs), strict=True):
        assert_close(got, want)
    assert device.launched == [TENSOR_MEMORY.architecture]


@pytest.mark.parametrize("order", ["reverse", "random"])
def test_the_order_of_threads_does_not_matter(order: str) -> None:
    case, dtype = CASES["a boolean mask by eights"]
    inputs = case.inputs(dtype)
    assert_close(run(Noting("sm_100", order), Attention(case.node), inputs)[0], expected(case.node, inputs)[0])


@pytest.mark.parametrize(
    "case", [Case(1, 200), Case(64, 70), Case(70, 70, 80), Case(70, 70, 256)], ids=["decoding", "64", "80", "256"]
)
def test_other_rows_and_heads_stay_with_warps(case: Case) -> None:
    inputs, device = case.inputs(HALF), Noting("sm_100")
    assert_close(run(device, Attention(case.node), inputs)[0], expected(case.node, inputs)[0])
    assert device.launched == [""]


def test_misaligned_arrays_stay_with_warps() -> None:
    case, device = Case(70, 70), Noting("sm_100")
    inputs = case.inputs(HALF)
    assert_close(run(device, Attention(case.node), inputs, place=misaligned)[0], expected(case.node, inputs)[0])
    assert device.launched == [""]


EXPONENTIALS = (
    Source.file("exponential.cuh").text
    + """
extern "C" __global__ void exponentials(const float* x, float* y, int count) {
    for (int i = threadIdx.x; i < count; i += 256) y[i] = exponential_by_products(x[i]);
}
"""
)


def exponentials(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """2^x, as the kernel takes a part of them."""
    given, y = x.astype(np.float32), np.empty(x.shape, np.float32)
    launch = Launch(Source("exponential.cu", EXPONENTIALS), "exponentials", (1,), (256,))
    Emulated(checked=True).launch(launch, [given, y, np.int32(x.size)])
    return y


def test_an_exponential_by_products_is_right_to_a_fifth_of_what_float16_rounds() -> None:
    x = np.linspace(-126, 127.49, 100001, dtype=np.float32)
    assert np.abs(exponentials(x) / np.exp2(x.astype(np.float64)) - 1).max() < 1.03e-4 < 2.0**-11 / 4.5
    whole = np.arange(-127.0, 130.0)
    np.testing.assert_array_equal(exponentials(whole)[1:-2], np.exp2(whole)[1:-2], "powers of 2 are what they are")


def test_an_exponential_by_products_ends_where_numbers_do() -> None:
    with np.errstate(over="ignore"):
        far = exponentials(np.array([-np.inf, -1e30, -200.0, -127.0, 128.0, 129.0, 300.0, 1e30, np.inf, np.nan]))
    np.testing.assert_array_equal(far, [0, 0, 0, 0, np.inf, np.inf, np.inf, np.inf, np.inf, np.nan])


@pytest.mark.parametrize(
    ("value", "row"), [(np.nan, 1.0), (60000.0, 1.0), (60000.0, -1.0)], ids=["nan", "far up", "down"]
)
@pytest.mark.parametrize("key", [3, 35, 170])
def test_keys_that_are_far_from_others(value: float, row: float, key: int) -> None:
    """Of each, exponentials of key 35 are taken by products: a number that is none goes through, and one far above all
    is found."""
    case = Case(70, 200, attributes={"scale": 1.0})
    inputs = case.inputs(HALF)
    q, k = inputs[0], inputs[1]
    assert q is not None
    assert k is not None
    q[:, :, :, 0], k[:, :, key, 0] = row, value
    with np.errstate(invalid="ignore"):
        got = run(Noting("sm_100"), Attention(case.node), inputs)[0].astype(np.float32)
        want = expected(case.node, inputs)[0].value
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_allclose(got, want, atol=2e-3, rtol=2e-3)


def test_every_barrier_is_needed() -> None:
    """But for one that brings a warp together again behind its one thread: emulated, it goes on as it is."""
    others = ("common.cuh", "attention_registers.cuh", "attention_warpgroup.cuh", "attention.cu")
    (kept,) = survivors(RUNS["whole"], others)
    assert kept.startswith("attention_tensor_memory.cuh")


RUNS = {
    "whole": attended(Case(70, 70, 128, past=300, attributes=CAUSAL), HALF),
    "below 0": attended(Case(70, 300, 128, attributes={"scale": -0.5}), HALF),
    "rising": attended(Case(70, 300, 128, attributes={"scale": 1.0}), HALF, first=0.3),
    "panel": attended(Case(70, 200, 64, attributes={"scale": 0.2}), HALF),
    "eights": attended(CASES["a boolean mask by eights"][0], HALF),
}
MUTANTS: list[tuple[str, str, str]] = [
    # How blocks meet, and what they wait for.
    ("whole", "fence_proxy_async();\n        tensor_fence_before();", "tensor_fence_before();"),
    ("whole", "tensor_fence_before();", ""),
    ("whole", "tensor_fence_after();", ""),
    ("whole", "mbarrier_wait(done, parity);", ""),
    ("whole", "parity ^= 1;", ""),
    ("whole", "tensor_stored();", ""),
    ("whole", "tensor_wait(s);", ""),
    ("whole", "tensor_wait(some);", ""),
    ("whole", "            wait();", ""),
    ("whole", "TENSOR && __syncthreads_or(bold && softmax.lost())", "bold && softmax.lost()"),
    ("whole", "if (warp() == 0) tensor_free<COLUMNS>(at);", ""),
    ("whole", "if (threadIdx.x == 0) mbarrier_init(done, 1);", ""),
    ("whole", "mbarrier_init(done, 1);", "mbarrier_init(done, 2);"),
    ("whole", "tensor_arrive(done);", ""),
    # When what is copied.
    ("whole", "if (key > begin) values.copy(key);", ""),
    ("whole", "if (STAGES == 2 || Products::AHEAD) values.copy(begin);", ""),
    ("whole", "if (STAGES == 1 && more) keys.copy(key + KEYS);", ""),
    ("whole", "if (!Products::AHEAD) values.copy(key);", "values.copy(key);"),
    # Which rows, columns and products.
    ("whole", "threadIdx.x / 32 % 4 * 32 + threadIdx.x / 128 * 16", "threadIdx.x / 32 * 16"),
    ("whole", "instruction, step || summed)", "instruction, true)"),
    ("whole", "instruction, step || summed)", "instruction, step != 0)"),
    ("whole", "summed |= shared;", "summed = true;"),
    ("whole", "shares[n][half] = ", "shares[n][1 - half] = "),
    ("whole", "at + step * INSTRUCTION / 2", "at + step * INSTRUCTION"),
    ("whole", "tensor_multiply(at + KEYS, at +", "tensor_multiply(at, at +"),
    ("whole", "instruction_descriptor<TYPE, HEAD_V, true>()", "instruction_descriptor<TYPE, HEAD_V, false>()"),
    ("whole", "instruction_descriptor<TYPE, KEYS, false>()", "instruction_descriptor<TYPE, KEYS, true>()"),
    ("whole", "tensor_descriptor(values, KEYS * PATTERN_ROW, PATTERN)", "tensor_descriptor(values, PATTERN, PATTERN)"),
    ("whole", "step * INSTRUCTION * PATTERN_ROW / FURTHER", "step * INSTRUCTION / FURTHER"),
    ("whole", "column / PANEL * ROWS * PATTERN_ROW", "column / PANEL * PATTERN"),
    ("whole", "column / PANEL * KEYS * PATTERN_ROW", "column / PANEL * PATTERN"),
    ("whole", "rounded<TYPE>(p[n][2 * half], p[n][2 * half + 1])", "rounded<TYPE>(p[n][half], p[n][half + 2])"),
    ("whole", "return panelled<ROWS>(row, column) + column % CHUNK;", "return panelled<KEYS>(row, column ^ CHUNK);"),
    ("below 0", "        meet();", ""),
    # What is scaled where it is.
    ("rising", "some[n][i] *= factor[i / 2];", "some[n][i] *= 1.0f;"),
    ("rising", "some[n][i] *= factor[i / 2];", "some[n][i] *= factor[i % 2];"),
    ("rising", "tensor_store(own(KEYS + column), some);", "tensor_store(own(KEYS), some);"),
    # Exponentials by products, of heads of 64.
    ("panel", "0.24221101f", "0.2f"),
    ("panel", "exponential_by_products(x) : exp2f(x)", "exponential_by_products(x + 0.01f) : exp2f(x)"),
    ("panel", "+ 0x3f800000u", "+ 0x3f000000u"),
    ("eights", "(place ^ slot % 8 * CHUNK)", "place"),
    ("eights", "if (!BEFORE) load(key + part * TOLD);", "if (!BEFORE) load(key);"),
    ("eights", "&s[part * (TOLD / 8)]", "&s[0]"),
]


@pytest.mark.parametrize(("name", "before", "after"), MUTANTS, ids=lambda text: str(text)[:40])
def test_a_mistake_is_caught(name: str, before: str, after: str) -> None:
    assert_caught(RUNS[name], before, after, of_run(name, MUTANTS))
