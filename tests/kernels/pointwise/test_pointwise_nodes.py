"""Loops generated from any nodes: outputs of several shapes, index arithmetic, functions for other kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import Launch, Source, TensorType
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.pointwise.device_function import device_function
from onnxfuse.kernels.pointwise.loops import loops
from onnxfuse.language.catalogue import load
from tests.kernel_runs import FLOAT16, FLOAT32, Array, evaluate, far, reference, wide

CHECKED = Emulated(order="random")


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def integers(name: str, *values: int) -> NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(values, np.int64)))


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


def test_an_index_past_31_bits_inside_an_expression_is_64_bit() -> None:
    """A small result of a large intermediate: 2^40 elements are expanded, reshaped, and four of them taken."""
    nodes = [
        integers("large", 1 << 20, 1 << 20),
        integers("flat", 1 << 40),
        integers("from", (1 << 39) + 5),
        integers("to", (1 << 39) + 9),
        integers("axis", 0),
        node("Expand", "X large", "e"),
        node("Reshape", "e flat", "f"),
        node("Slice", "f from to axis", "y"),
    ]
    _, (loop,) = loops("large", nodes, {"X": TensorType(FLOAT32, (1 << 20, 1))}, ["y"])
    x, y = np.arange(1 << 20, dtype=np.float32), np.empty(4, np.float32)
    CHECKED.launch(Launch(loop.source, loop.entry, (1,), (32,)), [x, y, *loop.parameters])
    assert y.tolist() == [1 << 19] * 4


def test_the_other_elementwise_ops() -> None:
    """Each op once, all in one kernel for each shape."""
    rng = np.random.default_rng(0)
    feeds: dict[str, Array] = {
        "p": rng.uniform(0.1, 0.9, (4, 4, 4, 4)).astype(np.float32),
        "x": (rng.standard_normal((4, 4, 4, 4)) * 4).astype(np.float32),
        "i": rng.integers(-9, 9, (4, 4, 4, 4)),
        "k": rng.integers(1, 4, (4, 4, 4, 4)),
        "b": rng.random((4, 4, 4, 4)) < 0.5,
        "s": rng.integers(-100, 100, (4, 4, 4, 4)).astype(np.int8),
    }
    feeds["x"].flat[:3] = [np.inf, -np.inf, np.nan]
    unary = "Acos Asin Atan Atanh Asinh Cos Cosh Exp Floor Ceil Log Neg Reciprocal Round Sign Sin Sinh Sqrt Tan"
    calls: list[tuple[str, str, dict[str, Any]]] = [(op, "p", {}) for op in unary.split()]
    calls += [(op, "x", {}) for op in "Floor Ceil Round Sign Abs IsNaN IsInf Neg Relu".split()]
    calls += [(op, "x p", {}) for op in "Max Min Mean Div Mod Less LessOrEqual Greater GreaterOrEqual Equal".split()]
    calls[-6] = ("Mod", "x p", {"fmod": 1})
    calls += [
        (op, "i k", {})
        for op in "Add Sub Mul Max Min Mod Pow Equal Less Greater BitwiseAnd BitwiseOr BitwiseXor".split()
    ]
    calls += [(op, "i", {}) for op in "Abs Neg Sign BitwiseNot".split()]
    calls += [(op, "b b", {}) for op in "And Or Xor Equal".split()] + [("Not", "b", {})]
    calls += [("Pow", "p x", {}), ("Mod", "p p", {"fmod": 1}), ("Shrink", "x", {"lambd": 1.5, "bias": 0.5})]
    calls += [("IsInf", "x", {"detect_negative": 0}), ("Clip", "x p", {}), ("CastLike", "i p", {})]
    calls += [
        ("Cast", "i", {"to": t}) for t in (TensorProto.FLOAT, TensorProto.INT8, TensorProto.BOOL, TensorProto.INT32)
    ]
    calls += [("Cast", "p", {"to": t}) for t in (TensorProto.BOOL, TensorProto.INT64, TensorProto.FLOAT16)]
    calls += [("Cast", "s", {"to": t}) for t in (TensorProto.FLOAT, TensorProto.UINT8, TensorProto.INT64)]
    calls += [("Cast", "b", {"to": t}) for t in (TensorProto.FLOAT, TensorProto.INT64)]
    calls += [("DepthToSpace", "x", {"blocksize": 2, "mode": m}) for m in ("DCR", "CRD")]
    calls += [
        ("SpaceToDepth", "x", {"blocksize": 2}),
        ("Flatten", "x", {"axis": 2}),
        ("GatherElements", "x k", {"axis": 1}),
    ]
    calls += [("Selu", "x", {}), ("Elu", "x", {}), ("Celu", "x", {}), ("HardSigmoid", "x", {}), ("LeakyRelu", "x", {})]
    nodes = [helper.make_node(op, names.split(), [f"y{n}"], **given) for n, (op, names, given) in enumerate(calls)]
    outputs = [n.output[0] for n in nodes]
    kinds, made = loops("all", nodes, {n: TensorType(a.dtype, a.shape) for n, a in feeds.items()}, outputs)
    results = [np.empty(t.shape, t.dtype) for t in kinds]
    given_arrays = list(feeds.values())
    for loop in made:
        arrays = [*(given_arrays[k] for k in loop.inputs), *(results[k] for k in loop.outputs)]
        with CHECKED.fresh(*(results[k] for k in loop.outputs)):
            CHECKED.launch(Launch(loop.source, loop.entry, (2,), (64,)), [*arrays, *loop.parameters])
    for call, actual, made in zip(calls, results, nodes, strict=True):
        used = {name: w for name in made.input if (w := wide(feeds[name])) is not None}
        expected = evaluate([made], used, list(made.output), 18)[0]
        assert not far(actual, np.asarray(expected)), call


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node("MatMul", "X X", "y")], "MatMul is neither elementwise nor a view"),
        ([node("Neg", "Z", "y")], "no node computes"),
        ([node("Neg", "X", "z")], "no node computes y"),
        ([integers("s", 3), node("Reshape", "X s", "y")], "cannot be reshaped"),
        ([node("Cast", "X", "y", to=TensorProto.DOUBLE)], "computes in float64"),
        ([node("Cast", "X", "i", to=TensorProto.INT64), node("Reshape", "X i", "y")], "computed at run time"),
    ],
)
def test_nodes_that_no_loop_can_do_are_refused(nodes: list[NodeProto], message: str) -> None:
    with pytest.raises(KernelError, match=message):
        loops("nodes", nodes, {"X": TensorType(FLOAT32, (4, 4))}, ["y"])


def test_a_chain_of_many_ops_is_no_deep_recursion() -> None:
    nodes = [node("Tanh", f"x{i}", f"x{i + 1}") for i in range(200)]
    _, made = loops("chain", nodes, {"x0": TensorType(FLOAT32, (8,))}, ["x200"])
    assert made[0].source.text.count("tanhf") == 200
    with pytest.raises(KernelError, match="too many"):
        loops("chain", nodes * 2, {"x0": TensorType(FLOAT32, (8,))}, ["x200"])


# --------------------------------------------------------------------------------------------- prologues and epilogues


def test_a_function_of_elements_is_called_by_another_kernel() -> None:
    """Skip and bias before, an activation after: what a row kernel does on its reads and writes."""
    nodes = [node("Add", "x skip", "s"), node("Add", "s bias", "sum"), node("Gelu", "sum", "y")]
    dtypes = {"x": FLOAT16, "skip": FLOAT16, "bias": FLOAT32}
    text = device_function("prologue", nodes, dtypes, {"sum": "total", "y": "bent"})
    assert text.startswith("__device__ __forceinline__ void prologue(float x, float skip, float bias, float& total, ")
    caller = """
extern "C" __global__ void k(const float* x, const float* bias, float* total, float* bent) {
    prologue(x[threadIdx.x], 1.f, bias[0], total[threadIdx.x], bent[threadIdx.x]);
}
"""
    x, bias = np.linspace(-3, 3, 32, dtype=np.float32), np.array([0.5], np.float32)
    total, bent = np.empty_like(x), np.empty_like(x)
    made = Source("prologue", Source.file("functions.cuh").text + text + caller)
    CHECKED.launch(Launch(made, "k", (1,), (32,)), [x, bias, total, bent])
    np.testing.assert_allclose(total, x + 1.5, rtol=1e-6)
    arrays = [total]
    assert not far(bent, reference("Gelu", {}, arrays, load())[0])


def test_a_function_of_elements_knows_no_coordinates() -> None:
    with pytest.raises(KernelError, match="single elements"):
        device_function("f", [integers("n", 1, 2), node("Cast", "n", "y", to=1)], {}, {"y": "y"})
    with pytest.raises(KernelError, match="neither elementwise nor a view"):
        device_function("f", [node("Softmax", "x", "y")], {"x": FLOAT32}, {"y": "y"})
