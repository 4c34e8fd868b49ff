"""BatchNormalization behind what commutes with a factor and a shift for each channel goes into the convolution."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.spellings.build import Array
from tests.whole.test_attention import Model, assert_same, census

N, C, M, H, W = 2, 4, 12, 8, 6


def draw(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def normalized(g: Model, x: str, channels: int) -> str:
    scale, shift, mean = (draw(channels, seed=seed) for seed in (1, 2, 3))
    return g("BatchNormalization", x, scale, shift, mean, np.abs(draw(channels, seed=4)) + 0.5, epsilon=1e-3)


def behind(op: str, *inputs: Array, channels: int = M, bias: bool = True, **attrs: object) -> onnx.ModelProto:
    """A convolution, an op of its result, and a BatchNormalization."""
    g = Model({"x": draw(N, C, H, W)}, {"x": ["batch", C, H, W]})
    weights = [draw(M, C, 3, 3, seed=5), *([draw(M, seed=6)] if bias else [])]
    y = g(op, g("Conv", "x", *weights), *inputs, **attrs)
    return g.proto(normalized(g, y, channels))


def folded(model: onnx.ModelProto) -> bool:
    counts = census(assert_same(model, {"x": draw(N, C, H, W)}))
    assert counts["Conv"] + counts["FusedConv"] == 1
    return not counts["BatchNormalization"]


POOLS: dict[str, tuple[dict[str, object], bool]] = {
    "plain": ({}, True),
    "padding that does not count": ({"pads": [1, 1, 1, 1]}, True),
    "padding that counts": ({"pads": [1, 0, 0, 0], "count_include_pad": 1}, False),
    "none that would count": ({"count_include_pad": 1}, True),
    "automatic": ({"auto_pad": "SAME_UPPER"}, True),
    "automatic that counts": ({"auto_pad": "SAME_UPPER", "count_include_pad": 1}, False),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("pool", POOLS)
def test_behind_means_of_what_is_there(pool: str, bias: bool) -> None:
    attrs, expected = POOLS[pool]
    assert folded(behind("AveragePool", bias=bias, kernel_shape=[2, 3], strides=[2, 1], **attrs)) == expected


@pytest.mark.parametrize(("op", "expected"), [("GlobalAveragePool", True), ("GlobalMaxPool", False)])
def test_behind_the_mean_of_all_positions(op: str, expected: bool) -> None:
    assert folded(behind(op)) == expected


def test_a_mean_of_channels_is_none_of_positions() -> None:
    g = Model({"x": draw(N, C, H, W)})
    mean = g("ReduceMean", g("Conv", "x", draw(M, C, 3, 3, seed=5)), axes=[1, 2, 3])
    assert not folded(g.proto(normalized(g, mean, 1)))


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_behind_a_pixel_shuffle(mode: str) -> None:
    assert folded(behind("DepthToSpace", channels=M // 4, blocksize=2, mode=mode))


@pytest.mark.parametrize(("mode", "expected"), [("reflect", True), ("edge", True), ("constant", False)])
def test_behind_an_edge_that_repeats_elements(mode: str, expected: bool) -> None:
    assert folded(behind("Pad", np.array([0, 0, 1, 1, 0, 0, 1, 2], np.int64), mode=mode)) == expected


def test_not_behind_channels_that_are_repeated() -> None:
    pads = np.array([0, 1, 0, 0, 0, 0, 0, 0], np.int64)
    assert not folded(behind("Pad", pads, channels=M + 1, mode="edge"))


def test_not_behind_what_does_not_commute() -> None:
    assert not folded(behind("MaxPool", kernel_shape=[2, 2]))


@pytest.mark.parametrize("count", [2, 3, 4])
def test_behind_convolutions_side_by_side(count: int) -> None:
    g = Model({"x": draw(N, C, H, W)})
    sizes = [3, 5, 4, 6][:count]
    parts = [g("Conv", "x", draw(size, C, 3, 3, seed=i), draw(size, seed=9 + i)) for i, size in enumerate(sizes)]
    counts = census(assert_same(g.proto(normalized(g, g("Concat", *parts, axis=1), sum(sizes))), g.feeds))
    assert counts["BatchNormalization"] == 0


def test_not_where_one_of_them_is_none() -> None:
    g = Model({"x": draw(N, C, H, W)})
    parts = [g("Conv", "x", draw(5, C, 1, 1, seed=i)) for i in range(2)]
    y = normalized(g, g("Concat", *parts, "x", axis=1), 10 + C)
    assert census(assert_same(g.proto(y), g.feeds))["BatchNormalization"] == 1
