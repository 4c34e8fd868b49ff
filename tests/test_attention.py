"""Attention: what models hold already stays what it is, what exporters spell out becomes one node."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxfuse import language
from onnxfuse.pipeline import fuse
from tests.spellings.build import Array
from tests.spellings.mutants import run

CATALOGUE = language.load()
B, H, S, T, D = 2, 4, 3, 5, 8


def attention_node(
    feeds: dict[str, Array], inputs: list[str], outputs: int, opset: int, **attrs: object
) -> onnx.ModelProto:
    """A model of one ai.onnx Attention node."""
    names = ["Y", "present_key", "present_value", "qk_matmul_output"][:outputs]
    kinds = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(bool): TensorProto.BOOL, np.dtype(np.int64): 7}
    node = helper.make_node("Attention", inputs, names, **attrs)
    graph = helper.make_graph(
        [node],
        "attention",
        [helper.make_tensor_value_info(name, kinds[x.dtype], x.shape) for name, x in feeds.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["a", "b", "c", "d"]) for name in names],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def operands() -> dict[str, Array]:
    """Queries, keys and values as [B,H,S,D], [B,H,T,D], [B,H,T,D]."""
    rng = np.random.default_rng(0)
    return {
        name: rng.standard_normal((B, H, n, D)).astype(np.float32) for name, n in zip("QKV", (S, T, T), strict=True)
    }


def assert_same(model: onnx.ModelProto, feeds: dict[str, Array]) -> onnx.ModelProto:
    """The fused model, whose outputs are those of the model."""
    fused = fuse(model, CATALOGUE).model
    onnx.checker.check_model(fused)
    for want, got in zip(run(model, feeds), run(fused, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    return fused


def census(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node if node.op_type != "Constant")


@pytest.mark.parametrize(
    "attrs", [{"is_causal": 1}, {"softcap": 2.0}, {"scale": 0.3, "is_causal": 1}, {"softmax_precision": 1}]
)
def test_attention_of_the_input_keeps_its_attributes(attrs: dict[str, object]) -> None:
    assert_same(attention_node(operands(), ["Q", "K", "V"], 1, 23, **attrs), operands())


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_attention_of_the_input_keeps_its_outputs(mode: int) -> None:
    feeds = operands()
    feeds |= {"past_key": feeds["K"][:, :, :2], "past_value": feeds["V"][:, :, :2]}
    inputs = ["Q", "K", "V", "", "past_key", "past_value"]
    model = attention_node(feeds, inputs, 4, 23, is_causal=1, qk_matmul_output_mode=mode)
    assert fused_graph(assert_same(model, feeds)) == fused_graph(model)


def test_attention_of_the_input_keeps_its_lengths() -> None:
    feeds = operands() | {"nonpad_kv_seqlen": np.array([3, 4], np.int64)}
    model = attention_node(feeds, ["Q", "K", "V", "", "", "", "nonpad_kv_seqlen"], 1, 24, is_causal=1)
    assert_same(model, feeds)


def fused_graph(model: onnx.ModelProto) -> bytes:
    return bytes(model.graph.SerializeToString(deterministic=True))


def test_a_causal_model_of_one_position_per_head_does_not_move_positions_to_heads() -> None:
    """Queries as [B,G,N,D] are N positions if they are causal, whatever Reshape they come from."""
    feeds = operands()
    feeds["Q"] = feeds["Q"].reshape(B, 1, H * S * D)
    model = attention_node(feeds, ["split", "K", "V"], 1, 23, is_causal=1)
    shape = helper.make_tensor("shape", TensorProto.INT64, [4], [B, H, S, D])
    model.graph.initializer.append(shape)
    model.graph.node.insert(0, helper.make_node("Reshape", ["Q", "shape"], ["split"]))
    assert_same(model, feeds)
