"""Elements as expressions: equal ones are one, and what cancels or divides is written in a better form."""

from __future__ import annotations

import math

import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels.pointwise.expressions.elementwise import FORMULAS
from onnxfuse.kernels.pointwise.expressions.index import LANE, LOOP, ZERO, below, number, variable
from onnxfuse.kernels.pointwise.expressions.scalars import BOOL, FLOAT, INT, LONG, Scalar, Scalars

i, lane = variable("i", 8), variable("lane", 4, LANE)


@pytest.fixture
def s() -> Scalars:
    return Scalars()


def call(s: Scalars, op: str, *args: Scalar) -> Scalar:
    return s.call(op, FORMULAS[op], args)


def test_equal_expressions_are_one(s: Scalars) -> None:
    x = s.load(0, FLOAT, i, 8, ())
    assert s.load(0, FLOAT, i, 8, ()) is x
    assert s.load(1, FLOAT, i, 8, ()) is not x
    assert call(s, "Mul", x, s.literal(2, FLOAT)) is call(s, "Mul", x, s.literal(2, FLOAT))
    assert call(s, "Mul", x, s.literal(2, FLOAT)) is not call(s, "Mul", x, s.literal(3, FLOAT))
    assert [load.payload[0] for load in s.loads] == [0, 1]


def test_numbers_differ_by_type_sign_and_what_float32_holds(s: Scalars) -> None:
    assert s.literal(1, FLOAT) is not s.literal(1, INT)
    assert s.literal(0.0, FLOAT) is not s.literal(-0.0, FLOAT)
    assert s.literal(math.nan, FLOAT) is s.literal(math.nan, FLOAT)
    assert s.literal(0.1, FLOAT) is s.literal(0.1 + 1e-12, FLOAT)
    assert s.literal(1e300, FLOAT).value == math.inf
    assert s.literal(2**40 + 1, LONG).value == 2**40 + 1


def test_sums_and_multiples_of_positions_are_positions(s: Scalars) -> None:
    p, three = s.position(i), s.literal(3, LONG)
    assert call(s, "Add", p, three) is s.position(i + 3)
    assert call(s, "Sub", three, p) is s.position(i * -1 + 3)
    assert call(s, "Mul", three, p) is s.position(i * 3)
    assert call(s, "Mul", p, p).kind == "call"
    assert call(s, "Add", p, s.load(0, LONG, i, 8, ())).kind == "call"
    assert s.index(three) == number(3)
    assert s.index(s.literal(3, FLOAT)) is None


def test_a_choice_that_is_none_is_what_it_chooses(s: Scalars) -> None:
    x, y = s.load(0, FLOAT, i, 8, ()), s.literal(0, FLOAT)
    assert s.select(True, x, y) is x
    assert s.select(False, x, y) is y
    condition = below(lane, 2)
    assert not isinstance(condition, bool)
    assert s.select(condition, x, x) is x
    chosen = s.select(condition, x, y)
    assert (chosen.kind, chosen.depends) == ("select", LOOP | LANE)


def test_what_an_expression_depends_on_is_what_its_operands_do(s: Scalars) -> None:
    x, w, c = s.load(0, FLOAT, i, 8, ()), s.load(1, FLOAT, lane, 4, ()), s.load(2, FLOAT, ZERO, 1, ())
    assert [v.depends for v in (x, w, c)] == [LOOP, LANE, 0]
    assert call(s, "Add", call(s, "Mul", x, w), c).depends == LOOP | LANE
    assert call(s, "Exp", c).depends == 0


def test_a_guard_that_spares_traffic_alone_does_not_tell_lanes_apart(s: Scalars) -> None:
    condition, rows = below(lane, 2), below(i, 3)
    assert not isinstance(condition, bool)
    assert not isinstance(rows, bool)
    assert s.load(0, FLOAT, i, 8, (condition, rows)).payload[2] == (rows,)


def test_an_index_beyond_its_array_is_a_mistake_of_ours(s: Scalars) -> None:
    with pytest.raises(AssertionError, match="leads outside its tensor"):
        s.load(0, FLOAT, i, 7, ())


def test_an_empty_tensor_has_no_element(s: Scalars) -> None:
    """A window of a short input: no kernel is written at such sizes."""
    with pytest.raises(KernelError, match="empty tensor"):
        s.load(0, FLOAT, ZERO, 0, ())


def test_logarithms_and_exponentials_near_1_do_not_cancel(s: Scalars) -> None:
    x, one = s.load(0, FLOAT, i, 8, ()), s.literal(1, FLOAT)
    for operands in ((x, one), (one, x)):
        assert "log1p" in call(s, "Log", call(s, "Add", *operands)).payload[1]
    assert "expm1" in call(s, "Sub", call(s, "Exp", x), one).payload[1]
    assert "log1p" not in call(s, "Log", call(s, "Add", x, s.literal(2, FLOAT))).payload[1]


def test_a_smooth_function_of_a_quotient_by_a_number_multiplies(s: Scalars) -> None:
    x = s.load(0, FLOAT, i, 8, ())
    quotient = call(s, "Div", x, s.literal(4, FLOAT))
    assert call(s, "Erf", quotient).args[0] is call(s, "Mul", x, s.literal(0.25, FLOAT))
    for divisor in (s.literal(0, FLOAT), s.load(1, FLOAT, i, 8, ())):
        assert call(s, "Erf", call(s, "Div", x, divisor)).args[0].payload[0] == "Div"


def test_a_table_and_an_argument_have_their_type(s: Scalars) -> None:
    table = s.table((True, False), BOOL, below_two := variable("b", 2), ())
    assert (table.type, table.payload[1]) == (BOOL, below_two)
    assert s.argument("alpha", FLOAT) is s.argument("alpha", FLOAT)
