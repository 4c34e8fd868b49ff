"""Values that new nodes can read: by term, place and element type."""

from __future__ import annotations

from onnxfuse.rewriting.available import Available
from tests.terms.normal.space import BOOL, FLOAT, HALF, INT64, Space, b, s


def everything(name: str) -> bool:
    return True


def test_a_value_is_found_before_the_place_that_wants_it_in_its_type() -> None:
    t = Space()
    x = t.op("Tanh", t.input("x", 2, 3))
    known = Available(everything)
    known.add(x, 3, "late", FLOAT)
    known.add(x, 5, "half", HALF)
    assert known.find(x, FLOAT, 3) is None
    assert known.find(x, FLOAT, 3.5) == ("late", FLOAT)
    assert known.find(x, HALF, 4) == ("late", FLOAT), "of another type if there is none of this"
    assert known.find(x, HALF, 6) == ("half", HALF)
    assert known.find(x, INT64, 6) == ("late", FLOAT), "what is no real number has one type"
    assert known.find(t.input("y", 2), FLOAT, 9) is None
    assert (known.kind("half"), known.kind("nobody")) == (HALF, None)


def test_a_value_that_is_not_usable_is_passed_over() -> None:
    t = Space()
    x, gone = t.input("x", 2, 3), {"a"}
    known = Available(lambda name: name not in gone)
    known.add(x, 0, "a", FLOAT)
    known.add(x, 1, "b", FLOAT)
    assert known.find(x, FLOAT, 9) == ("b", FLOAT)
    gone.clear()
    assert known.find(x, FLOAT, 9) == ("a", FLOAT)


def test_what_is_added_over_others_is_theirs_when_it_is_kept() -> None:
    t = Space()
    x = t.input("x", 2, 3)
    under = Available(everything)
    under.add(x, 0, "a", FLOAT)
    dropped, kept = under.over(), under.over()
    for one in (dropped, kept):
        one.add(t.reshape(x, 6), 2, "b", FLOAT)
        one.typed("mask", BOOL)
        assert one.find(x, FLOAT, 1) == ("a", FLOAT)
        assert one.kind("mask") == BOOL
    assert under.find(t.reshape(x, 6), FLOAT, 9) is None
    assert list(under.reshapes(x)) == []
    kept.keep()
    assert under.find(t.reshape(x, 6), FLOAT, 9) == ("b", FLOAT)
    assert list(under.reshapes(x)) == [t.reshape(x, 6)]
    assert under.kind("mask") == BOOL


def test_dimensions_are_those_of_values_that_are_there() -> None:
    t = Space()
    known = Available(everything)
    known.add(t.input("x", b, s, 8), 2, "x", FLOAT)
    assert known.parts([b], 2) is None
    assert known.parts([b], 2.5) is not None
    assert known.parts([b * 7], 2.5) is not None
    assert known.parts([t.terms.fresh_dim()], 9) is None
