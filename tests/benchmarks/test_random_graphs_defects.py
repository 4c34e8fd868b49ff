"""What onnxruntime is known to do wrong of a model."""

from __future__ import annotations

import pytest

from benchmarks.random_graphs.defects import crashing, reads_scores
from onnxfuse.runtime.quiet import Session, SessionError
from tests.benchmarks.test_random_graphs_judge import written

ATTENTION = "y, pk, pv, p = Attention<qk_matmul_output_mode = 3>(x, k, k)"
BLIND = "n = Shape(x)  k = ConstantOfShape<value = float[1] {-1.0}>(n)"


def test_scores_that_a_node_reads_have_no_length_where_keys_are_made_to_a_shape() -> None:
    """If this no longer fails, onnxruntime knows the shape, and nothing is to be excused any more."""
    read = f"{BLIND}  {ATTENTION}  c = Constant<value = float[5] {{1.0, 2.0, 3.0, 4.0, 5.0}}>()  z = Mul(p, c)"
    model = written(read, "float[b,4,5,6] x", "float[?,4,5,5] z", 23)
    assert reads_scores(model)
    with pytest.raises(SessionError, match="ShapeInferenceError"):
        Session(model, optimize=False, threads=1)


def test_scores_that_are_an_output_alone_are_read_by_none() -> None:
    model = written(f"{BLIND}  {ATTENTION}", "float[b,4,5,6] x", "float[?,4,5,5] p", 23)
    assert not reads_scores(model)
    assert crashing(model) == 1
