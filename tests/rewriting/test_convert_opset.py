"""A model at another opset: what a converter does not know is told to it, and names stay apart."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from onnxfuse import optimize
from onnxfuse.errors import UsageError
from onnxfuse.model.graph import opset_of
from onnxfuse.model.walk import attribute_graphs
from onnxfuse.rewriting.convert_opset import convert, raisable
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
    assert list(after.graph.value_info) == list(before.graph.value_info)
    kept = ("name", "op_type", "domain", "doc_string", "metadata_props", "output")
    for old, new in zip(before.graph.node, after.graph.node, strict=True):
        assert all(getattr(old, field) == getattr(new, field) for field in kept)


def test_a_model_with_local_functions_of_another_opset_is_not_converted() -> None:
    model = curious()
    entry = next(entry for entry in model.functions[0].opset_import if not entry.domain)
    entry.version -= 1
    with pytest.raises(UsageError, match="its local function local:Twice is of an opset of its own: leave --opset out"):
        convert(model, 23)
    assert convert(model, 21) == model


BODIES = """<ir_version: 8, opset_import: ["": {}]>
g (bool c, float[N, 4] x) => (float[N, 1] y) <float[4] w = {{1, 2, 3, 4}}> {{
    h = Mul (x, w)
    y = If (c) <
        then_branch = p () => (float[N, 1] a) {{ a0 = Mul (h, w)  a = ReduceMean <axes = [-1]> (a0) }},
        else_branch = q () => (float[N, 1] b) {{ b = ReduceMax <axes = [-1]> (h) }}
    >
}}"""


def test_bodies_are_converted_and_lose_nothing_either() -> None:
    before = onnx.parser.parse_model(BODIES.format(13))
    (node,) = (node for node in before.graph.node if node.op_type == "If")
    for _, body in attribute_graphs(node):
        body.doc_string = f"all about {body.name}"
        for inner in body.node:
            inner.name = f"the {inner.op_type}"
            inner.metadata_props.add(key="module", value=inner.output[0])
    after = convert(before, 18)
    onnx.checker.check_model(after, full_check=True)
    (other,) = (node for node in after.graph.node if node.op_type == "If")
    for (_, old), (_, new) in zip(attribute_graphs(node), attribute_graphs(other), strict=True):
        kept = [inner for inner in new.node if inner.op_type != "Constant"]
        assert [inner.name for inner in kept] == [inner.name for inner in old.node]
        assert [list(inner.metadata_props) for inner in kept] == [list(inner.metadata_props) for inner in old.node]
        assert (list(new.output), new.name, new.doc_string) == (list(old.output), old.name, old.doc_string)
        reduced = next(inner for inner in new.node if inner.op_type.startswith("Reduce"))
        assert len(reduced.input) == 2, "axes are an input since opset 18"
    for condition in (True, False):
        given = {"c": np.array(condition), "x": np.arange(8, dtype=np.float32).reshape(2, 4)}
        np.testing.assert_array_equal(run(after, given)[0], run(before, given)[0])


@pytest.mark.parametrize(("opset", "fits"), [(12, False), (13, True)])
def test_an_opset_is_raised_unasked_where_axes_in_bodies_mean_the_same_there(opset: int, fits: bool) -> None:
    assert raisable(onnx.parser.parse_model(BODIES.format(opset))) == fits


def test_an_opset_at_which_no_onnxruntime_has_a_kernel_is_not_raised_to() -> None:
    """Attention is an op from opset 23 on, and RandomNormalLike has no kernel from 22 on."""
    graph = """<ir_version: 8, opset_import: ["": 17]>
        g (float[2, 4, 7, 8] q, float[2, 4, 7, 8] k, float[2, 4, 7, 8] v) => (float[2, 4, 7, 8] y{}) {{
        t = Transpose <perm = [0, 1, 3, 2]> (k)  s = MatMul (q, t)  w = Softmax <axis = -1> (s)
        y = MatMul (w, v) {} }}"""
    for more, node, opset in (("", "", 23), (", float[2, 4, 7, 8] z", "z = RandomNormalLike (q)", 17)):
        after = optimize(onnx.parser.parse_model(graph.format(more, node)), target="onnx", validate="off").model
        assert opset_of(after) == opset
        assert ("Attention" in [node.op_type for node in after.graph.node]) == (opset == 23)


FOUND = """<ir_version: 7, opset_import: ["": 14]>
g (float[4, 4] x) => (int64[n, 2] y) {
    found = NonZero (x)
    y = Transpose (found)
}"""


@pytest.mark.parametrize("model", [FOUND, BODIES.format(13)])
def test_it_declares_no_sizes_that_the_model_did_not_name(model: str) -> None:
    """onnxruntime believes a name that the converter invents: it takes (unk__0, unk__1) for (0, -1), which is no shape
    where nothing was found."""
    before = onnx.parser.parse_model(model)
    after = convert(before, 18)

    def declared(graph: onnx.GraphProto) -> list[str]:
        inner = [name for node in graph.node for _, body in attribute_graphs(node) for name in declared(body)]
        return [info.name for info in graph.value_info] + inner

    assert declared(after.graph) == declared(before.graph)
