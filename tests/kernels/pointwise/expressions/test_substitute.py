"""Other indices in place of loop variables: the same places, in normal form."""

from __future__ import annotations

import numpy as np

from onnxfuse.kernels.pointwise.expressions.elementwise import FORMULAS
from onnxfuse.kernels.pointwise.expressions.index import (
    LANE,
    Atom,
    Index,
    Quotient,
    Remainder,
    Variable,
    coordinates,
    flat,
    total,
    variable,
)
from onnxfuse.kernels.pointwise.expressions.scalars import FLOAT, Scalars
from onnxfuse.kernels.pointwise.expressions.substitute import Substitution

SHAPE = (3, 8, 12)
LANES = total([(variable("column", 3), 4), (variable("v", 4, LANE), 1)])


def at(x: Index, where: dict[str, int]) -> int:
    """The number that an index is."""

    def of(atom: Atom) -> int:
        match atom:
            case Variable():
                return where[atom.name]
            case Quotient():
                return at(atom.index, where) // atom.divisor
            case Remainder():
                return at(atom.index, where) % atom.divisor
        raise AssertionError(atom)

    return x.const + sum(c * of(atom) for atom, c in x.terms.items())


def test_the_place_is_that_of_the_column_that_lanes_make() -> None:
    """Of an array whose axes are taken apart and put together in another order."""
    row, column = variable("row", 24), variable("column", 12)
    place = total([(row, 12), (column, 1)])
    apart = coordinates(place, (6, 8, 6))
    turned = flat((apart[2], apart[0], apart[1]), (6, 6, 8))
    moved = Substitution(Scalars(), {"column": LANES}).index(turned)
    for r in range(24):
        for c in range(12):
            where = {"row": r, "column": c // 4, "v": c % 4}
            assert at(moved, where) == at(turned, {"row": r, "column": c}), (r, c)


def test_what_follows_each_other_is_one_sum_again() -> None:
    place = flat((variable("row", 24), variable("column", 12)), (24, 12))
    moved = Substitution(Scalars(), {"column": LANES}).index(place)
    assert moved == total([(variable("row", 24), 12), (LANES, 1)])
    assert moved.depends & LANE


def test_elements_are_those_at_the_other_places() -> None:
    scalars = Scalars()
    x = scalars.load(0, FLOAT, flat((variable("row", 24), variable("column", 12)), (24, 12)), 288, ())
    scale = scalars.load(1, FLOAT, variable("row", 24), 24, ())
    y = scalars.call("Mul", FORMULAS["Mul"], [x, scale])
    z = scalars.call("Add", FORMULAS["Add"], [y, scalars.argument("result", FLOAT)])
    held = scalars.argument("held[v]", FLOAT, LANE)
    made = Substitution(scalars, {"column": LANES}, lambda name: held if name == "result" else x).scalar(z)
    moved, own = made.args
    assert (own, made.payload, made.depends & LANE) == (held, z.payload, LANE)
    assert moved.args[1] is scale
    assert moved.args[0].payload[1] == total([(variable("row", 24), 12), (LANES, 1)])
    again = Substitution(scalars, {})
    assert again.scalar(z) is z


def test_a_long_chain_is_no_deep_recursion() -> None:
    scalars = Scalars()
    x = scalars.load(0, FLOAT, variable("column", 12), 12, ())
    for _ in range(5000):
        x = scalars.call("Neg", FORMULAS["Neg"], [x])
    assert Substitution(scalars, {"column": LANES}).scalar(x).depends & LANE


def test_a_table_and_a_position_move_too() -> None:
    scalars = Scalars()
    column = variable("column", 12)
    table = scalars.table(tuple(float(np.sin(k)) for k in range(12)), FLOAT, column, ())
    moved = Substitution(scalars, {"column": LANES})
    assert moved.scalar(table).payload[1] == LANES
    assert moved.scalar(scalars.position(column)).payload == LANES
