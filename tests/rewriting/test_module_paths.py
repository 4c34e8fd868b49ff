"""Which module nodes come from, as far as their names and metadata say."""

from __future__ import annotations

import pytest
from onnx import helper

from onnxfuse.rewriting.module_paths import TORCH_SCOPES, ModulePaths


@pytest.mark.parametrize(
    ("names", "path"),
    [
        (["/enc/layer.0/attn/MatMul", "/enc/layer.0/attn/Softmax", "/enc/Where"], "/enc/layer.0/attn"),
        (["/enc/layer.0/Add", "/enc/layer.1/norm/Pow", "/enc/layer.1/norm/Div"], "/enc/layer.1/norm"),
        (["/enc/Where", "/enc/layer.0/q/MatMul", "/enc/layer.0/k/MatMul", "/enc/layer.0/v/MatMul"], "/enc/layer.0"),
        (["/enc/layer.0/Softmax", "/enc/layer.1/Where", "/enc/layer.0/Reshape"], "/enc/layer.0"),
        (["/enc/seq/seq.0/conv/Conv", "/enc/seq/seq.0/Relu"], "/enc/seq/0/conv"),
        (["/enc/q/MatMul", "/enc/q_1/MatMul", "/enc/q_1/Add"], "/enc/q"),
        (["/enc/fc_1/MatMul"], "/enc/fc_1"),
        (["/Add"], ""),
        (["node_1", ""], ""),
    ],
)
def test_the_module_of_some_nodes(names: list[str], path: str) -> None:
    nodes = [helper.make_node(name.rpartition("/")[2] or "Add", ["a", "b"], ["c"], name=name) for name in names]
    assert ModulePaths(nodes).of(nodes) == path


def test_module_paths_in_metadata() -> None:
    node = helper.make_node("Add", ["a", "b"], ["c"], name="node_add")
    entry = node.metadata_props.add(key=TORCH_SCOPES, value="['', 'bert', 'bert.layer.0', 'bert.layer.0.out', 'add']")
    assert ModulePaths([node]).of([node]) == "/bert/layer.0/out"
    entry.value = "not a list"
    assert ModulePaths([node]).of([node]) == ""


def test_a_module_that_the_exporter_does_not_know_is_none() -> None:
    node = helper.make_node("Shape", ["x"], ["y"], "node_Shape_0")
    node.metadata_props.add(
        key=TORCH_SCOPES, value="['', '_empty_nn_module_stack_from_metadata_hook', 'sym_size_int_28']"
    )
    assert ModulePaths([node]).of([node]) == ""
