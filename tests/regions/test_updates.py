"""Updates of many parameters are one launch."""

from __future__ import annotations

import numpy as np
import onnxruntime

import onnxfuse
from onnxfuse.regions import updates
from onnxfuse.regions.groups import Groups

from .written import groups, model, ops, scope

STEP = """g (float[6,8] x, float[8,4] w, float[4] b, float[6,4] t) => (float loss, float[8,4] w2, float[4] b2)
<float rate = {-0.01}, int64[1] rows = {0}, int64 first = {0}>
{
 m = MatMul(x, w) y = Add(m, b) d = Sub(y, t) s = Mul(d, d) loss = ReduceSum<keepdims = 0>(s)
 xt = Transpose(x) p = MatMul(xt, d) dw = CumSum(p, first) db = ReduceSum<keepdims = 0>(d, rows)
 u = Mul(dw, rate) w2 = Add(w, u) v = Mul(db, rate) b2 = Add(b, v)
}"""


def parts(text: str) -> list[str]:
    return [ops(group) for group in groups(text)]


def test_updates_of_several_sizes_are_one_group() -> None:
    assert "Mul Add Mul Add" in parts(STEP)


def test_the_numbers_are_the_same() -> None:
    done = onnxfuse.optimize(model(STEP))
    assert done.report.validation.verdict == "equal"
    assert done.report.left_out == []
    rng = np.random.default_rng(0)
    shapes = {"x": (6, 8), "w": (8, 4), "b": (4,), "t": (6, 4)}
    feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    results = [
        onnxruntime.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)
        for m in (model(STEP), done.model)
    ]
    for got, wanted in zip(*results, strict=True):
        assert np.allclose(got, wanted, rtol=1e-5)


def test_what_something_reads_is_none() -> None:
    """The norm of the new weights waits for them alone."""
    text = STEP.replace("float[4] b2)", "float[4] b2, float norm)")
    text = text.replace("b2 = Add(b, v)", "b2 = Add(b, v) norm = ReduceL2<keepdims = 0>(w2)")
    assert "Mul Add Mul Add" not in parts(text)


def test_nor_is_what_is_large() -> None:
    wide = STEP.replace("8,4]", f"8,{updates.SMALL}]").replace("6,4]", f"6,{updates.SMALL}]")
    assert "Mul Add Mul Add" not in parts(wide.replace("float[4]", f"float[{updates.SMALL}]"))


def test_other_models_have_none() -> None:
    text = """g (float[8,4] w, float[4] b) => (float[8,4] w2, float[4] b2)
    { u = Neg(w) w2 = Exp(u) v = Neg(b) b2 = Exp(v) }"""
    assert parts(text) == ["Neg Exp", "Neg Exp"]


def test_more_than_fit_are_several() -> None:
    many = 2 * updates.MOST + 1
    inputs = ", ".join(f"float[{k + 2}] p{k}" for k in range(many))
    outputs = ", ".join(f"float[{k + 2}] q{k}" for k in range(many))
    step = "r{0} = ReduceSum<keepdims = 0>(p{0}) q{0} = Mul(p{0}, r{0})"
    steps = " ".join(step.format(k) for k in range(many))
    text = f"g ({inputs}) => (float loss, {outputs}) {{ loss = ReduceSum<keepdims = 0>(p0) {steps} }}"
    made = Groups(scope(text))
    updates.together(made)
    sizes = [len(group.launches) for group in made if len(group.launches) > 1]
    assert sizes == [updates.MOST, updates.MOST]
