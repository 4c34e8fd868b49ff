"""Rotary embeddings that attention takes over, for the kernels alone, and those that must stay."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

import onnxfuse
from onnxfuse.fusing.fuse import fuse
from onnxfuse.language.catalogue import load
from onnxfuse.model.graph import family_of
from onnxfuse.runtime.served import examine
from onnxfuse.runtime.session import open_session
from onnxfuse.targets.target import Target

CATALOGUE = load()
HEADS = "Q = RotaryEmbedding {q} (q, cos{ids}, sin{ids}{at})\n K = RotaryEmbedding {k} (k, cos{ids}, sin{ids}{at})\n"
KINDS = {
    "float[2,4,7,16]": "float[2,2,7,16]",  # of queries and of keys
    "float[2,7,64]": "float[2,7,32]",
}
TABLES = "float[2,7,8] cos, float[2,7,8] sin, float[9,8] cos9, float[9,8] sin9, int64[2,7] at"
PAST = ", float[2,2,5,16] pk, float[2,2,5,16] pv"


def model(body: str, flat: bool = False, past: bool = False, outputs: str = "Y") -> onnx.ModelProto:
    """Opset-23 nodes that compute Y of q, k and v."""
    queries, keys = list(KINDS.items())[flat]
    given = f"{queries} q, {keys} k, {keys} v, {TABLES}{PAST if past else ''}"
    result = "float[a,b,c] Y" if flat else "float[a,b,c,d] Y"
    text = f"""<ir_version: 10, opset_import: ["" : 23]> g ({given}) => ({result}) {{ {body} }}"""
    made = parser.parse_model(text)
    for name in outputs.split()[1:]:
        dims = [f"{name}_{axis}" for axis in range(4)]
        made.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, dims))
    return made


def feeds(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng, found = np.random.default_rng(0), {}
    for value in proto.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        real = value.type.tensor_type.elem_type == onnx.TensorProto.FLOAT
        found[value.name] = rng.standard_normal(shape).astype(np.float32) if real else rng.integers(0, 9, shape)
    return found


def agree(proto: onnx.ModelProto, target: str = "onnxfuse") -> Counter[str]:
    """The ops of the fused model, which computes what it did, from its function bodies and by the kernels."""
    fused = fuse(proto, CATALOGUE.serving(Target(target))).model
    onnx.checker.check_model(fused, full_check=True)
    given = feeds(proto)
    want = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, given)
    for emulate in (False, True):
        got = open_session(fused.SerializeToString(), providers=["CPUExecutionProvider"], emulate=emulate)
        for one, other in zip(got.run(None, given), want, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    return Counter(family_of(node) for node in fused.graph.node)


def turned(q: str = "", k: str = "", ids: str = "9", at: str = ", at") -> str:
    attributes = (f"<{text}>" if text else "" for text in (q, k or q))
    return HEADS.format(q=next(attributes), k=next(attributes), ids=ids, at=at)


ATTENTION = "Y = Attention <is_causal = 1> (Q, K, v)"
PRESENT = "Y, present_key, present_value = Attention <is_causal = 1> (Q, K, v, , pk, pv)"
FORMS = {
    "positions": model(turned() + ATTENTION),
    "tables": model(turned(ids="", at="") + ATTENTION),
    "neighbours": model(turned("interleaved = 1") + ATTENTION),
    "flat": model(
        turned("num_heads = 4", "num_heads = 2") + "Y = Attention <q_num_heads = 4, kv_num_heads = 2> (Q, K, v)", True
    ),
    "a past": model(turned() + PRESENT, past=True, outputs="Y present_key present_value"),
}


@pytest.mark.parametrize("form", FORMS)
def test_attention_takes_over_what_turns_queries_and_keys(form: str) -> None:
    ops = agree(FORMS[form])
    assert ops["Attention"] == 1
    assert not ops["RotaryEmbedding"]
    assert examine(fuse(FORMS[form], CATALOGUE).model).sources == {"Attention": "attention"}


def test_part_of_the_channels() -> None:
    body = turned("rotary_embedding_dim = 8", ids="8") + ATTENTION
    proto = model(body)
    for name in ("cos8", "sin8"):
        proto.graph.input.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (9, 4)))
    assert not agree(proto)["RotaryEmbedding"]


def test_attention_that_shows_its_scores_turns_heads_in_its_body() -> None:
    attend = "Y, present_key, present_value, scores = Attention <qk_matmul_output_mode = 2> (Q, K, v, , pk, pv)"
    proto = model(turned("interleaved = 1") + attend, past=True, outputs="Y present_key present_value scores")
    assert not agree(proto)["RotaryEmbedding"]
    assert examine(fuse(proto, CATALOGUE).model).names == []


@pytest.mark.parametrize("target", ["onnx", "ort"])
@pytest.mark.parametrize("form", ["positions", "a past"])
def test_other_targets_keep_both_ops(form: str, target: str) -> None:
    assert agree(FORMS[form], target)["RotaryEmbedding"] == 2


def test_the_function_body_is_the_standard_ops_where_there_are_any() -> None:
    proto = FORMS["positions"]
    fused = fuse(proto, CATALOGUE).model
    (function,) = fused.functions
    assert [family_of(node) for node in function.node] == ["RotaryEmbedding", "RotaryEmbedding", "Attention"]


DIFFERENT = {
    "angles": "Q = RotaryEmbedding (q, cos, sin)\n K = RotaryEmbedding (k, sin, cos)\n" + ATTENTION,
    "tables": "Q = RotaryEmbedding (q, cos9, sin9, at)\n K = RotaryEmbedding (k, cos, sin)\n" + ATTENTION,
    "pairs": turned("interleaved = 1", "interleaved = 0") + ATTENTION,
    "queries alone": "Q = RotaryEmbedding (q, cos, sin)\n Y = Attention (Q, k, v)",
    "keys alone": "K = RotaryEmbedding (k, cos, sin)\n Y = Attention (q, K, v)",
    "values": "Q = RotaryEmbedding (q, cos, sin)\n V = RotaryEmbedding (v, cos, sin)\n Y = Attention (Q, k, V)",
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_is_not_turned_alike_stays(name: str) -> None:
    proto = model(DIFFERENT[name])
    ops = agree(proto)
    assert ops["Attention"] == 1
    assert ops["RotaryEmbedding"] == sum(family_of(node) == "RotaryEmbedding" for node in proto.graph.node)


@pytest.mark.parametrize("shown", ["K", "Q"])
def test_what_something_else_needs_turned_is_turned_once(shown: str) -> None:
    proto = model(turned() + ATTENTION, outputs=f"Y {shown}")
    assert agree(proto)["RotaryEmbedding"] == 2


def test_heads_of_a_flat_rotation_are_those_of_attention() -> None:
    """With other heads, other channels are pairs."""
    attend = "Y = Attention <q_num_heads = 4, kv_num_heads = 2> (Q, K, v)"
    tables = "Q = RotaryEmbedding <num_heads = 4> (q, cos, sin)\n"
    proto = model(
        f"{tables} K = RotaryEmbedding <num_heads = 1, rotary_embedding_dim = 16> (k, cos, sin)\n {attend}", True
    )
    assert agree(proto)["RotaryEmbedding"] == 2


@pytest.mark.parametrize("name", ["llama.ts", "llama.dynamo"])
def test_what_attention_takes_over_is_still_counted(name: str) -> None:
    path = Path(__file__).parents[2] / f"models/{name}.onnx"
    told = onnxfuse.report(path)
    assert "RotaryEmbedding" not in {fusion.rule for fusion in told.fusions}
    assert told.census["RotaryEmbedding"] == 2 * told.census["Attention"] > 0
    assert not onnxfuse.check(path, expect=[f"RotaryEmbedding=={told.census['RotaryEmbedding']}"])
