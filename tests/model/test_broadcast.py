"""Broadcasting of symbolic dimensions."""

from __future__ import annotations

import pytest

from onnxfuse.model.broadcast import broadcast, broadcast_dim, broadcast_of
from onnxfuse.model.dims import Shape, minimum, symbol, tail, viewed

a, b, c, d = map(symbol, "abcd")


@pytest.mark.parametrize(
    ("shapes", "wanted"),
    [
        ([], ()),
        ([()], ()),
        ([(), (2, 3)], (2, 3)),
        ([(2, 1), (1, 3)], (2, 3)),
        ([(4,), (2, 1, 1)], (2, 1, 4)),
        ([(a, 1), (1, b)], (a, b)),
        ([(a, b), (b,)], (a, b)),
        ([(a,), (7,)], (7,)),
        ([(a, 0), (1, 1)], (a, 0)),
    ],
)
def test_broadcasting_is_that_of_numpy(shapes: list[Shape], wanted: Shape) -> None:
    assert broadcast(*shapes) == wanted
    assert broadcast(*shapes[::-1]) == wanted


def test_two_unknowns_broadcast_to_one_symbol_that_names_both() -> None:
    both = broadcast_dim(a, b)
    assert both == broadcast_dim(b, a)
    assert both not in (a, b)
    assert broadcast_dim(both, a) == both
    assert broadcast_dim(b, both) == both
    assert broadcast_dim(broadcast_dim(a, b), c) == broadcast_dim(a, broadcast_dim(c, b))
    assert broadcast_dim(minimum(a, b), b) == b


def test_broadcasts_of_other_dimensions_have_other_names() -> None:
    """A multiple of a broadcast, and a view of one, are each one dimension whose name holds several."""
    both = broadcast_dim(a, b)
    assert broadcast_dim(both * c, d) != broadcast_dim(both * (c + 1), d)
    assert broadcast_of(broadcast_dim(both * c, d)) == [both * c, d]
    first = broadcast_dim(viewed(a, b), viewed(c, d))
    assert first != broadcast_dim(viewed(a, d), viewed(c, b))
    assert broadcast_dim(first, viewed(a, b)) == first


def test_what_is_cut_to_a_size_meets_it() -> None:
    assert broadcast_dim(tail(a, b), a) == a
    assert broadcast_dim(tail(a, b), b) != b  # none of a are all of b
