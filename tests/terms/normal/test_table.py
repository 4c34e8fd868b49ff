"""Making a term: laws, folding, and the scalar factor that leaves what it may."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from onnxfuse.terms.fold import value_of
from onnxfuse.terms.normal import table
from onnxfuse.terms.normal.normal import expand
from onnxfuse.terms.normal.table import hoisted, scaled, split_scalar
from onnxfuse.terms.term import SMALL, Term
from tests.terms.normal.space import FLOAT, Space


def test_a_scalar_leaves_every_view_and_matrix_product(t: Space) -> None:
    x, y, two = t.input("x", 1, 2, 6), t.input("y", 1, 6, 2), t.number(2)
    views: list[Callable[[Term], Term]] = [
        lambda x: t.reshape(x, 3, 4),
        lambda x: t.transpose(x, 2, 0, 1),
        lambda x: expand(t.terms, x, (5, 2, 6)),
        lambda x: t.slice(x, 2, 1, 4),
        lambda x: t.op("MatMul", x, y),
        lambda x: t.op("MatMul", y, x),
    ]
    for view in views:
        assert view(t.op("Mul", x, two)) is t.op("Mul", view(x), two)
    assert t.op("Reciprocal", t.op("Mul", x, two)) is t.op("Mul", t.op("Reciprocal", x), t.number(0.5))


def test_the_half_of_a_gelu_stays_inside(t: Space) -> None:
    x = t.input("x", 2, 6)
    gate = t.op("Add", t.op("Erf", t.op("Mul", x, t.number(0.5**0.5))), t.number(1))
    gelu = t.op("Mul", t.op("Mul", x, t.number(0.5)), gate)
    view = t.reshape(gelu, 3, 4)
    assert view.op == "Reshape"
    assert view.args == (gelu,)
    product = t.op("MatMul", gelu, t.input("w", 6, 3))
    assert product.op == "MatMul"
    assert product.args[0] is gelu


def test_a_factor_is_split_from_a_product_of_two_alone(t: Space) -> None:
    x, y = t.input("x", 2, 3), t.input("y", 2, 3)
    twice = scaled(t.terms, x, 2.0)
    assert split_scalar(twice) == (x, 2.0)
    assert hoisted(twice) == (x, 2.0)
    assert hoisted(x) == (x, 1.0)
    assert scaled(t.terms, x, 1.0) is x
    assert scaled(t.terms, twice, 0.5) is x
    assert split_scalar(t.op("Mul", t.op("Mul", x, y), t.number(2))) is None
    assert split_scalar(t.op("Mul", x, y)) is None
    assert split_scalar(t.op("Mul", x, t.number(2, rank=3))) is None, "the number widens x"


def test_small_constants_are_folded_and_large_ones_kept(t: Space) -> None:
    small, large = (t.terms.constant(np.full(n, 2.0), FLOAT) for n in (4, SMALL + 1))
    assert t.op("Sqrt", small).op == "Constant"
    kept = t.op("Sqrt", large)
    assert kept.op == "Sqrt"
    assert kept.constant
    assert value_of(kept)[0] == 2**0.5
    assert t.op("Gelu", small).op == "Gelu", "an op that nobody folds"


def test_what_has_no_value_is_not_folded(t: Space) -> None:
    x = t.terms.constant(np.arange(4.0), FLOAT)
    assert not t.op("GatherND", x, t.ints(7)).constant


def test_a_law_is_tried_for_its_ops_alone_in_the_order_of_the_laws(t: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "LAWS", [])
    monkeypatch.setattr(table, "_OF_OP", {})
    x, y = t.input("x", 2), t.input("y", 2)
    table.law("Tan Sin", "Tan(x) = y")(lambda a: None if a.args[0] is x else y)
    table.law("Tan", "Tan(x) = x")(lambda a: a.args[0])
    assert [law.ops for law in table.LAWS] == [("Tan", "Sin"), ("Tan",)]
    z = t.input("z", 2)
    assert table.make(t.terms, "Tan", [z], {}) is y
    assert table.make(t.terms, "Tan", [x], {}) is x
    assert table.make(t.terms, "Sin", [x], {}).op == "Sin"
    assert table.make(t.terms, "Cos", [z], {}).op == "Cos"
