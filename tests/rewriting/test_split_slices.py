"""Slices that take a tensor apart are one Split, in every opset, and others stay as they are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper, parser

from onnxfuse.fusing.fuse import fuse
from onnxfuse.language.catalogue import load
from onnxfuse.runtime.quiet import Session
from tests.matching.test_match import fused_by, ops, rule

CATALOGUE = replace(load(), level=1)
TAIL = "t = Tan (x)  u = Tan (t)  v = Identity (u)  y = Neg (v)"
"""Something to be written, an Identity that goes: a scope that stays as it is stays with its Slices."""
THREE = [(0, 4), (4, 6), (6, 12)]


def model(
    bounds: list[tuple[int, int]], opset: int = 18, axis: int = 1, shape: str = "n, 12", steps: int = 1
) -> onnx.ModelProto:
    """x, and what Slices take of it along an axis."""
    taken = []
    for i, (start, stop) in enumerate(bounds):
        if opset < 10:
            taken.append(f"p{i} = Slice <starts = [{start}], ends = [{stop}], axes = [{axis}]> (x)")
            continue
        vectors = {"s": start, "e": stop, "a": axis, "d": steps}
        taken += [f"{k}{i} = Constant <value = int64[1] {{{v}}}> ()" for k, v in vectors.items()]
        taken.append(f"p{i} = Slice (x, s{i}, e{i}, a{i}, d{i})")
    outputs = ", ".join([*(f"float[a{i}, b{i}] p{i}" for i in range(len(bounds))), f"float[{shape}] y"])
    text = f'<ir_version: 8, opset_import: ["": {opset}]> g (float[{shape}] x) => ({outputs})'
    return parser.parse_model(f"{text} {{ {' '.join(taken)} {TAIL} }}")


def written(before: onnx.ModelProto) -> tuple[list[str], onnx.ModelProto]:
    after = fuse(before, CATALOGUE).model
    onnx.checker.check_model(after)
    return [node.op_type for node in after.graph.node if node.op_type in ("Slice", "Split")], after


@pytest.mark.parametrize("opset", [9, 11, 13, 18])
def test_slices_that_are_all_of_a_tensor_are_a_split(opset: int) -> None:
    before = model(THREE, opset)
    ops, after = written(before)
    assert ops == ["Split"]
    x = np.arange(36, dtype=np.float32).reshape(3, 12)
    wanted, got = (Session(m, optimize=False).run({"x": x}) for m in (before, after))
    for a, b in zip(wanted, got, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    "bounds",
    [
        pytest.param([(6, 12), (0, 4), (4, 6)], id="in any order"),
        pytest.param([(0, 4), (4, -6), (-6, 10**9)], id="counted from the end, and beyond it"),
    ],
)
def test_bounds_are_places(bounds: list[tuple[int, int]]) -> None:
    assert written(model(bounds))[0] == ["Split"]


@pytest.mark.parametrize(
    ("before", "count"),
    [
        pytest.param(model([(0, 4), (6, 12)]), 2, id="something is in no part"),
        pytest.param(model([(0, 6), (4, 12)]), 2, id="something is in two parts"),
        pytest.param(model([(0, 4), (4, 12)], shape="n, m"), 2, id="it may be longer"),
        pytest.param(model([(0, 6), (6, 12)], steps=2), 2, id="each second element"),
        pytest.param(model([(0, 12)]), 0, id="one is all"),
    ],
)
def test_other_slices_stay(before: onnx.ModelProto, count: int) -> None:
    assert written(before)[0] == ["Slice"] * count


def test_a_split_is_where_its_first_slice_was_and_what_nobody_reads_is_no_part() -> None:
    text = '<ir_version: 8, opset_import: ["": 18]> g (float[2, 4] x) => (float[2, 2] y) {'
    text += "z = Constant <value = int64[1] {0}> () m = Constant <value = int64[1] {2}> ()"
    text += "e = Constant <value = int64[1] {4}> () a = Constant <value = int64[1] {1}> ()"
    text += "l = Slice (x, z, m, a) r = Slice (x, m, e, a) i = Identity (l) y = Tan (i) }"
    assert written(parser.parse_model(text))[0] == ["Slice"]


def test_what_a_rule_has_written_is_taken_apart_as_well() -> None:
    """Its dims are those of its term: no node of the file had it."""
    made = rule(
        "Made(x)\nmatch: y = Sin(Cos(Exp(Abs(Tan(x)))))\n"
        "let:\n    z = Made(x)\n    l = Slice(z, axis=1, start=0, stop=4)\n    r = Slice(z, axis=1, start=4, stop=12)\n"
        "emit: y = Concat(r, l, axis=1)\nmeaning: y = Sin(Cos(Exp(Abs(Tan(x)))))\n"
    )
    text = "g (float[n, 12] x) => (float[n, 12] y) { t = Tan(x) a = Abs(t) e = Exp(a) c = Cos(e) y = Sin(c) }"
    assert ops(fused_by(text, made)) == ["Made", "Split", "Concat"]


def test_steps_of_a_quantizer_stay_apart() -> None:
    """onnxruntime takes a Slice to bytes and back, and a Split where all parts share what reads them."""
    before = model([(0, 6), (6, 12)])
    graph = before.graph
    for node in graph.node:
        node.input[:] = ["w" if name == "x" and node.op_type == "Slice" else name for name in node.input]
    scale = helper.make_node("Constant", [], ["scale"], value=helper.make_tensor("", 1, [], [0.1]))
    zero = helper.make_node("Constant", [], ["zero"], value=helper.make_tensor("", 2, [], [128]))
    steps = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["w"]),
    ]
    nodes = [scale, zero, *steps, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    assert written(before)[0] == ["Slice", "Slice"]
