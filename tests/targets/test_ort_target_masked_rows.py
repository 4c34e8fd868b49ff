"""`--target ort` and `--target onnx`: rows in which every key is masked compute what they did."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse.fusing.fuse import lower
from onnxfuse.targets import runtimes
from onnxfuse.targets.target import Target
from tests.targets.test_ort_target import (
    CATALOGUE,
    MASK,
    OTHER,
    QKV,
    SAFE,
    SELF,
    attention,
    feeds,
    model,
    ops,
    session,
)

LOWEST = float(np.finfo(np.float32).min)


@pytest.mark.parametrize("target", ["onnx", "ort"])
@pytest.mark.parametrize("fill", [LOWEST, -1e9, -float("inf")])
def test_rows_in_which_every_key_is_masked(target: str, fill: float) -> None:
    """The lowest float32 leaves them uniform; -inf makes them NaN, for which ai.onnx Attention has 0."""
    masked = attention(
        OTHER,
        "zero = Constant <value_float = 0.0> ()  m = Where (C, zero, F)  s2 = Add (scores, m)"
        "p = Softmax <axis = -1> (s2)",
        "float[2,5,16] X, float[2,5,16] Z, bool[2,1,5,5] C",
    )
    before = model(masked, **QKV)
    before.graph.initializer.append(onnx.numpy_helper.from_array(np.array(fill, np.float32), "F"))
    after = lower(before, CATALOGUE.serving(Target(target)))[1].model
    assert ops(after)["Attention"] == 1
    given = feeds(before)
    given["C"][0, 0, 2, :] = False
    expected, found = (session(m).run(None, given)[0] for m in (before, after))
    known = ~np.isnan(expected)
    assert known[0, 2].all() == np.isfinite(fill)
    np.testing.assert_allclose(expected[known], found[known], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_a_key_that_two_masks_hide_is_hidden_where_one_of_them_hides_all_others(target: str) -> None:
    """GPT-Neo: the lowest float32 twice is -inf, but not in float64, in which the proof computes as well."""
    masked = attention(
        OTHER,
        "zero = Constant <value_float = 0.0> ()  m = Where (P, zero, F)  s2 = Where (C, scores, F)  s3 = Add (s2, m)"
        "p = Softmax <axis = -1> (s3)",
        "float[2,5,16] X, float[2,5,16] Z, bool[1,1,5,5] C, bool[2,1,5,5] P",
    )
    before = model(masked, **QKV)
    before.graph.initializer.append(onnx.numpy_helper.from_array(np.array(LOWEST, np.float32), "F"))
    optimized = onnxfuse.optimize(before, target=target)
    assert not optimized.report.left_out
    assert isinstance(optimized.model, onnx.ModelProto)
    assert ops(optimized.model)["Attention"] == 1
    given = feeds(before)
    given["C"][...] = np.tri(5, dtype=bool)
    given["P"][...] = True
    given["P"][0, 0, 2, :] = [False, False, False, True, True]
    given["P"][1, 0, 3, :2] = False
    expected, found = (session(m).run(None, given)[0] for m in (before, optimized.model))
    np.testing.assert_allclose(expected, found, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("kind", ["float", "float16"])
@pytest.mark.parametrize("of", ["bool", "real"])
def test_onnxruntime_guards_such_rows_itself(rank: int, kind: str, of: str) -> None:
    """rules/targets/ort/ leaves the guard out for that; 0 here, and the other rows as if nothing were masked so."""
    lengths = {"Q": 5, "K": 7, "V": 7}
    shapes = {n: [2, s, 32] if rank == 3 else [2, 4, s, 8] for n, s in lengths.items()}
    inputs = ", ".join(f"{kind}{shape} {name}" for name, shape in shapes.items())
    heads = "<q_num_heads = 4, kv_num_heads = 4>" if rank == 3 else ""
    mask = "bool" if of == "bool" else kind
    proto = model(
        f"g ({inputs}, {mask}[2,1,5,7] M) => ({kind}{shapes['Q']} Y) {{ Y = Attention {heads} (Q, K, V, M) }}", 23
    )
    given = feeds(proto)
    seen = np.random.default_rng(2).random((2, 1, 5, 7)) < 0.5
    seen[..., 0] = True
    hidden = seen.copy()
    hidden[0, 0, 2, :] = hidden[1, 0, 4, :] = False
    some, every = (
        session(proto).run(
            None, given | {"M": m if of == "bool" else np.where(m, 0, -np.inf).astype(given["Q"].dtype)}
        )[0]
        for m in (hidden, seen)
    )
    rows = np.moveaxis(some, -2, 1).reshape(2, 5, -1), np.moveaxis(every, -2, 1).reshape(2, 5, -1)
    dead = ~hidden.any(-1)[:, 0]
    assert (rows[0][dead] == 0).all()
    assert (rows[1][dead] != 0).all()
    np.testing.assert_array_equal(rows[0][~dead], rows[1][~dead])


@pytest.mark.parametrize(
    ("kind", "opset", "version"),
    [("float", None, None), ("float", None, "1.28"), ("float", 17, None), ("double", None, "1.28")],
)
def test_rows_are_guarded_where_the_op_does_not(kind: str, opset: int | None, version: str | None) -> None:
    """com.microsoft's Attention, all there is below opset 23, the standard's op for doubles, and that of onnxruntime
    before 1.28 have NaN."""
    text = attention(SELF, SAFE, MASK).replace("float[", f"{kind}[")
    if kind == "double":
        for name in ("c", "zero"):
            text = text.replace(f"{name} = Constant", f"{name}f = Constant")
        text = text.replace("qk = MatMul", "c = Cast <to = 11> (cf)  qk = MatMul")
        text = text.replace("p = Where", "zero = Cast <to = 11> (zerof)  p = Where")
    before = model(text, kind=kind, **QKV)
    target = Target("ort", runtime=runtimes.of(version) if version else None)
    after = lower(before, CATALOGUE.serving(target), opset=opset)[1].model
    given = feeds(before)
    given["M"][0, 0, 2, :] = -np.inf
    expected, found = (session(m).run(None, given)[0] for m in (before, after))
    np.testing.assert_allclose(expected, found, rtol=2e-4, atol=2e-5)
    found_ops = ops(after)
    assert found_ops["Attention" if opset is None else "com.microsoft.Attention"] == 1
    assert found_ops["ReduceMax"] == (0 if (kind, version) == ("float", "1.28") else 1)


@pytest.mark.parametrize("target", ["onnx", "ort"])
@pytest.mark.parametrize("guarded", [False, True])
@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.parametrize("version", [None, "1.31"])
def test_causal_attention(target: str, guarded: bool, opset: int, version: str | None) -> None:
    """A triangle over the queries, and keys hidden besides so that the first queries see none."""
    nan = "n = IsNaN (w)  p = Where (n, zero, w)" if guarded else "p = Identity (w)"
    masked = attention(
        SELF,
        "zero = Constant <value_float = 0.0> ()  both = And (T, C)  m = Where (both, zero, F)  s2 = Add (scores, m)"
        f"w = Softmax <axis = -1> (s2)  {nan}",
        "float[2,5,16] X, bool[2,1,1,5] C",
    )
    before = model(masked, opset, **QKV)
    triangle = np.tril(np.ones((5, 5), bool))
    before.graph.initializer.append(onnx.numpy_helper.from_array(triangle, "T"))
    before.graph.initializer.append(onnx.numpy_helper.from_array(np.array(-np.inf, np.float32), "F"))
    runtime = runtimes.of(version) if version else None
    after = lower(before, CATALOGUE.serving(Target(target, runtime=runtime)))[1].model
    assert (ops(after)["ReduceMax"] == 1) == (guarded and version is None)
    assert sum(count for op, count in ops(after).items() if "Attention" in op) == 1
    given = feeds(before) | {"C": np.array([[[[0, 0, 1, 1, 0]]], [[[1, 1, 0, 1, 1]]]], bool)}
    expected, found = (session(m).run(None, given)[0] for m in (before, after))
    known = ~np.isnan(expected)
    assert known.all() == guarded
    np.testing.assert_allclose(expected[known], found[known], rtol=2e-4, atol=2e-5)
