"""Local functions: what their calls say of their inputs, and what may be called from them."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import defs, helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema
from onnxruntime.transformers.float16 import convert_float_to_float16

from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from onnxfuse.model.graph import family
from tests import exports
from tests.exports import MODELS
from tests.whole.test_fusion import assert_same_numbers, model, ops

CATALOGUE = catalogue.load()


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
    before = exports.load(path)
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
    assert exports.fused_ops(fused)["attention"] == 3
    given = exports.feeds(before)
    assert exports.changed_outputs(before, fused, given) == {}


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


def names(model: onnx.ModelProto) -> set[str]:
    return {function.name for function in model.functions}


@pytest.fixture(scope="module")
def fused_models() -> dict[str, onnx.ModelProto]:
    """Some of models/, fused."""
    stems = ["bert.ts", "bert.dynamo", "llama.ts", "convnext.ts", "t5_decoder.ts", "vit.ts"]
    return {stem: fuse(exports.load(MODELS / f"{stem}.onnx"), CATALOGUE).model for stem in stems}


def test_no_op_is_called_as_one_that_onnx_or_onnxruntime_has(fused_models: dict[str, onnx.ModelProto]) -> None:
    """Quantizers and others look at op types alone."""
    taken = {schema.name for schema in get_all_operator_schema()} | {schema.name for schema in defs.get_all_schemas()}
    written = set().union(*map(names, fused_models.values()))
    assert {family(name) for name in written} >= {"Attention", "FusedMatMul", "SkipLayerNormalization"}
    assert not written & taken


def test_the_same_use_has_the_same_name_in_every_model_and_another_use_has_another(
    fused_models: dict[str, onnx.ModelProto],
) -> None:
    bodies: dict[str, list[onnx.NodeProto]] = {}
    for fused in fused_models.values():
        for function in fused.functions:
            assert bodies.setdefault(function.name, list(function.node)) == list(function.node)
    assert names(fused_models["bert.ts"]) & names(fused_models["bert.dynamo"])
    norms = [name for name in bodies if family(name) == "SkipLayerNormalization"]
    assert len(norms) > 1


def test_calls_have_the_signature_of_their_function(fused_models: dict[str, onnx.ModelProto]) -> None:
    """An empty name among the inputs is what several tools lose."""
    for fused in fused_models.values():
        bodies = {function.name: function for function in fused.functions}
        for node in fused.graph.node:
            if node.domain == "onnxfuse":
                body = bodies[node.op_type]
                assert (len(node.input), len(node.output)) == (len(body.input), len(body.output))
                assert all([*node.input, *node.output])
                assert sorted(a.name for a in node.attribute) == sorted(body.attribute)
        assert all(node.name for function in fused.functions for node in function.node)
        assert not any(function.overload for function in fused.functions)


@pytest.mark.parametrize("stem", ["bert.ts", "llama.ts", "convnext.ts", "vit.ts"])
def test_a_fused_file_can_be_converted_to_half_precision(stem: str, fused_models: dict[str, onnx.ModelProto]) -> None:
    """The converter does not look into functions."""
    model = fused_models[stem]
    half = convert_float_to_float16(copy.deepcopy(model), keep_io_types=True)
    given = exports.feeds(model)
    for name, wanted in exports.run(model, given).items():
        got = exports.run(half, given)[name]
        assert np.abs(got - wanted).max() < 0.02 * np.abs(wanted).max()


def test_a_function_that_another_tool_changed_is_not_taken_for_ours() -> None:
    text = "g (float[N, 4] x) => (float[N, 4] y) { t = Sigmoid (x)  y = Mul (x, t) }"
    (plain,) = fuse(model(text), CATALOGUE).model.functions
    changed = model(text)
    changed.functions.append(plain)
    changed.functions[0].node[-1].op_type = "Add"
    changed.opset_import.append(helper.make_opsetid("onnxfuse", 1))
    after = fuse(changed, CATALOGUE).model
    assert [node.op_type for node in after.graph.node] == [f"{plain.name}_2"]
    assert_same_numbers(model(text), after)
