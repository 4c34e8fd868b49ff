"""JAX's masks, which come behind the softmax, and group normalization whose positions are merged on the way back."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import onnxfuse
from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from onnxfuse.model.graph import family_of

CATALOGUE = catalogue.load()

JAX = """<ir_version: 9, opset_import: ["" : 23]>
g (float[B, 4, 7, 16] q, float[B, 4, 16, 9] k, float[B, 4, 9, 16] v, {mask}) => (float[B, 4, 7, 16] y)
<float zero = {{0}}, float one = {{1}}, float scale = {{0.25}}, int64[1] last = {{-1}}> {{
    s = MatMul (q, k)
    t = Mul (s, scale)
    p = Softmax <axis = 3> (t)
    {keep}
    w = Mul ({operands})
    n = ReduceSum <keepdims = 1> (w, last)
    some = Greater (n, zero)
    d = Where (some, n, one)
    r = Div (w, d)
    a = Where (some, r, zero)
    y = MatMul (a, v)
}}"""
MASK, CAST = "bool[B, 1, 1, 9] mask", "keep = Cast <to = 1> (mask)"


def families(model: onnx.ModelProto) -> list[str]:
    return [family_of(node).split(".")[-1] for node in fuse(model, CATALOGUE).model.graph.node]


@pytest.mark.parametrize("operands", ["p, keep", "keep, p"])
@pytest.mark.parametrize("mask", [MASK, "bool[B, 1, 7, 9] mask", "bool[7, 9] mask", "bool[B, 4, 7, 9] mask"])
def test_a_mask_behind_the_softmax_is_one_before_it(mask: str, operands: str) -> None:
    model = parser.parse_model(JAX.format(mask=mask, keep=CAST, operands=operands))
    done = onnxfuse.optimize(model)
    assert [f.rule for f in done.report.fusions] == ["Attention"]
    assert done.report.validation.verdict == "equal"


def test_a_row_that_is_hidden_throughout_is_0() -> None:
    model = parser.parse_model(JAX.format(mask=MASK, keep=CAST, operands="p, keep"))
    rng = np.random.default_rng(0)
    feeds = {
        n: rng.standard_normal(s).astype(np.float32)
        for n, s in (("q", (2, 4, 7, 16)), ("k", (2, 4, 16, 9)), ("v", (2, 4, 9, 16)))
    }
    feeds["mask"] = np.arange(2).reshape(2, 1, 1, 1).astype(bool) & np.ones((2, 1, 1, 9), bool)
    done = onnxfuse.optimize(model, inputs=feeds)
    assert done.report.validation.verdict == "equal"
    assert [f.rule for f in done.report.fusions] == ["Attention"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Greater (n, zero)", "Greater (n, one)"),
        ("d = Where (some, n, one)", "d = Where (some, n, scale)"),
        ("a = Where (some, r, zero)", "a = Where (some, r, one)"),
        ("(w, last)", "(p, last)"),
        ("keep = Cast <to = 1> (mask)", "mask1 = Cast <to = 1> (mask) keep = Add (mask1, scale)"),
        ("Softmax <axis = 3>", "Softmax <axis = 2>"),
    ],
)
def test_what_is_not_quite_that_mask_is_left_alone(old: str, new: str) -> None:
    model = parser.parse_model(JAX.format(mask=MASK, keep=CAST, operands="p, keep").replace(old, new))
    assert "Attention" not in families(model)


@pytest.mark.parametrize("shape", ["6, 20", "6, 4, 5", "6, 5, 4", "6, 2, 2, 5"])
def test_group_normalization_gives_its_channels_in_any_shape(shape: str) -> None:
    ones = ", ".join("1" * shape.count(","))
    model = parser.parse_model(f"""<ir_version: 9, opset_import: ["" : 17]>
    g (float[B, 6, 4, 5] x) => (y)
    <float[3] one = {{1, 1, 1}}, float[3] zero = {{0, 0, 0}},
     int64[3] groups = {{0, 3, -1}}, int64[{shape.count(",") + 2}] back = {{-1, {shape}}}> {{
        g = Reshape (x, groups)
        n = InstanceNormalization <epsilon = 0.001> (g, one, zero)
        r = Reshape (n, back)
        s = Mul (r, scale)
        y = Add (s, bias)
    }}""")
    rng = np.random.default_rng(1)
    for name in ("scale", "bias"):
        array = rng.standard_normal((6, *(1,) * len(ones.split(",")))).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    done = onnxfuse.optimize(model)
    assert [f.rule for f in done.report.fusions] == ["GroupNormalization"]
    assert done.report.validation.verdict == "equal"
