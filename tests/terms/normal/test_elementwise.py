"""Elementwise ops of one meaning are one op."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.terms.normal.space import BOOL, HALF, INT64, Space


def test_names_for_one_meaning(t: Space) -> None:
    x, y, absent = t.input("x", 2, 3), t.input("y", 2, 3), t.terms.absent
    relu = t.op("Relu", x)
    assert t.op("Max", x, t.number(0)) is relu
    assert t.op("Max", t.number(0), x) is relu
    assert t.op("Clip", x, t.number(0), t.number(math.inf)) is relu
    assert t.op("Clip", x, t.number(0), absent).op == "Clip"  # its largest result is finite
    assert t.op("Clip", x, t.number(0), t.number(6)).op == "Clip"
    assert t.op("Less", x, y) is t.op("Greater", y, x)
    assert t.op("LessOrEqual", x, y) is t.op("GreaterOrEqual", y, x)
    condition = t.op("Greater", x, y)
    assert t.op("Not", t.op("Not", condition)) is condition
    assert t.op("Where", t.op("Not", condition), x, y) is t.op("Where", condition, y, x)


def test_casts_between_real_types_vanish_and_others_stay(t: Space) -> None:
    x = t.input("x", 2, 3)
    assert t.op("Cast", x, to=HALF) is x
    assert t.op("Cast", x, to=INT64).op == "Cast"
    rounded = t.op("Cast", t.number(0.1), to=HALF)
    assert rounded.scalar == float(np.float16(0.1))


@pytest.mark.parametrize("op", ["And", "Or", "Equal"])
def test_logic_commutes(t: Space, op: str) -> None:
    x, y = (t.input(name, 4, dtype=BOOL) for name in "xy")
    assert t.op(op, x, y) is t.op(op, y, x)
