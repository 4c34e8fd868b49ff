"""Forms of attention that exporters write, one test each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.spellings.build import Array
from tests.whole.test_attention import (
    B,
    D,
    H,
    Model,
    S,
    T,
    assert_same,
    census,
    operands,
    scores,
)

LOWEST = np.float32(-3.4e38)
Form = Callable[[], tuple[Model, str]]

FORMS: dict[str, Form] = {}


def attention(form: Form) -> Form:
    FORMS[form.__name__] = form
    return form


def draw(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def index(value: int) -> Array:
    return np.array(value, np.int64)


def some(*shape: int) -> Array:
    """Booleans with at least one True in each row."""
    keep = np.random.default_rng(1).random(shape) < 0.7
    keep[..., 0] = True
    return keep


def plain(**more: Array) -> Model:
    return Model(operands() | more)


def mixed(g: Model, masked: str, value: str = "V") -> str:
    return g("MatMul", g("Softmax", masked, axis=-1), value)


def attend(g: Model, query: str, key: str, value: str, perm: tuple[int, ...] = (0, 1, 3, 2)) -> str:
    products = g("MatMul", query, g("Transpose", key, perm=list(perm)))
    return mixed(g, g("Mul", products, np.float32(0.25)), value)


# ------------------------------------------------------------------------------------------------ Softmax


def shifted(g: Model, x: str, axes: list[int]) -> str:
    return g("Sub", x, g("ReduceMax", x, axes=axes, keepdims=1))


@attention
def maximum_taken_off() -> tuple[Model, str]:
    g = plain(mask=draw(B, 1, S, T))
    return g, mixed(g, shifted(g, g("Add", scores(g), "mask"), [-1]))


@attention
def maximum_of_everything_taken_off() -> tuple[Model, str]:
    g = plain()
    return g, mixed(g, shifted(g, scores(g), [0, 1, 2, 3]))


@attention
def rescaled_for_stability() -> tuple[Model, str]:
    g = plain()
    small = g("Mul", scores(g), np.float32(1 / 32))
    return g, mixed(g, g("Mul", shifted(g, small, [-1]), np.float32(32)))


@attention
def exponentials_over_their_sum() -> tuple[Model, str]:
    g = plain()
    e = g("Exp", shifted(g, scores(g), [-1]))
    return g, g("MatMul", g("Div", e, g("ReduceSum", e, ints(-1), keepdims=1)), "V")


@attention
def exponentials_in_rank_3() -> tuple[Model, str]:
    g = plain()
    rows = g("Mul", g("Reshape", scores(g), ints(B * H, S, T)), np.float32(0.5))
    e = g("Exp", shifted(g, rows, [-1]))
    weights = g("Mul", g("Reciprocal", g("ReduceSum", e, ints(-1), keepdims=1)), e)
    return g, g("MatMul", g("Reshape", weights, ints(B, H, S, T)), "V")


@attention
def divided_by_the_sum_in_the_end() -> tuple[Model, str]:
    g = plain()
    e = g("Exp", shifted(g, scores(g), [-1]))
    return g, g("Div", g("MatMul", e, "V"), g("ReduceSum", e, ints(-1), keepdims=1))


@attention
def scores_of_keys_by_queries() -> tuple[Model, str]:
    g = plain()
    weights = g("Softmax", scores(g, "K", "Q"), axis=2)
    return g, g("MatMul", g("Transpose", weights, perm=[0, 1, 3, 2]), "V")


@attention
def values_as_columns() -> tuple[Model, str]:
    g = plain()
    return g, g("MatMul", g("Transpose", "V", perm=[0, 1, 3, 2]), g("Softmax", scores(g, "K", "Q"), axis=2))


# ------------------------------------------------------------------------------------------------ masks


@attention
def several_masks() -> tuple[Model, str]:
    g = plain(one=draw(B, 1, S, T), two=draw(H, S, T), three=draw(T))
    return g, mixed(g, g("Add", g("Add", g("Add", scores(g), "one"), "two"), "three"))


@attention
def two_boolean_masks() -> tuple[Model, str]:
    g = plain(keep=some(B, 1, 1, T))
    first = g("Where", some(S, T), scores(g), LOWEST)
    return g, mixed(g, g("Where", "keep", first, LOWEST))


@attention
def a_bias_behind_a_boolean_mask() -> tuple[Model, str]:
    g = plain(bias=draw(B, 1, 1, T))
    return g, mixed(g, g("Add", "bias", g("Where", some(S, T), scores(g), LOWEST)))


@attention
def a_mask_per_window_and_a_bias_per_head() -> tuple[Model, str]:
    """Swin: windows of several images in the batch."""
    g = Model({name: draw(6, 3, 4, D) for name in "QKV"} | {"bias": draw(3, 4, 4), "mask": draw(3, 4, 4)})
    biased = g("Add", scores(g), g("Unsqueeze", "bias", ints(0)))
    masked = g("Add", g("Reshape", biased, ints(2, 3, 3, 4, 4)), g("Unsqueeze", "mask", ints(0, 2)))
    return g, mixed(g, g("Reshape", masked, ints(6, 3, 4, 4)))


@attention
def biases_of_rows_and_columns() -> tuple[Model, str]:
    """Segment Anything: decomposed relative positions."""
    g = Model({"Q": draw(B, H, S, D), "K": draw(B, H, 25, D), "V": draw(B, H, 25, D)})
    g.feeds |= {"rows": draw(B, H, S, 5, 1), "columns": draw(B, H, S, 1, 5)}
    square = g("Reshape", scores(g), ints(B, H, S, 5, 5))
    biased = g("Add", g("Add", square, "rows"), "columns")
    return g, mixed(g, g("Reshape", biased, ints(B, H, S, 25)))


@attention
def a_mask_of_higher_rank() -> tuple[Model, str]:
    g = plain(mask=draw(1, B, 1, S, T))
    return g, g("Reshape", mixed(g, g("Add", scores(g), "mask")), ints(B, H, S, D))


@attention
def a_mask_of_higher_rank_taken_back() -> tuple[Model, str]:
    g = plain(mask=draw(1, 1, 1, S, T))
    return g, mixed(g, g("Squeeze", g("Add", scores(g), "mask"), ints(0)))


def blended(g: Model, masked: str, keep: str | Array, low: float, value: str = "V") -> str:
    """GPT-2's mask: scores * keep + low * (1 - keep)."""
    fill = g("Mul", g("Sub", np.float32(1), keep), np.float32(low))
    return mixed(g, g("Add", g("Mul", masked, keep), fill), value)


@attention
def a_product_with_a_stored_triangle() -> tuple[Model, str]:
    g = Model({name: x[:, :, :S] for name, x in operands().items()})
    return g, blended(g, scores(g), np.tril(np.ones((1, 1, S, S), np.float32)), -1e4)


@attention
def a_product_with_a_part_of_a_stored_triangle() -> tuple[Model, str]:
    g = Model({"X": operands()["Q"]}, {"X": ["batch", H, "seq", D]})
    length = g("Gather", g("Shape", "X"), ints(2), axis=0)
    stored: str | Array = np.tril(np.ones((1, 1, 16, 16), np.float32))
    for axis in (2, 3):
        stored = g("Slice", stored, ints(0), length, ints(axis))
    return g, blended(g, scores(g, "X", "X"), stored, -1e4, "X")


@attention
def a_product_with_booleans() -> tuple[Model, str]:
    g = plain(keep=some(B, 1, S, T))
    return g, blended(g, scores(g), g("Cast", "keep", to=1), -1e9)


# ------------------------------------------------------------------------------------------------ heads


@attention
def matrices_of_heads_and_batch() -> tuple[Model, str]:
    """torch.baddbmm with a bias."""
    g = Model({name: draw(B * H, n, D) for name, n in zip("QKV", (S, T, T), strict=True)} | {"bias": draw(B * H, 1, T)})
    products = g("Mul", g("MatMul", "Q", g("Transpose", "K", perm=[0, 2, 1])), np.float32(0.3))
    return g, mixed(g, g("Add", "bias", products))


@attention
def positions_first() -> tuple[Model, str]:
    """torch.nn.MultiheadAttention without batch_first."""
    g = Model({name: draw(n, B, H * D) for name, n in zip("QKV", (S, T, T), strict=True)})
    q, k, v = (
        g("Transpose", g("Reshape", name, ints(n, B * H, D)), perm=[1, 0, 2])
        for name, n in zip("QKV", (S, T, T), strict=True)
    )
    y = attend(g, g("Mul", q, np.float32(0.3)), k, v, (0, 2, 1))
    return g, g("Reshape", g("Transpose", y, perm=[1, 0, 2]), ints(S, B, H * D))


@attention
def windows_as_an_axis() -> tuple[Model, str]:
    g = Model({name: draw(2, 3, 4, H * D) for name in "QKV"} | {"mask": draw(3, 1, 4, 4)})
    q, k, v = (g("Transpose", g("Reshape", name, ints(2, 3, 4, H, D)), perm=[0, 1, 3, 2, 4]) for name in "QKV")
    products = g("Mul", g("MatMul", q, g("Transpose", k, perm=[0, 1, 2, 4, 3])), np.float32(0.3))
    y = mixed(g, g("Add", products, "mask"), v)
    return g, g("Reshape", g("Transpose", y, perm=[0, 1, 3, 2, 4]), ints(2, 3, 4, H * D))


@attention
def cosines_with_a_scale_per_head() -> tuple[Model, str]:
    """Swin v2."""
    g = plain(bias=draw(1, H, S, T))

    def unit(x: str) -> str:
        length = g("Clip", g("ReduceL2", x, axes=[-1], keepdims=1), np.float32(1e-12))
        return g("Div", x, g("Expand", length, g("Shape", x)))

    cosines = g("MatMul", unit("Q"), g("Transpose", unit("K"), perm=[0, 1, 3, 2]))
    scale = g("Exp", g("Min", draw(H, 1, 1), np.float32(4.6)))
    return g, mixed(g, g("Add", g("Mul", cosines, scale), "bias"))


@attention
def a_scale_computed_from_the_shape() -> tuple[Model, str]:
    g = plain()
    width = g("Cast", g("Gather", g("Shape", "Q"), index(-1), axis=0), to=1)
    products = g("MatMul", "Q", g("Transpose", "K", perm=[0, 1, 3, 2]))
    return g, mixed(g, g("Div", products, g("Sqrt", width)))


@attention
def one_head_of_keys() -> tuple[Model, str]:
    feeds = operands()
    g = Model(feeds | {name: feeds[name][:, :1] for name in "KV"})
    return g, attend(g, "Q", "K", "V")


@attention
def a_gate_on_the_output() -> tuple[Model, str]:
    g = plain(gate=draw(B, S, H * D))
    y = g("Reshape", g("Transpose", attend(g, "Q", "K", "V"), perm=[0, 2, 1, 3]), ints(B, S, H * D))
    return g, g("Mul", y, g("Sigmoid", "gate"))


@attention
def packed_with_heads_within() -> tuple[Model, str]:
    """GPT-NeoX: [B,S,H,3*D]."""
    g = Model({"X": draw(B, S, 3 * H * D)})
    x = g("Transpose", g("Reshape", "X", ints(B, S, H, 3 * D)), perm=[0, 2, 1, 3])
    q, k, v = (g("Slice", x, ints(n * D), ints((n + 1) * D), ints(3)) for n in range(3))
    return g, g("Reshape", g("Transpose", attend(g, q, k, v), perm=[0, 2, 1, 3]), ints(B, S, H * D))


@attention
def packed_with_heads_before() -> tuple[Model, str]:
    """Bloom: [B,S,H,3,D]."""
    g = Model({"X": draw(B, S, 3 * H * D)})
    x = g("Reshape", "X", ints(B, S, H, 3, D))
    q, k, v = (g("Transpose", g("Gather", x, index(n), axis=3), perm=[0, 2, 1, 3]) for n in range(3))
    return g, g("Reshape", g("Transpose", attend(g, q, k, v), perm=[0, 2, 1, 3]), ints(B, S, H * D))


@pytest.mark.parametrize("repeat", ["tile", "gather", "concat", "slices"])
def test_repeated_heads_need_not_exist(repeat: str) -> None:
    feeds = operands()
    g = Model(feeds | {name: feeds[name][:, :2] for name in "KV"})

    def repeated(x: str) -> str:
        one = g("Unsqueeze", x, ints(2))
        match repeat:
            case "tile":
                return g("Reshape", g("Tile", one, ints(1, 1, 2, 1, 1)), ints(B, H, T, D))
            case "gather":
                return g("Gather", x, ints(0, 0, 1, 1), axis=1)
            case "concat":
                return g("Reshape", g("Concat", one, one, axis=2), ints(B, H, T, D))
            case _:
                heads = [g("Slice", x, ints(n), ints(n + 1), ints(1)) for n in (0, 0, 1, 1)]
                return g("Concat", *heads, axis=1)

    y = attend(g, "Q", repeated("K"), repeated("V"))
    assert census(assert_same(g.proto(y), g.feeds)) == {"Attention": 1}


@pytest.mark.parametrize("form", FORMS)
def test_a_form_of_attention_is_attention(form: str) -> None:
    g, y = FORMS[form]()
    fused = census(assert_same(g.proto(y), g.feeds))
    assert fused["Attention"] == 1
    assert not fused.keys() & {"Softmax", "MatMul", "Exp"}
