"""Views: one spelling, what cancels is gone, and the order in which they stand."""

from __future__ import annotations

import numpy as np

from onnxfuse.terms.normal.normal import expand, repeat
from tests.terms.normal.space import BOOL, FLOAT, INT64, Space, b, d, h, s


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


def test_a_product_is_transposed_by_its_operands_but_no_weight_comes_before_batches(t: Space) -> None:
    x, y = t.input("x", b, 4, 5), t.input("y", b, 3, 4)
    product = t.op("MatMul", t.transpose(x, 0, 2, 1), t.transpose(y, 0, 2, 1))
    assert t.transpose(product, 0, 2, 1) is t.op("MatMul", y, x)
    ones = t.input("o", b, s, 1, 1)
    kept = t.op("MatMul", ones, t.terms.constant(np.array([[2.5]], np.float32), FLOAT))
    assert t.transpose(kept, 0, 1, 3, 2) is kept


def test_a_linear_layer_takes_rows_in_the_order_in_which_they_come(t: Space) -> None:
    x, w = t.input("x", b, s, 8), t.terms.constant(np.ones((8, 12), np.float32), FLOAT)
    bias = t.terms.constant(np.arange(12, dtype=np.float32), FLOAT)
    turned = t.op("Add", t.op("MatMul", t.transpose(x, 1, 0, 2), w), bias)
    straight = t.op("MatMul", x, w)
    back = t.transpose(turned, 1, 0, 2)
    assert back.op == "Add"
    assert straight in back.args
    heads = t.transpose(t.reshape(t.slice(turned, 2, 0, 4), s, b, 2, 2), 1, 0, 2, 3)
    assert heads is t.reshape(t.slice(back, 2, 0, 4), b, s, 2, 2)
    apart = t.transpose(t.reshape(turned, s, b, 3, 4), 1, 2, 0, 3)  # heads come before positions
    assert apart.op == "Transpose"


def test_of_two_transposes_around_a_linear_layer_one_is_left(t: Space) -> None:
    x, w = t.input("x", b, s, h, 8), t.terms.constant(np.ones((8, 12), np.float32), FLOAT)
    turned = t.op("MatMul", t.transpose(x, 1, 0, 2, 3), w)
    assert t.transpose(turned, 0, 2, 1, 3) is t.op("MatMul", t.transpose(x, 1, 2, 0, 3), w)
    columns = t.transpose(turned, 0, 1, 3, 2)
    assert columns.op == "Transpose"
    plain = t.op("MatMul", x, w)
    assert t.transpose(plain, 1, 0, 2, 3).args == (plain,)


def test_weights_are_transposed_by_their_scores_where_a_mask_has_1s_in_the_way(t: Space) -> None:
    """DeepSeek and Gemma have their scores in [batch, queries, heads, keys]."""
    scores, mask = t.input("scores", b, h, s, s), t.input("mask", 1, s, 1, s)
    turned = t.op("Add", t.transpose(scores, 0, 2, 1, 3), mask)
    weights = t.transpose(t.op("Softmax", turned, axis=-1), 0, 2, 1, 3)
    assert weights is t.op("Softmax", t.op("Add", scores, t.reshape(mask, 1, 1, s, s)), axis=-1)
    wide = t.op("Add", t.transpose(scores, 0, 2, 1, 3), t.input("wide", b, s, h, s))
    assert t.transpose(t.op("Softmax", wide, axis=-1), 0, 2, 1, 3).op == "Transpose"
    columns = t.op("Softmax", t.transpose(scores, 0, 1, 3, 2), axis=-1)
    assert t.transpose(columns, 0, 1, 3, 2).op == "Transpose"


def test_an_operand_of_fewer_axes_is_transposed_as_what_it_is_broadcast_to(t: Space) -> None:
    scores, thin = t.input("scores", b, h, s, s), t.input("thin", h, s, s)
    both = t.op("Add", t.transpose(scores, 0, 2, 1, 3), t.transpose(thin, 1, 0, 2))
    assert t.transpose(both, 0, 2, 1, 3) is t.op("Add", scores, t.reshape(thin, 1, h, s, s))
    row = t.op("Add", t.transpose(scores, 0, 2, 1, 3), t.input("row", s))
    weights = t.op("Softmax", t.op("Add", scores, t.reshape(t.input("row", s), 1, 1, 1, s)), axis=-1)
    assert t.transpose(t.op("Softmax", row, axis=-1), 0, 2, 1, 3) is weights
    assert t.transpose(row, 0, 2, 1, 3).args == (row,)  # which would take a mean from what it is the mean of


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


def test_a_negation_leaves_views(t: Space) -> None:
    x = t.input("x", 2, 5, 3, dtype=BOOL)
    no = t.op("Not", x)
    assert t.op("Unsqueeze", no, axes=(1,)) is t.op("Not", t.reshape(x, 2, 1, 5, 3))
    assert t.transpose(no, 0, 2, 1) is t.op("Not", t.transpose(x, 0, 2, 1))
    assert t.slice(no, 1, 1, 3) is t.op("Not", t.slice(x, 1, 1, 3))
    assert t.op("Not", t.reshape(t.transpose(no, 0, 2, 1), 6, 5)) is t.reshape(t.transpose(x, 0, 2, 1), 6, 5)
    assert expand(t.terms, t.op("Not", t.input("y", 1, 3, dtype=BOOL)), (2, 3)).op == "Expand", "it would negate more"


def test_blocks_of_an_axis_are_a_slice_of_what_it_was_split_from(t: Space) -> None:
    """Thirds of a product, in heads: columns of it."""
    x = t.input("x", b, s, 48)
    heads = t.reshape(x, b, s, 3, 2, 8)
    assert t.reshape(t.slice(heads, 2, 1, 3), b, s, 32) is t.slice(x, 2, 16, 48)
    third = t.slice(t.transpose(heads, 2, 0, 3, 1, 4), 0, 1, 2)
    query = t.reshape(third, b, 2, s, 8)
    assert t.reshape(t.transpose(query, 0, 2, 1, 3), b, s, 16) is t.slice(x, 2, 16, 32)


def test_blocks_are_seen_through_a_merge_of_other_axes(t: Space) -> None:
    """Thirds of a product over windows, which are counted with the batch: columns of it; where heads are counted with
    them, nothing is."""
    x = t.input("x", b, 4, s, 48)
    thirds = t.reshape(t.transpose(t.reshape(x, b, 4, s, 3, 2, 8), 3, 0, 1, 4, 2, 5), 3, b * 4, 2, s, 8)
    query = t.reshape(t.slice(thirds, 0, 1, 2), b * 4, 2, s, 8)
    assert query.op == "Reshape"
    rows = t.reshape(t.transpose(query, 0, 2, 1, 3), b * 4, s, 16)
    assert rows is t.reshape(t.slice(x, 3, 16, 32), b * 4, s, 16)
    joined = t.slice(t.reshape(thirds, 3, b * 8, s, 8), 0, 1, 2)
    assert t.reshape(joined, b * 8, s, 8).args[0] is joined


def test_parts_of_blocks_are_no_blocks(t: Space) -> None:
    x = t.input("x", b, s, 48)
    heads = t.reshape(x, b, s, 3, 2, 8)
    assert t.reshape(t.slice(heads, 3, 0, 1), b, s, 24).op == "Reshape"
    two = t.slice(t.transpose(t.reshape(x, b, s, 3, 16), 2, 0, 1, 3), 0, 0, 2)
    assert t.reshape(two, 2 * b, s, 16).args[0] is two
