"""Which keys a mask lets a query see: causal ones, windows, and what merely looks like one."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.model.dims import minimum, symbol
from onnxfuse.terms.analysis.masks import apart, blended, hides, is_causal, window
from onnxfuse.terms.term import Term
from tests.terms.normal.space import BOOL, FLOAT, HALF, INT64, Space

n, m = symbol("n"), symbol("m")


@pytest.fixture
def t() -> Space:
    return Space()


def seen(queries: int, keys: int, first: int | None, last: int | None) -> np.ndarray:
    """True where first <= j - i <= last."""
    by = np.arange(keys) - np.arange(queries)[:, None]
    return (
        np.ones((queries, keys), bool)
        & (by >= (first if first is not None else -keys - queries))
        & (by <= (last if last is not None else keys + queries))
    )


def booleans(t: Space, array: np.ndarray) -> Term:
    return t.terms.constant(array, BOOL)


def added(t: Space, array: np.ndarray, low: float = -np.inf, dtype: int = FLOAT) -> Term:
    return t.terms.constant(np.where(array, 0.0, low), dtype)


def test_a_triangle_is_causal_by_its_offset(t: Space) -> None:
    square, longer = seen(4, 4, None, 0), seen(4, 7, None, 3)
    for make in (booleans, added):
        assert is_causal(make(t, square), 4, 4, 0)
        assert not is_causal(make(t, square), 4, 4, 1)
        assert is_causal(make(t, longer), 4, 7, 3)
        assert not is_causal(make(t, ~square), 4, 4, 0)
        assert not is_causal(make(t, seen(4, 4, -1, 0)), 4, 4, 0)


@pytest.mark.parametrize(("low", "causal"), [(-np.inf, True), (-1e9, True), (-65504, False), (-1, False)])
def test_what_is_added_must_take_a_score_away(t: Space, low: float, causal: bool) -> None:
    assert is_causal(added(t, seen(4, 4, None, 0), low), 4, 4, 0) == causal


def test_a_mask_must_not_broadcast(t: Space) -> None:
    assert not is_causal(booleans(t, seen(1, 4, None, 0)), 4, 4, 0)
    assert not is_causal(booleans(t, seen(4, 4, None, 0)), 4, n, 0)


@pytest.mark.parametrize(
    ("first", "last", "offset", "sides"),
    [
        (-2, 1, 0, (2, 1)),
        (-2, None, 0, (2, -1)),
        (None, 1, 0, (-1, 1)),
        (None, 0, 0, (-1, 0)),
        (1, 5, 3, (2, 2)),
        (1, None, 0, None),  # not even the query's own position
        (None, -1, 0, None),
    ],
)
def test_a_window_is_told_by_what_lies_left_and_right(
    t: Space, first: int | None, last: int | None, offset: int, sides: tuple[int, int] | None
) -> None:
    assert window(booleans(t, seen(9, 12, first, last)), 9, 12, offset) == sides


def test_what_is_cut_to_the_keys_has_them_in_every_run_that_adds(t: Space) -> None:
    table = t.op("Range", t.terms.number(0, INT64), t.terms.number(64, INT64), t.terms.number(1, INT64))
    past = t.op("GreaterOrEqual", t.op("Unsqueeze", table, axes=(1,)), table)
    cut = t.slice(t.slice(past, 0, 0, n), 1, 0, n)
    assert cut.shape == (minimum(64, n), minimum(64, n))
    assert is_causal(cut, n, n, 0)
    assert not is_causal(cut, m, n, 0)


def test_only_infinity_hides_what_is_added_besides(t: Space) -> None:
    assert hides(added(t, seen(4, 4, None, 0)))
    assert not hides(added(t, seen(4, 4, None, 0), -1e9))
    assert not hides(added(t, np.ones((4, 4), bool)))
    assert not hides(t.input("bias", 4, 4))


def test_a_mask_comes_apart_into_diagonals_and_the_rest(t: Space) -> None:
    causal, padding, other = (
        booleans(t, seen(4, 4, None, 0)),
        t.input("p", 2, 1, 4, 4, dtype=BOOL),
        t.input("q", 4, 4, dtype=BOOL),
    )
    both = t.op("And", t.op("And", padding, causal), other)
    parts = apart(t.terms, both)
    assert parts is not None
    assert parts[0] is causal
    assert parts[1] is t.op("And", padding, other)
    assert apart(t.terms, causal) is None
    assert apart(t.terms, t.op("And", padding, other)) is None


def test_a_blend_fills_where_it_keeps_nothing(t: Space) -> None:
    """x * keep + fill: (1 - keep) * low, however it is written."""
    keep = seen(4, 4, None, 0).astype(float)
    kept = t.terms.constant(keep, FLOAT)
    assert blended(kept, t.terms.constant((1 - keep) * -5, FLOAT)) == -5
    assert blended(kept, t.terms.constant(keep * -5, FLOAT)) is None
    assert blended(t.terms.constant(keep * 2, FLOAT), t.terms.constant((1 - keep) * -5, FLOAT)) is None
    uneven = (1 - keep) * -5
    uneven[0, 3] = -6
    assert blended(kept, t.terms.constant(uneven, FLOAT)) is None
    cast = t.op("Cast", t.input("mask", n, n, dtype=BOOL), to=HALF)
    fill = t.op("Mul", t.op("Sub", t.number(1), cast), t.number(-1e4))
    assert blended(cast, fill) == -1e4
    assert blended(cast, t.op("Mul", cast, t.number(-1e4))) is None
    assert blended(cast, t.op("Mul", t.input("y", n, n), t.number(-1e4))) is None
    assert blended(t.input("x", n, n), t.number(-1e4)) is None


def test_a_blend_of_a_condition_and_its_negation(t: Space) -> None:
    mask, other = (t.input(name, n, n, dtype=BOOL) for name in ("mask", "other"))
    keep, drop = t.op("Cast", mask, to=FLOAT), t.op("Cast", t.op("Not", mask), to=FLOAT)
    assert blended(keep, t.op("Mul", drop, t.number(-1e9))) == -1e9
    assert blended(drop, t.op("Mul", keep, t.number(-1e9))) == -1e9
    assert blended(drop, t.op("Mul", drop, t.number(-1e9))) is None
    assert blended(keep, t.op("Mul", t.op("Cast", t.op("Not", other), to=FLOAT), t.number(-1e9))) is None


def test_a_mask_of_ids_is_blended_in_any_spelling() -> None:
    """ids != 0 as SelectV2 and as casts, seen in the shape of scores before or behind the arithmetic."""
    t = Space()
    ids = t.input("ids", n, n, dtype=INT64)
    padding = t.op("Equal", ids, t.terms.constant(np.array(0), INT64))
    chosen = t.op("Where", padding, t.number(0), t.number(1))
    cast = t.op("Cast", t.op("Not", padding), to=FLOAT)
    low = t.number(-1e9)

    def seen(x: Term) -> Term:
        return t.reshape(x, n, 1, 1, n)

    for keep in (chosen, cast):
        for fill in (
            t.op("Mul", t.op("Sub", t.number(1), keep), low),
            t.op("Where", padding, low, t.number(0)),
            t.op("Mul", t.op("Cast", padding, to=FLOAT), low),
        ):
            assert blended(keep, fill) == -1e9
            assert blended(seen(keep), seen(fill)) == -1e9
            assert blended(seen(keep), fill) is None  # each of the other's rows
        assert blended(seen(keep), t.op("Mul", t.op("Sub", t.number(1), seen(keep)), low)) == -1e9
        assert blended(keep, t.op("Where", padding, t.number(0), low)) is None
        assert blended(seen(keep), t.op("Where", seen(padding), t.number(0), low)) is None
    turned = t.reshape(t.transpose(chosen, 1, 0), n, 1, 1, n)
    assert blended(seen(chosen), t.op("Mul", t.op("Sub", t.number(1), turned), low)) is None
