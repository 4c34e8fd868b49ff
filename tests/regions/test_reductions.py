"""Sums of squares, of absolute values and their roots and logarithms are passes of a region's rows."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.regions.reductions import written_out
from onnxfuse.regions.spelled import standard

from .written import calls, fused, model, run, scope

LENGTHS = """g (TYPE[2,7,24] x) => (TYPE[2,7,24] y) <int64[1] last = {-1}> {
    a = Abs(x) s = OP(a, last) y = Div(x, s) }"""


@pytest.mark.parametrize("op", ["ReduceSumSquare", "ReduceL2", "ReduceL1", "ReduceLogSum"])
@pytest.mark.parametrize("opset", [11, 13, 20])
def test_rows_over_what_they_are_reduced_to_are_one_launch(op: str, opset: int) -> None:
    text = LENGTHS.replace("OP", op).replace("TYPE", "float")
    if opset < 18:
        text = text.replace(f"{op}(a, last)", f"{op}<axes = [-1]>(a)")
    made = fused(text, opset, validate="kernels" if op == "ReduceL2" else "onnxruntime")
    assert calls(made.model) == ["Region"]
    assert made.report.validation is not None
    assert made.report.validation.verdict == "equal"
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 7, 24)).astype(np.float32)}
    np.testing.assert_allclose(run(made.model, feeds)[0], run(model(text, opset), feeds)[0], rtol=1e-5, atol=1e-6)


def test_a_reduction_by_itself_stays_the_op_that_it_is() -> None:
    made = fused("g (float[2,7,24] x) => (float[2,7] y) { y = ReduceL2<keepdims = 0, axes = [-1]>(x) }", 13)
    assert calls(made.model) == ["ReduceL2"]


@pytest.mark.parametrize(
    "text",
    [
        LENGTHS.replace("OP", "ReduceL2").replace("TYPE", "float16"),
        LENGTHS.replace("OP", "ReduceLogSumExp").replace("TYPE", "float"),
    ],
)
def test_what_a_sum_would_compute_with_another_range_is_left(text: str) -> None:
    """Half precision is squared and added up in float32 by whoever has the op; exponentials want their largest."""
    found = scope(text)
    index = next(i for i, n in enumerate(found.view.graph.nodes) if n.op_type.startswith("Reduce"))
    node = found.view.graph.nodes[index]
    assert standard(found, index) == [node]
    assert not written_out(found, node, "at")
