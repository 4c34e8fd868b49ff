"""The normal form: equal spellings are one term, other ones are not, rewriting ends and keeps the value."""

from __future__ import annotations

from collections.abc import Callable

from onnxfuse.terms.normal.normal import closed, combine, rebuild, repeat
from onnxfuse.terms.term import Term
from tests.terms.normal.space import FLOAT, Space, b


def test_what_is_made_depends_on_nothing_but_what_it_is_made_of(t: Space) -> None:
    x, y, z = (t.input(name, 2, 3) for name in "xyz")
    inner = t.op("Mul", x, y)
    before = t.op("Mul", inner, z)
    t.op("Pow", inner, t.number(2))
    whole = closed(t.terms, inner)
    rebuild(t.terms, whole, [y, z])
    assert t.op("Mul", inner, z) is before
    assert before.args == (x, y, z)
    assert t.op("Mul", whole, z).args == (z, whole)


def test_an_unknown_rank_stops_views_and_no_algebra(t: Space) -> None:
    x, y = t.unknown("x"), t.unknown("y")
    assert t.op("Add", x, y) is t.op("Add", y, x)
    assert t.op("Sub", t.op("Add", x, y), y).shape is None
    assert t.op("Mul", t.op("Mul", x, t.number(2)), t.number(3)) is t.op("Mul", x, t.number(6))
    for view in (t.op("Unsqueeze", x, axes=(0,)), t.op("Flatten", x), t.op("Transpose", x)):
        assert view.args == (x,)
    assert t.op("Slice", x, t.ints(0), t.ints(2)).op == "Slice"
    assert t.op("Gather", x, t.ints(0)).op == "Gather"
    assert t.op("MatMul", t.op("Mul", x, t.number(2)), y) is t.op("Mul", t.op("MatMul", x, y), t.number(2))
    assert t.op("ReduceMean", x, axes=(-1,)).attr("axes") == (-1,)
    assert t.op("Softmax", x, axis=-1) is t.op("Softmax", x)
    assert t.transpose(t.transpose(x, 1, 0), 1, 0) is x


def test_a_rank_may_be_known_where_no_dimension_is(t: Space) -> None:
    x = t.terms.input("x", t.terms.fresh_shape(2), FLOAT)
    assert t.op("Transpose", t.op("Transpose", x)) is x
    assert t.op("Squeeze", t.op("Unsqueeze", x, axes=(0,)), axes=(0,)) is x


def test_rebuilding_is_making_anew(t: Space) -> None:
    x, y = t.input("x", 2, 3), t.input("y", 2, 3)
    made: list[Callable[[Term], Term]] = [
        lambda x: t.reshape(x, 3, 2),
        lambda x: t.transpose(x, 1, 0),
        lambda x: t.slice(x, 1, 0, 2),
        lambda x: repeat(t.terms, x, 0, 2),
        lambda x: t.op("Tanh", x),
        lambda x: combine(t.terms, "Add", [x, t.number(1)]),
    ]
    for function in made:
        term = function(x)
        assert rebuild(t.terms, term, term.args) is term
        assert rebuild(t.terms, term, [y, *term.args[1:]]) is function(y)
        again = rebuild(t.terms, term, [t.op("Mul", y, t.number(2)), *term.args[1:]])
        assert again is function(t.op("Mul", y, t.number(2)))
    shared = closed(t.terms, combine(t.terms, "Add", [x, t.number(1)]))
    assert rebuild(t.terms, shared, [y, shared.args[1]]) is closed(t.terms, combine(t.terms, "Add", [y, t.number(1)]))


def test_a_view_of_an_unknown_type_is_made_anew(t: Space) -> None:
    """Of what an op gives of which nothing is known, not even the type is."""
    one, other = (t.terms.raw("far.Op", [t.unknown(name)], shape=None, dtype=0) for name in "xy")
    view = t.reshape(one, b, 4, 2)
    again = rebuild(t.terms, view, [other])
    assert (again.op, again.args, again.shape, again.dtype) == ("Reshape", (other,), (b, 4, 2), 0)
    assert rebuild(t.terms, view, [t.unknown("z")]).dtype == FLOAT
