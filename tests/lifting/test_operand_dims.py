"""Dimensions of operands that an op needs to be equal, though its result does not show it."""

from __future__ import annotations

import pytest

from onnxfuse.lifting.operand_dims import spanned, together
from onnxfuse.model.dims import symbol
from onnxfuse.terms.term import Term
from tests.terms.normal.space import FLOAT, Space, b, h

q, k = symbol("q"), symbol("k")


@pytest.fixture
def t() -> Space:
    return Space()


def attention(t: Space, *others: Term) -> Term:
    inputs = [
        t.input("Q", b, h, q, 8),
        t.input("K", symbol("bk"), h, k, 8),
        t.input("V", symbol("bv"), h, symbol("kv"), 8),
    ]
    return t.terms.raw("Attention", [*inputs, *others], shape=None, dtype=FLOAT)


def test_keys_and_values_of_attention_are_as_many_in_one_batch(t: Space) -> None:
    assert list(together(attention(t), 23)) == [(b, symbol("bk")), (symbol("bk"), symbol("bv")), (k, symbol("kv"))]


def test_a_mask_has_the_keys_and_the_queries(t: Space) -> None:
    mask = t.input("M", symbol("mb"), 1, symbol("mq"), symbol("mk"))
    assert list(together(attention(t, mask), 23))[3:] == [
        (symbol("mk"), k),
        (symbol("mq"), q),
        (1, 1),
        (symbol("mb"), b),
    ]
    assert list(together(attention(t, mask), 24))[3:] == [(symbol("mq"), q), (1, 1), (symbol("mb"), b)], (
        "it may be shorter"
    )
    row = t.input("row", symbol("mk"))
    assert list(together(attention(t, row), 23))[3:] == [(symbol("mk"), k)]


def test_the_past_adds_to_the_keys(t: Space) -> None:
    mask, past = t.input("M", q, symbol("mk")), t.input("P", b, h, symbol("past"), 8)
    assert (symbol("mk"), symbol("past") + k) in list(together(attention(t, mask, past, past), 23))
    assert len(list(together(attention(t, mask, t.unknown("any")), 23))) == 3


def test_a_rotation_has_a_row_for_each_position(t: Space) -> None:
    x, table = t.input("x", b, h, q, 8), t.input("cos", symbol("cb"), symbol("rows"), 4)
    rotary = t.terms.raw("RotaryEmbedding", [x, table, table], shape=None, dtype=FLOAT)
    assert list(together(rotary, 23)) == [(b, symbol("cb")), (q, symbol("rows"))]
    stored = t.terms.raw("RotaryEmbedding", [x, t.input("table", 512, 4)], shape=None, dtype=FLOAT)
    assert list(together(stored, 23)) == []


def test_of_other_ops_and_unknown_ranks_nothing_is_said(t: Space) -> None:
    assert list(together(t.op("Tanh", t.input("x", b)), 23)) == []
    unknown = [t.unknown(name) for name in "xyz"]
    assert list(together(t.terms.raw("Attention", unknown, shape=None, dtype=FLOAT), 23)) == []


def test_products_have_batches_that_fit(t: Space) -> None:
    x, y = t.input("x", symbol("batch"), h, q, 8), t.input("y", h, 8, k)
    product = t.terms.raw("MatMul", [x, y], shape=None, dtype=FLOAT)
    assert list(together(product, 23)) == [(8, 8), (h, h)]
    z = t.input("z", b, 3, 8, k)
    product = t.terms.raw("MatMul", [x, z], shape=None, dtype=FLOAT)
    assert list(together(product, 23)) == [(8, 8), (h, 3), (symbol("batch"), b)]


def test_a_convolution_has_no_fewer_positions_than_its_kernel_unless_it_pads(t: Space) -> None:
    x, w = t.input("x", b, 3, q, k), t.input("w", 8, 3, 5, 3)
    attrs = {"dilations": (2, 1), "pads": (1, 0, 1, 2)}
    convolution = t.terms.raw("Conv", [x, w], tuple(sorted(attrs.items())), shape=None, dtype=FLOAT)
    assert list(spanned(convolution)) == [(q, 7), (k, 1)]
    same = t.terms.raw("Conv", [x, w], (("auto_pad", "SAME_UPPER"),), shape=None, dtype=FLOAT)
    pool = t.terms.raw("MaxPool", [x], (("kernel_shape", (5, 3)),), shape=None, dtype=FLOAT)
    assert [*spanned(same), *spanned(pool)] == []
