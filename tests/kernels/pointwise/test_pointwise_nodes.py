"""Loops generated from any nodes: outputs of several shapes, index arithmetic, functions for other kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

from onnxfuse.kernels.device.device import Launch, TensorType
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.pointwise.loops import loops
from tests.kernel_runs import FLOAT32, Array, evaluate, far, wide

CHECKED = Emulated(order="random")


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def integers(name: str, *values: int) -> NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.array(values, np.int64)))


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


@pytest.mark.parametrize("n", [20, 40, 300])
def test_a_matrix_of_indices_is_computed_of_rows_and_columns(n: int) -> None:
    """How far two positions lie apart, cut off at five: a table, too large for one, and too large to be computed."""
    numbers = [integers("zero"), integers("three", 3), integers("four", 4), integers("first", 0), integers("second", 1)]
    numbers[0].attribute[0].t.CopyFrom(numpy_helper.from_array(np.array(0)))
    numbers += [helper.make_node("Constant", [], [name], value_int=value) for name, value in (("one", 1), ("five", 5))]
    nodes = [
        *numbers,
        node("Size", "X", "n"),
        node("Range", "zero n one", "columns"),
        node("Unsqueeze", "columns second", "rows"),
        node("Sub", "rows columns", "apart"),
        node("Neg", "five", "least"),
        node("Clip", "apart least five", "near"),
        node("Slice", "near three four first", "row"),
        node("Cast", "row", "distance", to=TensorProto.FLOAT),
        node("Add", "X distance", "y"),
    ]
    _, (loop,) = loops("apart", nodes, {"X": TensorType(FLOAT32, (n,))}, ["y"])
    x, y = np.arange(n, dtype=np.float32), np.empty((1, n), np.float32)
    CHECKED.launch(Launch(loop.source, loop.entry, (n // 32 + 1,), (32,)), [x, y, *loop.parameters])
    assert y.tolist() == [(x + np.clip(3 - np.arange(n), -5, 5)).tolist()]


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


# --------------------------------------------------------------------------------------------- prologues and epilogues
