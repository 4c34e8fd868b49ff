"""Linear layers with bias and residual: what the rules of our own kernels fuse, and what they leave alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from onnxfuse.model.graph import family_of
from onnxfuse.targets.target import Target
from tests.spellings.mutants import feeds, run
from tests.written import inputs

CATALOGUE = catalogue.load()
FLOAT = TensorProto.FLOAT
N = helper.make_node


def model(
    nodes: list[NodeProto],
    inputs: dict[str, Any],
    outputs: dict[str, Any],
    constants: dict[str, tuple[int, ...]] | None = None,
    dtype: int = FLOAT,
) -> Any:
    rng = np.random.default_rng(7)
    kind = helper.tensor_dtype_to_np_dtype(dtype)
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, dtype, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, dtype, shape) for name, shape in outputs.items()],
        [
            numpy_helper.from_array((3 * rng.standard_normal(shape)).astype(kind), name)
            for name, shape in (constants or {}).items()
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


LETTERS = {"A": "A", "B": "B", "bias": "c", "residual": "r"}


def fused(before: Any, target: str = "onnxfuse") -> list[tuple[str, str, str]]:
    """Op, inputs that are given and activation of each node; the numbers must not change."""
    after = fuse(before, CATALOGUE.serving(Target(target))).model
    given = feeds(before)
    for expected, actual in zip(run(before, given), run(after, given), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)
    return [
        ("FusedMatMul", "".join(LETTERS[name] for name in inputs(after, node)), activation(node))
        if family_of(node) == "FusedMatMul"
        else (family_of(node), "", "")
        for node in after.graph.node
    ]


def activation(node: NodeProto) -> str:
    return next((a.s.decode() for a in node.attribute if a.name == "activation"), "")


X, W, C, R = ["batch", 5, 4], (4, 6), (6,), ["batch", 5, 6]
PRODUCT, BIAS, SUM = N("MatMul", ["x", "w"], ["p"]), N("Add", ["c", "p"], ["q"]), N("Add", ["r", "q"], ["y"])

LAYERS: dict[str, tuple[Any, list[tuple[str, str, str]]]] = {
    "bias": (
        model([PRODUCT, N("Add", ["c", "p"], ["y"])], {"x": X}, {"y": R}, {"w": W, "c": C}),
        [("FusedMatMul", "ABc", "")],
    ),
    "residual": (
        model([PRODUCT, N("Add", ["r", "p"], ["y"])], {"x": X, "r": R}, {"y": R}, {"w": W}),
        [("FusedMatMul", "ABr", "")],
    ),
    "both": (
        model([PRODUCT, BIAS, SUM], {"x": X, "r": R}, {"y": R}, {"w": W, "c": C}),
        [("FusedMatMul", "ABcr", "")],
    ),
    "both, added the other way round": (
        model([PRODUCT, N("Add", ["p", "r"], ["q"]), N("Add", ["q", "c"], ["y"])], {"x": X, "r": R}, {"y": R},
              {"w": W, "c": C}),
        [("FusedMatMul", "ABcr", "")],
    ),
    "a residual behind an activation": (
        model([PRODUCT, BIAS, N("Relu", ["q"], ["a"]), N("Add", ["a", "r"], ["y"])], {"x": X, "r": R}, {"y": R},
              {"w": W, "c": C}),
        [("FusedMatMul", "ABcr", "Relu")],
    ),
    "a residual that is the same for all of a batch": (
        model([PRODUCT, BIAS, SUM], {"x": X}, {"y": R}, {"w": W, "c": C, "r": (1, 5, 6)}),
        [("FusedMatMul", "ABcr", "")],
    ),
    "a sum that is used twice": (
        model([PRODUCT, BIAS, SUM, N("Exp", ["y"], ["z"])], {"x": X, "r": R}, {"y": R, "z": R}, {"w": W, "c": C}),
        [("FusedMatMul", "ABcr", ""), ("Exp", "", "")],
    ),
    "a weight as it is stored": (
        model([N("Transpose", ["v"], ["w"], perm=[1, 0]), PRODUCT, BIAS, SUM], {"x": X, "r": R}, {"y": R},
              {"v": (6, 4), "c": C}),
        [("FusedMatMul", "ABcr", "")],
    ),
    "a matrix and its Gemm": (
        model([N("Gemm", ["x", "w", "c"], ["q"]), SUM], {"x": [5, 4], "r": [5, 6]}, {"y": [5, 6]}, {"w": W, "c": C}),
        [("FusedMatMul", "ABcr", "")],
    ),
    "two products": (
        model([PRODUCT, N("MatMul", ["z", "w"], ["r"]), N("Add", ["p", "r"], ["y"])], {"x": X, "z": X}, {"y": R},
              {"w": W}),
        [("MatMul", "", ""), ("FusedMatMul", "ABr", "")],
    ),
    "a product before the residual that it makes": (
        model([PRODUCT, N("Relu", ["p"], ["a"]), N("MatMul", ["a", "v"], ["b"]), N("Add", ["a", "b"], ["y"])],
              {"x": X}, {"y": R}, {"w": W, "v": (6, 6)}),
        [("FusedMatMul", "AB", "Relu"), ("FusedMatMul", "ABr", "")],
    ),
}  # fmt: skip
"""Before, and the nodes after."""


@pytest.mark.parametrize("name", LAYERS)
def test_linear_layers(name: str) -> None:
    before, after = LAYERS[name]
    assert fused(before) == after
    again = [fuse(before, CATALOGUE).model.SerializeToString(deterministic=True) for _ in range(2)]
    assert again[0] == again[1]


@pytest.mark.parametrize("target", ["onnx", "ort"])
@pytest.mark.parametrize("name", ["bias", "residual", "both", "two products"])
def test_other_targets_have_no_such_op(name: str, target: str) -> None:
    before, _ = LAYERS[name]
    made = [op for op, _, _ in fused(before, target)]
    assert set(made) <= {"MatMul", "Add", "Gemm", "Reshape", "Sum"}


ALMOST: dict[str, Any] = {
    "a product that something else needs": model(
        [PRODUCT, N("Add", ["p", "r"], ["y"]), N("Exp", ["p"], ["z"])], {"x": X, "r": R}, {"y": R, "z": R}, {"w": W}
    ),
    "one number for each row": model(
        [PRODUCT, N("Add", ["p", "r"], ["y"])], {"x": X, "r": ["batch", 5, 1]}, {"y": R}, {"w": W}
    ),
    "one number for each of a batch": model(
        [PRODUCT, N("Add", ["p", "r"], ["y"])], {"x": X, "r": ["batch", 1, 6]}, {"y": R}, {"w": W}
    ),
    "a scale that is no constant": model(
        [PRODUCT, N("Mul", ["p", "half"], ["s"]), N("Add", ["s", "r"], ["y"])],
        {"x": X, "r": R, "half": []},
        {"y": R},
        {"w": W},
    ),
    "a bias of one number": model([PRODUCT, N("Add", ["p", "c"], ["y"])], {"x": X, "c": [1]}, {"y": R}, {"w": W}),
    "a residual that widens": model(
        [PRODUCT, N("Add", ["p", "r"], ["y"])], {"x": [1, 5, 4], "r": ["batch", 5, 6]}, {"y": R}, {"w": W}
    ),
    "a residual that differs within a batch and not between batches": model(
        [PRODUCT, N("Add", ["p", "r"], ["y"])], {"x": [2, 3, 5, 4]}, {"y": [2, 3, 5, 6]}, {"w": W, "r": (2, 1, 5, 6)}
    ),
    "integers": model(
        [PRODUCT, N("Add", ["p", "c"], ["y"])], {"x": X}, {"y": R}, {"w": W, "c": C}, dtype=TensorProto.INT32
    ),
    "a vector": model([PRODUCT, N("Add", ["p", "c"], ["y"])], {"x": [4]}, {"y": [6]}, {"w": W, "c": C}),
}


@pytest.mark.parametrize("name", ALMOST)
def test_what_is_almost_one_stays(name: str) -> None:
    assert "FusedMatMul" not in {op for op, _, _ in fused(ALMOST[name])}


@pytest.mark.parametrize("shape", [(6,), (5, 6)])
def test_a_gemm_is_one_node_and_stays_byte_for_byte(shape: tuple[int, ...]) -> None:
    before = model(
        [N("Gemm", ["x", "w", "c"], ["y"], "linear", transB=1)], {"x": [5, 4]}, {"y": [5, 6]}, {"w": (6, 4), "c": shape}
    )
    after = fuse(before, CATALOGUE).model
    assert [n.SerializeToString() for n in after.graph.node] == [n.SerializeToString() for n in before.graph.node]


def test_a_residual_sum_before_a_norm_stays_with_the_norm() -> None:
    nodes = [
        PRODUCT,
        BIAS,
        SUM,
        N("LayerNormalization", ["y", "g", "b"], ["z"], axis=-1),
    ]
    before = model(nodes, {"x": X, "r": R}, {"y": R, "z": R}, {"w": W, "c": C, "g": C, "b": C})
    assert [op for op, _, _ in fused(before)] == ["MatMul", "SkipLayerNormalization"]
