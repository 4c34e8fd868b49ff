"""Mistakes in the kernels of attention's gradients: the emulator or the numbers catch every one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from onnxfuse.kernels.attention.attention_grad import AttentionGrad
from onnxfuse.kernels.device.device import Device, TensorType
from tests.attention_cases import Case
from tests.attention_grad_cases import expected, inputs, node
from tests.kernel_mutants import assert_caught, of_run, survivors
from tests.row_cases import assert_close

FLOAT, HALF = np.dtype(np.float32), np.dtype(np.float16)


def differentiated(case: Case, dtype: np.dtype[Any]) -> Callable[[Device], None]:
    """A node, and the check of what it gave."""

    def run(device: Device) -> None:
        given = inputs(case, dtype)
        kernel = AttentionGrad(node(case))
        types = kernel.outputs([None if i is None else TensorType(i.dtype, i.shape) for i in given])
        outputs = [np.full(t.shape, np.nan, t.dtype) for t in types]
        kernel.launch(device, given, outputs)
        for got, want in zip(outputs, expected(node(case), given), strict=True):
            assert_close(got, want)

    return run


CAUSAL = {"is_causal": 1, "scale": 0.4}
RUNS = {
    "causal": differentiated(Case(65, 70, 24, batches=1, heads=4, flat=True, attributes=CAUSAL), HALF),
    "whole": differentiated(Case(70, 70, 32, batches=1, heads=2, kv_heads=2, attributes={"scale": 0.4}), HALF),
    "scalar": differentiated(Case(70, 50, 24, batches=1, heads=4, attributes=CAUSAL), FLOAT),
    "boolean": differentiated(
        Case(37, 70, 32, batches=2, mask=(2, 1, 37, 70), boolean=True, hidden=(3,), attributes={"nan_to_zero": 1}), HALF
    ),
    "hidden": differentiated(Case(37, 70, 32, batches=1, mask=(37, 70), boolean=True, hidden=(3,)), HALF),
    "added": differentiated(Case(37, 70, 32, batches=1, mask=(2, 37, 70), attributes={"scale": 2.0}), FLOAT),
    "bias": differentiated(
        Case(20, 70, 24, batches=3, heads=4, mask=(3, 4, 20, 70), attributes={"bias_axes": [-4, -3]}), HALF
    ),
    "windows": differentiated(Case(9, 9, 8, batches=70, mask=(2, 9, 9), attributes={"bias_axes": [-4]}), FLOAT),
}


def test_every_barrier_is_needed() -> None:
    """But for those of what none of them calls, and of blocks that have nothing to go through."""
    unused = ("common.cuh", "attention_grad.cuh")
    for name in ("causal", "bias"):
        assert [label for label in survivors(RUNS[name]) if not label.startswith(unused)] == []


MUTANTS: list[tuple[str, str, str]] = [
    ("causal", "r % group * head + r / group * row", "r / group * head + r % group * row"),
    ("causal", "min(keys, query + 1) : keys", "min(keys, query) : keys"),
    ("causal", "- 1) / group + 1) : keys", "- 1) / group) : keys"),
    ("causal", "min(static_cast<long long>(first_key) * group, 1ll << 30)", "first_key * group + 1"),
    ("causal", "present, head_v, aligned, second", "COUNT, head_v, aligned, second"),
    ("causal", "r >= rows || column >= columns", "r >= rows"),
    ("causal", "sum[half] *= factor;", ""),
    ("causal", "weighed[half] *= factor;", ""),
    ("causal", "warp_reduce<4>(statistics.sum, Add());", ""),
    ("causal", "s[n][i] * UNBOOSTED, d[n][i]", "s[n][i], d[n][i]"),
    ("causal", "first_key + ROWS > scores.limit_of(first)", "false"),
    ("causal", "row / group + 1) : keys; }", "row + 1) : keys; }"),
    ("whole", "d[n][i] = -sums[i / 2]", "d[n][i] = sums[i / 2]"),
    ("whole", "d[n][i] = -told", "d[n][i] = told"),
    ("whole", "key + OTHERS > shown", "false"),
    ("whole", "s[n][i] *= unit;", ""),
    ("whole", "boost - of.top", "boost + of.top"),
    ("whole", "base_of(top[half]) + rest, 0.0f", "base_of(top[half]), 0.0f"),
    ("whole", "source(first + row) + column", "source(first) + column"),
    ("whole", "present >= COUNT && ", ""),
    ("whole", "gradient.first + (first + row) * y_row", "gradient.first + (first + row) * q_row * 2"),
    ("causal", "first + i < rows;", "first + i <= rows;"),
    ("causal", "turn % 2 * OTHERS + i", "i"),
    ("scalar", "quad + row % 8 / 2", "quad"),
    ("boolean", "batch * mask_batch", "0"),
    ("boolean", "nan_to_zero && !(sum[half] > 0.0f)", "false"),
    ("hidden", "MASK == BOOLEAN && score == minus_infinity()", "false"),
    ("added", "r % group * mask_head", "r / group * mask_head"),
    ("added", "kv_head * group * mask_head", "0"),
    ("bias", "one / heads_summed", "0"),
    ("bias", "pair % own_heads + one % heads_summed", "one % heads_summed / group * group"),
    ("bias", "of % group;", "0;"),
    ("bias", "first_key + OfProducts()(n, i));", "OfProducts()(n, i));"),
    ("bias", "turn % 2 * PLACE;\n        const TYPE* const tile", "0;\n        const TYPE* const tile"),
    ("bias", "min(row + 8 * half, queries - 1)", "min(row, queries - 1)"),
    ("windows", "part * each, end", "0, end"),
    ("windows", "r < queries && key < keys", "r < queries"),
    ("windows", "parts[part * count + i]", "parts[i]"),
    ("added", "NATURAL ? logf(sum[half])", "NATURAL ? log2f(sum[half])"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "before", "after"), MUTANTS)
def test_a_mistake_is_caught(name: str, before: str, after: str) -> None:
    assert_caught(RUNS[name], before, after, of_run(name, MUTANTS))
