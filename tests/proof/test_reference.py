"""The reference evaluator holds a value only while it is read."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from onnxfuse.proof import numerics
from onnxfuse.proof.float64 import to_float64
from onnxfuse.proof.reference import Evaluator
from tests.proof.test_float64 import parse

CONTROL = """g (double[n] x, bool c, int64 k) => (double[n] y, double[n] x2) {
    a = Sin(x) unused = Cos(a) b = Exp(a)
    h, tail = Split<axis = 0, num_outputs = 2>(b)
    p = If(c) <then_branch = t () => (double[n] q) { d = Add(a, b) q = own.Twice(d) },
               else_branch = e () => (double[n] r) { r = Neg(b) }>
    l = Loop(k, c, p) <body = s (int64 i, bool go, double[n] v) => (bool more, double[n] w) {
        more = Identity(go) u = Mul(v, a) w = Add(u, b) }>
    y = Concat<axis = 0>(l, h) x2 = Identity(x) }"""
TWICE = '<domain: "own", opset_import: ["": 18]> Twice (a) => (b) { s = Add(a, a) b = Sub(s, a) }'


@pytest.mark.parametrize("flag", [True, False])
def test_it_computes_what_it_did_in_bodies_and_functions(flag: bool) -> None:
    model = parse(CONTROL, TWICE)
    feeds = {"x": np.arange(6.0), "c": np.array(flag), "k": np.array(3)}
    for ours, theirs in zip(Evaluator(model).run(None, feeds), ReferenceEvaluator(model).run(None, feeds), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert list(feeds) == ["x", "c", "k"]


def test_inputs_are_widened_when_they_are_read() -> None:
    model = parse("g (double[2] x, double[2] z) => (double[2] y, double[2] z) { a = Sin(x) y = Add(a, x) }")
    x = np.array([0.1, 0.2], np.float32)
    y, z = Evaluator(model, numerics.widen).run(None, {"x": x, "z": x})
    wide = x.astype(np.float64)
    np.testing.assert_array_equal(y, np.sin(wide) + wide)
    np.testing.assert_array_equal(z, wide)
    assert z.dtype == np.float64


def test_what_nobody_reads_any_more_is_gone() -> None:
    count, size = 60, 1 << 16
    nodes = "".join(f"v{n + 1} = Neg(v{n}) " for n in range(count))
    evaluator = Evaluator(parse(f"g (double[n] v0) => (double[n] v{count}) {{ {nodes} }}"))
    feed = {"v0": np.zeros(size)}
    evaluator.run(None, feed)
    tracemalloc.start()
    evaluator.run(None, feed)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * 8 * size


def test_a_large_weight_is_wide_only_while_it_is_read(tmp_path: Path) -> None:
    count, size = 8, 512 * 512
    nodes = "".join(f"v{n + 1} = MatMul(v{n}, w{n}) " for n in range(count))
    model = parse(f"g (float[2, 512] v0) => (float[2, 512] v{count}) {{ {nodes} }}")
    weights = np.random.default_rng(0).standard_normal((count, 512, 512)).astype(np.float32) / 22
    model.graph.initializer.extend(numpy_helper.from_array(w, f"w{n}") for n, w in enumerate(weights))
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="m.data")
    outside = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    evaluator = Evaluator(to_float64(outside, tmp_path), numerics.widen, tmp_path)
    x = np.random.default_rng(1).standard_normal((2, 512)).astype(np.float32)
    want = x.astype(np.float64)
    for weight in weights:
        want = want @ weight.astype(np.float64)
    evaluator.run(None, {"v0": x})
    tracemalloc.start()
    (y,) = evaluator.run(None, {"v0": x})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    np.testing.assert_allclose(y, want, rtol=1e-10)
    assert peak < 3 * 8 * size, "not all of them, and none in two forms"


def test_an_evaluator_is_freed_with_its_last_reference() -> None:
    """A proof makes hundreds, each with weights in float64, and Python's cycle collector does not run in it."""
    model = parse(
        "g (double[2, 2] x, bool c) => (double[2, 2] y) { t = own.F(x) z = If(c) <"
        "then_branch = a () => (double[2, 2] u) { u = Abs(t) }, else_branch = b () => (double[2, 2] v) { v = Neg(t) }> "
        "y = LayerNormalization(z, t) }",
        '<domain: "own", opset_import: ["": 18]> F (x) => (y) { q = Mish(x) y = Erf(q) }',
    )
    gc.disable()
    try:
        evaluator = Evaluator(model)
        evaluator.run(None, {"x": np.ones((2, 2)), "c": np.array(True)})
        gone = weakref.ref(evaluator)
        del evaluator
        assert gone() is None
    finally:
        gc.enable()
