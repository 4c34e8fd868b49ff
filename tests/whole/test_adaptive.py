"""Vectors of length 1, and normalizations whose scale and shift are computed: adaptive ones."""

from __future__ import annotations

import numpy as np
import pytest

from tests.spellings.build import Array
from tests.whole.test_attention import Model, assert_same, census

B, S, C = 2, 5, 16


def draw(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def model() -> Model:
    x = draw(B, S, C)
    x[0, 0] *= 1e-20  # shorter than the least length
    x[0, 1] = 0
    return Model({"x": x, "z": draw(B, S, C, seed=1)}, {"x": ["b", S, C], "z": ["b", S, C]})


def length(g: Model, x: str = "x", how: str = "op") -> str:
    last = np.array([-1], np.int64)
    if how == "op":
        return g("ReduceL2", x, axes=[-1])
    squares = g("Mul", x, x) if how == "squares" else g("Pow", x, np.float32(2))
    return g("Sqrt", g("ReduceSum", squares, last))


LEAST = np.float32(1e-12)


def unit(g: Model, how: str) -> str:
    """x over its length, of which none counts for less than 1e-12."""
    match how:
        case "torch":
            clipped = g("Clip", length(g), LEAST)
            return g("Div", "x", g("Expand", clipped, g("Shape", "x")))
        case "max":
            return g("Div", "x", g("Max", LEAST, length(g, how="squares")))
        case "expanded first":
            return g("Div", "x", g("Max", g("Expand", length(g, how="power"), g("Shape", "x")), LEAST))
        case "tensorflow":
            total = g("ReduceSum", g("Mul", "x", "x"), np.array([-1], np.int64))
            return g("Mul", "x", g("Reciprocal", g("Sqrt", g("Max", total, LEAST * LEAST))))
        case "keras":
            return g("Mul", "x", g("Min", g("Reciprocal", length(g, how="squares")), np.float32(1e12)))
    raise AssertionError(how)


@pytest.mark.parametrize("how", ["torch", "max", "expanded first", "keras"])
def test_vectors_over_their_lengths_are_one_op(how: str) -> None:
    g = model()
    fused = census(assert_same(g.proto(unit(g, how)), g.feeds))
    assert (fused["NormalizeL2"], fused["ReduceL2"]) == (1, 1)
    assert fused.total() == 2


def test_a_least_square_is_a_least_length() -> None:
    g = Model({"x": draw(B, S, C)})
    total = g("ReduceSum", g("Mul", "x", "x"), np.array([-1], np.int64))
    y = g("Mul", "x", g("Reciprocal", g("Sqrt", g("Max", total, np.float32(16.0)))))
    assert census(assert_same(g.proto(y), g.feeds))["NormalizeL2"] == 1


@pytest.mark.parametrize("near", ["length of another", "largest length", "no square", "cube", "least below 0"])
def test_what_is_not_quite_a_length_is_left_alone(near: str) -> None:
    g = Model({"x": draw(B, S, C), "z": draw(B, S, C, seed=1)})
    least, last = np.float32(0.1), np.array([-1], np.int64)
    match near:
        case "length of another":
            divisor = g("Max", length(g, "z"), least)
        case "largest length":
            divisor = g("Min", length(g), np.float32(4))
        case "no square":
            divisor = g("Max", g("Sqrt", g("ReduceSum", g("Abs", "x"), last)), least)
        case "cube":
            divisor = g("Max", g("Sqrt", g("ReduceSum", g("Pow", g("Abs", "x"), np.float32(3)), last)), least)
        case _:
            divisor = g("Max", length(g), np.float32(-1))
    assert census(assert_same(g.proto(g("Div", "x", divisor)), g.feeds))["NormalizeL2"] == 0


@pytest.mark.parametrize(("epsilon", "fused"), [(1e-6, 1), (0.5, 1), (-1e-3, 0)])
def test_a_small_number_under_the_root_of_a_length_is_the_root_mean_square(epsilon: float, fused: int) -> None:
    g = Model({"x": draw(B, S, C)})
    total = g("ReduceSum", g("Mul", "x", "x"), np.array([-1], np.int64))
    y = g("Mul", "x", g("Reciprocal", g("Sqrt", g("Add", total, np.float32(epsilon)))))
    assert census(assert_same(g.proto(y), g.feeds))["RMSNormalization"] == fused


# ------------------------------------------------------------------------------------------------ adaptive


def adaptive(norm: str, one: float, scale: tuple[int, ...], shift: tuple[int, ...], *, stored: bool = False) -> Model:
    g = Model({"x": draw(B, S, C), "scale": draw(*scale, seed=2), "shift": draw(*shift, seed=3)})
    ones = np.ones(C, np.float32)
    mean = g("ReduceMean", "x", axes=[-1])
    d = g("Sub", "x", mean) if norm == "layer" else "x"
    deviation = g("Sqrt", g("Add", g("ReduceMean", g("Mul", d, d), axes=[-1]), np.float32(1e-6)))
    normal = g("Div", d, deviation)
    if stored:
        normal = g("Mul", normal, ones * 2)
    factor = g("Add", "scale", np.float32(one))
    g("Add", g("Mul", normal, factor), "shift")
    return g


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("scale", [(B, 1, C), (B, S, C)])
def test_a_scale_beside_1_and_a_shift_are_one_op(scale: tuple[int, ...], norm: str, stored: bool) -> None:
    g = adaptive(norm, 1, scale, scale, stored=stored)
    fused = census(assert_same(g.proto(g.nodes[-1].output[0]), g.feeds))
    assert fused["Modulate"] == 1
    assert fused["Add"] == fused["Mul"] == 0


@pytest.mark.parametrize(
    ("one", "scale", "shift"),
    [(2, (B, 1, C), (B, 1, C)), (-1, (B, 1, C), (B, 1, C)), (1, (3, B, 1, C), (B, 1, C)), (1, (B, S, 1), (B, 1, C))],
)
def test_other_factors_are_none(one: float, scale: tuple[int, ...], shift: tuple[int, ...]) -> None:
    g = adaptive("layer", one, scale, shift)
    assert census(assert_same(g.proto(g.nodes[-1].output[0]), g.feeds))["Modulate"] == 0
