"""Merges of leading axes float up through scores and rows."""

from __future__ import annotations

from onnxfuse.terms.normal.merges import is_scores, merges_rows
from onnxfuse.terms.term import Term
from tests.terms.normal.space import BOOL, Space, b, s


def scores(t: Space) -> tuple[Term, Term]:
    """Attention scores over merged heads, [b * 4, s, s], and the same over heads apart, [b, 4, s, s]."""
    q, k = t.input("q", b, 4, s, 16), t.input("k", b, 4, 16, s)
    merged = t.op("MatMul", t.reshape(q, b * 4, s, 16), t.reshape(k, b * 4, 16, s))
    return merged, t.op("MatMul", q, k)


def test_a_merge_of_heads_floats_up_through_a_matrix_product(t: Space) -> None:
    merged, apart = scores(t)
    assert merged is t.reshape(apart, b * 4, s, s)


def test_a_dim_of_1_that_a_slice_left_is_none_of_the_dims_that_are_merged(t: Space) -> None:
    """Queries and keys that were taken from a stack, beside such as were not."""
    stack, k = t.input("stack", 3, 2, 4, 5, 16), t.input("k", 2, 4, 16, 5)
    q = t.slice(stack, 0, 1, 2)
    merged = t.op("MatMul", t.reshape(q, 8, 5, 16), t.reshape(k, 8, 16, 5))
    assert merged is t.reshape(t.op("MatMul", t.reshape(q, 2, 4, 5, 16), k), 8, 5, 5)


def test_what_one_operand_counts_by_more_axes_is_one_axis(t: Space) -> None:
    """Gradients of windows, which are counted by image, row and column, beside the values of windows."""
    apart, v = t.input("apart", 2, 3, 5, 4, 7, 16), t.input("v", 30, 4, 16, 9)
    merged = t.op("MatMul", t.reshape(apart, 120, 7, 16), t.reshape(v, 120, 16, 9))
    assert merged is t.reshape(t.op("MatMul", t.reshape(apart, 30, 4, 7, 16), v), 120, 7, 9)
    crossed = t.input("crossed", 2, 60, 16, 9)
    assert t.op("MatMul", t.reshape(v, 120, 16, 9), t.reshape(crossed, 120, 9, 16)).op == "MatMul", "no axis in common"


def test_a_merge_of_heads_floats_up_to_the_context(t: Space) -> None:
    (merged, apart), v = scores(t), t.input("v", b, 4, s, 16)
    bias = t.input("bias", b, 4, s, s)
    masked = t.input("masked", b, 4, s, s, dtype=BOOL)
    low = t.number(-1e9)

    def attention(x: Term, bias: Term, masked: Term, v: Term) -> Term:
        x = t.op("Add", t.op("Mul", x, t.number(0.25)), bias)
        return t.op("MatMul", t.op("Softmax", t.op("Where", masked, low, x), axis=-1), v)

    flat = attention(merged, *(t.reshape(x, b * 4, *(x.shape or ())[2:]) for x in (bias, masked, v)))
    assert flat is t.reshape(attention(apart, bias, masked, v), b * 4, s, 16)


def test_scores_are_products_with_score_arithmetic_above(t: Space) -> None:
    x, y = t.input("x", s, 8), t.input("y", 8, s)
    product = t.op("MatMul", x, y)
    assert is_scores(product)
    assert is_scores(t.op("Softmax", t.op("Add", product, t.number(1))))
    assert not is_scores(x)
    assert not is_scores(t.op("Tanh", t.op("Erf", product)))


def test_rows_are_merged_where_the_last_axis_is_kept(t: Space) -> None:
    x = t.input("x", b, s, 8)
    assert merges_rows(t.reshape(x, b * s, 8))
    assert not merges_rows(t.reshape(x, b, s * 8))
    assert not merges_rows(t.reshape(x, b, s, 2, 4))
    assert not merges_rows(t.reshape(t.input("one", 1, s, 8), s, 8)), "a dim of 1 comes and goes"


def test_a_sum_of_rows_that_were_merged_alike_is_merged(t: Space) -> None:
    x, y, bias = t.input("x", b, s, 8), t.input("y", b, s, 8), t.input("bias", 8)
    merged = [t.reshape(term, b * s, 8) for term in (x, y)]
    assert t.op("Add", merged[0], bias) is t.reshape(t.op("Add", x, bias), b * s, 8)
    assert t.op("Add", t.op("Add", *merged), bias) is t.reshape(t.op("Add", t.op("Add", x, y), bias), b * s, 8)
    other = t.reshape(t.input("other", s, b, 8), b * s, 8)
    assert t.op("Add", merged[0], other).op == "Add", "merged in another order"
    assert t.op("Mul", merged[0], bias).op == "Mul"
