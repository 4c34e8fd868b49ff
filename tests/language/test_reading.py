"""What ops of com.microsoft mean: against onnxruntime's kernels, and in files that onnxruntime has optimized."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, parser

import onnxfuse
from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from onnxfuse.language.functions import Functions
from onnxfuse.lifting.lift import lift
from onnxfuse.matching.search import Found
from onnxfuse.model.graph import Names, count_nodes, family_of, roots
from onnxfuse.rewriting.writer import Writer
from onnxfuse.targets.target import Target

MODELS = Path(__file__).parents[2] / "models"
CATALOGUE = catalogue.load()
OPSET = 17
RNG = np.random.default_rng(7)

PLACES = np.array([[0, 2, 1, 4, 3], [3, 1, 0, 0, 2]])
IDS = PLACES.astype(np.int32)
MASK = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)


def real(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


X, ROW = real(2, 5, 8), real(8)
CASES: list[tuple[str, list[Any], dict[str, Any], int]] = [
    ("Gelu", [X], {}, 1),
    ("BiasGelu", [X, ROW], {}, 1),
    ("FastGelu", [X], {}, 1),
    ("FastGelu", [X, ROW], {}, 1),
    ("QuickGelu", [X], {"alpha": 1.5}, 1),
    ("QuickGelu", [X], {}, 1),
    ("FusedMatMul", [X, real(8, 6)], {"alpha": 0.5}, 1),
    ("FusedMatMul", [X, real(2, 7, 8)], {"alpha": 0.5, "transB": 1}, 1),
    ("FusedMatMul", [X, real(2, 5, 7)], {"transA": 1}, 1),
    ("TransposeMatMul", [X, real(2, 7, 8)], {"transB": 1}, 1),
    ("FusedGemm", [real(5, 8), real(6, 8), real(6)], {"transB": 1, "activation": "Relu"}, 1),
    ("FusedGemm", [real(5, 8), real(8, 6)], {"alpha": 0.5, "activation": "LeakyRelu", "activation_alpha": 0.2}, 1),
    ("FusedConv", [real(2, 4, 7, 7), real(6, 2, 3, 3), real(6)], {"group": 2, "activation": "Relu"}, 1),
    (
        "FusedConv",
        [real(2, 4, 7, 7), real(6, 4, 3, 3), real(6), real(2, 6, 7, 7)],
        {"pads": [1, 1, 1, 1], "activation": "Relu"},
        1,
    ),
    (
        "FusedConv",
        [real(2, 4, 7, 7), real(6, 4, 3, 3)],
        {"activation": "Clip", "activation_params": [-0.5, 0.75]},
        1,
    ),
    ("SkipLayerNormalization", [X, real(2, 5, 8), ROW, real(8)], {"epsilon": 1e-3}, 4),
    ("SkipLayerNormalization", [X, real(2, 5, 8), ROW, None, real(8)], {}, 4),
    ("SkipSimplifiedLayerNormalization", [X, real(2, 5, 8), ROW, real(8)], {"epsilon": 1e-3}, 4),
    ("EmbedLayerNormalization", [IDS, None, real(9, 8), real(6, 8), None, ROW, real(8)], {"epsilon": 1e-3}, 1),
    (
        "EmbedLayerNormalization",
        [IDS, IDS % 2, real(9, 8), real(6, 8), real(2, 8), ROW, real(8), MASK],
        {"epsilon": 1e-3},
        3,
    ),
    ("MultiHeadAttention", [X, real(2, 7, 8), real(2, 7, 8)], {"num_heads": 2}, 1),
    ("MultiHeadAttention", [X, real(2, 7, 8), real(2, 7, 4), real(20)], {"num_heads": 2, "scale": 0.3}, 1),
    ("MultiHeadAttention", [X, X, X, None, MASK, real(1, 1, 5, 5)], {"num_heads": 2}, 1),
    ("MultiHeadAttention", [X, X, X, None, None, real(2, 2, 5, 5)], {"num_heads": 2, "unidirectional": 1}, 1),
    (
        "MultiHeadAttention",
        [X, X, X, None, None, None, real(2, 2, 3, 4), real(2, 2, 3, 4)],
        {"num_heads": 2},
        3,
    ),
    ("MultiHeadAttention", [X, real(2, 2, 7, 4), real(2, 2, 7, 4)], {"num_heads": 2}, 1),
    ("RotaryEmbedding", [real(2, 3, 5, 8), PLACES, real(9, 4), real(9, 4)], {}, 1),
    ("RotaryEmbedding", [X, PLACES, real(9, 2), real(9, 2)], {"interleaved": 1}, 1),
    ("RotaryEmbedding", [X, PLACES, real(9, 1), real(9, 1)], {"num_heads": 2, "rotary_embedding_dim": 2}, 1),
]

UNSAID = {"SkipLayerNormalization": (1, 2), "SkipSimplifiedLayerNormalization": (1, 2)}
"""Outputs of which nothing is said: statistics for training."""


def graph_of(nodes: list[onnx.NodeProto], inputs: dict[str, np.ndarray], outputs: list[str]) -> onnx.ModelProto:
    given = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in inputs.items()
    ]
    graph = helper.make_graph(nodes, "g", given, [onnx.ValueInfoProto(name=name) for name in outputs if name])
    imports = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def computed(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return list(ort.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"]).run(None, inputs))


@pytest.mark.parametrize(("op", "arrays", "attrs", "count"), CASES, ids=lambda v: v if isinstance(v, str) else "")
def test_an_op_means_what_onnxruntime_computes(op: str, arrays: list[Any], attrs: dict[str, Any], count: int) -> None:
    names = [f"i{i}" if a is not None else "" for i, a in enumerate(arrays)]
    inputs = {name: array for name, array in zip(names, arrays, strict=True) if name}
    outputs = [f"o{i}" if i not in UNSAID.get(op, ()) else "" for i in range(count)]
    named = [*outputs, "unread"] if op.startswith("Embed") and count == 1 else outputs
    node = helper.make_node(op, names, named, domain="com.microsoft", **attrs)
    read = lift(next(roots(apart := graph_of([node], inputs, outputs))), None, catalogue=CATALOGUE)
    assert read.read == {0}
    made = Found(dict(read.terms_of), touched={name for name in named if name})
    Writer(read, made, Names.of([read.graph]), Functions(CATALOGUE)).write()
    assert all(not inner.domain for inner in apart.graph.node)
    wanted, found = (computed(model, inputs) for model in (graph_of([node], inputs, outputs), apart))
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def optimized(path: Path, folder: Path) -> onnx.ModelProto:
    """What onnxruntime saves of a model."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    ort.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    return onnx.load(folder / "optimized.onnx")


def census(model: onnx.ModelProto) -> Counter[str]:
    """The fused ops of a file, whoever fused them."""
    families = Counter(family_of(node).split(".")[-1] for node in fuse(model, CATALOGUE).model.graph.node)
    families["FusedMatMul"] += families.pop("FusedGemm", 0)
    fused = "Attention FusedConv FusedMatMul Gelu LayerNormalization MatMul RMSNormalization RotaryEmbedding".split()
    return Counter(
        {op: n for op, n in families.items() if n and (op in fused or "Skip" in op or "Embed" in op or "GLU" in op)}
    )


@pytest.mark.parametrize(
    "name", "bert.ts bert_opset13.ts gpt2.ts llama.ts resnet.ts vit.ts convnext_opset13.ts".split()
)
def test_what_onnxruntime_has_optimized_fuses_as_its_original(name: str, tmp_path: Path) -> None:
    path = MODELS / f"{name}.onnx"
    saved = optimized(path, tmp_path)
    assert any(node.domain == "com.microsoft" for node in saved.graph.node) or name.startswith("convnext")
    assert census(saved) == census(onnx.load(path))
    report = onnxfuse.optimize(saved).report
    assert report.validation.verdict == "equal"
    assert report.nodes_after <= report.nodes_before


KEPT = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
g (float[N, 7, 8] x, float[N, 7, 8] skip, float[8] w) => (float[N, 7, 8] y) {
    s = com.microsoft.SkipLayerNormalization <epsilon = 0.001> (x, skip, w)
    y = com.microsoft.Gelu (s)
}"""


@pytest.mark.parametrize("target", [Target(), Target("onnx"), Target("ort"), Target("ort", "cuda")], ids=str)
def test_a_node_stays_where_nothing_better_is_found(target: Target) -> None:
    model = parser.parse_model(KEPT)
    assert list(fuse(model, CATALOGUE.serving(target)).model.graph.node) == list(model.graph.node)


def test_what_is_around_a_node_is_fused_into_it() -> None:
    model = parser.parse_model(
        KEPT.replace("s = com", "p = Mul (x, w) z = Add (p, w) s = com").replace("(x, s", "(z, s")
    )
    after = fuse(model, CATALOGUE).model
    assert [family_of(node) for node in after.graph.node] == [
        "Mul",
        "SkipLayerNormalization",
        "Gelu",
    ]


ATTENTION = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
g (float[N, 7, 8] x, int32[N, 7] mask, float[9, 2] cos, float[9, 2] sin, int64[N, 7] ids) => (float[N, 7, 8] y) {
    q = com.microsoft.RotaryEmbedding <num_heads = 2> (x, ids, cos, sin)
    y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, x, x, , mask)
}"""


def test_attention_that_would_become_more_nodes_stays() -> None:
    model = parser.parse_model(ATTENTION)
    after = fuse(model, CATALOGUE).model
    assert count_nodes(after) <= count_nodes(model)


@pytest.mark.parametrize(
    "wrong",
    [
        "com.microsoft.FusedMatMul <transBatchA = 1>",
        "com.microsoft.FusedMatMul <unknown = 1>",
        "com.microsoft.Attention <num_heads = 2>",
        "com.elsewhere.FusedMatMul",
    ],
)
def test_what_has_no_meaning_is_left_alone(wrong: str) -> None:
    model = parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1, "com.elsewhere" : 1]>
        g (float[4, 4, 4] a, float[4, 4, 4] b, float[4] c) => (float[4, 4, 4] y) {{
            p = {wrong} (a, b)
            y = Add (p, c)
        }}"""
    )
    assert [node.op_type for node in fuse(model, CATALOGUE).model.graph.node] == [n.op_type for n in model.graph.node]
