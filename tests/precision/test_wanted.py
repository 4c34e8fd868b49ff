"""What the types of half precision hold."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from onnxfuse.precision.wanted import Overflow, Precision


def test_types() -> None:
    half, brain, mixed = Precision("fp16"), Precision("bf16"), Precision("mixed")
    assert (half.dtype, brain.dtype, mixed.dtype) == (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.FLOAT16)
    assert (half.type_name, brain.type_name, mixed.type_name) == ("float16", "bfloat16", "float16")
    assert (half.rtol, brain.rtol, mixed.rtol) == (3e-3, 2e-2, 3e-3)
    assert (half.largest, half.smallest) == (65504.0, 2.0**-14)
    assert brain.largest > 3e38


@pytest.mark.parametrize(
    ("numbers", "unfit"),
    [
        ([1.0, 1e-8], 0),  # small numbers beside others lose nothing that counts
        ([0.0, 0.0], 0),
        ([1e-8, -3e-8, 0.0], -3e-8),
        ([-3.4e38, 0.0], -3.4e38),
        ([-np.inf, 0.0], 0),
        ([], 0),
    ],
)
def test_constants_that_float16_cannot_say(numbers: list[float], unfit: float) -> None:
    array = np.asarray(numbers, np.float32)
    assert Precision("fp16").unfit(array) == pytest.approx(unfit, rel=1e-6)
    if abs(unfit) < 1:
        assert Precision("bf16").unfit(array) == 0  # its range is float32's, but for the last half digit


@pytest.mark.parametrize(("count", "more"), [(1, ": float16"), (2, ", and one more node:"), (4, ", and 3 more nodes:")])
def test_a_refusal_names_the_node_the_number_and_what_to_do(count: int, more: str) -> None:
    text = Precision("fp16").refusal([Overflow("/mlp/Mul", "Mul", 71234.0)] * count)
    assert text.startswith("Mul '/mlp/Mul' reaches 7.12e+04" + more)
    assert "ends at 65504: --precision mixed" in text


def test_a_number_is_found_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnxfuse.precision.wanted._AT_ONCE", 4)
    for at in (0, 5, 9):
        array = np.zeros((2, 5), np.float32)
        array.flat[at] = -1e5
        assert Precision("fp16").unfit(array) == -1e5
        array.flat[at] = 1e-6
        array.flat[9 - at] = 1e-7
        assert Precision("fp16").unfit(array) == pytest.approx(1e-6)
