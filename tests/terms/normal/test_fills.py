"""What repeats one number is the number, repeated, whatever is made of it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

import onnxfuse
from onnxfuse.terms.fold import value_of
from onnxfuse.terms.normal.views import expand, reshape
from tests.terms.normal.space import BOOL, FLOAT, INT64, Space, b


def test_ones_in_another_shape_taken_from_one_are_truths_that_hold_nowhere() -> None:
    t = Space()
    ones = t.op("Expand", t.terms.constant(np.ones((1, 1), np.int64), INT64), t.terms.integers(np.array([b, 7]), INT64))
    seen = t.reshape(ones, b, 1, 1, 7)
    hidden = t.op("Cast", t.op("Sub", t.terms.constant(np.array(1), INT64), seen), to=BOOL)
    assert (hidden.op, hidden.args[0].scalar, hidden.shape) == ("Expand", 0, (b, 1, 1, 7))
    scores, low = t.input("scores", b, 2, 7, 7), t.number(-1e9)
    assert t.op("Where", hidden, low, scores) is scores


def test_what_repeats_several_numbers_is_none() -> None:
    t = Space()
    two = t.op("Expand", t.terms.constant(np.array([[1], [2]]), INT64), t.terms.integers(np.array([2, b]), INT64))
    assert t.op("Sub", t.terms.constant(np.array(1), INT64), two).op != "Expand"


def test_what_repeats_constants_does_so_in_another_shape() -> None:
    t = Space()
    two = t.op("Expand", t.number(3, 2), t.terms.integers(np.array([2, b]), INT64))
    table = t.op("Expand", t.terms.constant(np.array([[1.0], [2], [3]]), FLOAT), t.terms.integers(np.array([b, 3, 2])))
    assert (t.reshape(two, 1, 2, b).op, t.reshape(two, 2 * b).op) == ("Expand", "Expand")
    flat = t.reshape(table, b, 1, 6)
    assert (flat.op, flat.shape, value_of(flat.args[0]).tolist()) == ("Expand", (b, 1, 6), [[[1, 1, 2, 2, 3, 3]]])
    assert t.reshape(table, 6 * b).op == "Reshape"  # the batch goes before, and so it is the table that repeats


@pytest.mark.parametrize(
    ("own", "whole", "seen"), [((1,), (1, 2), (2,)), ((2, 3), (1, 2, 3), (6,)), ((1,), (1, 1), (1,))]
)
def test_of_what_is_in_one_block_no_axis_goes_before(
    own: tuple[int, ...], whole: tuple[int, ...], seen: tuple[int, ...]
) -> None:
    terms = Space().terms
    constant = terms.constant(np.arange(np.prod(own)).reshape(own), FLOAT)
    assert reshape(terms, expand(terms, constant, whole), seen).shape == seen


def test_sums_along_an_axis_that_repeats_are_counted() -> None:
    t = Space()
    ones = t.op("Expand", t.number(1, 3), t.terms.integers(np.array([b, 2, 3]), INT64))
    summed = t.op("CumSum", ones, t.terms.constant(np.array(-1), INT64))
    assert (summed.op, summed.shape, value_of(summed.args[0]).tolist()) == ("Expand", (b, 2, 3), [[[1, 2, 3]]])
    assert t.op("CumSum", ones, t.terms.constant(np.array(0), INT64)).args[0].op != "Constant"  # so many as pictures


PICTURES = """<ir_version: 9, opset_import: ["" : 18]>
    g (float[b,3,16,24] x, float[b,2,24,8] q, float[b,2,24,8] k, float[b,2,24,8] v) => (float[b,2,24,8] y)
    <int64[3] whole = {1, 16, 24}, int64[3] small = {1, 4, 6}, int64 rows = {2}, int64 columns = {3},
     int64[1] second = {2}, int64[1] third = {3}, int64[4] token = {0, 1, 1, 24}, int64[1] last = {-1},
     int64[1] end = {1000}, float low = {-inf}, float tiny = {1e-6}, float[8] scales = {1, 2, 3, 4, 5, 6, 7, 8},
     int64[1] behind = {4}, int64[4] channels = {0, 1, 24, 8}> {
        s = Shape <start = 0, end = 1> (x)
        all = Concat <axis = 0> (s, whole)  ones = ConstantOfShape <value = float[1] {1}> (all)
        less = Concat <axis = 0> (s, small)
        map = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">
            (ones, , , less)
        seen = Cast <to = 9> (map)  mask = Reshape (seen, token)
        count = Cast <to = 1> (seen)
        i = CumSum (count, rows)  top = Slice (i, last, end, second)  above = Add (top, tiny)
        j = CumSum (count, columns)  side = Slice (j, last, end, third)  beside = Add (side, tiny)
        down = Div (i, above)  d4 = Unsqueeze (down, behind)  da = Div (d4, scales)  sd = Sin (da)
        along = Div (j, beside)  a4 = Unsqueeze (along, behind)  aa = Div (a4, scales)  ca = Cos (aa)
        both = Add (sd, ca)  table = Reshape (both, channels)
        qp = Add (q, table)  kt = Transpose <perm = [0, 1, 3, 2]> (k)  scores = MatMul (qp, kt)
        hidden = Where (mask, scores, low)  p = Softmax (hidden)  y = MatMul (p, v) }"""


def test_positions_that_a_mask_counts_which_hides_nothing_are_a_table() -> None:
    """DETR without a pixel mask: ones of the pictures' size, in that of a feature map."""
    before = parser.parse_model(PICTURES)
    onnx.checker.check_model(before, full_check=True)
    made = onnxfuse.optimize(before, target="onnx")
    assert made.report.validation.verdict == "equal"
    assert [node.op_type for node in made.model.graph.node] == ["Shape", "Concat", "Expand", "Add", "Attention"]
    assert len(made.model.graph.node[-1].input) == 3


def test_queries_that_are_the_same_for_each_picture_attend_to_each_other_once() -> None:
    text = """<ir_version: 9, opset_import: ["" : 18]>
    g (float[b,3,8,8] x, float[b,4,4] m) => (float[b,4,4] y)
    <float[1,4,4] queries = {1,0,2,0, 0,3,0,1, 1,1,0,0, 2,0,1,0}, int64[2] tail = {4, 4}, float[4,4] w =
     {1,0,0,1, 0,1,1,0, 2,0,1,0, 0,0,1,1}, float[4] ones = {1,1,1,1}, float[4] shift = {0,1,0,1}> {
        s = Shape <start = 0, end = 1> (x)
        shape = Concat <axis = 0> (s, tail)  q = Expand (queries, shape)
        n = LayerNormalization (q, ones, shift)  k = MatMul (n, w)  kt = Transpose <perm = [0, 2, 1]> (k)
        scores = MatMul (n, kt)  p = Softmax (scores)  a = MatMul (p, k)  y = Add (a, m) }"""
    before = parser.parse_model(text)
    onnx.checker.check_model(before, full_check=True)
    made = onnxfuse.optimize(before, target="onnx")
    assert made.report.validation.verdict == "equal"
    assert [node.op_type for node in made.model.graph.node] == ["Add"]
