"""Terms that are the same but for the last digits of numbers and the order of operands."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.terms.analysis.alike import alike
from onnxfuse.terms.term import Term
from tests.terms.normal.space import FLOAT, Space


@pytest.fixture
def t() -> Space:
    return Space()


def scaled(t: Space, number: float) -> Term:
    x = t.input("x", 3, 4)
    return t.op("Exp", t.op("Mul", x, t.terms.number(number, FLOAT)))


def test_numbers_may_be_rounded_to_single_precision(t: Space) -> None:
    exact, rounded = scaled(t, 0.5**0.5), scaled(t, float(np.float32(0.5**0.5)))
    assert exact is not rounded
    assert alike(exact, rounded)
    assert not alike(exact, scaled(t, 0.7072))


def test_operands_of_sums_may_stand_in_any_order(t: Space) -> None:
    first, second = scaled(t, 0.5**0.5), scaled(t, float(np.float32(0.5**0.5)))
    other = t.op("Neg", t.input("z", 3, 4))
    both = [t.terms.raw("Add", args, shape=(3, 4), dtype=FLOAT) for args in ([first, other], [other, second])]
    assert alike(*both)


def test_each_operand_is_found_once(t: Space) -> None:
    a, b = scaled(t, 0.5**0.5), scaled(t, float(np.float32(0.5**0.5)))
    other = scaled(t, 3.0)
    twice = t.terms.raw("Add", [a, b], shape=(3, 4), dtype=FLOAT)
    assert not alike(twice, t.terms.raw("Add", [a, other], shape=(3, 4), dtype=FLOAT))


def test_other_inputs_attributes_and_tables_are_others(t: Space) -> None:
    x = t.input("x", 3, 4)
    assert not alike(x, t.input("z", 3, 4))
    assert not alike(t.op("Softmax", x, axis=-1), t.op("Softmax", x, axis=-2))
    table = [t.terms.constant(np.array([1.0, 2.0, last]), FLOAT) for last in (3.0, 3.0 + 1e-7, 4.0)]
    assert alike(table[0], table[1])
    assert not alike(table[0], table[2])
