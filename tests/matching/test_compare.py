"""Literals of rules fit numbers of graphs as exactly as their element type can say them, and no further."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from onnxfuse.matching.compare import close, collected, same
from onnxfuse.model.dims import symbol
from onnxfuse.terms.term import Terms

FLOAT, HALF, BFLOAT = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16


@pytest.mark.parametrize(
    ("wanted", "seen", "dtype", "fits"),
    [
        (1.702, 1.702, FLOAT, True),
        (1.702, 1.7, FLOAT, False),
        (1.702, float(np.float16(1.702)), HALF, True),
        (1.702, 1.69, BFLOAT, True),
        (1.702, 1.69, HALF, False),
        (0.044715, 0.0447, FLOAT, True),
        (-1.0, -0.99999, FLOAT, False),
        (1.0, 1 + 2.0**-22, FLOAT, True),
        (0.5, 0.49975586, HALF, True),
        (0.0, 1e-13, FLOAT, False),
        (0.0, 0.0, FLOAT, True),
        (0.0, 1e-6, FLOAT, False),
        (1.0, float("nan"), FLOAT, False),
        (1.0, float("inf"), FLOAT, False),
        (-float("inf"), -float("inf"), FLOAT, True),
    ],
)
def test_a_literal_fits_within_what_its_type_can_say(wanted: float, seen: float, dtype: int, fits: bool) -> None:
    assert close(wanted, seen, dtype) is fits


def test_equal_is_what_is_equal_for_certain() -> None:
    n, m = symbol("N"), symbol("M")
    assert same(n, n)
    assert same(3, 3)
    assert not same(n, m)
    assert not same(n, 3)
    assert same("tanh", "tanh")
    assert not same("tanh", "none")
    assert same(0.1, 0.1 * (1 + 1e-8))
    assert not same(0.1, 0.1001)
    assert not same((0, 1), (1, 0))


def test_numbers_of_an_opened_chain_are_one() -> None:
    terms = Terms()
    a, b, big = terms.number(2.0, FLOAT), terms.number(3.0, FLOAT, 1), terms.number(1e30, FLOAT)
    assert [t.scalar for t in collected(terms, "Mul", [a, b])] == [6.0]
    assert [t.scalar for t in collected(terms, "Add", [a, b])] == [5.0]
    assert collected(terms, "Mul", [a]) == [a]
    assert collected(terms, "Mul", [big, big, a]) == [big, big, a]  # infinity is no number of the chain
