"""`--target ort` and `--target onnx`: what fused ops become, that onnxruntime runs it, and that it is never more."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from click.testing import CliRunner

import onnxfuse
from benchmarks import ort_ops
from onnxfuse.cli.main import onnxfuse as command
from onnxfuse.fusing.fuse import lower
from onnxfuse.language import catalogue
from onnxfuse.model.graph import family_of
from onnxfuse.targets import runtimes
from onnxfuse.targets.target import Target
from tests.fused_models import FusedModel

ROOT = Path(__file__).resolve().parents[2]
CATALOGUE = catalogue.load()
MODELS = sorted(p for p in (ROOT / "models").glob("*.onnx"))
MEASURED = sorted((ROOT / "benchmarks" / "results").glob("ort_ops.*.json"))


def model(text: str, opset: int = 17, kind: str = "float", **weights: list[int]) -> onnx.ModelProto:
    """A graph in ONNX's textual syntax; `weights` are random initializers of these shapes."""
    graph = onnx.parser.parse_graph(text)
    random = np.random.default_rng(0)
    for name, shape in weights.items():
        values = random.normal(0, 0.3, shape).astype(np.float32)
        tensor = onnx.numpy_helper.from_array(values, name)
        if kind != "float":
            dtype = onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(kind.upper()))
            tensor = onnx.numpy_helper.from_array(values.astype(dtype), name)
        graph.initializer.append(tensor)
    imports = [onnx.helper.make_opsetid("", opset)]
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)


def session(proto: onnx.ModelProto, optimized: Path | None = None) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if optimized is None:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    else:
        options.optimized_model_filepath = str(optimized)
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def ops(proto: onnx.ModelProto) -> Counter[str]:
    """Ops that run, by name; those of another domain with it."""
    names = (
        f"{n.domain}.{family_of(n)}" if n.domain not in ("", "ai.onnx") else family_of(n) for n in proto.graph.node
    )
    return Counter(name for name in names if name != "Constant")


def feeds(proto: onnx.ModelProto) -> dict[str, Any]:
    random = np.random.default_rng(1)
    made = {}
    for info in proto.graph.input:
        kind = info.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        shape = [d.dim_value or 3 for d in kind.shape.dim]
        values = random.normal(0, 1, shape)
        made[info.name] = values > 0.5 if dtype.kind == "b" else values.astype(dtype)
    return made


def fused(before: onnx.ModelProto, target: str = "ort", opset: int | None = None) -> onnx.ModelProto:
    """What the model becomes, having computed the same in onnxruntime."""
    after = lower(before, CATALOGUE.serving(Target(target)), opset=opset)[1].model
    given = feeds(before)
    for a, b in zip(session(before).run(None, given), session(after).run(None, given), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=2e-4 if a.dtype != np.float16 else 2e-2, atol=2e-5, equal_nan=True)
    return after


SPLIT = """
  heads = Constant <value_ints = [2, 5, 4, 8]> ()
  merged = Constant <value_ints = [2, 5, 32]> ()
  c = Constant <value_float = 0.35> ()
  qr = Reshape (Q, heads)  q = Transpose <perm = [0, 2, 1, 3]> (qr)
  kr = Reshape (K, heads)  k = Transpose <perm = [0, 2, 3, 1]> (kr)
  vr = Reshape (V, heads)  v = Transpose <perm = [0, 2, 1, 3]> (vr)
  qk = MatMul (q, k)  scores = Mul (qk, c)
"""
MERGE = """
  o = MatMul (p, v)  ot = Transpose <perm = [0, 2, 1, 3]> (o)  Y = Reshape (ot, merged)
"""
SELF = "q0 = MatMul (X, WQ)  Q = Add (q0, BQ)  K = MatMul (X, WK)  v0 = MatMul (X, WV)  V = Add (v0, BV)"
OTHER = "q0 = MatMul (X, WQ)  Q = Add (q0, BQ)  K = MatMul (Z, WK)  v0 = MatMul (Z, WV)  V = Add (v0, BV)"
PACKED = """
  p0 = MatMul (X, W)  P = Add (p0, B)  Q, K, V = Split <axis = 2> (P)
"""
QKV = {"WQ": [16, 32], "WK": [16, 32], "WV": [16, 32], "BQ": [32], "BV": [32]}
HEAD = "g (float[2,5,16] X) => (float[2,5,32] Y) {"
SOFTMAX = "p = Softmax <axis = -1> (scores)"
MASKED = "s2 = Add (scores, M)  p = Softmax <axis = -1> (s2)"
SAFE = """s2 = Add (scores, M)  w = Softmax <axis = -1> (s2)  nan = IsNaN (w)  zero = Constant <value_float = 0.0> ()
  p = Where (nan, zero, w)"""
NORM = "Y = LayerNormalization <axis = -1> (s, G, H)"
ROOT2 = "r2 = Constant <value_float = 1.4142135623730951> ()  one = Constant <value_float = 1.0> ()"
GELU = f"""{ROOT2}  half = Constant <value_float = 0.5> ()
  d = Div (X, r2)  e = Erf (d)  f = Add (e, one)  t = Mul (X, f)  Y = Mul (t, half)"""


def attention(before: str, weights: str, inputs: str = "float[2,5,16] X") -> str:
    return f"g ({inputs}) => (float[2,5,32] Y) {{ {before} {SPLIT} {weights} {MERGE} }}"


HEADS = f"""g (float[2,5,16] X) => (float[2,5,32] Y) {{
  p0 = MatMul (X, W)  p1 = Add (p0, B)  five = Constant <value_ints = [2, 5, 4, 3, 8]> ()
  merged = Constant <value_ints = [2, 5, 32]> ()  c = Constant <value_float = 0.35> ()
  P = Reshape (p1, five)  H = Transpose <perm = [0, 2, 1, 3, 4]> (P)  a3 = Constant <value_ints = [3]> ()
  Q, K, V = Split <axis = 3> (H)  q = Squeeze (Q, a3)  k0 = Squeeze (K, a3)  v = Squeeze (V, a3)
  k = Transpose <perm = [0, 1, 3, 2]> (k0)
  qk = MatMul (q, k)  scores = Mul (qk, c)  {SOFTMAX} {MERGE} }}"""


MASK = "float[2,5,16] X, float[2,1,5,5] M"
ROWS = {"Reshape": 4, "Gemm": 3, "Attention": 1}
THREE = {"Reshape": 3, "Gemm": 2, "MatMul": 1, "Attention": 1}
FLOOR = {"Mul": 1, "Add": 1, "Max": 1}
"""Around a mask that the caller may fill with the lowest number of all."""
CASES: dict[str, tuple[onnx.ModelProto, dict[str, int]]] = {
    "linear layers of one tensor and attention": (
        model(attention(SELF, SOFTMAX), **QKV),
        THREE,
    ),
    "with a mask": (model(attention(SELF, MASKED, MASK), **QKV), THREE | FLOOR),
    "thirds of one linear layer": (
        model(attention(PACKED, SOFTMAX), W=[16, 96], B=[96]),
        {"MatMul": 1, "Add": 1, "Split": 1, "Attention": 1},
    ),
    "with a bias of the scores that is the same for every batch": (
        model(attention(SELF, "s2 = Add (scores, M)  p = Softmax <axis = -1> (s2)"), **QKV, M=[4, 5, 5]),
        THREE,
    ),
    "heads side by side in one linear layer": (model(HEADS, W=[16, 96], B=[96]), ROWS),
    "of two tensors: the standard's op, for which the opset is raised": (
        model(attention(OTHER, SOFTMAX, "float[2,5,16] X, float[2,5,16] Z"), **QKV),
        {"Attention": 1, "MatMul": 3, "Add": 2},
    ),
    "a mask for all queries is spread over them": (
        model(attention(SELF, MASKED, "float[2,5,16] X, float[2,1,1,5] M"), **QKV),
        THREE | FLOOR | {"Expand": 1},
    ),
    "one number for all scores is spread over them": (
        model(attention(OTHER, MASKED, "float[2,5,16] X, float[2,5,16] Z, float M"), **QKV),
        FLOOR | {"MatMul": 3, "Add": 3, "Attention": 1, "Unsqueeze": 1, "Expand": 1},
    ),
    "rows that are masked throughout": (
        model(attention(SELF, SAFE, MASK), **QKV),
        THREE | FLOOR | {"Reshape": 3, "Squeeze": 1, "ReduceMax": 1, "IsInf": 1, "Where": 1},
    ),
    "a sum and its LayerNormalization": (
        model(f"g (float[2,5,16] X, float[2,5,16] R) => (float[2,5,16] Y) {{ s = Add (X, R) {NORM} }}", G=[16], H=[16]),
        {"Sum": 1, "LayerNormalization": 1},
    ),
    "a sum that something else needs, too": (
        model(
            f"g (float[2,5,16] X, float[2,5,16] R) => (float[2,5,16] Y, float[2,5,16] s) {{ s = Add (X, R) {NORM} }}",
            G=[16],
            H=[16],
        ),
        {"Add": 1, "LayerNormalization": 1},
    ),
    "a constant sum": (
        model(f"g (float[2,5,16] X) => (float[2,5,16] Y) {{ s = Add (X, C) {NORM} }}", G=[16], H=[16], C=[5, 16]),
        {"Add": 1, "LayerNormalization": 1},
    ),
    "Gelu before opset 20": (model(f"g (float[3,8] X) => (float[3,8] Y) {{ {GELU} }}"), {"com.microsoft.Gelu": 1}),
    "Gelu from opset 20 on": (model(f"g (float[3,8] X) => (float[3,8] Y) {{ {GELU} }}", 20), {"Gelu": 1}),
    "Swish": (
        model("g (float[3,8] X) => (float[3,8] Y) { s = Sigmoid (X)  Y = Mul (X, s) }"),
        {"com.microsoft.QuickGelu": 1},
    ),
    "RMSNormalization before opset 23": (
        model(
            """g (float[2,5,16] X) => (float[2,5,16] Y) {
              two = Constant <value_float = 2.0> ()  eps = Constant <value_float = 0.000001> ()
              x2 = Pow (X, two)  m = ReduceMean <axes = [-1]> (x2)  me = Add (m, eps)  r = Sqrt (me)
              n = Div (X, r)  Y = Mul (n, G) }""",
            G=[16],
        ),
        {"SimplifiedLayerNormalization": 1},
    ),
    "linear layers that follow each other are Gemm on rows": (
        model(
            """g (float[2,5,16] X) => (float[2,5,16] Y) {
              a = MatMul (X, W1)  b = Add (a, B1)  c = Relu (b)  d = MatMul (c, W2)  e = Add (d, B2)  f = Tanh (e)
              h = MatMul (f, W3)  i = Add (h, B3)  Y = Add (X, i) }""",
            W1=[16, 32], W2=[32, 32], W3=[32, 16], B1=[32], B2=[32], B3=[16],
        ),
        {"Reshape": 2, "Gemm": 3, "Relu": 1, "Tanh": 1, "Add": 1},
    ),
    "one linear layer stays as it is": (
        model("g (float[2,5,16] X) => (float[2,5,8] Y) { a = MatMul (X, W)  Y = Add (a, B) }", W=[16, 8], B=[8]),
        {"MatMul": 1, "Add": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_onnxruntime_gets(name: str) -> None:
    before, wanted = CASES[name]
    assert ops(fused(before)) == wanted


BELOW = {
    "linear layers of one tensor and attention": {},
    "with a mask": {"Expand": 1},
    "thirds of one linear layer": {},
    "with a bias of the scores that is the same for every batch": {},
    "heads side by side in one linear layer": {},
    "a mask for all queries is spread over them": {"Expand": 2},
    "rows that are masked throughout": {"Expand": 1, "ReduceMax": 1, "IsInf": 1, "Squeeze": 1, "Where": 1},
}
"""What stands beside com.microsoft Attention, which does not guard such rows, where the opset must stay below 23; and
in onnxruntime 1.20 wants a bias of its own for each head."""


@pytest.mark.parametrize("name", BELOW)
def test_what_onnxruntime_gets_below_opset_23(name: str) -> None:
    assert ops(fused(CASES[name][0], opset=17)) == {"com.microsoft.Attention": 1} | BELOW[name]


OF_TWO = "of two tensors: the standard's op, for which the opset is raised"


@pytest.mark.parametrize(
    ("version", "opset", "name", "wanted"),
    [
        ("1.28", None, "rows that are masked throughout", THREE | FLOOR),
        ("1.21", 17, "with a mask", {"com.microsoft.Attention": 1}),
    ],
)
def test_what_a_newer_onnxruntime_gets(version: str, opset: int | None, name: str, wanted: dict[str, int]) -> None:
    target = Target("ort", runtime=runtimes.of(version))
    assert ops(lower(CASES[name][0], CATALOGUE.serving(target), opset=opset)[1].model) == wanted


def test_attention_of_two_tensors_below_opset_23() -> None:
    """No weights to put side by side: com.microsoft has an op for this, too."""
    below = ops(fused(CASES[OF_TWO][0], opset=17))
    assert below == {"com.microsoft.MultiHeadAttention": 1, "MatMul": 3, "Add": 2}


def of_many(tokens: int | str, keys: int | str, attributes: str = "", mask: str = "") -> onnx.ModelProto:
    """Attention at opset 23 of so many tokens to so many keys."""
    return model(
        f"g (float[1,{tokens},32] Q, float[1,{keys},32] K, float[1,{keys},32] V, float[{tokens},{keys}] M) "
        f"=> (float[1,{tokens},32] Y) "
        f"{{ Y = Attention <q_num_heads = 2, kv_num_heads = 2 {attributes}> (Q, K, V{mask}) }}",
        23,
    )


@pytest.mark.parametrize(
    ("case", "wanted"),
    [
        ((1024, 1500), "com.microsoft.MultiHeadAttention"),
        ((1024, 1024, ", scale = 0.5"), "com.microsoft.MultiHeadAttention"),
        ((512, 1024), "Attention"),
        (("N", 1024), "Attention"),
        ((1024, 1024, "", ", M"), "Attention"),
        ((1024, 1024, ", is_causal = 1"), "Attention"),
        ((1024, 1024, ", softcap = 2.0"), "Attention"),
    ],
)
def test_many_tokens_without_a_mask(case: tuple[Any, ...], wanted: str) -> None:
    """onnxruntime's CPU kernel of the standard's op writes all scores to memory."""
    assert ops(fused(of_many(*case)))[wanted] == 1


DOUBLE = model("g (double[3,8] X) => (double[3,8] Y) { a = Exp (X)  b = Add (a, one)  l = Log (b)  t = Tanh (l)  "
               "Y = Mul (X, t) }", 22, "double", one=[1])  # fmt: skip


def test_an_op_without_a_kernel_is_not_written() -> None:
    """onnxruntime has no Mish of opset 22 for doubles."""
    DOUBLE.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.ones(1), "one"))
    assert not Target("ort").has_kernel("Mish", onnx.TensorProto.DOUBLE)
    assert "Mish" not in ops(fused(DOUBLE))
    single = lower(_in_single(DOUBLE), CATALOGUE.serving(Target("ort")))[1].model
    assert ops(single) == {"Mish": 1}


def _in_single(proto: onnx.ModelProto) -> onnx.ModelProto:
    made = onnx.ModelProto()
    made.CopyFrom(proto)
    for info in (*made.graph.input, *made.graph.output):
        info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    made.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.ones(1, np.float32), "one"))
    return made


def test_the_opset_is_raised_only_for_what_needs_it() -> None:
    opsets = {}
    for name in ("of two tensors: the standard's op, for which the opset is raised", "Gelu before opset 20", "Swish"):
        for target in ("onnx", "ort"):
            opsets[name.split()[0], target] = fused(CASES[name][0], target).opset_import[0].version
    assert opsets == {
        ("of", "onnx"): 23,
        ("of", "ort"): 23,
        ("Gelu", "onnx"): 20,
        ("Gelu", "ort"): 17,
        ("Swish", "onnx"): 17,
        ("Swish", "ort"): 17,
    }


def census(proto: onnx.ModelProto, folder: Path) -> Counter[str]:
    """The ops that are left when onnxruntime's own optimizer is through."""
    session(proto, folder / "optimized.onnx")
    return ops(onnx.load(folder / "optimized.onnx", load_external_data=False))


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.name)
def test_no_harm(path: Path, tmp_path: Path, fused_model: FusedModel) -> None:
    """onnxruntime runs no more nodes than it would have of the original, whatever its own optimizer finds there.  A
    Reshape and a Shape do not count: they move no data."""
    before = onnx.load(path)
    after = fused_model(path.name, Target("ort"))
    onnx.load_external_data_for_model(after, str(path.parent))
    ours, theirs = census(after, tmp_path), census(before, tmp_path)
    special = {op for op in ours | theirs if "." in op or "Norm" in op or op in ("Attention", "Gelu", "Gemm")}
    for op in sorted(special):
        print(f"{path.name:32} {op:48} {theirs[op]:4} → {ours[op]:4}")
    print(f"{path.name:32} {'all':48} {theirs.total():4} → {ours.total():4}")
    free = ("Reshape", "Shape")
    assert ours.total() - sum(ours[op] for op in free) <= theirs.total() - sum(theirs[op] for op in free)


def best(group: Mapping[str, Mapping[str, float]], candidate: str) -> float:
    """How much slower a candidate is than the best of its group, over all sizes."""
    ratios = [row[candidate] / min(v for v in row.values() if isinstance(v, float)) for row in group.values()]
    return float(np.exp(np.mean(np.log(ratios))))


CHOSEN = {
    "Attention": "Attention-23 3-D",
    "Attention with mask": "Attention-23 3-D",
    "Attention of linear layers": "Gemm on rows, Attention-23 3-D",
    "Attention of linear layers with mask": "Gemm on rows, Attention-23 3-D",
    "LayerNormalization of a sum": "Sum, LayerNormalization",
    "LayerNormalization of a sum with bias": "Sum of three, LayerNormalization",
    "LayerNormalization of a sum that is kept": "Add, LayerNormalization",
    "RMSNormalization": "SimplifiedLayerNormalization",
    "RMSNormalization of a sum": "Add, SimplifiedLayerNormalization",
    "Gelu": "com.microsoft.Gelu",
    "Gelu of a linear layer": "MatMul, Add, Gelu-20",
    "Gelu in its tanh approximation": "FastGelu",
    "Gelu (tanh) of a linear layer": "MatMul, Add, Gelu-20",
    "Swish": "QuickGelu",
    "Linear layer with residual and LayerNormalization": "Gemm on rows, Sum, LayerNormalization",
}
"""What the rules of rules/ort write, by the groups of benchmarks/ort_ops.py."""


@pytest.mark.parametrize("group", CHOSEN)
def test_the_rules_write_what_was_measured_to_be_fastest(group: str) -> None:
    assert CHOSEN[group] in ort_ops.GROUPS[group].candidates
    table = json.loads(MEASURED[-1].read_text())["groups"]
    assert best(table[group], CHOSEN[group]) < 1.06


@pytest.mark.parametrize("group", ort_ops.GROUPS)
def test_all_that_is_measured_computes_the_same(group: str) -> None:
    found = ort_ops.compare(group, ort_ops.SIZES["S16 D32 H2"], seconds=0)
    assert all(isinstance(microseconds, float) for microseconds in found.values())


def test_the_command(tmp_path: Path) -> None:
    path = ROOT / "models" / "bert.ts.onnx"
    result = CliRunner().invoke(command, ["optimize", str(path), "--target", "ort", "-o", str(tmp_path / "out.onnx")])
    assert result.exit_code == 0, result.output
    found = ops(onnx.load(tmp_path / "out.onnx"))
    assert found["Attention"] == 3
    assert not any(op.startswith("onnxfuse.") for op in found)


def test_the_api() -> None:
    report = onnxfuse.report(str(ROOT / "models" / "bert.ts.onnx"), target="ort")
    assert report.census["Attention"] == 3
    assert report.nodes_after < report.nodes_before / 3
