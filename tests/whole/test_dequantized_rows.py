"""Of a table of bytes the rows that are asked for are converted, not the table."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from benchmarks.quantized_models import kernels
from onnxfuse.fusing.fuse import lower
from onnxfuse.language import catalogue
from onnxfuse.targets.target import Target
from tests.quantized_models import counts, quantized
from tests.spellings.mutants import run

CATALOGUE = catalogue.load()
ROWS = {"inputs": "int64[b,t] x", "opset": 21}
SCALES = {
    "one": ("", "float[1] c = {0.5}, uint8[1] o = {120}"),
    "column": ("<axis = 1>", "float[8] c = {1,2,3,4,5,6,7,8}, uint8[8] o = {1,2,3,4,5,6,7,8}"),
    "row": ("<axis = 0>", "float[8] c = {1,2,3,4,5,6,7,8}, uint8[8] o = {1,2,3,4,5,6,7,8}"),
    "block": (
        "<axis = 1, block_size = 4>",
        "float[8,2] c = {1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8}, uint8[8,2] o = {1,2,3,4,5,6,7,8,1,2,3,4,5,6,7,8}",
    ),
}


@pytest.mark.parametrize("target", ["onnxfuse", "ort"])
@pytest.mark.parametrize("zero", ["", ", o"])
@pytest.mark.parametrize("scale", SCALES)
def test_rows_are_chosen_before_they_are_converted(scale: str, zero: str, target: str) -> None:
    attributes, constants = SCALES[scale]
    nodes = f"d = DequantizeLinear {attributes} (w, c{zero}) y = Gather (d, x)"
    before = quantized(nodes, constants=constants, **ROWS)
    after = lower(before, CATALOGUE.serving(Target(target)))[1].model
    read = {name for node in after.graph.node if node.op_type == "Gather" for name in node.input}
    assert "w" in read
    assert after.graph.node[-1].op_type == "DequantizeLinear"
    ids = np.array([[7, 0, -1], [3, 3, 5]])
    for want, got in zip(run(before, {"x": ids}), run(after, {"x": ids}), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_table_that_something_else_converts_as_well() -> None:
    nodes = "d = DequantizeLinear (w, s, z) e = Gather (d, x) t = Transpose (d) y = MatMul (e, t)"
    before = quantized(nodes, **ROWS)
    after = lower(before, CATALOGUE)[1].model
    assert counts(after)["DequantizeLinear"] == 2
    ids = np.array([[7, 0, -1]])
    np.testing.assert_allclose(run(after, {"x": ids})[0], run(before, {"x": ids})[0], rtol=1e-6)


def test_before_blocks_a_scale_for_each_row_stays() -> None:
    """DequantizeLinear has no blocks before opset 21."""
    attributes, constants = SCALES["row"]
    nodes = f"d = DequantizeLinear {attributes} (w, c, o) y = Gather (d, x)"
    before = quantized(nodes, constants=constants, inputs="int64[b,t] x", opset=20)
    after = lower(before, CATALOGUE)[1].model
    assert [node.op_type for node in after.graph.node] == ["DequantizeLinear", "Gather"]


def test_of_columns_none_are_chosen_first() -> None:
    before = quantized("d = DequantizeLinear (w, ss, v) y = Gather <axis = 1> (d, x)", **ROWS)
    after = lower(before, CATALOGUE)[1].model
    assert [node.op_type for node in after.graph.node] == ["DequantizeLinear", "Gather"]
    onnx.checker.check_model(after)


@pytest.mark.parametrize("target", ["onnxfuse", "onnx", "ort"])
@pytest.mark.parametrize("numbers", ["int8", "uint8"])
def test_rows_that_are_quantized_anew_for_a_kernel_on_integers(numbers: str, target: str) -> None:
    """Bytes with a sign are converted first, since onnxruntime takes the sign from what is quantized."""
    nodes = """d = DequantizeLinear (t, c, o) e = Gather (d, x)
        q = QuantizeLinear (e, c, o) f = DequantizeLinear (q, c, o)
        g = DequantizeLinear (u, i, p) h = Gather (g, x) r = QuantizeLinear (h, i, p) j = DequantizeLinear (r, i, p)
        a = Add (f, j) b = QuantizeLinear (a, l, n) y = DequantizeLinear (b, l, n)"""
    rows = f"{numbers}[3,2] t = {{1,2,3,4,5,6}}, {numbers}[3,2] u = {{6,5,4,3,2,1}}"
    steps = ", ".join(f"float {c} = {{0.5}}, {numbers} {o} = {{0}}" for c, o in ("co", "ip", "ln"))
    before = quantized(nodes, constants=f"{rows}, {steps}", **ROWS)
    after = lower(before, CATALOGUE.serving(Target(target)))[1].model
    read = {name for node in after.graph.node if node.op_type == "Gather" for name in node.input}
    assert ("t" in read) == (numbers == "uint8")
    assert kernels(after).total() >= kernels(before).total() == 1
    ids = np.array([[2, 0, -1]])
    np.testing.assert_array_equal(run(after, {"x": ids})[0], run(before, {"x": ids})[0])
