"""What is computed while a kernel is made is what the reference evaluator of onnx computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from onnxfuse.errors import KernelError
from onnxfuse.kernels.pointwise.expressions import known
from onnxfuse.kernels.pointwise.expressions.known import ALIKE, computed

A, B = np.array([[3, -4, 0], [7, 4, -1]]), np.array([3, 4, -9])
YES, NO = np.array([True, False, True]), np.array([[False], [True]])


def ints(*numbers: int) -> np.ndarray[Any, Any]:
    return np.array(numbers, np.int64)


CASES: list[tuple[str, list[Any], dict[str, Any]]] = [
    *((op, [A, B], {}) for op in ("Add", "Sub", "Mul", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")),
    *((op, [A, B], {}) for op in ("Max", "Min")),
    *((op, [A.astype(np.int32)], {}) for op in ("Abs", "Neg", "Sign")),
    *((op, [YES, NO], {}) for op in ("And", "Or")),
    ("Not", [YES], {}),
    ("Add", [np.array(3), np.array(4)], {}),
    ("Concat", [A, A[:1]], {"axis": 0}),
    ("Concat", [A, A[:, 1:]], {"axis": -1}),
    ("Squeeze", [A[:1, :1]], {}),
    ("Squeeze", [A[:1, :1], ints(-2)], {}),
    ("Unsqueeze", [A, ints(0, 3)], {}),
    ("Unsqueeze", [np.array(5), ints(0)], {}),
    ("Range", [np.array(2), np.array(9), np.array(3)], {}),
    ("Range", [np.array(9, np.int32), np.array(2, np.int32), np.array(-4, np.int32)], {}),
    ("Reshape", [A, ints(3, -1)], {}),
    ("Reshape", [A, ints(0, -1)], {}),
    ("Gather", [A, ints(1, -1)], {}),
    ("Gather", [A, np.array(2)], {"axis": 1}),
    ("Expand", [B, ints(2, 1)], {}),
    ("Expand", [NO, ints(1, 2, 3)], {}),
    ("Expand", [np.array([[1.5], [np.inf]], np.float32), ints(2)], {}),
    ("Where", [YES, A, B], {}),
    ("Where", [NO, np.array(2, np.int32), np.array([[5, 6]], np.int32)], {}),
    *(("Cast", [x], {"to": int(to)}) for x in (A, NO) for to in known._CASTS),
    ("Slice", [A, ints(0), ints(2**62), ints(-1), ints(2)], {}),
    ("Slice", [A, ints(-1, 1), ints(-(2**62), 2), ints(1, 0), ints(-1, 1)], {}),
]


@pytest.mark.parametrize(("op", "inputs", "attributes"), CASES, ids=[f"{op}{i}" for i, (op, _, _) in enumerate(CASES)])
def test_integers(op: str, inputs: list[Any], attributes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    (wanted,) = known._reference(op, inputs, attributes, 1)
    monkeypatch.setattr(known, "_reference", None)
    (found,) = computed(op, inputs, attributes, 1)
    assert found.dtype == wanted.dtype
    assert found.tolist() == wanted.tolist()
    assert found.shape == wanted.shape


def test_every_op_is_compared() -> None:
    assert {op for op, _, _ in CASES} >= ALIKE.keys()


@pytest.mark.parametrize(
    ("op", "inputs", "attributes"),
    [
        ("Add", [np.float32(1.5), np.float32(2)], {}),
        ("Equal", [YES, NO], {}),
        ("Cast", [A], {"to": int(TensorProto.FLOAT16)}),
        ("Reshape", [A[:0], ints(0, 3)], {"allowzero": 1}),
        ("Slice", [A, ints(0), ints(1)], {}),
        ("Min", [A, A, B], {}),
        ("Where", [YES, np.float32(1), np.float32(2)], {}),
    ],
)
def test_others_are_left_to_the_reference(op: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    (wanted,) = known._reference(op, inputs, attributes, 1)
    (found,) = computed(op, inputs, attributes, 1)
    assert (found.dtype, found.tolist()) == (wanted.dtype, wanted.tolist())


def test_what_has_no_result_says_so() -> None:
    with pytest.raises(KernelError, match=r"^Reshape of constants: "):
        computed("Reshape", [A, ints(5)], {}, 1)
    with pytest.raises(KernelError, match=r"^Blah of constants: "):
        computed("Blah", [A], {}, 1)
