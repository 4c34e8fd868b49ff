"""Views between the two ops of a quantizer, and steps that are taken twice."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from benchmarks.quantized_models import kernels
from onnxfuse.fusing.build import Build
from onnxfuse.pipeline import optimize
from onnxfuse.runtime.quiet import Session
from onnxfuse.targets.target import Target
from onnxfuse.terms.term import Term
from tests.quantized_models import counts, quantized
from tests.terms.normal.space import FLOAT, Space

UINT8, INT8, INT16 = int(TensorProto.UINT8), int(TensorProto.INT8), int(TensorProto.INT16)


class Bytes(Space):
    """Terms with scales and zero points."""

    def zero(self, value: int = 0, dtype: int = UINT8) -> Term:
        kind = {UINT8: np.uint8, INT8: np.int8, INT16: np.int16}[dtype]
        return self.terms.constant(np.array(value, kind), dtype)

    def scales(self, *values: float) -> Term:
        return self.terms.constant(np.array(values, np.float32), FLOAT)


@pytest.fixture
def t() -> Bytes:
    return Bytes()


@pytest.mark.parametrize("domain", ["", "com.microsoft."])
def test_views_move_outside(t: Bytes, domain: str) -> None:
    quantize, dequantize = f"{domain}QuantizeLinear", f"{domain}DequantizeLinear"
    x, scale, zero = t.input("x", 2, 3, 4), t.number(0.5), t.zero(7)
    q = t.op(quantize, x, scale, zero)
    d = t.op(dequantize, q, scale, zero)
    assert t.op(quantize, t.transpose(x, 0, 2, 1), scale, zero) is t.transpose(q, 0, 2, 1)
    assert t.op(dequantize, t.reshape(q, 6, 4), scale, zero) is t.reshape(d, 6, 4)
    moved = t.op(dequantize, t.op(quantize, t.reshape(x, 6, 4), scale, zero), scale, zero)
    assert t.reshape(moved, 2, 3, 4) is d
    for other in ("QuantizeLinear", "com.microsoft.QuantizeLinear"):
        assert t.op(other, d, scale, zero) is q


def test_a_scale_for_each_index_moves_with_its_axis(t: Bytes) -> None:
    q, scales = t.input("q", 2, 3, 4, dtype=UINT8), t.scales(0.1, 0.2, 0.3)
    d = t.op("DequantizeLinear", q, scales, axis=1)
    turned = t.transpose(q, 1, 2, 0)
    assert t.op("DequantizeLinear", turned, scales, axis=0) is t.transpose(d, 1, 2, 0)
    assert t.op("DequantizeLinear", turned, scales, axis=-3) is t.transpose(d, 1, 2, 0)
    wrong = t.op("DequantizeLinear", t.transpose(t.input("p", 3, 3, dtype=UINT8), 1, 0), scales, axis=0)
    assert wrong is t.transpose(t.op("DequantizeLinear", t.input("p", 3, 3, dtype=UINT8), scales, axis=1), 1, 0)
    assert wrong is not t.transpose(t.op("DequantizeLinear", t.input("p", 3, 3, dtype=UINT8), scales, axis=0), 1, 0)
    merged = t.reshape(t.input("r", 2, 3, 4, dtype=UINT8), 6, 4)
    assert t.op("DequantizeLinear", merged, t.scales(*[0.1] * 6), axis=0).op == "DequantizeLinear"


@pytest.mark.parametrize("dtype", [INT8, INT16, int(TensorProto.INT4)])
def test_signed_bytes_and_others_stay_where_they_are(t: Bytes, dtype: int) -> None:
    q = t.transpose(t.input("q", 2, 3, dtype=dtype), 1, 0)
    assert t.op("DequantizeLinear", q, t.number(0.5)).op == "DequantizeLinear"


def test_blocks_stay_where_they_are(t: Bytes) -> None:
    q, scales = t.transpose(t.input("q", 8, 4, dtype=UINT8), 1, 0), t.input("scales", 2, 8)
    assert t.op("DequantizeLinear", q, scales, axis=0, block_size=2).op == "DequantizeLinear"


def test_steps_that_were_taken_are_not_taken_again(t: Bytes) -> None:
    q, scale, zero = t.input("q", 2, 3, dtype=UINT8), t.number(0.5), t.zero(7)
    d = t.op("DequantizeLinear", q, scale, zero)
    assert t.op("QuantizeLinear", d, scale, zero) is q
    assert t.op("QuantizeLinear", t.transpose(d, 1, 0), scale, zero) is t.transpose(q, 1, 0)


@pytest.mark.parametrize("dtype", [int(TensorProto.FLOAT16), int(TensorProto.BFLOAT16)])
def test_in_half_precision_steps_are_taken_again(t: Bytes, dtype: int) -> None:
    """100 steps of 1,000 are infinite in float16; in bfloat16 other whole numbers of steps may come out."""
    q, scale, zero = t.input("q", 2, 3, dtype=UINT8), t.terms.number(1000, dtype), t.zero(7)
    d = t.op("DequantizeLinear", q, scale, zero)
    assert d.dtype == dtype
    assert t.op("QuantizeLinear", d, scale, zero).op == "QuantizeLinear"


def test_steps_are_taken_again_where_the_division_is_in_half_precision(t: Bytes) -> None:
    q, scale, zero = t.input("q", 2, 3, dtype=UINT8), t.number(0.5), t.zero(7)
    d = t.op("DequantizeLinear", q, scale, zero)
    assert t.op("QuantizeLinear", d, scale, zero, precision=int(TensorProto.FLOAT)) is q
    assert t.op("QuantizeLinear", d, scale, zero, precision=int(TensorProto.FLOAT16)).op == "QuantizeLinear"


@pytest.mark.parametrize("other", ["scale", "zero point", "type", "axis", "unknown", "huge"])
def test_other_steps_are(t: Bytes, other: str) -> None:
    q, scale, zero = t.input("q", 3, 3, dtype=UINT8), t.number(0.5), t.zero(7)
    attrs = {}
    if other == "unknown":
        scale = t.input("scale")
    if other == "huge":
        scale = t.number(1e37)
    if other == "axis":
        scale, zero, attrs = t.scales(0.1, 0.2, 0.3), t.terms.absent, {"axis": 0}
    d = t.op("DequantizeLinear", q, scale, zero)
    if other == "scale":
        scale = t.number(0.25)
    if other == "zero point":
        zero = t.zero(8)
    if other == "type":
        zero = t.zero(7, INT8)
    assert t.op("QuantizeLinear", d, scale, zero, **attrs).op == "QuantizeLinear"


def test_no_scale_in_between_gives_other_steps() -> None:
    """Every step of every kind of scale, in the float32 of a runtime."""
    rng = np.random.default_rng(0)
    scales = np.concatenate([10 ** rng.uniform(-30, 30, 500), rng.uniform(1e-4, 1, 500), [1e-30, 1e30]])
    steps = np.arange(-255, 256, dtype=np.float32)
    for scale in scales.astype(np.float32):
        assert (np.rint(steps * scale / scale) == steps).all()


# ------------------------------------------------------------------------------------------------ in models

CHAIN = """q1 = QuantizeLinear(x, s, z)  d1 = DequantizeLinear(q1, s, z)  r = Reshape(d1, shape)
    q2 = QuantizeLinear(r, s, z)  d2 = DequantizeLinear(q2, s, z)  u = Transpose<perm = [0, 2, 1, 3]>(d2)
    q3 = QuantizeLinear(u, s, z)  d3 = DequantizeLinear(q3, s, z)  v = Transpose<perm = [0, 1, 3, 2]>(d3)
    i = MatMul(d3, v)  q4 = QuantizeLinear(i, s2, z2)  y = DequantizeLinear(q4, s2, z2)"""
SHAPE = "int64[4] shape = {0, -1, 2, 4}"


@pytest.mark.parametrize("target", ["onnxfuse", "onnx", "ort"])
def test_between_views_nothing_is_quantized_again(target: str) -> None:
    model = quantized(CHAIN, constants=SHAPE)
    done = optimize(model, Build(Target(target)))
    assert done.report.validation.verdict == "equal"
    assert done.report.validation.max_error == 0
    assert counts(done.model)["QuantizeLinear"] == 2
    assert kernels(done.model) == kernels(model) == {"QLinearMatMul": 1}
    feeds = {"x": np.random.default_rng(1).normal(0, 1, (2, 6, 8)).astype(np.float32)}
    before, after = (Session(m, optimize=False).run(feeds)[0] for m in (model, done.model))
    np.testing.assert_array_equal(before, after)


OTHERS = [
    ("q2 = QuantizeLinear(r, s, z)", "q2 = QuantizeLinear(r, s2, z)"),
    ("q2 = QuantizeLinear(r, s, z)", "q2 = QuantizeLinear(r, s, z2)"),
    ("d2 = DequantizeLinear(q2, s, z)", "d2 = DequantizeLinear(q2, s, z2)"),
]


@pytest.mark.parametrize(("old", "new"), OTHERS, ids=["scale", "zero point", "zero point behind"])
def test_steps_of_another_tensor_stay(old: str, new: str) -> None:
    model = quantized(CHAIN.replace(old, new), constants=SHAPE)
    done = optimize(model)
    assert done.report.validation.verdict == "equal"
    assert counts(done.model)["QuantizeLinear"] > 2
    feeds = {"x": np.random.default_rng(1).normal(0, 1, (2, 6, 8)).astype(np.float32)}
    before, after = (Session(m, optimize=False).run(feeds)[0] for m in (model, done.model))
    np.testing.assert_array_equal(before, after)
