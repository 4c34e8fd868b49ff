"""Softmax is over the last axis, of scores from which nothing was taken, in their own shape."""

from __future__ import annotations

import pytest
from onnx import parser

import onnxfuse
from onnxfuse.terms.term import Term
from tests.terms.normal.space import Space, b, h, s


def steadied(t: Space, x: Term, of: Term | None = None, axis: int = -1) -> Term:
    return t.op("Sub", x, t.op("ReduceMax", x if of is None else of, axes=(axis,)))


def test_what_is_taken_off_first_is_left_away(t: Space) -> None:
    x, y = t.input("x", b, h, s, s), t.input("y", b, h, s, s)
    plain = t.op("Softmax", x)
    assert t.op("Softmax", steadied(t, x)) is plain
    assert t.op("Softmax", steadied(t, x), axis=3) is plain
    assert t.op("Softmax", t.op("Mul", steadied(t, x), t.number(2))) is t.op("Softmax", t.op("Mul", x, t.number(2)))
    total = t.op("Add", x, y)
    assert t.op("Softmax", steadied(t, total)) is t.op("Softmax", total)


def test_another_maximum_stays(t: Space) -> None:
    """An arbitrary shift may be so large that rounding makes rows equal."""
    x, y = t.input("x", b, h, s, s), t.input("y", b, h, s, s)
    for wrong in (steadied(t, x, y), steadied(t, x, axis=-2), t.op("Add", x, t.op("ReduceMax", x, axes=(-1,)))):
        assert t.op("Softmax", wrong).args[0] is wrong


def test_the_maximum_may_be_taken_in_another_view(t: Space) -> None:
    x = t.input("x", b, h, s, s)
    rows = t.reshape(x, b * h * s, s)
    largest = t.reshape(t.op("ReduceMax", rows, axes=(-1,)), b, h, s, 1)
    assert t.op("Softmax", t.op("Sub", x, largest)) is t.op("Softmax", x)
    halves = t.reshape(t.input("y", b, h, s, 8), b, h, s * 2, 4)
    other = t.reshape(t.op("ReduceMax", halves, axes=(-1,)), b, h, s, 2)
    assert other.shape == (b, h, s, 2)


def test_scores_of_keys_by_queries_are_turned(t: Space) -> None:
    q, k = t.input("q", b, h, s, 16), t.input("k", b, h, 16, s)
    scores = t.op("MatMul", q, k)
    columns = t.op("Softmax", scores, axis=-2)
    assert columns is t.transpose(t.op("Softmax", t.transpose(scores, 0, 1, 3, 2)), 0, 1, 3, 2)
    x = t.input("x", b, h, s, s)
    assert t.op("Softmax", x, axis=-2).op == "Softmax", "no scores"


def test_what_is_added_to_scores_in_another_shape_is_viewed_instead(t: Space) -> None:
    """BLOOM and others: scores of merged heads, viewed apart for the mask alone."""
    q, k = t.input("q", 8, 5, 16), t.input("k", 8, 16, 5)
    scores = t.op("MatMul", q, k)
    apart = t.reshape(scores, 2, 4, 5, 5)
    mask, row, some = t.input("mask", 2, 4, 5, 5), t.input("row", 5), t.input("some", 2, 1, 1, 5)

    def merged(x: Term, added: Term) -> Term:
        return t.op("Reshape", t.op("Add", x, added), t.ints(8, 5, 5))

    assert merged(apart, mask) is t.op("Add", scores, t.reshape(mask, 8, 5, 5))
    assert merged(apart, row) is t.op("Add", scores, t.reshape(row, 1, 1, 5))
    wide = t.op("Expand", some, t.ints(2, 4, 1, 5))
    assert merged(apart, some) is t.op("Add", scores, t.reshape(wide, 8, 1, 5))
    assert merged(t.input("x", 2, 4, 5, 5), mask).op == "Reshape", "no scores"


def test_what_is_added_by_row_and_by_column_is_added_before_it_is_expanded(t: Space) -> None:
    """Decomposed relative positions of SAM and MViT; a bias of all places stays by itself."""
    scores = t.op("MatMul", t.input("q", 8, 6, 16), t.input("k", 8, 16, 6))
    rows, columns = t.input("rows", 8, 2, 3, 2, 1), t.input("columns", 8, 2, 3, 1, 3)
    bias = t.input("bias", 2, 3, 2, 3)
    total = t.op("Add", t.op("Add", t.op("Add", t.reshape(scores, 8, 2, 3, 2, 3), rows), bias), columns)
    positions = t.reshape(t.op("Add", rows, columns), 8, 6, 6)
    wanted = t.op("Add", t.op("Add", scores, positions), t.reshape(bias, 1, 6, 6))
    assert t.op("Reshape", total, t.ints(8, 6, 6)) is wanted


ONE_BATCH = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[1,4,5,8] q, float[4,7,8] k, float[4,7,8] v, float[1,1,5,7] mask) => (float[4,5,8] y)
    <int64[3] heads = {4, 5, 7}, float scale = {0.25}> {
        kt = Transpose <perm = [0, 2, 1]> (k)  scores = MatMul (q, kt)  scaled = Mul (scores, scale)
        masked = Add (scaled, mask)  back = Reshape (masked, heads)  p = Softmax (back)  y = MatMul (p, v) }"""
"""TrOCR at a batch of one, from which the exporter has taken the view of its queries."""

WINDOWS = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[8,12,8] x, float[6,1,16,16] mask) => (float[6,2,16,4] y)
    <int64[5] cut = {2, 4, 3, 4, 8}, int64[4] split = {6, 16, 2, 4}, int64[5] batch = {1, 6, 2, 16, 16},
     int64[4] windows = {6, 2, 16, 16}, float scale = {0.5}> {
        c = Reshape (x, cut)  t = Transpose <perm = [0, 2, 1, 3, 4]> (c)  h = Reshape (t, split)
        q = Transpose <perm = [0, 2, 1, 3]> (h)  kt = Transpose <perm = [0, 2, 3, 1]> (h)
        scores = MatMul (q, kt)  scaled = Mul (scores, scale)
        seen = Reshape (scaled, batch)  masked = Add (seen, mask)  back = Reshape (masked, windows)
        p = Softmax (back)  y = MatMul (p, q) }"""
"""Swin at a batch of one: windows that are shifted have a mask each."""


VALUES = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[4,5,8] q, float[4,7,8] k, float[1,4,7,8] v) => (float[1,4,5,8] y) <float scale = {0.25}> {
        kt = Transpose <perm = [0, 2, 1]> (k)  scores = MatMul (q, kt)  scaled = Mul (scores, scale)
        p = Softmax (scaled)  y = MatMul (p, v) }"""
"""Mask2Former at a batch of one, from which the exporter has taken the view of its values."""


@pytest.mark.parametrize("text", [ONE_BATCH, VALUES, WINDOWS])
def test_scores_seen_as_those_of_a_batch_of_one_are_attention(text: str) -> None:
    made = onnxfuse.optimize(parser.parse_model(text), target="onnx")
    assert made.report.validation.verdict == "equal"
    assert made.report.census["Attention"] == 1
