"""Queries, keys and values of one product, in the ways in which exporters take them apart: columns of it are enough."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import onnxfuse

SPLIT = "r = Reshape (x, five)  t = Transpose <perm = [2, 0, 3, 1, 4]> (r)  "
FORMS = {
    # timm, PaddlePaddle: qkv.reshape(B, T, 3, H, D).permute(2, 0, 3, 1, 4), and each third of it.
    "gather": SPLIT + "q = Gather <axis = 0> (t, i0)  k = Gather <axis = 0> (t, i1)  v = Gather <axis = 0> (t, i2)",
    "slice": SPLIT
    + """q0 = Slice (t, a0, a1, a0)  q = Squeeze (q0, a0)  k0 = Slice (t, a1, a2, a0)  k = Squeeze (k0, a0)
         v0 = Slice (t, a2, a3, a0)  v = Squeeze (v0, a0)""",
    "split": SPLIT
    + "q0, k0, v0 = Split <axis = 0> (t)  q = Squeeze (q0, a0)  k = Squeeze (k0, a0)  v = Squeeze (v0, a0)",
}
# torch.nn.MultiheadAttention: unflatten(-1, (3, E)).unsqueeze(0).transpose(0, -2).squeeze(-2)
IN_PROJ = """f = Reshape (x, four)  u = Unsqueeze (f, a0)  w = Transpose <perm = [3, 1, 2, 0, 4]> (u)
    p = Squeeze (w, a3)
    q0 = Gather <axis = 0> (p, i0)  k0 = Gather <axis = 0> (p, i1)  v0 = Gather <axis = 0> (p, i2)
    q1 = Reshape (q0, heads)  q = Transpose <perm = [0, 2, 1, 3]> (q1)
    k1 = Reshape (k0, heads)  k = Transpose <perm = [0, 2, 1, 3]> (k1)
    v1 = Reshape (v0, heads)  v = Transpose <perm = [0, 2, 1, 3]> (v1)"""


def packed(form: str) -> onnx.ModelProto:
    model = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 17]> g (float[B,T,16] given) => (float[B,T,16] y)
        <int64[5] five = {{0, -1, 3, 2, 8}}, int64[4] four = {{0, -1, 3, 16}}, int64[4] heads = {{0, -1, 2, 8}},
         int64[1] a0 = {{0}}, int64[1] a1 = {{1}}, int64[1] a2 = {{2}}, int64[1] a3 = {{3}}, int64 i0 = {{0}},
         int64 i1 = {{1}}, int64 i2 = {{2}}, int64[3] merged = {{0, -1, 16}}, float scale = {{0.35355338}}> {{
        m = MatMul (given, weight)  x = Add (m, bias)  {form}
        kt = Transpose <perm = [0, 1, 3, 2]> (k)  s = MatMul (q, kt)  scaled = Mul (s, scale)
        p9 = Softmax <axis = -1> (scaled)  o = MatMul (p9, v)  ot = Transpose <perm = [0, 2, 1, 3]> (o)
        y = Reshape (ot, merged) }}"""
    )
    rng = np.random.default_rng(0)
    for name, shape in (("weight", (16, 48)), ("bias", (48,))):
        model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    onnx.checker.check_model(model, full_check=True)
    return model


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("target", ["onnxfuse", "onnx", "ort"])
def test_columns_of_the_product_are_what_attention_takes(form: str, target: str) -> None:
    made = onnxfuse.optimize(packed(FORMS[form]), target=target, level=1)
    assert made.report.validation.verdict == "equal"
    ops = [node.op_type.partition("_")[0] for node in made.model.graph.node]
    assert ops[-2:] in (["Split", "Attention"], ["Split", "MultiHeadAttention"])
    assert "Slice" not in ops
    assert not {"Reshape", "Transpose", "Gather", "Squeeze"} & set(ops)


def windows(form: str) -> onnx.ModelProto:
    """The same in windows of four positions (Swin), which are counted with the batch."""
    model = packed(form)
    model.graph.input[0].CopyFrom(onnx.helper.make_tensor_value_info("given", onnx.TensorProto.FLOAT, ["B", 4, 4, 16]))
    model.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["W", 4, 16]))
    for name, shape in (("five", (-1, 4, 3, 2, 8)), ("merged", (-1, 4, 16)), ("two", (0, 2, 2, 2, 2, 16))):
        for old in [tensor for tensor in model.graph.initializer if tensor.name == name]:
            model.graph.initializer.remove(old)
        model.graph.initializer.append(numpy_helper.from_array(np.array(shape), name))
    first = parser.parse_graph(
        """g (float[B,4,4,16] given) => (float[W,4,16] rows) {
        apart = Reshape (given, two)  sides = Transpose <perm = [0, 1, 3, 2, 4, 5]> (apart)
        rows = Reshape (sides, merged) }"""
    )
    nodes = [*first.node, *model.graph.node]
    nodes[3].input[0] = "rows"
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.checker.check_model(model, full_check=True)
    return model


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("target", ["onnxfuse", "onnx", "ort"])
def test_columns_of_windows_are_what_attention_takes(form: str, target: str) -> None:
    made = onnxfuse.optimize(windows(FORMS[form]), target=target, level=1)
    assert made.report.validation.verdict == "equal"
    ops = [node.op_type.partition("_")[0] for node in made.model.graph.node]
    assert {"Split", "Attention"} <= set(ops) or {"Split", "MultiHeadAttention"} <= set(ops)
    assert ops.count("Transpose") == 1
    assert not {"Gather", "Slice"} & set(ops)


def test_heads_that_nothing_moves_are_what_attention_takes() -> None:
    """Queries, keys and values are thirds already."""
    made = onnxfuse.optimize(packed(IN_PROJ), level=1)
    assert made.report.validation.verdict == "equal"
    ops = [node.op_type.partition("_")[0] for node in made.model.graph.node]
    assert ops == ["FusedMatMul", "Reshape", "Transpose", "Gather", "Gather", "Gather", "Attention"]


def positions_first() -> onnx.ModelProto:
    """torch.nn.MultiheadAttention with batch_first: positions come first inside, and a Gemm takes all rows at once."""
    model = parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 17]> g (float[3,7,16] given) => (float[3,7,16] y)
        <int64[4] four = {7, 3, 3, 16}, int64[4] heads = {3, 2, 7, 8}, int64[3] joined = {7, 6, 8},
         int64[1] a0 = {0}, int64[1] a3 = {3}, int64 i0 = {0}, int64 i1 = {1}, int64 i2 = {2},
         int64[2] rows = {21, 16}, int64[3] whole = {7, 3, 16}, float scale = {0.35355338}> {
        x0 = Transpose <perm = [1, 0, 2]> (given)  m = MatMul (x0, weight)  x = Add (m, bias)
        f = Reshape (x, four)  u = Unsqueeze (f, a0)  w = Transpose <perm = [3, 1, 2, 0, 4]> (u)
        p = Squeeze (w, a3)
        q0 = Gather <axis = 0> (p, i0)  k0 = Gather <axis = 0> (p, i1)  v0 = Gather <axis = 0> (p, i2)
        q1 = Reshape (q0, joined)  q2 = Transpose <perm = [1, 0, 2]> (q1)  q = Reshape (q2, heads)
        k1 = Reshape (k0, joined)  k2 = Transpose <perm = [1, 0, 2]> (k1)  k = Reshape (k2, heads)
        v1 = Reshape (v0, joined)  v2 = Transpose <perm = [1, 0, 2]> (v1)  v = Reshape (v2, heads)
        kt = Transpose <perm = [0, 1, 3, 2]> (k)  s = MatMul (q, kt)  scaled = Mul (s, scale)
        p9 = Softmax <axis = -1> (scaled)  o = MatMul (p9, v)  ot = Transpose <perm = [2, 0, 1, 3]> (o)
        o2 = Reshape (ot, rows)  g2 = Gemm (o2, out, shift)  g3 = Reshape (g2, whole)
        y = Transpose <perm = [1, 0, 2]> (g3) }"""
    )
    rng = np.random.default_rng(0)
    shapes = {"weight": (16, 48), "bias": (48,), "out": (16, 16), "shift": (16,)}
    for name, shape in shapes.items():
        model.graph.initializer.append(numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name))
    onnx.checker.check_model(model, full_check=True)
    return model


@pytest.mark.parametrize(
    ("target", "ops"),
    [
        ("onnxfuse", ["FusedMatMul", "Split", "Attention", "FusedMatMul"]),
        ("onnx", ["MatMul", "Add", "Split", "Attention", "MatMul", "Add"]),
    ],
)
def test_linear_layers_take_positions_in_the_order_in_which_they_come(target: str, ops: list[str]) -> None:
    made = onnxfuse.optimize(positions_first(), target=target, level=1)
    assert made.report.validation.verdict == "equal"
    assert [node.op_type.partition("_")[0] for node in made.model.graph.node] == ops


def test_a_linear_layer_that_something_else_reads_is_not_computed_twice() -> None:
    """All that it gives is an output in the other order."""
    before = positions_first()
    before.graph.output.add(name="x").type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    made = onnxfuse.optimize(before, level=1)
    assert made.report.validation.verdict == "equal"
    wide = [node for node in made.model.graph.node if "weight" in node.input]
    assert len(wide) == 1


def test_what_something_else_reads_is_not_cut_twice() -> None:
    """The keys are an output as heads: they stay what they are."""
    before = packed(FORMS["gather"])
    before.graph.output.add(name="k").type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    made = onnxfuse.optimize(before)
    assert made.report.validation.verdict == "equal"
    ops = [node.op_type.partition("_")[0] for node in made.model.graph.node]
    assert "Attention" in ops
    assert ops.count("Slice") + ops.count("Gather") <= 4
