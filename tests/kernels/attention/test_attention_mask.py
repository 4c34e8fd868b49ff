"""What masks say of whole tiles of keys: everything, nothing, and something; and at scales of any sign and size."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from onnxfuse.kernels.attention.attention import Attention
from onnxfuse.kernels.emulator.device import Emulated
from tests.attention_cases import Case, expected
from tests.row_cases import DTYPES, assert_close, run

FAST, CHECKED = Emulated(checked=False), Emulated(checked=True)
_, HALF, BFLOAT = DTYPES
QUERIES, KEYS = 70, 264


def structured() -> np.ndarray:
    """Rows that see a stretch of keys each: some tiles are shown whole, some hidden, most rows end in between."""
    first, last = np.arange(QUERIES)[:, None] * 2, np.arange(QUERIES)[:, None] * 3 + 60
    column = np.arange(KEYS)
    shown = (column < last) & ((column >= first) | (column < 128))
    shown[40:60] = True
    return shown


@pytest.mark.parametrize("dtype", [HALF, BFLOAT], ids=str)
@pytest.mark.parametrize("head", [64, 128])
@pytest.mark.parametrize("kind", ["boolean", "filler", "infinite", "lowest", "biased"])
def test_tiles_that_are_shown_whole(kind: str, head: int, dtype: np.dtype[Any]) -> None:
    case = Case(QUERIES, KEYS, head, mask=(QUERIES, KEYS), boolean=kind in ("boolean", "filler"))
    inputs, shown = case.inputs(dtype), structured()
    attributes = {**case.node, **({"mask_filter_value": -3.0} if kind == "filler" else {})}
    hidden = {"infinite": -np.inf, "lowest": -65504.0}.get(kind, -9.0)
    inputs[3] = shown if case.boolean else np.where(shown, 0.0, hidden).astype(dtype)
    if kind == "biased":
        inputs[3] = (inputs[3] + np.linspace(-2, 2, KEYS).astype(dtype)).astype(dtype)
    assert_close(run(FAST, Attention(attributes), inputs)[0], expected(attributes, inputs)[0])


@pytest.mark.parametrize("scale", [-0.3, 1e-4, 1e-33, -1e-33, 7.0])
def test_a_mask_weighs_the_same_at_any_scale(scale: float) -> None:
    case = Case(17, 136, 64, mask=(17, 136), attributes={"scale": scale})
    inputs = case.inputs(HALF)
    mask = np.random.default_rng(3).standard_normal((17, 136)) * 3
    mask[:, ::5] = -np.inf
    mask[3], mask[4, 64:] = -300.0, -65504.0
    inputs[3] = mask.astype(HALF)
    assert_close(run(CHECKED, Attention(case.node), inputs)[0], expected(case.node, inputs)[0])
