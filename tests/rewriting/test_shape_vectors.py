"""Vectors of dimensions: constants, or what Shapes of values at hand have of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from onnxfuse.model.dims import Dim, symbol
from onnxfuse.rewriting.plan import UnrealisableError
from onnxfuse.rewriting.shape_vectors import dims_of, shape_vector, told
from tests.rewriting.test_operators import constants, plan

B, S = symbol("B"), symbol("S")


def ops(opset: int, *dims: Dim) -> list[str]:
    made = plan(opset)
    dims_of(made, dims, 1)
    return [node.op for node in made.nodes]


def test_known_sizes_are_a_constant() -> None:
    made = plan(17)
    name = dims_of(made, [2, 3], 1)
    assert (made.nodes, constants(made), name in made.constants) == ([], [[2, 3]], True)


def test_a_run_of_a_shape_is_one_node_since_opset_15() -> None:
    assert ops(15, B, S) == ["Shape"]
    assert ops(14, B, S) == ["Shape", "Gather"]
    assert ops(14, B, S, 12) == ["Shape"], "all of it"


def test_others_are_put_together_and_computed() -> None:
    assert ops(17, B, 7, S) == ["Shape", "Shape", "Concat"]
    assert ops(17, B * S) == ["Shape", "Shape", "Mul"]
    assert ops(17, S * 2 + 1) == ["Shape", "Mul", "Add"]


def test_what_is_known_already_is_not_computed_again() -> None:
    made = plan(17)
    first = dims_of(made, [S, B], 1)
    count = len(made.nodes)
    assert dims_of(made, [S, B], 2) == first
    assert len(made.nodes) == count


def test_sizes_of_no_value_cannot_be_had() -> None:
    made = plan(17)
    with pytest.raises(UnrealisableError, match="are not those of any value at this place"):
        dims_of(made, [symbol("elsewhere")], 1)
    assert told(made, S, 1)
    assert not told(made, S, -1), "before the input itself"
    assert not told(made, symbol("elsewhere"), 1)


@pytest.mark.parametrize(
    ("data", "dtype", "expected"),
    [
        ([B, S], TensorProto.INT64, ["Shape"]),
        (B, TensorProto.INT64, ["Shape", "Squeeze"]),
        ([[B], [S]], TensorProto.INT64, ["Shape", "Reshape"]),
        ([B, S], TensorProto.INT32, ["Shape", "Cast"]),
    ],
)
def test_dimensions_have_the_rank_and_the_type_that_they_had(data: Any, dtype: int, expected: list[str]) -> None:
    made = plan(17)
    term = made.draft.view.terms.integers(np.array(data, object), dtype)
    name = shape_vector(made, term, 1, "wanted")
    assert [node.op for node in made.nodes] == expected
    assert name in made.nodes[-1].outputs
