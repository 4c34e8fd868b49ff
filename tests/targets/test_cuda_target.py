"""`--target ort --provider cuda`: what fused ops become, each contract that keeps them apart, and what falls back."""

from __future__ import annotations

import ast
import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from onnxfuse.fusing import build
from onnxfuse.language import catalogue
from onnxfuse.language.rule import op_name
from onnxfuse.pipeline import Optimized, optimize
from onnxfuse.proof.claim import Experiment
from onnxfuse.targets import contrib, cuda_provider
from onnxfuse.targets.target import Target

ROOT = Path(__file__).resolve().parents[2]
MODELS = sorted((ROOT / "models").glob("*.onnx"))
CUDA = Target("ort", "cuda")
CATALOGUE = catalogue.load().serving(CUDA)
KINDS = {"float": np.float32, "float16": np.float16}


def model(text: str, opset: int = 17, kind: str = "float", **weights: Any) -> onnx.ModelProto:
    """A graph in ONNX's textual syntax, T standing for `kind`; `weights` are arrays, or shapes of random ones."""
    graph = onnx.parser.parse_graph(text.replace("T[", f"{kind}["))
    random = np.random.default_rng(0)
    for name, given in weights.items():
        drawn = random.normal(0, 0.3, given).astype(KINDS[kind]) if isinstance(given, list) else given
        graph.initializer.append(onnx.numpy_helper.from_array(drawn, name))
    imports = [onnx.helper.make_opsetid("", opset)]
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)


def ops(proto: onnx.ModelProto) -> Counter[str]:
    """Ops that run, by name; those of another domain with it."""
    names = (f"{n.domain}.{n.op_type}" if n.domain not in ("", "ai.onnx") else n.op_type for n in proto.graph.node)
    return Counter(name.replace("com.microsoft", "ms") for name in names if name != "Constant")


def proved(before: onnx.ModelProto) -> Optimized:
    """What the model becomes, with nothing left out by the proof."""
    done = optimize(before, build.Build(CUDA))
    assert done.report.validation.verdict == "equal", done.report.validation
    assert not done.report.left_out, [left.reason for left in done.report.left_out]
    return done


# ------------------------------------------------------------------------------------------------ attention

SPLIT = """
  qs = Constant <value_ints = [0, 0, 4, 8]> ()  merged = Constant <value_ints = [0, 0, 32]> ()
  c = Constant <value_float = 0.35> ()
  qr = Reshape (Q, qs)  q = Transpose <perm = [0, 2, 1, 3]> (qr)
  kr = Reshape (K, qs)  k = Transpose <perm = [0, 2, 3, 1]> (kr)
  vr = Reshape (V, qs)  v = Transpose <perm = [0, 2, 1, 3]> (vr)
  qk = MatMul (q, k)  scores = Mul (qk, c)
"""
MERGE = "o = MatMul (p, v)  ot = Transpose <perm = [0, 2, 1, 3]> (o)  Y = Reshape (ot, merged)"
SAFE = """s2 = Add (scores, M)  w = Softmax <axis = -1> (s2)  nan = IsNaN (w)  zero = Constant <value_float = 0.0> ()
  p = Where (nan, zero, w)"""
CAPPED = """cap = Constant <value_float = 20.0> ()  s1 = Div (scores, cap)  s2 = Tanh (s1)  s3 = Mul (s2, cap)
  p = Softmax <axis = -1> (s3)"""


def attention(weights: str, more: str = "") -> str:
    inputs = "T[b,s,32] Q, T[b,6,32] K, T[b,6,32] V" + more
    return f"g ({inputs}) => (T[b,s,32] Y) {{ {SPLIT} {weights} {MERGE} }}"


PLAIN = "p = Softmax <axis = -1> (scores)"
MASKED = "s2 = Add (scores, M)  p = Softmax <axis = -1> (s2)"
ATTENTION: dict[str, tuple[onnx.ModelProto, dict[str, int]]] = {
    "plain": (model(attention(PLAIN)), {"ms.MultiHeadAttention": 1}),
    "a bias for each head": (
        model(attention(MASKED, ", T[b,4,s,6] M")),
        {"ms.MultiHeadAttention": 1},
    ),
    "a bias of queries and keys alone": (
        model(attention(MASKED, ", T[s,6] M")),
        {"ms.MultiHeadAttention": 1, "Unsqueeze": 1},
    ),
    "a guard beside a mask": (
        model(attention(SAFE, ", T[b,1,s,6] M")),
        {"ms.MultiHeadAttention": 1, "Greater": 2, "Where": 2, "ReduceSum": 1, "Squeeze": 1},
    ),
    "at opset 23, which has Attention itself": (model(attention(PLAIN), 23), {"ms.MultiHeadAttention": 1}),
}


@pytest.mark.parametrize("case", ATTENTION)
def test_attention(case: str) -> None:
    before, wanted = ATTENTION[case]
    assert ops(proved(before).model) == wanted


def test_a_mask_that_broadcasts_along_keys_or_queries_is_written_out() -> None:
    after = proved(model(attention(MASKED, ", T[b,1,1,6] M"))).model
    assert ops(after)["ms.MultiHeadAttention"] == ops(after)["Expand"] == 1


def test_softcap_stays_decomposed() -> None:
    """com.microsoft MultiHeadAttention has none."""
    after = ops(proved(model(attention(CAPPED))).model)
    assert not after["ms.MultiHeadAttention"]
    assert after["Softmax"] == after["Tanh"] == 1


def decoder(kind: str, batch: str, queries: str, groups: int = 2) -> onnx.ModelProto:
    """Four heads of 16 on `groups` of keys behind a cache."""
    new, past = f"T[{batch},{queries},{groups * 16}]", f"T[{batch},{groups},past,16]"
    present = f"T[{batch},{groups},total,16]"
    repeat = """kx = Unsqueeze (present_key, two)  ke = Expand (kx, wide)  kk = Reshape (ke, all)
      vx = Unsqueeze (present_value, two)  ve = Expand (vx, wide)  vv = Reshape (ve, all)"""
    if groups == 4:
        repeat = "kk = Identity (present_key)  vv = Identity (present_value)"
    text = f"""g (T[{batch},{queries},64] Q, {new} K, {new} V, {past} past_key, {past} past_value)
      => (T[{batch},{queries},64] Y, {present} present_key, {present} present_value) {{
      two = Constant <value_ints = [2]> ()
      q0 = Reshape (Q, qs)  q = Transpose <perm = [0, 2, 1, 3]> (q0)
      k0 = Reshape (K, ks)  k1 = Transpose <perm = [0, 2, 1, 3]> (k0)
      v0 = Reshape (V, ks)  v1 = Transpose <perm = [0, 2, 1, 3]> (v0)
      present_key = Concat <axis = 2> (past_key, k1)  present_value = Concat <axis = 2> (past_value, v1)
      {repeat}
      kt = Transpose <perm = [0, 1, 3, 2]> (kk)  qk = MatMul (q, kt)  scores = Mul (qk, c)
      w = Softmax <axis = -1> (scores)  o = MatMul (w, vv)  ot = Transpose <perm = [0, 2, 1, 3]> (o)
      Y = Reshape (ot, ms)
    }}"""
    weights = {
        "qs": np.array([0, 0, 4, 16]),
        "ks": np.array([0, 0, groups, 16]),
        "ms": np.array([0, 0, 64]),
        "c": np.array(0.25, KINDS[kind]),
    }
    if groups != 4:
        weights |= {"wide": np.array([1, 1, 4 // groups, 1, 1]), "all": np.array([0, 4, -1, 16])}
    return model(text, 18, kind, **weights)


def test_a_cache_of_all_heads_goes_into_multi_head_attention() -> None:
    assert ops(proved(decoder("float", "b", "s", 4)).model) == {"ms.MultiHeadAttention": 1}


def test_a_cache_of_groups_in_half_precision_is_group_query_attention() -> None:
    """All three outputs have names, and the lengths are those of all keys, less one."""
    after = proved(decoder("float16", "b", "1")).model
    (node,) = (n for n in after.graph.node if n.op_type == "GroupQueryAttention")
    assert [bool(name) for name in (*node.input, *node.output)] == [True] * (7 + 3)
    kept = {a.name: a for a in node.attribute}
    assert (kept["num_heads"].i, kept["kv_num_heads"].i) == (4, 2)


@pytest.mark.parametrize(
    ("kind", "batch", "queries", "why"),
    [
        ("float", "b", "1", "the CUDA provider has it in half precision only"),
        ("float16", "b", "s", "of several queries behind a cache it takes one sequence, and those see in causal order"),
    ],
)
def test_other_caches_of_groups_are_written_out(kind: str, batch: str, queries: str, why: str) -> None:
    after = ops(proved(decoder(kind, batch, queries)).model)
    assert not after["ms.GroupQueryAttention"], why
    assert (after["ms.MultiHeadAttention"], after["Concat"]) == (1, 2)


# ------------------------------------------------------------------------------------------------ norms and embeddings

NORM = "Y = LayerNormalization <axis = -1, epsilon = 1e-5> (s, G, H)"
RMS = """two = Constant <value_float = 2.0> ()  e = Constant <value_float = 1e-6> ()  s2 = Pow (s, two)
  m = ReduceMean <axes = [-1]> (s2)  me = Add (m, e)  r = Sqrt (me)  d = Div (s, r)  Y = Mul (d, G)"""
SUM = "s0 = Add (X, Z)  s = Add (s0, B)"


def norm(body: str, shape: str = "b,s,16", outputs: str = "") -> str:
    return f"g (T[{shape}] X, T[{shape}] Z) => (T[{shape}] Y{outputs}) {{ {body} }}"


NORMS: dict[str, tuple[onnx.ModelProto, dict[str, int]]] = {
    "with a bias": (model(norm(SUM + NORM), B=[16], G=[16], H=[16]), {"ms.SkipLayerNormalization": 1}),
    "of rows": (model(norm("s = Add (X, Z)" + NORM, "b,16"), G=[16], H=[16]), {"ms.SkipLayerNormalization": 1}),
    "with the sum as an output": (
        model(norm(SUM + NORM, outputs=", T[b,s,16] s"), B=[16], G=[16], H=[16]),
        {"ms.SkipLayerNormalization": 1},
    ),
    "root mean square, with a bias": (
        model(norm(SUM + RMS), B=[16], G=[16]),
        {"ms.SkipSimplifiedLayerNormalization": 1},
    ),
    "in half precision": (
        model(norm(SUM + NORM), kind="float16", B=[16], G=[16], H=[16]),
        {"ms.SkipLayerNormalization": 1},
    ),
    "of four dimensions, which it does not take": (
        model(norm("s = Add (X, Z)" + NORM, "b,s,3,16"), G=[16], H=[16]),
        {"Add": 1, "LayerNormalization": 1},
    ),
    "where one of them broadcasts": (
        model(f"g (T[b,s,16] X, T[s,16] Z) => (T[b,s,16] Y) {{ s = Add (X, Z) {NORM} }}", G=[16], H=[16]),
        {"Add": 1, "LayerNormalization": 1},
    ),
}


@pytest.mark.parametrize("case", NORMS)
def test_norms(case: str) -> None:
    before, wanted = NORMS[case]
    assert ops(proved(before).model) == wanted


def embedding(positions: str, dims: str = "b,s", shared: str = "") -> onnx.ModelProto:
    text = f"""g (int64[{dims}] ids{shared}) => (T[{dims},16] Y) {{
      w = Gather (words, ids)  {positions}  s = Add (w, placed)  {NORM} }}"""
    return model(text, words=[50, 16], table=[8, 16], G=[16], H=[16], place=np.arange(4, dtype=np.int64).reshape(1, 4))


def test_embeddings() -> None:
    after = proved(embedding("placed = Gather (table, place)", "b,4")).model
    assert ops(after) == {"Cast": 1, "ms.EmbedLayerNormalization": 1}
    node = after.graph.node[-1]
    assert [bool(name) for name in node.output] == [True, True], "mask_index is not optional"


def test_an_embedding_of_another_rank_stays_apart() -> None:
    after = ops(proved(embedding("placed = Gather (table, place)", "a,b,4")).model)
    assert (after["ms.EmbedLayerNormalization"], after["LayerNormalization"]) == (0, 1)


# ------------------------------------------------------------------------------------------------ activations, products

ERF = """r2 = Constant <value_float = 1.4142135623730951> ()  one = Constant <value_float = 1.0> ()
  half = Constant <value_float = 0.5> ()  d = Div (x, r2)  e = Erf (d)  f = Add (e, one)  t = Mul (x, f)
  Y = Mul (t, half)"""
TANH = """three = Constant <value_float = 3.0> ()  half = Constant <value_float = 0.5> ()
  one = Constant <value_float = 1.0> ()  a = Constant <value_float = 0.044715> ()
  b0 = Constant <value_float = 0.7978845608> ()  x3 = Pow (x, three)  ax3 = Mul (a, x3)  i0 = Add (x, ax3)
  i1 = Mul (b0, i0)  th = Tanh (i1)  o = Add (th, one)  h = Mul (x, half)  Y = Mul (h, o)"""


def linear(activation: str) -> str:
    return f"g (T[b,s,8] A) => (T[b,s,16] Y) {{ p = MatMul (A, W)  x = Add (p, B)  {activation} }}"


SIMPLE: dict[str, tuple[onnx.ModelProto, dict[str, int]]] = {
    "BiasGelu": (model(linear(ERF), W=[8, 16], B=[16]), {"MatMul": 1, "ms.BiasGelu": 1}),
    "FastGelu with a bias": (model(linear(TANH), W=[8, 16], B=[16]), {"MatMul": 1, "ms.FastGelu": 1}),
    "Gelu without a bias": (model(f"g (T[b,8] x) => (T[b,8] Y) {{ {ERF} }}"), {"ms.Gelu": 1}),
    "QuickGelu": (
        model("g (T[b,8] X) => (T[b,8] Y) { c = Constant <value_float = 1.702> () z = Mul (X, c) "
              "s = Sigmoid (z) Y = Mul (X, s) }"),
        {"ms.QuickGelu": 1},
    ),
    "a bias that is no vector": (
        model(f"g (T[b,8] A, T[b,8] B) => (T[b,8] Y) {{ x = Add (A, B) {ERF} }}"),
        {"Add": 1, "ms.Gelu": 1},
    ),
    "FusedMatMul of a transposed tensor, with a factor": (
        model("g (T[b,4,8] A, T[b,6,8] B) => (T[b,4,6] Y) { t = Transpose <perm = [0, 2, 1]> (B) "
              "p = MatMul (A, t) c = Constant <value_float = 0.3> () Y = Mul (p, c) }"),
        {"ms.FusedMatMul": 1},
    ),
    "FusedConv": (
        model("g (T[b,3,8,8] X, T[b,4,8,8] Z) => (T[b,4,8,8] Y) { c = Conv <pads = [1,1,1,1]> (X, W, B) "
              "s = Add (c, Z) Y = Relu (s) }", W=[4, 3, 3, 3], B=[4]),
        {"ms.FusedConv": 1},
    ),
    "FusedConv in half precision, which the CUDA provider has not": (
        model("g (T[b,3,8,8] X) => (T[b,4,8,8] Y) { c = Conv <pads = [1,1,1,1]> (X, W, B) Y = Relu (c) }",
              kind="float16", W=[4, 3, 3, 3], B=[4]),
        {"Conv": 1, "Relu": 1},
    ),
    "another activation than Relu": (
        model("g (T[b,3,8,8] X) => (T[b,4,8,8] Y) { c = Conv <pads = [1,1,1,1]> (X, W, B) Y = Sigmoid (c) }",
              W=[4, 3, 3, 3], B=[4]),
        {"Conv": 1, "Sigmoid": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SIMPLE)
def test_activations_and_products(case: str) -> None:
    before, wanted = SIMPLE[case]
    assert ops(proved(before).model) == wanted


# ------------------------------------------------------------------------------------------------ rotary embedding

TURN = """h = Constant <value_ints = [4]> ()  n = Constant <value_ints = [8]> ()  z = Constant <value_ints = [0]> ()
  ax = Constant <value_ints = [3]> ()
  x1 = Slice (X, z, h, ax)  x2 = Slice (X, h, n, ax)  a = Mul (x1, cos)  b0 = Mul (x2, sin)  c = Sub (a, b0)
  d = Mul (x2, cos)  e = Mul (x1, sin)  f = Add (d, e)  Y = Concat <axis = -1> (c, f)"""


@pytest.mark.parametrize("angles", ["1,1,s,4", "2,1,s,4", "b,1,s,4"])
def test_rotary_embedding(angles: str) -> None:
    """Angles that all sequences share, and those of each by itself."""
    batch = "2" if angles[0] == "2" else "b"
    text = f"g (T[{batch},3,s,8] X, T[{angles}] A) => (T[{batch},3,s,8] Y) {{ cos = Cos (A) sin = Sin (A) {TURN} }}"
    after = proved(model(text)).model
    assert (ops(after)["ms.RotaryEmbedding"], ops(after)["Slice"]) == (1, 0)


def test_positions_below_zero_count_from_the_end_of_a_table() -> None:
    """As Gather has it: onnxruntime's op would read before the beginning."""
    text = f"""g (T[2,3,s,8] X, int64[2,s] ids) => (T[2,3,s,8] Y) {{
      one = Constant <value_ints = [1]> ()  c0 = Gather (table, ids)  s0 = Gather (other, ids)
      cos = Unsqueeze (c0, one)  sin = Unsqueeze (s0, one)  {TURN} }}"""
    before = model(text, table=[16, 4], other=[16, 4])
    feeds = {"X": np.random.default_rng(1).normal(0, 1, (2, 3, 5, 8)).astype(np.float32)}
    feeds["ids"] = np.array([[-1, -1, 0, 1, 2], [0, 1, 2, 3, 4]])
    after = optimize(before, build.Build(CUDA), Experiment(inputs=feeds))
    assert (after.report.validation.verdict, after.report.left_out) == ("equal", [])
    assert ops(after.model)["ms.RotaryEmbedding"] == 1


def groups(
    channels: int, number: int, swish: bool, kind: str = "float", *, skip: str = "", image: str = "h,3"
) -> onnx.ModelProto:
    """The kernel has a minimum of channels: images are narrow, or the proof would take seconds for each."""
    inputs = f"T[2,{channels},{image}] X" + (f", T[{skip}] Z" if skip else "")
    last = "y = Add (m, H) q = Sigmoid (y) Y = Mul (y, q)" if swish else "Y = Add (m, H)"
    text = f"""g ({inputs}) => (T[2,{channels},{image}] Y) {{
      x = {"Add (X, Z)" if skip else "Identity (X)"}
      r = Reshape (x, parts)  i = InstanceNormalization <epsilon = 1e-5> (r, one, zero)  dims = Shape (x)
      n = Reshape (i, dims)  m = Mul (n, G)  {last}
    }}"""
    ones, zeros = np.ones(number, KINDS[kind]), np.zeros(number, KINDS[kind])
    parts = np.array([0, number, -1])
    return model(text, kind=kind, parts=parts, one=ones, zero=zeros, G=[channels, 1, 1], H=[channels, 1, 1])


@pytest.mark.parametrize("kind", ["float", "float16"])
@pytest.mark.parametrize(("swish", "image"), [(False, "h,w"), (True, "h,3")])
def test_group_norm(kind: str, swish: bool, image: str) -> None:
    after = proved(groups(320, 32, swish, kind, image=image)).model
    assert ops(after) == {"Transpose": 2, "ms.GroupNorm": 1}
    (node,) = (n for n in after.graph.node if n.op_type == "GroupNorm")
    types = {t.name: t.data_type for t in after.graph.initializer}
    assert {types[name] for name in node.input[1:]} == {onnx.TensorProto.FLOAT}, "whatever the type of the input"


@pytest.mark.parametrize("skip", ["2,320,1,1", "2,320,h,3"])
def test_skip_group_norm(skip: str) -> None:
    after = ops(proved(groups(320, 32, True, skip=skip)).model)
    assert (after["ms.SkipGroupNorm"], after["Add"]) == (1, 0)


@pytest.mark.parametrize(("channels", "number"), [(320, 16), (96, 32)])
def test_group_norm_of_sizes_that_the_kernel_lacks_stays(channels: int, number: int) -> None:
    assert "ms.GroupNorm" not in ops(proved(groups(channels, number, True)).model)


def test_a_definition_that_is_wrong_is_found_by_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """The numbers of an op that no CPU has are those of its definition: another epsilon there is another result."""
    right = catalogue.load()
    meant = right.definitions["GroupNorm"]
    text = "\n".join(ast.unparse(s) for s in meant.meaning)
    assert "+ epsilon" in text
    lie = ast.parse(text.replace("+ epsilon", "+ epsilon + 0.5"))
    equations = tuple(s for s in lie.body if isinstance(s, ast.Assign))
    definitions = right.definitions | {"GroupNorm": dataclasses.replace(meant, meaning=equations)}
    lying = dataclasses.replace(right, definitions=definitions)
    monkeypatch.setattr(build, "load", lambda rules: lying)
    done = optimize(groups(320, 32, False), build.Build(CUDA))
    assert {left.fusion.rule for left in done.report.left_out} == {"GroupNormalization"}
    assert "ms.GroupNorm" not in ops(done.model)


# ------------------------------------------------------------------------------------------------ all of it

HALF = [path for path in MODELS if "half" in path.stem]


@pytest.mark.parametrize("path", HALF, ids=lambda p: p.stem)
def test_models_in_half_precision_compute_the_same(path: Path) -> None:
    after = ops(proved(onnx.load(path)).model)
    assert after["ms.MultiHeadAttention"] + after["ms.GroupQueryAttention"] == 3


def test_every_op_that_the_rules_write_has_a_kernel_there_and_on_a_cpu_or_a_definition() -> None:
    from onnxruntime.capi import onnxruntime_pybind11_state as state

    on_cpu = {d.op_name for d in state.get_all_opkernel_def() if d.domain == contrib.DOMAIN}
    assert not contrib.ON_GPU_ALONE & on_cpu
    assert CATALOGUE.definitions.keys() >= contrib.ON_GPU_ALONE
    written = {
        op_name(call).removeprefix("com.microsoft.")
        for rules in CATALOGUE.lowerings()
        for rule in rules
        for statement in rule.emit
        for call in ast.walk(statement.value)
        if isinstance(call, ast.Call) and op_name(call).startswith("com.microsoft.")
    }
    assert {f"com.microsoft.{op}" for op in written} <= cuda_provider.table().keys()
    assert written - contrib.ON_GPU_ALONE <= on_cpu
