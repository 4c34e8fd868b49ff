"""A model at another opset: what a converter does not know is told to it, and names stay apart."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from onnxfuse.errors import UsageError
from onnxfuse.rewriting.convert_opset import convert
from tests.spellings.mutants import run
from tests.whole.test_nothing_lost import curious, rest

SOFTMAX = """<ir_version: 7, opset_import: ["": 12]>
g (float[b, 6, 8] x, int64[4] to) => (y) {{
    split = Reshape (x, to)
    shares = Softmax <axis = {axis}> (split)
    back = Constant <value_ints = [0, 6, 8]> ()
    y = Reshape (shares, back)
}}"""


def model(axis: int) -> onnx.ModelProto:
    """The shape that Softmax sees is the user's: its rank alone is known, by the length of the shape."""
    parsed: onnx.ModelProto = onnx.parser.parse_model(SOFTMAX.format(axis=axis))
    for node in parsed.graph.node:
        node.name = f"the {node.op_type} of {node.output[0]}"
    return parsed


@pytest.mark.parametrize(("axis", "more"), [(3, 0), (-1, 0), (2, 3)])
def test_softmax_along_the_last_axis_stays_one_node(axis: int, more: int) -> None:
    before = model(axis)
    after = convert(before, 17)
    assert len(after.graph.node) == len(before.graph.node) + more
    names = [node.name for node in after.graph.node if node.name]
    assert len(names) == len(set(names)), "onnxruntime refuses two nodes of one name"
    feeds = {"x": np.random.default_rng(0).standard_normal((2, 6, 8), np.float32), "to": np.array([2, 3, 4, 4])}
    np.testing.assert_allclose(run(after, feeds)[0], run(before, feeds)[0], rtol=1e-6)


def test_a_conversion_loses_nothing_but_what_it_converts() -> None:
    before = curious()
    del before.functions[:]
    for node in before.graph.node:
        if node.domain == "local":
            node.domain, node.overload = "com.example", ""
    after = convert(before, 23)
    assert [entry.version for entry in after.opset_import] == [23, 1, 7, 2]
    for model in (before, after):
        model.opset_import[0].version = 0
    assert rest(after) == rest(before)
    assert after.ir_version == before.ir_version
    assert list(after.graph.initializer) == list(before.graph.initializer)
    assert list(after.graph.value_info)[: len(before.graph.value_info)] == list(before.graph.value_info)
    kept = ("name", "op_type", "domain", "doc_string", "metadata_props", "output")
    for old, new in zip(before.graph.node, after.graph.node, strict=True):
        assert all(getattr(old, field) == getattr(new, field) for field in kept)


def test_a_model_with_local_functions_is_not_converted() -> None:
    with pytest.raises(UsageError, match="its local function local:Twice is of an opset of its own: leave --opset out"):
        convert(curious(), 23)
    assert convert(curious(), 21) == curious()
