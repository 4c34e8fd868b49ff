"""A model that computes alike of many slices of one vector and stacks the results: it runs as one slice would.

What exporters write of a loop over features: Split, and for each part Reshape, LayerNormalization, Tanh and Unsqueeze;
then Concat, and one linear layer with Relu on all of it.
"""

from __future__ import annotations

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, checker, helper, numpy_helper

OPSET = 17
EPSILON = 1e-5


def build(features: int = 16, batch: int = 1024, width: int = 256, outputs: int = 1, seed: int = 0) -> ModelProto:
    """`x` float32[features * batch * width] → `y` float32[features, batch, outputs], random weights and all."""
    rng = np.random.default_rng(seed)
    weights = {
        "parts": np.full(features, batch * width, np.int64),
        "matrix": np.array([batch, width], np.int64),
        "front": np.array([0], np.int64),
        "weight": (rng.standard_normal((width, outputs)) / np.sqrt(width)).astype(np.float32),
        "bias": rng.standard_normal(outputs).astype(np.float32),
    }
    nodes = [helper.make_node("Split", ["x", "parts"], [f"part{i}" for i in range(features)], axis=0)]
    for i in range(features):
        weights[f"scale{i}"] = np.ones(width, np.float32)
        weights[f"shift{i}"] = np.zeros(width, np.float32)
        nodes += feature(i)
    nodes += [
        helper.make_node("Concat", [f"row{i}" for i in range(features)], ["stacked"], axis=0),
        helper.make_node("MatMul", ["stacked", "weight"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "split_stack",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [features * batch * width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [features, batch, outputs])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    checker.check_model(model)
    return model


def feature(i: int) -> list[NodeProto]:
    """What happens to the i-th part."""
    return [
        helper.make_node("Reshape", [f"part{i}", "matrix"], [f"matrix{i}"]),
        helper.make_node(
            "LayerNormalization", [f"matrix{i}", f"scale{i}", f"shift{i}"], [f"normal{i}"], axis=-1, epsilon=EPSILON
        ),
        helper.make_node("Tanh", [f"normal{i}"], [f"bent{i}"]),
        helper.make_node("Unsqueeze", [f"bent{i}", "front"], [f"row{i}"]),
    ]
