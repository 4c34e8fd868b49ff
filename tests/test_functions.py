"""Local functions: what their calls say of their inputs, and what may be called from them."""

from __future__ import annotations

from pathlib import Path

import onnx
from onnx import helper

from onnxfuse import language
from onnxfuse.pipeline import fuse
from tests import whole
from tests.test_fusion import assert_same_numbers, model, ops
from tests.whole import MODELS

CATALOGUE = language.load()


def test_each_use_of_a_fused_op_has_a_name_of_its_own() -> None:
    """Also inside a local function: most readers of ONNX tell functions apart by their name alone."""
    before = model(
        "g (float[N, 2] x, float[2, 2] w) => (float[N, 2] y) { y = local.layers (x, w) }",
        """
        <domain: "local", opset_import: ["": 17]>
        layers (x, w) => (y) {
            p = MatMul (x, w)
            a = Relu (p)
            q = MatMul (a, w)
            y = Tanh (q)
        }""",
        imports=', "local": 1',
    )
    after = fuse(before, CATALOGUE).model
    (layers,) = [function for function in after.functions if function.domain == "local"]
    assert ops(layers) == ["onnxfuse.FusedMatMul", "onnxfuse.FusedMatMul"]
    assert len({node.op_type for node in layers.node}) == 2
    assert_same_numbers(before, after)


def as_one_function(path: Path) -> onnx.ModelProto:
    """The model as one call of a function that has its nodes and its small constants."""
    before = whole.load(path)
    graph = before.graph
    small = [tensor for tensor in graph.initializer if onnx.numpy_helper.to_array(tensor).size <= 16]
    nodes = [*(helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in small), *graph.node]
    made = {name for node in nodes for name in node.output}
    inputs = sorted({name for node in nodes for name in node.input if name} - made)
    outputs = [output.name for output in graph.output]
    before.functions.append(helper.make_function("local", "model", inputs, outputs, nodes, before.opset_import))
    before.opset_import.append(helper.make_opsetid("local", 1))
    before.ir_version = max(before.ir_version, 8)
    del graph.node[:], graph.value_info[:]
    graph.node.append(helper.make_node("model", inputs, outputs, domain="local"))
    return before


def test_symbolic_dims_of_a_call_are_known_within_the_function() -> None:
    before = as_one_function(MODELS / "bert.dynamo.onnx")
    fused = fuse(before, CATALOGUE).model
    assert whole.fused_ops(fused)["attention"] == 3
    given = whole.feeds(before)
    assert whole.changed_outputs(before, fused, given) == {}


def test_dims_that_differ_from_call_to_call_are_not_taken_for_equal() -> None:
    """Two calls: in one the operands have the same batch, in the other a batch of 1 broadcasts."""
    before = model(
        """g (float[N, 3, 4] x, float[1, 3, 4] z) => (float[N, 3, 4] a, float[N, 3, 4] b)
        <float[4] scale = {1, 2, 3, 4}> { a = local.norm (x, x, scale)  b = local.norm (x, z, scale) }""",
        """
        <domain: "local", opset_import: ["": 17]>
        norm (x, skip, scale) => (y) {
            sum = Add (skip, x)
            y = LayerNormalization (sum, scale)
        }""",
        imports=', "local": 1',
    )
    after = fuse(before, CATALOGUE).model
    (norm,) = [function for function in after.functions if function.domain == "local"]
    assert ops(norm) == ["Add", "LayerNormalization"]
    assert_same_numbers(before, after)
