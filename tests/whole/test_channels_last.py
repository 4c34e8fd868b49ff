"""Group normalization of channels that come last, as Keras and flax have it: fused where it is one, nowhere else."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxfuse import optimize
from tests.spellings.build import Array
from tests.whole.test_attention import Model, assert_same, census

N, H, W, G, C = 2, 3, 5, 4, 8
"""Batch, height, width, groups, channels."""


def draw(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def variance(g: Model, x: str, mean: str, how: str, axes: list[int]) -> str:
    """The variance of x, as the frameworks' exporters write it."""
    if how == "centered":
        d = g("Sub", x, mean)
        return g("ReduceMean", g("Mul", d, d), axes=axes)
    low = g("Sub", g("ReduceMean", g("Mul", x, x), axes=axes), g("Mul", mean, mean))
    zero = np.float32(0)
    match how:
        case "max":
            return g("Max", low, zero)
        case "max swapped":
            return g("Max", zero, low)
        case "relu":
            return g("Relu", low)
    return low


def grouped(g: Model, spatial: tuple[int, ...], *, groups: tuple[int, ...] | None = None) -> tuple[str, list[int]]:
    """x in groups, and the axes to normalize."""
    dims = groups or (*spatial, G, C // G)
    view = g("Reshape", "x", ints(-1, *dims))
    return view, [*range(1, len(dims) - 1), len(dims)]


def model(
    spatial: tuple[int, ...] = (H, W),
    how: str = "max",
    affine: str = "behind",
    *,
    groups: tuple[int, ...] | None = None,
    axes: list[int] | None = None,
    epsilon: float = 1e-5,
    scale: tuple[int, ...] | None = None,
    back: tuple[int, ...] | None = None,
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    x = draw(N, *spatial, C)
    g = Model({"x": x}, {"x": ["batch", *spatial, C]})
    view, over = grouped(g, spatial, groups=groups)
    over = axes or over
    mean = g("ReduceMean", view, axes=over)
    deviation = g("Sqrt", g("Add", variance(g, view, mean, how, over), np.float32(epsilon)))
    shape = ints(-1, *(back or spatial), C)
    wide, inner = scale or (C,), (1,) * len(spatial) + (1, G, C // G)
    if affine == "behind":
        y = g("Reshape", g("Div", g("Sub", view, mean), deviation), shape)
        y = g("Add", g("Mul", y, draw(*wide, seed=1)), draw(*wide, seed=2))
    elif affine == "none":
        y = g("Reshape", g("Mul", g("Sub", view, mean), g("Reciprocal", deviation)), shape)
    elif affine == "keras":
        factor = g("Mul", g("Reciprocal", deviation), draw(*inner, seed=1))
        shift = g("Add", g("Mul", g("Neg", mean), factor), draw(*inner, seed=2))
        y = g("Reshape", g("Add", g("Mul", view, factor), shift), shape)
    else:
        factor = g("Mul", g("Reciprocal", deviation), draw(*inner, seed=1))
        y = g("Reshape", g("Add", g("Mul", g("Sub", view, mean), factor), draw(*inner, seed=2)), shape)
    return g.proto(y), g.feeds


@pytest.mark.parametrize("affine", ["behind", "none", "keras", "flax"])
@pytest.mark.parametrize("how", ["centered", "max", "max swapped", "relu", "plain"])
def test_every_spelling_is_group_normalization(how: str, affine: str) -> None:
    fused = assert_same(*model(how=how, affine=affine))
    assert census(fused) == {"Transpose": 2, "GroupNormalization": 1}


@pytest.mark.parametrize("spatial", [(7,), (H, W), (2, 3, 2)])
def test_of_any_number_of_axes(spatial: tuple[int, ...]) -> None:
    assert census(assert_same(*model(spatial)))["GroupNormalization"] == 1


def test_positions_may_be_merged() -> None:
    groups = (H * W, G, C // G)
    assert census(assert_same(*model(groups=groups)))["GroupNormalization"] == 1


NEAR: dict[str, dict[str, object]] = {
    "groups interleaved": {"groups": (H, W, C // G, G), "axes": [1, 2, 3]},
    "one position each": {"axes": [1, 4]},
    "over the groups": {"axes": [1, 2, 3, 4]},
    "over the batch": {"axes": [0, 1, 2, 4]},
    "no small number": {"epsilon": 0.0},
    "a negative one": {"epsilon": -1e-5},
    "height and width swapped": {"back": (W, H)},
}


@pytest.mark.parametrize("near", NEAR)
def test_what_is_not_quite_that_is_left_alone(near: str) -> None:
    fused = assert_same(*model(how="centered", **NEAR[near]))  # type: ignore[arg-type]
    assert census(fused)["GroupNormalization"] == 0


def test_a_scale_for_each_column_is_none_of_the_channels() -> None:
    fused = assert_same(*model(how="centered", scale=(W, 1)))
    assert (census(fused)["GroupNormalization"], census(fused)["Mul"], census(fused)["Add"]) == (1, 1, 1)


def test_a_variance_the_wrong_way_round_is_none() -> None:
    g = Model({"x": draw(N, H, W, C)})
    view, axes = grouped(g, (H, W))
    mean = g("ReduceMean", view, axes=axes)
    low = g("Sub", g("Mul", mean, mean), g("ReduceMean", g("Mul", view, view), axes=axes))
    deviation = g("Sqrt", g("Add", g("Max", low, np.float32(0)), np.float32(1e-2)))
    y = g("Reshape", g("Div", g("Sub", view, mean), deviation), ints(-1, H, W, C))
    assert census(assert_same(g.proto(y), g.feeds))["GroupNormalization"] == 0


@pytest.mark.parametrize("spoilt", ["", "other minimum", "other mean", "other fill"])
def test_a_guard_of_equal_elements_changes_nothing(spoilt: str) -> None:
    """jax2onnx has 0 for the difference from the mean where all elements are equal, and finite."""
    g = Model({"x": draw(N, H, C), "z": draw(N, H, C, seed=3)})
    mean = g("ReduceMean", "x", axes=[-1])
    other = g("ReduceMean", "z", axes=[-1])
    low = g("ReduceMin", "z" if spoilt == "other minimum" else "x", axes=[-1])
    equal = g("Equal", low, g("ReduceMax", "x", axes=[-1]))
    finite = g("Equal", g("Sub", mean, other if spoilt == "other mean" else mean), np.float32(0))
    fill = np.float32(1 if spoilt == "other fill" else 0)
    d = g("Where", g("And", equal, finite), fill, g("Sub", "x", mean))
    deviation = g("Sqrt", g("Add", g("ReduceMean", g("Mul", d, d), axes=[-1]), np.float32(1e-5)))
    fused = census(assert_same(g.proto(g("Div", d, deviation)), g.feeds))
    assert fused["LayerNormalization"] == (not spoilt)


def test_transposes_around_what_works_element_by_element_cancel() -> None:
    """A network whose channels come last, but for its convolutions."""
    rng = np.random.default_rng(0)
    g = Model({"x": draw(N, H, W, C)}, {"x": ["batch", H, W, C]})
    first, last = [0, 3, 1, 2], [0, 2, 3, 1]
    h = "x"
    for block in range(4):
        w, b = rng.standard_normal((C, C, 3, 3)).astype(np.float32) / 9, draw(C)
        y = g("Transpose", g("Conv", g("Transpose", h, perm=first), w, b, pads=[1, 1, 1, 1]), perm=last)
        y = g("Add", g("Mul", y, draw(C, seed=4)), draw(C, seed=5))
        y = g("Relu", y)
        h = g("Mul", y, g("Sigmoid", y)) if block in (0, 3) else g("Add", y, h)
    fused = census(assert_same(g.proto(h), g.feeds))
    assert (fused["Transpose"], fused["Conv"] + fused["FusedConv"]) == (2, 4)


@pytest.mark.parametrize("perm", [[0, 3, 1, 2], [0, 2, 1, 3]])
def test_other_transposes_stay(perm: list[int]) -> None:
    g = Model({"x": draw(N, C, H, W)}, {"x": ["batch", C, H, W]})
    y = g("Transpose", g("Exp", g("Transpose", g("Tanh", "x"), perm=[0, 2, 3, 1])), perm=perm)
    assert census(assert_same(g.proto(y), g.feeds))["Transpose"] == (0 if perm == [0, 3, 1, 2] else 2)


def instances(
    spatial: tuple[int, ...], how: str, affine: str, *, last: bool, scale: int = C
) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """Each channel normalized over all positions, as TensorFlow writes it or as others do."""
    dims = (*spatial, C) if last else (C, *spatial)
    axes = list(range(1, len(dims))) if last else list(range(2, len(dims) + 1))
    g = Model({"x": draw(N, *dims)}, {"x": ["batch", *dims]})
    ones = () if last else (1,) * len(spatial)
    gamma, beta = draw(scale, *ones, seed=1), draw(scale, *ones, seed=2)
    mean = g("ReduceMean", "x", axes=axes)
    r = g("Reciprocal", g("Sqrt", g("Add", variance(g, "x", mean, how, axes), np.float32(1e-5))))
    if affine == "tensorflow":
        factor = g("Mul", r, gamma)
        return g.proto(g("Add", g("Mul", "x", factor), g("Sub", beta, g("Mul", mean, factor)))), g.feeds
    normal = g("Mul", g("Sub", "x", mean), r)
    return g.proto(g("Add", g("Mul", normal, gamma), beta)), g.feeds


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("affine", ["torch", "tensorflow"])
@pytest.mark.parametrize("how", ["centered", "max", "plain"])
@pytest.mark.parametrize("spatial", [(7,), (H, W), (2, 3, 2)])
def test_every_spelling_is_instance_normalization(
    spatial: tuple[int, ...], how: str, affine: str, *, last: bool
) -> None:
    model, feeds = instances(spatial, how, affine, last=last)
    fused = assert_same(model, feeds)
    assert census(fused) == {"InstanceNormalization": 1} | ({"Transpose": 2} if last else {})


@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_instances_are_normalized_by_the_op_of_the_standard(target: str) -> None:
    model, _ = instances((H, W), "centered", "tensorflow", last=True)
    made = optimize(model, target=target)
    assert made.report.validation.verdict == "equal"
    assert census(made.model) == {"InstanceNormalization": 1, "Transpose": 2}


def test_a_scale_that_all_channels_share_is_none_of_instances() -> None:
    model, feeds = instances((H, W), "centered", "tensorflow", last=True, scale=1)
    assert census(assert_same(model, feeds))["InstanceNormalization"] == 0


@pytest.mark.parametrize("target", ["onnx", "ort"])
@pytest.mark.parametrize("affine", ["behind", "keras"])
def test_groups_are_the_channels_of_instances_where_a_target_has_no_op_for_them(affine: str, target: str) -> None:
    made = optimize(model(affine=affine)[0], target=target)
    assert made.report.validation.verdict == "equal"
    assert census(made.model) == {"InstanceNormalization": 1, "Transpose": 2, "Reshape": 2, "Mul": 1, "Add": 1}


@pytest.mark.parametrize("positions", [[H, W], ["h", "w"]])
def test_the_op_that_onnxruntime_expands_is_written_as_instances_for_it(positions: list[int | str]) -> None:
    g = Model({"x": draw(N, C, H, W)}, {"x": ["batch", C, *positions]})
    y = g("GroupNormalization", "x", draw(C, seed=1), draw(C, seed=2), num_groups=G, epsilon=1e-5)
    given = g.proto(y, opset=21)
    made = optimize(given, target="ort", shapes={"x": (N, C, H, W)})
    assert made.report.validation.verdict == "equal"
    assert census(made.model)["InstanceNormalization"] == 1
    assert census(optimize(given, target="onnx").model) == {"GroupNormalization": 1}


def test_groups_of_torch_stay_as_they_are() -> None:
    g = Model({"x": draw(N, C, H, W)}, {"x": ["batch", C, H, W]})
    one, zero = np.ones(G, np.float32), np.zeros(G, np.float32)
    normal = g("InstanceNormalization", g("Reshape", "x", ints(0, G, -1)), one, zero, epsilon=1e-5)
    scaled = g("Mul", g("Reshape", normal, ints(-1, C, H, W)), draw(C, 1, 1, seed=1))
    given = g.proto(g("Add", scaled, draw(C, 1, 1, seed=2)))
    made = optimize(given, target="ort").model
    assert [node.op_type for node in made.graph.node] == [node.op_type for node in given.graph.node]
    assert made.opset_import == given.opset_import


def test_a_standard_that_has_an_op_for_groups_has_it_written() -> None:
    made = optimize(model()[0], target="onnx", opset=21).model
    assert census(made)["GroupNormalization"] == 1
