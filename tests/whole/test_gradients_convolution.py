"""Gradients of convolutions and of batch normalization, as torch writes them: one node each, with their numbers."""

from __future__ import annotations

from typing import Literal

import numpy as np
import onnx
import pytest

import onnxfuse
from onnxfuse.model.graph import family_of
from onnxfuse.runtime.quiet import Session
from tests.whole.test_gradients import HEAD, outputs

TRAINING = (
    HEAD
    + """(float[N,4,6,4] dy, float[N,4,6,4] x, float[4] w, float[4] b)
 => (float[N,4,6,4] y, float[N,4,6,4] dx, float[4] dw, float[4] db)
<int64[3] axes = {0, 2, 3}, float eps = {0.00001}, float one = {1.0}, float part = {PART}, int64[2] sides = {0, 2},
 int64[1] behind = {3}>
{
 m = ReduceMean<keepdims = 0>(x, axes) m4 = ReduceMean<keepdims = 1>(x, axes) d = Sub(x, m4) d2 = Mul(d, d)
 v = ReduceMean<keepdims = 0>(d2, axes) y = BatchNormalization<epsilon = 0.00001>(x, w, b, m, v)
 ve = Add(v, eps) sd = Sqrt(ve) r = Div(one, sd) db = ReduceSum<keepdims = 0>(dy, axes) dyd = Mul(dy, d)
 s = ReduceSum<keepdims = 0>(dyd, axes) g1 = Mul(db, part) g2 = Unsqueeze(g1, sides) g4 = Unsqueeze(g2, behind)
 n = Mul(s, part) rr = Mul(r, r) k = Mul(n, rr) k3 = Unsqueeze(k, sides) k4 = Unsqueeze(k3, behind) rw = Mul(r, w)
 rw3 = Unsqueeze(rw, sides) rw4 = Unsqueeze(rw3, behind) t = Mul(d, k4) u = Sub(dy, t) z = Sub(u, g4)
 dx = Mul(z, rw4) dw = Mul(s, r)
}"""
)


def of_batch(text: str, batch: int) -> str:
    return text.replace("N,", f"{batch},").replace("PART", repr(1 / (batch * 24)) if batch else "1.0")


def names(model: onnx.ModelProto) -> list[str]:
    made = onnxfuse.optimize(model, validate="off", level=1).model
    return sorted(family_of(node) if node.domain else node.op_type for node in made.graph.node)


def agree(text: str, atol: float = 1e-5) -> None:
    model = onnx.parser.parse_model(text)
    made = onnxfuse.optimize(model, validate="off", level=1).model
    for a, b in zip(outputs(made), outputs(model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=atol)


def test_batch_normalization_in_training_is_a_node_forwards_and_one_backwards() -> None:
    text = of_batch(TRAINING, 3)
    assert names(onnx.parser.parse_model(text)) == ["BatchNormInternal", "BatchNormalizationGrad"]
    agree(text)


@pytest.mark.parametrize("level", [1, 2])
def test_both_have_kernels(level: Literal[1, 2]) -> None:
    """Of channels, whose elements are a run in each sample; at -O2 both are one."""
    model = onnx.parser.parse_model(of_batch(TRAINING, 3))
    done = onnxfuse.optimize(model, validate="kernels", level=level).report
    assert (done.validation.verdict, done.left_out) == ("equal", [])
    assert done.validation.kernels == (("BatchNormInternal", "BatchNormalizationGrad"), ("Region",))[level - 1]
    assert done.after.launches == 3 - level


def test_a_batch_of_none_has_the_shapes_that_it_had() -> None:
    agree(of_batch(TRAINING, 0))


WRONG = {
    "a sign": ("z = Sub(u, g4)", "z = Add(u, g4)"),
    "another deviation": ("rr = Mul(r, r)", "rr = Mul(r, w)"),
    "a missing term": ("u = Sub(dy, t)", "u = Identity(dy)"),
    "other axes": (
        "s = ReduceSum<keepdims = 0>(dyd, axes)",
        "d9 = Mul(dyd, dyd) s = ReduceSum<keepdims = 0>(d9, axes)",
    ),
    "not how many there are": ("float part = {PART}", "float part = {0.02}"),
    "columns, not channels": ("rw4 = Unsqueeze(rw3, behind)", "rw4 = Reshape(rw3, columns)"),
    "another epsilon": ("float eps = {0.00001}", "float eps = {0.1}"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_what_is_nearly_batch_normalization_has_its_own_numbers(mistake: str) -> None:
    old, new = WRONG[mistake]
    assert old in TRAINING
    text = TRAINING.replace("int64[1] behind", "int64[4] columns = {1, 1, 1, 4}, int64[1] behind")
    agree(of_batch(text.replace(old, new), 3))


KNOWN = (
    HEAD
    + """(float[3,4,6,4] dy, float[3,4,6,4] x, float[4] r) => (float[4] dw, float[4] db)
<int64[3] axes = {0, 2, 3}, float[1,4,1,1] mean = {0.5, -1.0, 2.0, 0.25}, float[4] row = {0.5, -1.0, 2.0, 0.25}>
{
 d = Sub(x, mean) dyd = Mul(dy, d) s = ReduceSum<keepdims = 0>(dyd, axes) dw = Mul(s, r)
 db = ReduceSum<keepdims = 0>(dy, axes)
}"""
)


def test_scale_and_shift_behind_statistics_that_are_known_have_one_node() -> None:
    assert names(onnx.parser.parse_model(KNOWN)) == ["BatchNormalizationGrad"]
    agree(KNOWN)


def test_a_mean_of_columns_is_none_of_channels() -> None:
    text = KNOWN.replace("Sub(x, mean)", "Sub(x, row)")
    assert "BatchNormalizationGrad" not in names(onnx.parser.parse_model(text))
    agree(text)


# ------------------------------------------------------------------------------------------------ convolutions

Setting = tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]]
"""Groups, steps, dilations and pads."""
SETTINGS: dict[str, Setting] = {
    "plain": (1, (1, 1), (1, 1), (1, 1, 1, 1)),
    "steps that leave a rest": (1, (2, 2), (1, 1), (1, 1, 1, 1)),
    "dilations": (1, (1, 2), (2, 1), (0, 1, 2, 0)),
    "groups": (2, (1, 1), (1, 1), (1, 1, 1, 1)),
    "each channel alone": (4, (2, 1), (1, 1), (1, 0, 1, 0)),
    "a line": (1, (1,), (1,), (1, 1)),
    "a line in steps that leave a rest": (2, (3,), (1,), (0, 1)),
    "a volume": (1, (1, 1, 1), (1, 1, 1), (1, 1, 1, 1, 1, 1)),
    "a volume in steps": (2, (2, 1, 2), (1, 2, 1), (1, 0, 1, 0, 2, 1)),
}


def convolution(setting: Setting) -> onnx.ModelProto:
    """The gradients of the weight and the bias as torch's convolution_backward is decomposed."""
    group, steps, dilations, pads = setting
    around = len(steps)
    n, channels, out, size, kernel = 2, 4, 4, (9, 8, 7)[:around], (3,) * around
    there = [
        (s + p + q - d * (k - 1) - 1) // t + 1
        for s, p, q, d, k, t in zip(size, pads[:around], pads[around:], dilations, kernel, steps, strict=True)
    ]
    inner = channels // group
    lists = {
        "split": [n, group, inner, *size], "merged": [inner, group * n, *size], "lead": [0, *range(2, 2 + around)],
        "zero": [0], "three": [3], **{f"axis{i}": [2 + i] for i in range(around)},
    }  # fmt: skip
    texts = {key: "{" + ", ".join(map(str, value)) + "}" for key, value in lists.items()}
    stored = ", ".join(f"int64[{len(lists[key])}] {key} = {text}" for key, text in texts.items())
    attributes = f"group = {group}, pads = {list(pads)}, strides = {list(dilations)}, dilations = {list(steps)}"
    turned, apart = [1, 0, *range(2, 2 + around)], [2, 1, 0, *range(3, 3 + around)]
    cuts = " ".join(f"c{i + 1} = Slice(c{i}, zero, three, axis{i})" for i in range(around))
    sides = [",".join(map(str, dims)) for dims in ((n, out, *there), (n, channels, *size), (out, inner, *kernel))]
    return onnx.parser.parse_model(
        HEAD
        + f"""(float[{sides[0]}] dy, float[{sides[1]}] x) => (float[{sides[2]}] dw, float[{out}] db) <{stored}>
{{
 a = Reshape(x, split) t = Transpose<perm = {apart}>(a) xt = Reshape(t, merged)
 gt = Transpose<perm = {turned}>(dy) c0 = Conv<{attributes}>(xt, gt) {cuts}
 dw = Transpose<perm = {turned}>(c{around}) db = ReduceSum<keepdims = 0>(dy, lead)
}}"""
    )


@pytest.mark.parametrize("setting", SETTINGS)
def test_the_gradients_of_a_weight_and_a_bias_are_one_node(setting: str) -> None:
    model = convolution(SETTINGS[setting])
    assert names(model) == ["ConvWeightGrad"]
    made = onnxfuse.optimize(model, validate="off").model
    for a, b in zip(outputs(made), outputs(model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_samples_of_a_group_that_are_not_behind_one_another_are_another_sum() -> None:
    model = convolution(SETTINGS["groups"])
    next(n for n in model.graph.node if n.output[0] == "xt").input[0] = "a"
    assert "ConvWeightGrad" not in names(model)
    made = onnxfuse.optimize(model, validate="off").model
    for a, b in zip(outputs(made), outputs(model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_a_kernel_that_is_cut_off_elsewhere_keeps_its_place() -> None:
    """Behind steps that leave a rest there is a row more than the kernel has: the last ones are another gradient."""
    model = convolution(SETTINGS["steps that leave a rest"])
    cut = next(n for n in model.graph.node if n.output[0] == "c2")
    cut.input[1], cut.input[2] = "one", "end"
    for name, value in (("one", 1), ("end", 4)):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([value]), name))
    made = onnxfuse.optimize(model, validate="off").model
    for a, b in zip(outputs(made), outputs(model), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


def test_weights_that_are_infinite_stay_so() -> None:
    model = convolution(SETTINGS["steps that leave a rest"])
    made = onnxfuse.optimize(model, validate="off").model
    rng = np.random.default_rng(0)
    feeds = {v.name: rng.standard_normal([d.dim_value for d in v.type.tensor_type.shape.dim]).astype(np.float32)
             for v in model.graph.input}  # fmt: skip
    feeds["dy"][0, 1, 2, 1], feeds["x"][1, 2, 3, 3] = np.inf, np.nan
    both = [Session(m, None, optimize=False).run(feeds) for m in (made, model)]
    for a, b in zip(*both, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
