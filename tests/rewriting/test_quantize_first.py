"""What one scale is for is quantized before its rows are merged."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxfuse.lifting.lifted import Lifted
from onnxfuse.rewriting.quantize_first import quantize_first
from onnxfuse.runtime.quiet import Session
from tests.quantized_models import counts, quantized

ROWS = "int64[2] rows = {-1, 8}, int64[3] back = {-1, 5, 8}, int64[2] long = {-1, 16}, int64[4] one = {0, 0, 1, 8}"


def moved(nodes: str, *, output: str = "y") -> tuple[onnx.ModelProto, onnx.ModelProto]:
    model = quantized(nodes, inputs="float[b,5,8] x", output=output, constants=ROWS)
    return model, quantize_first(Lifted.of(model))


def test_a_merge_of_rows_moves_behind() -> None:
    model, made = moved("r = Reshape(x, rows)  q, s1, c = DynamicQuantizeLinear(r)  y = DequantizeLinear(q, s1, c)")
    assert [node.op_type for node in made.graph.node] == ["DynamicQuantizeLinear", "Reshape", "DequantizeLinear"]
    assert made.graph.node[0].input == ["x"]
    assert made.graph.node[1].output == ["q"]
    assert model.graph.node[0].op_type == "Reshape", "what was given stays as it is"
    onnx.checker.check_model(made)
    feeds = {"x": np.random.default_rng(0).normal(size=(2, 5, 8)).astype(np.float32)}
    (before,), (after,) = (Session(m, None, optimize=False).run(feeds) for m in (model, made))
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize(
    "nodes",
    [
        "q, s1, c = DynamicQuantizeLinear(x)  y = DequantizeLinear(q, s1, c)",
        "r = Reshape(x, long)  q, s1, c = DynamicQuantizeLinear(r)  y = DequantizeLinear(q, s1, c)",
        "r = Reshape(x, one)  q, s1, c = DynamicQuantizeLinear(r)  y = DequantizeLinear(q, s1, c)",
        "r = Transpose<perm = [0, 2, 1]>(x)  q, s1, c = DynamicQuantizeLinear(r)  y = DequantizeLinear(q, s1, c)",
        "r = Reshape(x, rows)  q, s1, c = DynamicQuantizeLinear(r)  d = DequantizeLinear(q, s1, c)  y = Add(r, d)",
        "r = Constant<value_floats = [1.0]>()  q, s1, c = DynamicQuantizeLinear(r)  y = DequantizeLinear(q, s1, c)",
    ],
    ids=["no view", "another last axis", "an axis of 1", "a transposition", "read besides", "no input"],
)
def test_other_views_stay(nodes: str) -> None:
    model, made = moved(nodes)
    assert made is model


def test_a_view_that_is_an_output_stays() -> None:
    model, made = moved("y = Reshape(x, rows)  q, s1, c = DynamicQuantizeLinear(y)")
    assert made is model
    assert counts(made)["Reshape"] == 1
