"""Attention whose heads of queries share heads of keys that none repeats: scores of rank 5, in Einsum or MatMul; and
whose queries all of a batch share."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxfuse.fusing.fuse import fuse, lower
from onnxfuse.language.catalogue import load
from onnxfuse.targets.target import Target
from tests.spellings.mutants import run

CATALOGUE = load()
TARGETS = ("onnxfuse", "onnx", "ort")
GROUPS, HEADS, WIDTH = 3, 2, 8
"""Heads of queries for each head of keys, heads of keys, channels of a head."""

SPLITS = {
    "kg": (HEADS, GROUPS),
    "gk": (GROUPS, HEADS),
}
"""How a form orders the heads of queries: by heads of keys, or by place in the group."""

LINEAR = "q = MatMul (x, wq)  k = MatMul (x, wk)  v = MatMul (x, wv)  q5 = Reshape (q, split)"
KEYS = "k4 = Reshape (k, heads)  v4 = Reshape (v, heads)"


def einsum(order: str, scores: str) -> str:
    return f"""{KEYS}  products = Einsum <equation = "bq{order}d,bskd->{scores}"> (q5, k4)
      scaled = Mul (products, scale)  masked = Add (scaled, mask)  {{weights}}
      mixed = Einsum <equation = "{scores},bskd->bq{order}d"> (p, v4)"""


def matmul(axis: str, perm: str) -> str:
    return f"""{KEYS}  kt = Transpose <perm = [0, 2, 3, 1]> (k4)  vt = Transpose <perm = [0, 2, 1, 3]> (v4)
      k5 = Unsqueeze (kt, {axis})  v5 = Unsqueeze (vt, {axis})  qt = Transpose <perm = [0, 2, 3, 1, 4]> (q5)
      products = MatMul (qt, k5)  scaled = Mul (products, scale)  masked = Add (scaled, mask)  {{weights}}
      yt = MatMul (p, v5)  mixed = Transpose <perm = [{perm}]> (yt)"""


FORMS: dict[str, tuple[str, str, str]] = {
    "bkgqs": ("kg", "B, 1, 1, S, S", einsum("kg", "bkgqs")),
    "bgkqs": ("kg", "B, 1, 1, S, S", einsum("kg", "bgkqs")),
    "bqkgs": ("kg", "B, S, 1, 1, S", einsum("kg", "bqkgs")),
    "group first": ("gk", "B, 1, 1, S, S", einsum("gk", "bgkqs")),
    "queries and group first": ("gk", "B, S, 1, 1, S", einsum("gk", "bqgks")),
    "MatMul": ("kg", "B, 1, 1, S, S", matmul("behind", "0, 3, 1, 2, 4")),
    "MatMul, group first": ("gk", "B, 1, 1, S, S", matmul("before", "0, 3, 1, 2, 4")),
    "a bias of each head": ("kg", "2, 3, S, S", einsum("kg", "bkgqs")),
    "a bias of each head of keys": ("kg", "2, 1, S, S", einsum("kg", "bkgqs")),
}
"""How heads are split, the shape of what is added to the scores, the nodes between heads and rows."""

CASES = [(form, target) for form in FORMS for target in TARGETS if "bias" not in form or target == "onnxfuse"]
"""onnxruntime before 1.25 computes grouped heads with a mask of each wrong: files for it keep what they were."""

PLAIN = "p = Softmax <axis = -1> (masked)"
SINK = """dims = Shape <end = -1> (masked)  size = Concat <axis = 0> (dims, behind_one)  sinks = Expand (sink, size)
      logits = Concat <axis = -1> (masked, sinks)  all = Softmax <axis = -1> (logits)
      p = Slice (all, zero, end, last)"""


def attention(form: str, weights: str = PLAIN, *, groups: int = GROUPS, heads: int = HEADS) -> onnx.ModelProto:
    order, mask, body = FORMS[form]
    m, n = (heads, groups) if order == "kg" else (groups, heads)
    columns = groups * heads * WIDTH
    model = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 17]>
        g (float[B, S, 16] x, float[{mask}] mask) => (float[B, S, {columns}] y)
        <int64[5] split = {{0, 0, {m}, {n}, {WIDTH}}}, int64[4] heads = {{0, 0, {heads}, {WIDTH}}},
         int64[3] merged = {{0, 0, {columns}}}, int64[1] behind = {{2}}, int64[1] before = {{1}},
         int64[1] behind_one = {{1}}, int64[1] zero = {{0}}, int64[1] end = {{-1}}, int64[1] last = {{-1}},
         float scale = {{0.35}}> {{ {LINEAR}  {body.format(weights=weights)}  y = Reshape (mixed, merged) }}"""
    )
    rng = np.random.default_rng(0)
    for name, shape in {
        "wq": (16, columns),
        "wk": (16, heads * WIDTH),
        "wv": (16, heads * WIDTH),
        "sink": (heads, groups, 1, 1),
    }.items():
        value = rng.standard_normal(shape).astype(np.float32) / 2
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    return model


def fixed(model: onnx.ModelProto, **sizes: int) -> onnx.ModelProto:
    """The model for one size."""
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = sizes[dim.dim_param]
    return model


def fused(model: onnx.ModelProto, target: str) -> onnx.ModelProto:
    if target == "onnxfuse":
        return fuse(model, CATALOGUE).model
    return lower(model, CATALOGUE.serving(Target(target)))[1].model


def agree(model: onnx.ModelProto, found: onnx.ModelProto) -> None:
    dynamic = any(d.dim_param for d in model.graph.output[0].type.tensor_type.shape.dim)
    for sizes in ({"B": 2, "S": 5}, {"B": 1, "S": 4}, {"B": 3, "S": 1})[: None if dynamic else 1]:
        rng, given = np.random.default_rng(1), {}
        for value in model.graph.input:
            shape = [sizes.get(d.dim_param) or d.dim_value for d in value.type.tensor_type.shape.dim]
            given[value.name] = rng.standard_normal(shape).astype(np.float32)
        given["mask"] = np.where(given["mask"] > 1, -np.inf, given["mask"])
        given["mask"][..., 0] = 0  # a row that is hidden throughout is 0 here and NaN there
        for before, after in zip(run(model, given), run(found, given), strict=True):
            np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("form", "target"), CASES)
def test_groups_of_heads_are_one_attention_whose_keys_are_not_repeated(form: str, target: str) -> None:
    model = attention(form)
    found = fused(model, target)
    ops = Counter(node.op_type.partition("_")[0] for node in found.graph.node)
    assert ops["Attention"] == 1
    assert not ops.keys() & {"Einsum", "Softmax", "Tile"}
    [node] = (node for node in found.graph.node if node.op_type.startswith("Attention"))
    counts = {a.name: a.i for a in node.attribute}
    if SPLITS["kg"] == SPLITS[FORMS[form][0]]:  # as the linear layers have them: nothing moves
        assert counts["q_num_heads"] == GROUPS * HEADS
        assert counts["kv_num_heads"] == HEADS
        assert ops["Transpose"] <= ("q" in form[:2])  # of a mask with queries before heads
    agree(model, found)


@pytest.mark.parametrize(("groups", "heads"), [(3, 1), (1, 2), (3, 2)])
@pytest.mark.parametrize("sizes", [{}, {"B": 1, "S": 5}, {"B": 2, "S": 5}])
@pytest.mark.parametrize("form", ["bkgqs", "bqkgs"])
def test_one_head_of_keys_and_one_of_queries_for_each_are_groups(
    form: str, sizes: dict[str, int], groups: int, heads: int
) -> None:
    """Gemma's models in JAX: axes of 1 move without a Transpose."""
    model = attention(form, groups=groups, heads=heads)
    found = fused(fixed(model, **sizes) if sizes else model, "onnxfuse")
    ops = Counter(node.op_type.partition("_")[0] for node in found.graph.node)
    assert ops["Attention"] == 1
    assert not ops.keys() & {"Einsum", "Softmax"}
    agree(model, found)


@pytest.mark.parametrize("form", ["bkgqs", "MatMul"])
def test_groups_of_heads_with_a_sink_are_one_attention(form: str) -> None:
    model = attention(form, SINK)
    found = fused(model, "onnxfuse")
    ops = Counter(node.op_type.partition("_")[0] for node in found.graph.node)
    assert ops["Attention"] == 1
    assert not ops.keys() & {"Einsum", "Softmax", "Concat", "Transpose"}
    agree(model, found)


def test_windows_with_one_head_of_keys_stay_a_batch() -> None:
    """What stands before the heads is no group of them, if heads lie side by side in each of its rows."""
    model = parser.parse_model(
        """<ir_version: 9, opset_import: ["": 17]>
        g (float[B, 4, 9, 24] q, float[B, 4, 9, 8] k, float[B, 4, 9, 8] v) => (float[B, 4, 9, 24] y)
        <int64[5] split = {0, 0, 0, 3, 8}, int64[4] merged = {0, 0, 0, 24}, int64[1] axis = {2}> {
          q5 = Reshape (q, split)  qt = Transpose <perm = [0, 1, 3, 2, 4]> (q5)
          kt = Transpose <perm = [0, 1, 3, 2]> (k)  k5 = Unsqueeze (kt, axis)  v5 = Unsqueeze (v, axis)
          scores = MatMul (qt, k5)  p = Softmax <axis = -1> (scores)  mixed = MatMul (p, v5)
          yt = Transpose <perm = [0, 1, 3, 2, 4]> (mixed)  y = Reshape (yt, merged) }"""
    )
    found = fused(model, "onnx")
    ops = Counter(node.op_type for node in found.graph.node)
    assert ops["Attention"] == 1
    assert ops["Transpose"] == 0
    rng = np.random.default_rng(0)
    given = {
        value.name: rng.standard_normal([d.dim_value or 2 for d in value.type.tensor_type.shape.dim]).astype(np.float32)
        for value in model.graph.input
    }
    for before, after in zip(run(model, given), run(found, given), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_queries_that_a_batch_shares_are_repeated_with_their_heads_side_by_side(target: str) -> None:
    """Learned queries of a pooling head (Perceiver, SigLIP): keys and values, too, stay as linear layers have them."""
    model = parser.parse_model(
        """<ir_version: 9, opset_import: ["": 23]>
        g (float[B, T, 32] c) => (float[B, 5, 32] y)
        <int64[1] five = {5}, int64[1] width = {32}, int64[4] split = {0, 0, 4, 8}, int64[3] merged = {0, 0, 32},
         float scale = {0.35}> {
          batch = Shape <start = 0, end = 1> (c)  size = Concat <axis = 0> (batch, five, width)
          latents = Expand (learned, size)  ql = MatMul (latents, wq)  k = MatMul (c, wk)  v = MatMul (c, wv)
          q4 = Reshape (ql, split)  k4 = Reshape (k, split)  v4 = Reshape (v, split)
          qt = Transpose <perm = [0, 2, 1, 3]> (q4)  kt = Transpose <perm = [0, 2, 3, 1]> (k4)
          vt = Transpose <perm = [0, 2, 1, 3]> (v4)  products = MatMul (qt, kt)  scaled = Mul (products, scale)
          p = Softmax <axis = -1> (scaled)  mixed = MatMul (p, vt)
          yt = Transpose <perm = [0, 2, 1, 3]> (mixed)  y = Reshape (yt, merged) }"""
    )
    rng = np.random.default_rng(0)
    for name, shape in ({"learned": (1, 5, 32)} | dict.fromkeys(("wq", "wk", "wv"), (32, 32))).items():
        value = rng.standard_normal(shape).astype(np.float32) / 4
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    made = fused(model, target)
    ops = Counter(node.op_type.partition("_")[0] for node in made.graph.node)
    assert ops["Attention"] == 1
    assert not ops["Transpose"]
    for batch, keys in ((2, 6), (1, 3)):
        feeds = {"c": rng.standard_normal((batch, keys, 32)).astype(np.float32)}
        for want, got in zip(run(model, feeds), run(made, feeds), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


LATENT = {
    "heads first": """qt = Transpose <perm = [0, 2, 1, 3]> (q4)  qn, qr = Split <axis = 3> (qt, widths)
      ql = MatMul (qn, up)  c4 = Unsqueeze (c, one)  r4 = Unsqueeze (r, one)
      ct = Transpose <perm = [0, 1, 3, 2]> (c4)  rt = Transpose <perm = [0, 1, 3, 2]> (r4)
      a = MatMul (ql, ct)  b = MatMul (qr, rt)  both = Add (a, b)  scaled = Mul (both, scale)
      masked = Add (scaled, mask)  p = Softmax <axis = -1> (masked)  o = MatMul (p, c4)
      mixed = MatMul (o, down)  yt = Transpose <perm = [0, 2, 1, 3]> (mixed)  y = Reshape (yt, merged)""",
    "Einsum, scaled apart": """qn, qr = Split <axis = 3> (q4, widths)
      ql = Einsum <equation = "bshd,hdc->bshc"> (qn, up)
      a = Einsum <equation = "bshc,btc->bsht"> (ql, c)  b = Einsum <equation = "bshr,btr->bsht"> (qr, r)
      as = Mul (a, scale)  bs = Mul (b, scale)  both = Add (as, bs)  mt = Transpose <perm = [0, 2, 1, 3]> (mask)
      masked = Add (both, mt)  p = Softmax <axis = -1> (masked)  o = Einsum <equation = "bsht,btc->bshc"> (p, c)
      mixed = Einsum <equation = "bshc,hcd->bshd"> (o, down)  y = Reshape (mixed, merged)""",
}


@pytest.mark.parametrize("form", LATENT)
@pytest.mark.parametrize("target", TARGETS)
def test_scores_of_a_latent_and_of_a_rotary_part_are_one_attention_of_one_head_of_keys(form: str, target: str) -> None:
    """Multi-head latent attention of absorbed keys: the latent is the values, and keys beside the rotary part."""
    model = parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 17]>
        g (float[B, S, 32] x, float[B, S, 16] c, float[B, S, 4] r, float[B, 1, S, S] mask) => (float[B, S, 32] y)
        <int64[4] split = {{0, 0, 4, 12}}, int64[3] merged = {{0, 0, 32}}, int64[2] widths = {{8, 4}},
         int64[1] one = {{1}}, float scale = {{0.35}}> {{
          q = MatMul (x, wq)  q4 = Reshape (q, split)  {LATENT[form]} }}"""
    )
    rng = np.random.default_rng(0)
    for name, shape in {"wq": (32, 48), "up": (4, 8, 16), "down": (4, 16, 8)}.items():
        value = rng.standard_normal(shape).astype(np.float32) / 4
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    found = fused(model, target)
    ops = Counter(node.op_type.partition("_")[0] for node in found.graph.node)
    assert ops["Attention"] == 1
    assert not ops.keys() & {"Einsum", "Softmax"}
    agree(model, found)


ROWS = """<ir_version: 9, opset_import: ["" : 17]>
    g (float[B,S,64] x, float[B,S,16] kx, float[B,S,16] vx, float[B,2,P,8] pk, float[B,2,P,8] pv)
      => (float[B,S,64] y, float[B,2,T,8] k, float[B,2,T,8] v)
    <int64[4] queries = {0, 0, 8, 8}, int64[4] keys = {0, 0, 2, 8}, int64[4] rows = {0, 2, -1, 8},
     int64[4] back = {0, 8, -1, 8}, int64[3] flat = {0, 0, 64}, float scale = {0.25}> {
        q0 = Reshape (x, queries)  q1 = Transpose <perm = [0, 2, 1, 3]> (q0)  q = Reshape (q1, rows)
        k0 = Reshape (kx, keys)  k1 = Transpose <perm = [0, 2, 1, 3]> (k0)  k = Concat <axis = 2> (pk, k1)
        v0 = Reshape (vx, keys)  v1 = Transpose <perm = [0, 2, 1, 3]> (v0)  v = Concat <axis = 2> (pv, v1)
        kt = Transpose <perm = [0, 1, 3, 2]> (k)  products = MatMul (q, kt)  scores = Mul (products, scale)
        p = Softmax (scores)  z = MatMul (p, v)
        z4 = Reshape (z, back)  zt = Transpose <perm = [0, 2, 1, 3]> (z4)  y = Reshape (zt, flat) }"""


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("sizes", [(2, 3, 4), (1, 1, 1), (3, 2, 5)])
def test_a_group_of_heads_along_the_rows_of_queries_without_a_mask(target: str, sizes: tuple[int, int, int]) -> None:
    batch, length, past = sizes
    model = parser.parse_model(ROWS)
    fused = lower(model, CATALOGUE.serving(Target(target)))[1].model
    (node,) = fused.graph.node
    assert {a.name: a.i for a in node.attribute if "heads" in a.name} == {"q_num_heads": 8, "kv_num_heads": 2}
    shapes = {"x": (batch, length, 64), "kx": (batch, length, 16), "vx": (batch, length, 16)}
    shapes |= dict.fromkeys(("pk", "pv"), (batch, 2, past, 8))
    given = {name: np.random.default_rng(7).standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    for got, want in zip(run(fused, given), run(model, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", TARGETS)
def test_a_mask_that_is_tiled_for_the_rows_of_a_group_is_one_for_all(target: str) -> None:
    text = ROWS.replace("float[B,2,P,8] pv)", "float[B,2,P,8] pv, float[B,1,S,T] mask)")
    text = text.replace("float scale =", "int64[4] counts = {1, 1, 4, 1}, float scale =")
    text = text.replace("Softmax (scores)", "Softmax (masked)").replace(
        "p = ", "tiled = Tile (mask, counts)  masked = Add (scores, tiled)  p = "
    )
    model = parser.parse_model(text)
    fused = lower(model, CATALOGUE.serving(Target(target)))[1].model
    node = next(node for node in fused.graph.node if node.op_type.startswith("Attention"))
    assert {a.name: a.i for a in node.attribute if "heads" in a.name} == {"q_num_heads": 8, "kv_num_heads": 2}
    assert "Tile" not in [node.op_type for node in fused.graph.node]
    shapes = {"x": (2, 3, 64), "kx": (2, 3, 16), "vx": (2, 3, 16), "mask": (2, 1, 3, 7)}
    shapes |= dict.fromkeys(("pk", "pv"), (2, 2, 4, 8))
    given = {name: np.random.default_rng(7).standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    for got, want in zip(run(fused, given), run(model, given), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_rows_of_a_picture_are_no_heads_that_share_keys() -> None:
    """Its places are the queries of one head, whatever shape they had before."""
    model = parser.parse_model("""<ir_version: 9, opset_import: ["" : 17]>
        g (float[2,6,8,8] x, float[2,2,5,8] k, float[2,2,5,8] v) => (float[2,2,24,8] y)
        <int64[4] places = {2, 2, 24, 8}, float scale = {0.25}> {
            a = Tanh (x)  q = Reshape (a, places)  kt = Transpose <perm = [0, 1, 3, 2]> (k)
            s = MatMul (q, kt)  t = Mul (s, scale)  p = Softmax (t)  y = MatMul (p, v) }""")
    (node,) = [node for node in fuse(model, CATALOGUE).model.graph.node if node.op_type.startswith("Attention")]
    assert not [a for a in node.attribute if "heads" in a.name]
