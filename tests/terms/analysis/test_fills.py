"""Rows that are masked throughout: what a fill leaves of them is what the fused op leaves, in every target."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxfuse.fusing.fuse import lower
from onnxfuse.language.catalogue import load
from onnxfuse.lifting.lift import lift
from onnxfuse.model.graph import roots
from onnxfuse.targets.target import Target
from onnxfuse.terms.analysis import fills
from tests import exports

CATALOGUE = load()
LOWEST = float(np.finfo(np.float32).min)
HALF = 65504.0

PADDING = """u = Cast <to = 1> (M)  k = Unsqueeze (u, axes)  i = Sub (one, k)  m = Mul (i, low)"""
"""As BERT, MPNet and BLOOM have it: (1 - mask) * lowest."""
MASKS = {
    "padding": f"{PADDING}  t = Add (s, m)",
    "bias and padding": f"{PADDING}  b = Add (s, B)  t = Add (b, m)",
    "bias with padding": f"{PADDING}  b = Add (B, m)  t = Add (s, b)",
    "two that overflow": f"{PADDING}  w = Where (C, zero, low)  b = Add (s, m)  o = Add (b, w)  t = Max (o, low)",
    "infinite beside lowest": f"{PADDING}  w = Where (C, zero, never)  b = Add (s, m)  t = Add (b, w)",
    "booleans": "u = Cast <to = 9> (M)  k = Unsqueeze (u, axes)  m = Where (k, zero, low)  t = Add (s, m)",
    "replaced": "u = Cast <to = 9> (M)  k = Unsqueeze (u, axes)  t = Where (k, s, low)",
}


def attention(mask: str, fill: float, opset: int, kind: str = "float") -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": {opset}]> g
        ({kind}[b,2,n,8] Q, {kind}[b,2,n,8] K, {kind}[b,2,n,8] V, int64[b,n] M, {kind}[1,2,n,n] B, bool[n,n] C)
        => ({kind}[b,2,n,8] Y) <int64[2] axes = {{1, 2}}> {{
        T = Transpose <perm = [0, 1, 3, 2]> (K)  p = MatMul (Q, T)  s = Mul (p, half)
        {mask.replace("to = 1>", "to = 1>" if kind == "float" else "to = 10>")}
        w1 = Softmax <axis = -1> (t)  Y = MatMul (w1, V) }}"""
    )
    dtype = np.float32 if kind == "float" else np.float16
    for name, value in {"one": 1, "zero": 0, "half": 0.5, "low": fill, "never": -np.inf}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(value, dtype), name))
    return model


def feeds(dtype: type = np.float32) -> dict[str, np.ndarray]:
    """A sequence as it is, one all padding, one half."""
    rng = np.random.default_rng(0)
    given = {name: rng.standard_normal((3, 2, 4, 8)).astype(dtype) for name in "QKV"}
    given["M"] = np.array([[1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 1, 1]])
    given["B"] = rng.standard_normal((1, 2, 4, 4)).astype(dtype)
    given["C"] = np.tri(4, dtype=bool)
    return given


@pytest.mark.parametrize("target", ["onnxfuse", "onnx", "ort"])
@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.parametrize("fill", [LOWEST, -1e9])
@pytest.mark.parametrize("mask", MASKS)
def test_a_sequence_of_padding_is_what_it_was(mask: str, fill: float, opset: int, target: str) -> None:
    before = attention(MASKS[mask], fill, opset)
    after = lower(before, CATALOGUE.serving(Target(target)))[1].model
    # Where no key is left, torch has NaN and ai.onnx Attention 0.
    (expected,), (found,) = (list(exports.run(m, feeds()).values()) for m in (before, after))
    known = np.isfinite(expected)
    assert known[0].all()
    assert known[1].any()
    np.testing.assert_allclose(found[known], expected[known], rtol=1e-4, atol=1e-5)
    if fill == LOWEST:
        assert any(node.op_type.startswith("Attention") for node in after.graph.node)


@pytest.mark.parametrize("target", ["onnxfuse", "onnx", "ort"])
@pytest.mark.parametrize("mask", ["padding", "booleans", "replaced"])
def test_in_half_precision_such_a_row_is_uniform(mask: str, target: str) -> None:
    """-65504 swallows every score in half precision; onnxruntime's CPU provider computes the original in float32, where
    it leaves the scores their first digits."""
    before = attention(MASKS[mask], -HALF, 23, "float16")
    after = lower(before, CATALOGUE.serving(Target(target)))[1].model
    given = feeds(np.float16)
    (expected,), (found,) = (list(exports.run(m, given).values()) for m in (before, after))
    np.testing.assert_allclose(found[[0, 2]].astype(float), expected[[0, 2]].astype(float), rtol=1e-2, atol=1e-2)
    mean = given["V"][1].astype(float).mean(1, keepdims=True)
    np.testing.assert_allclose(found[1].astype(float), np.broadcast_to(mean, found[1].shape), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_a_mask_that_cannot_be_lowest_is_not_touched(target: str) -> None:
    after = lower(attention("t = Add (s, B)".replace("B", "never"), LOWEST, 23), CATALOGUE.serving(Target(target)))[
        1
    ].model
    assert not {"Max", "IsInf"} & {node.op_type for node in after.graph.node}
    before = attention(MASKS["padding"], -1e9, 23)
    assert "Max" not in {node.op_type for node in lower(before, CATALOGUE.serving(Target(target)))[1].model.graph.node}


def test_attention_that_the_model_has_keeps_its_mask() -> None:
    """onnxruntime gives 0 where every key of a mask has the lowest number, and goes on doing so."""
    before = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 23]> g (float[b,2,n,8] Q, float[b,2,n,8] K, float[b,2,n,8] V,
        float[b,1,n,n] M) => (float[b,2,n,8] Y) { Y = Attention (Q, K, V, M) }"""
    )
    for target in ("onnxfuse", "onnx", "ort"):
        after = lower(before, CATALOGUE.serving(Target(target)))[1].model
        assert not {"Max", "IsInf"} & {node.op_type for node in after.graph.node}


@pytest.mark.parametrize(
    ("value", "lowest", "infinite"),
    [
        ("Y = Where (C, zero, low)", True, False),
        ("Y = Where (C, zero, never)", False, True),
        ("a = Where (C, zero, low)  b = Where (C, low, zero)  Y = Add (a, b)", True, True),
        ("a = Add (x, low)  Y = Max (a, one)", False, False),
        ("Y = Add (x, x)", True, True),
        ("a = MatMul (x, x)  Y = Add (a, one)", False, False),
        ("a = Sigmoid (x)  Y = Log (a)", False, True),
        ("a = Cast <to = 1> (C)  Y = Mul (a, low)", True, False),
        ("a = Where (C, low, x)  b = Add (a, a)  Y = Mul (b, half)", False, True),
        ("a = Where (C, low, x)  b = Mul (a, half)  c = Add (b, one)  Y = Max (a, c)", False, True),
        ("a = Where (C, low, x)  b = Mul (x, half)  c = Add (b, one)  Y = Max (a, c)", True, True),
        ("a = Where (C, low, x)  b = Mul (x, a)  Y = Mul (b, half)", True, True),
    ],
)
def test_what_a_mask_may_hold(value: str, lowest: bool, infinite: bool) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 18]> g (float[4,4] x, bool[4,4] C) => (float[4,4] Y) {{ {value} }}"""
    )
    for name, number in {"one": 1, "half": 0.5, "zero": 0, "low": LOWEST, "never": -np.inf}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array(number, np.float32), name))
    mask = lift(next(roots(model)), None).term("Y")
    assert (fills.may_hold(mask, LOWEST), fills.may_hold(mask, -np.inf)) == (lowest, infinite)
