"""What each pass over a row computes, and what stays in registers between them."""

from __future__ import annotations

import numpy as np

from onnxfuse.kernels.pointwise.expressions.carried import Stored
from onnxfuse.kernels.pointwise.expressions.elementwise import FORMULAS
from onnxfuse.kernels.pointwise.expressions.index import Index, coordinates, variable
from onnxfuse.kernels.pointwise.expressions.scalars import FLOAT, Scalar, Scalars
from onnxfuse.kernels.pointwise.expressions.values import source
from onnxfuse.kernels.rows.places import Matrix
from onnxfuse.kernels.rows.schedule import Reduction, Varies, levels, schedule

SCALARS = Scalars()
MATRIX = Matrix(SCALARS, 5, 7)
X, Z = (source(SCALARS, k, (5, 7), np.dtype(np.float32)).at(coordinates(MATRIX.place, (5, 7))) for k in range(2))
SCALE = source(SCALARS, 2, (7,), np.dtype(np.float32)).at((variable("column", 7),))
MEAN = source(SCALARS, 3, (5,), np.dtype(np.float32)).at((variable("row", 5),))


def call(op: str, *operands: Scalar) -> Scalar:
    return SCALARS.call(op, FORMULAS[op], operands)


def result(number: int) -> Scalar:
    return SCALARS.argument(f"result{number}_", FLOAT)


def stored(element: Scalar, number: int = 0, place: Index = MATRIX.place) -> Stored:
    return Stored(number, "float32", element, place)


def test_what_differs_within_a_row_and_from_row_to_row() -> None:
    varies = Varies()
    assert [varies(s) for s in (X, SCALE, MEAN, result(0))] == [True, True, False, False]
    assert [varies.matrix(s) for s in (X, SCALE, call("Sub", SCALE, MEAN))] == [True, False, True]


MOVED = call("Exp", call("Sub", X, result(0)))
SHARE = call("Div", MOVED, result(1))
HELD = "held0[item][0]"
SOFTMAX = [Reduction("MAX", X, "result0_"), Reduction("SUM", MOVED, "result1_")]


def test_a_result_is_one_level_above_what_is_reduced() -> None:
    found = levels(SOFTMAX, [SHARE])
    assert [found[s] for s in (X, result(0), MOVED, result(1), SHARE)] == [0, 1, 1, 2, 2]


def test_what_a_later_pass_needs_is_held_and_its_register_is_free_again() -> None:
    """softmax: what is read, then its exponential, in one register."""
    found = schedule(SOFTMAX, [], [stored(SHARE)])
    assert [[r.name for r in one.reduced] for one in found.passes] == [["result0_"], ["result1_"], []]
    assert [one.held for one in found.passes] == [{X: HELD}, {MOVED: HELD}, {}]
    assert [one.known.get(X, one.known.get(MOVED)) for one in found.passes] == [None, HELD, HELD]
    assert found.registers == {"held0": "float"}


def test_nothing_is_held_where_rows_are_too_long() -> None:
    found = schedule(SOFTMAX, [], [stored(SHARE)], hold=False)
    assert not found.registers
    assert not any(one.held or one.known for one in found.passes)


def test_what_was_read_is_held_where_that_is_less() -> None:
    several = [call(op, X) for op in ("Exp", "Tanh", "Abs")]
    top = Reduction("MAX", call("Add", call("Add", several[0], several[1]), several[2]), "result0_")
    found = schedule([top], [], [stored(call("Sub", s, result(0)), k) for k, s in enumerate(several)])
    assert found.passes[0].held == {X: HELD}


def test_what_does_not_wait_is_in_one_pass() -> None:
    sums = [Reduction("SUM", X, "result0_"), Reduction("SUM", call("Mul", X, Z), "result1_")]
    columns = [Reduction("SUM", X, "sum0_")]
    once = stored(call("Add", result(0), result(1)), 1, MATRIX.row)
    found = schedule(sums, columns, [stored(call("Neg", X)), once])
    assert len(found.passes) == 1
    assert (found.passes[0].reduced, found.passes[0].summed) == (sums, columns)
    assert [one.number for one in found.passes[0].stores] == [0]
    assert found.once == [once]


def test_what_is_of_the_row_is_computed_once_for_it() -> None:
    """And a scale, which is of the column, is read again."""
    inverse = call("Reciprocal", call("Sqrt", MEAN))
    normal = call("Mul", X, inverse)
    total = Reduction("SUM", call("Mul", normal, SCALE), "result0_")
    found = schedule([total], [], [stored(call("Sub", call("Mul", normal, SCALE), call("Mul", result(0), inverse)))])
    assert found.passes[0].own == {inverse: "own0"}
    assert found.passes[1].known[inverse] == "own0"
    assert set(found.own) == {"own0", "own1"}
    assert SCALE not in found.passes[0].held
