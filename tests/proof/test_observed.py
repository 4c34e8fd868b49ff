"""What is seen of values inside a model."""

from __future__ import annotations

import numpy as np
import onnx.parser

from onnxfuse.proof.input_values import Case
from onnxfuse.proof.observed import observe, telling

MODEL = '<ir_version: 9, opset_import: ["": 18]> g (float[n] x) => (float[n] y) { a = Abs(x) b = Neg(a) y = Exp(b) }'
EMPTY, USUAL = Case("n=0", {"x": np.zeros(0, np.float32)}, True), Case("n=2", {"x": np.ones(2, np.float32)})
PADDED = Case("padded", {"x": np.full(2, -3, np.float32)}, True)


def test_a_usual_case_and_the_last_unusual_one_that_is_not_empty_tell_most() -> None:
    assert telling([USUAL, PADDED, EMPTY]) == (USUAL, PADDED)
    assert telling([USUAL, EMPTY]) == (USUAL, USUAL)


def test_values_are_seen_case_by_case_and_the_model_is_as_it_was() -> None:
    model = onnx.parser.parse_model(MODEL)
    seen = list(observe(model, ["a", "y", "x"], [USUAL, PADDED]))
    assert [values.keys() for values in seen] == [{"x", "a", "y"}] * 2
    assert [values["a"].tolist() for values in seen] == [[1, 1], [3, 3]]
    assert model == onnx.parser.parse_model(MODEL)
