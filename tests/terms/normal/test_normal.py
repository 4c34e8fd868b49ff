"""The normal form: equal spellings are one term, other ones are not, rewriting ends and keeps the value."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from onnxfuse.terms.normal.normal import closed, combine, expand, rebuild, repeat
from onnxfuse.terms.term import Term
from tests.terms.normal.space import BOOL, FLOAT, HALF, INT64, Space, b, d, h, s

# ------------------------------------------------------------------------------------------------ algebra


@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_sums_and_products_are_flat_and_commute(t: Space, op: str) -> None:
    x, y, z = (t.input(name, 2, 3) for name in "xyz")
    assert t.op(op, x, y) is t.op(op, y, x)
    assert t.op(op, t.op(op, x, y), z) is t.op(op, x, t.op(op, z, y))
    assert len(t.op(op, t.op(op, x, y), z).args) == 3


@pytest.mark.parametrize("op", ["And", "Or", "Equal"])
def test_logic_commutes(t: Space, op: str) -> None:
    x, y = (t.input(name, 4, dtype=BOOL) for name in "xy")
    assert t.op(op, x, y) is t.op(op, y, x)


def test_constants_of_a_chain_are_collected(t: Space) -> None:
    x = t.input("x", 2, 3)
    assert t.op("Mul", t.op("Mul", x, t.number(2)), t.number(3)) is t.op("Mul", t.number(6), x)
    assert t.op("Add", t.op("Add", x, t.number(2)), t.number(-2)) is x
    assert t.op("Mul", x, t.number(1)) is x


def test_a_chain_that_others_use_stays_closed(t: Space) -> None:
    x, y, z = (t.input(name, 2, 3) for name in "xyz")
    inner = t.op("Add", x, y)
    inner = closed(t.terms, inner)
    assert t.op("Add", inner, z).args == tuple(sorted((inner, z), key=lambda a: a.id))


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


def test_what_is_closed_is_so_in_another_shape_or_order(t: Space) -> None:
    x, y = t.input("x", 2, 6), t.input("y", 2, 6)
    inner = t.op("Add", x, y)
    whole = closed(t.terms, inner)
    assert whole is not inner
    assert closed(t.terms, whole) is whole
    assert closed(t.terms, t.reshape(inner, 2, 2, 3)) is t.reshape(whole, 2, 2, 3)
    assert closed(t.terms, t.transpose(inner, 1, 0)) is t.transpose(whole, 1, 0)
    assert closed(t.terms, t.slice(inner, 1, 0, 2)) is t.slice(inner, 1, 0, 2)  # not all of it
    assert closed(t.terms, t.op("Tanh", inner)) is t.op("Tanh", inner)


def test_a_number_keeps_a_rank_that_nothing_else_has(t: Space) -> None:
    x = t.input("x", 3)
    assert t.op("Mul", x, t.number(2, rank=3)).shape == (1, 1, 3)
    assert t.op("Mul", x, t.number(2, rank=1)) is t.op("Mul", x, t.number(2))


def test_differences_and_quotients_are_sums_and_products(t: Space) -> None:
    x, y = t.input("x", 2, 3), t.input("y", 2, 3)
    assert t.op("Sub", x, y) is t.op("Add", x, t.op("Mul", y, t.number(-1)))
    assert t.op("Sub", x, y) is t.op("Add", t.op("Neg", y), x)
    assert t.op("Sub", x, y) is not t.op("Sub", y, x)
    assert t.op("Div", x, y) is t.op("Mul", x, t.op("Reciprocal", y))
    assert t.op("Div", x, t.number(4)) is t.op("Mul", x, t.number(0.25))
    assert t.op("Div", x, t.op("Mul", y, t.number(4))) is t.op("Mul", t.op("Div", x, y), t.number(0.25))
    assert t.op("Neg", t.op("Neg", x)) is x


def test_integers_keep_their_division(t: Space) -> None:
    x, two = t.input("x", 3, dtype=INT64), t.ints(2)
    assert t.op("Div", x, two).op == "Div"
    assert t.op("Sub", x, two).op == "Sub"


def test_powers_are_products_roots_and_reciprocals(t: Space) -> None:
    x = t.input("x", 2, 3)

    def power(exponent: float) -> Term:
        return t.op("Pow", x, t.number(exponent))

    assert power(1) is x
    assert power(2) is t.op("Mul", x, x)
    assert power(3) is t.op("Mul", x, t.op("Mul", x, x))
    assert power(-1) is t.op("Reciprocal", x)
    assert power(-2) is t.op("Reciprocal", power(2))
    assert t.op("Reciprocal", t.op("Reciprocal", x)) is x
    assert power(2.5).op == "Pow"


def test_powers_are_roots_only_of_what_is_never_negative(t: Space) -> None:
    """Of -inf, the power is infinite and the root is no number."""
    x = t.input("x", 2, 3)
    y, half = t.op("Exp", x), t.number(0.5)
    assert t.op("Pow", y, half) is t.op("Sqrt", y)
    assert t.op("Pow", y, t.number(-0.5)) is t.op("Reciprocal", t.op("Sqrt", y)) is t.op("Sqrt", t.op("Reciprocal", y))
    assert t.op("Pow", x, half).op == "Pow"
    assert t.op("Sqrt", t.op("Reciprocal", x)).op == "Sqrt"


def test_a_square_of_a_product_stays_a_square(t: Space) -> None:
    x, y = t.input("x", 2, 3), t.input("y", 2, 3)
    inner = t.op("Mul", x, y)
    whole = closed(t.terms, inner)
    assert t.op("Pow", inner, t.number(2)).args == (whole, whole)
    assert t.op("Pow", inner, t.number(2)) is t.op("Pow", whole, t.number(2)) is t.op("Mul", whole, whole)


@pytest.mark.parametrize(("dtype", "factor"), [(FLOAT, 1 / 768), (HALF, float(np.float16(1 / 768)))])
def test_a_sum_over_its_count_is_a_mean(t: Space, dtype: int, factor: float) -> None:
    x = t.input("x", b, s, 768, dtype=dtype)
    total = t.op("ReduceSum", x, axes=(-1,))
    mean = t.op("ReduceMean", x, axes=(-1,))
    assert t.op("Mul", total, t.number(factor, dtype=dtype)) is mean
    assert t.op("Mul", total, t.number(1 / 767, dtype=dtype)) is not mean


def test_casts_between_real_types_vanish_and_others_stay(t: Space) -> None:
    x = t.input("x", 2, 3)
    assert t.op("Cast", x, to=HALF) is x
    assert t.op("Cast", x, to=INT64).op == "Cast"
    rounded = t.op("Cast", t.number(0.1), to=HALF)
    assert rounded.scalar == float(np.float16(0.1))


def test_names_for_one_meaning(t: Space) -> None:
    x, y, absent = t.input("x", 2, 3), t.input("y", 2, 3), t.terms.absent
    relu = t.op("Relu", x)
    assert t.op("Max", x, t.number(0)) is relu
    assert t.op("Max", t.number(0), x) is relu
    assert t.op("Clip", x, t.number(0), t.number(math.inf)) is relu
    assert t.op("Clip", x, t.number(0), absent).op == "Clip"  # its largest result is finite
    assert t.op("Clip", x, t.number(0), t.number(6)).op == "Clip"
    assert t.op("Less", x, y) is t.op("Greater", y, x)
    assert t.op("LessOrEqual", x, y) is t.op("GreaterOrEqual", y, x)
    condition = t.op("Greater", x, y)
    assert t.op("Not", t.op("Not", condition)) is condition
    assert t.op("Where", t.op("Not", condition), x, y) is t.op("Where", condition, y, x)


def test_reductions_count_from_the_end_and_keep_dims(t: Space) -> None:
    x = t.input("x", b, s, 8)
    assert t.op("ReduceMean", x, axes=(2,)) is t.op("ReduceMean", x, axes=(-1,), keepdims=1)
    dropped = t.op("ReduceMean", x, axes=(-1,), keepdims=0)
    assert dropped is t.reshape(t.op("ReduceMean", x, axes=(-1,)), b, s)
    assert t.op("ReduceSumSquare", x, axes=(-1,)) is t.op("ReduceSum", t.op("Mul", x, x), axes=(-1,))
    assert t.op("ReduceL2", x, axes=(2,)) is t.op("Sqrt", t.op("ReduceSumSquare", x, axes=(2,)))
    assert t.op("ReduceSum", x, noop_with_empty_axes=1) is x
    assert t.op("ReduceSum", x) is t.op("ReduceSum", x, axes=(0, 1, 2))
    image = t.input("image", b, 3, 5, 5)
    assert t.op("GlobalAveragePool", image) is t.op("ReduceMean", image, axes=(2, 3))


# ------------------------------------------------------------------------------------------------ scalars


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


# ------------------------------------------------------------------------------------------------ views


def test_reshapes_have_one_spelling_and_cancel(t: Space) -> None:
    x = t.input("x", b, s, 8)
    assert t.op("Unsqueeze", x, axes=(1,)) is t.reshape(x, b, 1, s, 8)
    assert t.op("Squeeze", t.op("Unsqueeze", x, axes=(1,)), axes=(1,)) is x
    assert t.op("Flatten", x, axis=1) is t.reshape(x, b, s * 8)
    assert t.reshape(t.reshape(x, b, s, 2, 4), b * s, 8) is t.reshape(x, b * s, 8)
    assert t.reshape(t.reshape(x, b * s * 8), b, s, 8) is x
    assert t.op("Reshape", x, t.ints(0, 0, 2, 4)) is t.reshape(x, b, s, 2, 4)
    assert t.op("Reshape", x, t.ints(0, -1)) is t.reshape(x, b, s * 8)


def test_transposes_compose_and_cancel(t: Space) -> None:
    x = t.input("x", b, s, h, d)
    assert t.transpose(t.transpose(x, 0, 2, 1, 3), 0, 2, 1, 3) is x
    assert t.transpose(t.transpose(x, 0, 2, 1, 3), 0, 1, 3, 2) is t.transpose(x, 0, 2, 3, 1)
    assert t.op("Transpose", x) is t.transpose(x, 3, 2, 1, 0)
    one = t.input("one", b, 1, s)
    assert t.transpose(one, 1, 0, 2) is t.reshape(one, 1, b, s)


def test_a_transpose_moves_inside_what_it_commutes_with(t: Space) -> None:
    x = t.input("x", 2, 5, 3, 4)
    assert t.transpose(t.slice(x, 1, 1, 3), 0, 2, 1, 3) is t.slice(t.transpose(x, 0, 2, 1, 3), 2, 1, 3)
    y = t.input("y", 2, 5, 1, 4)  # only a dim of 1 moves
    assert t.transpose(t.slice(y, 1, 1, 3), 0, 2, 1, 3) is t.slice(t.reshape(y, 2, 1, 5, 4), 2, 1, 3)
    merged = t.transpose(t.reshape(x, 2, 5, 12), 0, 2, 1)
    assert merged is t.reshape(t.transpose(x, 0, 2, 3, 1), 2, 12, 5)


def test_slices_compose_and_cancel(t: Space) -> None:
    x = t.input("x", b, 12, 8)
    assert t.slice(x, 1, 0, 12) is x
    assert t.slice(x, 0, 0, b) is x
    assert t.slice(x, 1, -4, 2**63 - 1) is t.slice(x, 1, 8, 12)
    assert t.slice(t.slice(x, 1, 2, 10), 1, 1, 3) is t.slice(x, 1, 3, 5)
    assert t.slice(t.slice(x, 1, 2, 10, 2), 1, 1, 3).args == (t.slice(x, 1, 2, 10, 2),)
    assert t.op("Slice", x, t.ints(2), t.ints(5), t.ints(1)) is t.slice(x, 1, 2, 5)
    assert t.op("Gather", x, t.ints(3, 4, 5), axis=1) is t.slice(x, 1, 3, 6)
    assert t.op("Gather", x, t.terms.number(-1, INT64), axis=1) is t.reshape(t.slice(x, 1, 11, 12), b, 8)
    assert t.op("Gather", x, t.ints(3, 5), axis=1).op == "Gather"


def test_what_does_nothing_is_gone(t: Space) -> None:
    x, empty = t.input("x", b, s), t.input("empty", b, 0)
    assert t.op("Identity", x) is x
    assert t.op("Dropout", x) is x
    assert t.op("Pad", x, t.ints(0, 0, 0, 0)) is x
    assert t.op("Concat", empty, x, axis=-1) is x
    assert t.op("Concat", x, x, axis=1) is t.op("Concat", x, x, axis=-1)
    assert t.op("Tile", x, t.ints(1, 1)) is x
    assert expand(t.terms, x, (b, s)) is x


def test_expanded_and_merged_heads_are_repeated_heads(t: Space) -> None:
    kv = t.input("kv", b, 2, s, 64)
    wide = expand(t.terms, t.op("Unsqueeze", kv, axes=(2,)), (b, 2, 4, s, 64))
    heads = t.reshape(wide, b, 8, s, 64)
    assert heads is repeat(t.terms, kv, 1, 4)
    assert repeat(t.terms, kv, 1, 1) is kv
    assert t.transpose(heads, 0, 1, 3, 2) is repeat(t.terms, t.transpose(kv, 0, 1, 3, 2), 1, 4)
    assert t.reshape(heads, b, 8, 1, s, 64) is not heads


# ------------------------------------------------------------------------------------------------ merges


def scores(t: Space) -> tuple[Term, Term]:
    """Attention scores over merged heads, [b * 4, s, s], and the same over heads apart, [b, 4, s, s]."""
    q, k = t.input("q", b, 4, s, 16), t.input("k", b, 4, 16, s)
    merged = t.op("MatMul", t.reshape(q, b * 4, s, 16), t.reshape(k, b * 4, 16, s))
    return merged, t.op("MatMul", q, k)


def test_a_merge_of_heads_floats_up_through_a_matrix_product(t: Space) -> None:
    merged, apart = scores(t)
    assert merged is t.reshape(apart, b * 4, s, s)


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


def test_rows_merged_for_a_dense_layer_come_apart(t: Space) -> None:
    x, w = t.input("x", b, s, 8), t.input("w", 8, 3)
    assert t.op("MatMul", t.reshape(x, b * s, 8), w) is t.reshape(t.op("MatMul", x, w), b * s, 3)
    pairs = t.reshape(t.input("pairs", b, 2, 4), b, 8)
    assert t.op("MatMul", pairs, w).args == (pairs, w)
    bias = t.input("bias", 3)
    gemm = t.op("Gemm", t.reshape(x, b * s, 8), t.transpose(w, 1, 0), bias, transB=1)
    assert gemm is t.op("Add", t.reshape(t.op("MatMul", x, w), b * s, 3), bias)


# ------------------------------------------------------------------------------------------------ unknown ranks


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


# ------------------------------------------------------------------------------------------------ rebuilding


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
