"""The sizes at which a report counts."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

from onnxfuse.errors import UsageError
from onnxfuse.performance.sizes import Sizes, sized

CACHED = parser.parse_model("""<ir_version: 9, opset_import: ["": 17]>
    g (float[batch, seq, 8] x, float[batch, seq, 8] past) => (float[batch, total, 8] y) {
        y = Concat<axis = 1>(x, past)
    }""")


def test_all_inputs_have_sizes() -> None:
    at = Sizes.of(CACHED)
    assert at.shapes.keys() == {"x", "past"}
    assert at.known["batch"] == at.shapes["x"][0]
    assert "batch" in at.assumed


def test_an_axis_of_an_input_has_a_size_of_its_own() -> None:
    at = Sizes.of(CACHED, {"x": (2, 5, 8)})
    assert (at.known["batch"], at.known["seq@x.1"]) == (2, 5)
    assert "batch" not in at.assumed


def test_what_is_fed_says_all_sizes() -> None:
    at = Sizes.of(CACHED, fed={"x": np.zeros((2, 5, 8), np.float32), "past": np.zeros((2, 4, 8), np.float32)})
    assert at.shapes == {"x": (2, 5, 8), "past": (2, 4, 8)}
    assert (at.known["batch"], at.known["seq@past.1"], at.assumed) == (2, 4, "")


def test_what_is_fed_and_the_inputs_cannot_be() -> None:
    with pytest.raises(UsageError, match=r"--inputs: input 'past' is missing; the model wants float32\[.*,8\]"):
        Sizes.of(CACHED, fed={"x": np.zeros((2, 5, 8), np.float32)})


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"z": (1,)}, "--shape z: no such input; the model has x, past"),
        ({"x": (1, 2)}, r"--shape x:1,2 does not fit the declared \[.*,8\]"),
        ({"x": (1, 2, 9)}, r"--shape x:1,2,9 does not fit the declared \[.*,8\]"),
    ],
)
def test_shapes_that_the_inputs_cannot_have(given: dict[str, tuple[int, ...]], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        Sizes.of(CACHED, given)


def test_a_name_of_two_sizes_means_that_of_the_first_input_and_each_axis_its_own() -> None:
    at = Sizes.of(CACHED, {"x": (1, 2, 8), "past": (2, 2, 8)})
    assert (at.known["batch"], at.known["batch@x.0"], at.known["batch@past.0"]) == (1, 1, 2)


def test_a_sized_copy_leaves_the_model_alone() -> None:
    before = CACHED.SerializeToString()
    copy = sized(CACHED, {"x": (2, 5, 8)})
    assert [dim.dim_value for dim in copy.graph.input[0].type.tensor_type.shape.dim] == [2, 5, 8]
    assert not copy.graph.output[0].type.tensor_type.HasField("shape")
    assert CACHED.SerializeToString() == before
