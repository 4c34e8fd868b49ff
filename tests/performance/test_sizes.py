"""The sizes at which a report counts."""

from __future__ import annotations

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


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"z": (1,)}, "the model has no such input; it has x, past"),
        ({"x": (1, 2)}, "the input has 3 dimensions, 2 are given"),
        ({"x": (1, 2, 9)}, "the model fixes dimension 2 at 8, 9 is given"),
        ({"x": (1, 2, 8), "past": (2, 2, 8)}, "dimension 0 is batch, which is 1 in x, not 2"),
    ],
)
def test_shapes_that_the_inputs_cannot_have(given: dict[str, tuple[int, ...]], complaint: str) -> None:
    with pytest.raises(UsageError, match=complaint):
        Sizes.of(CACHED, given)


def test_a_sized_copy_leaves_the_model_alone() -> None:
    before = CACHED.SerializeToString()
    copy = sized(CACHED, {"x": (2, 5, 8)})
    assert [dim.dim_value for dim in copy.graph.input[0].type.tensor_type.shape.dim] == [2, 5, 8]
    assert not copy.graph.output[0].type.tensor_type.HasField("shape")
    assert CACHED.SerializeToString() == before
