"""What repeats one number is the number, repeated, whatever is made of it."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import parser

import onnxfuse
from tests.terms.normal.space import BOOL, INT64, Space, b


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
    assert t.reshape(two, 1, 2, b).op == "Reshape"


def test_attention_with_a_mask_that_hides_nothing_has_none() -> None:
    """Sew-D by the TorchScript exporter: ones of the batch's size are its mask."""
    text = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[b,2,7,8] q, float[b,2,7,8] k, float[b,2,7,8] v) => (float[b,2,7,8] y)
    <int64[2] tail = {1, 7}, int64 one = {1}, float low = {-1e9}, float none = {0}, int64[1] at = {0}> {
        s = Shape (q)  n = Gather (s, at)  shape = Concat <axis = 0> (n, tail)
        ones = ConstantOfShape <value = int64[1] {1}> (shape)
        axis = Constant <value_ints = [1]> ()  mask = Unsqueeze (ones, axis)
        off = Sub (one, mask)  hidden = Cast <to = 9> (off)
        kt = Transpose <perm = [0, 1, 3, 2]> (k)  scores = MatMul (q, kt)  filled = Where (hidden, low, scores)
        p = Softmax (filled)  w = Where (hidden, none, p)  y = MatMul (w, v) }"""
    before = parser.parse_model(text)
    onnx.checker.check_model(before, full_check=True)
    made = onnxfuse.optimize(before)
    assert made.report.validation.verdict == "equal"
    assert [node.op_type.partition("_")[0] for node in made.model.graph.node] == ["Attention"]
    assert len(made.model.graph.node[0].input) == 3
