"""Loops over the elements of results, one for each shape among them."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.kernels.device.device import Launch, TensorType
from onnxfuse.kernels.pointwise.loops import loop_types, loops
from tests.kernel_runs import FLOAT32
from tests.kernels.pointwise.test_pointwise_nodes import CHECKED, integers, node


def test_outputs_of_several_shapes_and_types() -> None:
    nodes = [
        integers("sizes", 3, 5),
        node("Split", "X sizes", "a b", axis=1),
        node("Exp", "a", "ea"),
        node("Greater", "b zero", "mask"),
        node("Cast", "mask", "count", to=TensorProto.INT64),
        node("Shape", "X", "shape"),
    ]
    nodes.insert(0, helper.make_node("Constant", [], ["zero"], value=numpy_helper.from_array(np.float32(0))))
    inputs = {"X": TensorType(FLOAT32, (5, 8))}
    outputs, made = loops("split", nodes, inputs, ["ea", "mask", "count", "", "shape"])
    assert loop_types(nodes, inputs, ["ea", "mask", "count", "", "shape"]) == (outputs, len(made))
    assert [(t.dtype.name, t.shape) for t in outputs] == [
        ("float32", (5, 3)),
        ("bool", (5, 5)),
        ("int64", (5, 5)),
        ("int64", (2,)),
    ]
    x = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
    results = {k: np.empty(t.shape, t.dtype) for k, t in zip((0, 1, 2, 4), outputs, strict=True)}
    for loop in made:
        arguments = [x, *(results[k] for k in loop.outputs), *loop.parameters]
        CHECKED.launch(Launch(loop.source, loop.entry, (1,), (256,)), arguments if loop.inputs else arguments[1:])
    np.testing.assert_allclose(results[0], np.exp(x[:, :3]), rtol=1e-6)
    assert (results[1] == (x[:, 3:] > 0)).all()
    assert (results[2] == (x[:, 3:] > 0)).all()
    assert results[4].tolist() == [5, 8]
    _, others = loops("split", nodes, {"X": TensorType(FLOAT32, (6, 8))}, ["", "", "", "", "shape"])
    assert others[0].source == made[-1].source, "the dims are numbers of a launch"
