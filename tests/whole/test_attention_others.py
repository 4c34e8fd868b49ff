"""What looks like attention and is not computes the same, and what was fused wrongly once."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.fusing.fuse import fuse
from tests.whole.test_attention import (
    CATALOGUE,
    B,
    D,
    H,
    Model,
    S,
    T,
    assert_same,
    attributes,
    census,
    operands,
    scores,
)
from tests.whole.test_attention_forms import (
    Form,
    attend,
    blended,
    draw,
    ints,
    mixed,
    plain,
    some,
)

OTHERS: dict[str, Form] = {}


def no_attention(form: Form) -> Form:
    OTHERS[form.__name__] = form
    return form


@no_attention
def mask_behind_the_weights() -> tuple[Model, str]:
    g = plain(mask=draw(B, 1, S, T))
    return g, g("MatMul", g("Mul", g("Softmax", scores(g), axis=-1), "mask"), "V")


@no_attention
def heads_that_talk_before_softmax() -> tuple[Model, str]:
    g = plain()
    mixing = g("MatMul", g("Transpose", scores(g), perm=[0, 2, 3, 1]), draw(H, H))
    return g, mixed(g, g("Transpose", mixing, perm=[0, 3, 1, 2]))


@no_attention
def heads_that_talk_behind_softmax() -> tuple[Model, str]:
    g = plain()
    weights = g("Transpose", g("Softmax", scores(g), axis=-1), perm=[0, 2, 3, 1])
    return g, g("MatMul", g("Transpose", g("MatMul", weights, draw(H, H)), perm=[0, 3, 1, 2]), "V")


@no_attention
def a_sink_beside_the_keys() -> tuple[Model, str]:
    g = plain()
    weights = g("Softmax", g("Concat", scores(g), draw(B, H, S, 1), axis=-1), axis=-1)
    return g, g("MatMul", g("Slice", weights, ints(0), ints(T), ints(-1)), "V")


@no_attention
def no_softmax() -> tuple[Model, str]:
    g = plain()
    return g, g("MatMul", g("Relu", scores(g)), "V")


@no_attention
def softmax_over_heads() -> tuple[Model, str]:
    g = plain()
    return g, g("MatMul", g("Softmax", scores(g), axis=1), "V")


@no_attention
def softmax_over_queries() -> tuple[Model, str]:
    g = Model({name: x[:, :, :S] for name, x in operands().items()})
    return g, g("MatMul", g("Softmax", scores(g), axis=2), "V")


@no_attention
def a_product_with_no_mask() -> tuple[Model, str]:
    g = plain()
    return g, blended(g, scores(g), np.full((S, T), 0.5, np.float32) + np.eye(S, T, dtype=np.float32) / 2, -1e4)


@no_attention
def a_product_with_an_input() -> tuple[Model, str]:
    """Nothing says that the input is 0 or 1."""
    g = plain(keep=some(B, 1, S, T).astype(np.float32) * 0.5)
    return g, blended(g, scores(g), "keep", -1e4)


@pytest.mark.parametrize("form", OTHERS)
def test_what_is_no_attention_computes_the_same(form: str) -> None:
    g, y = OTHERS[form]()
    fused = assert_same(g.proto(y), g.feeds)
    assert census(fused)["Attention"] == 0


@pytest.mark.parametrize(
    ("form", "reason"), [("a_sink_beside_the_keys", "every(sink"), ("mask_behind_the_weights", "dim(gate, -1) == 1")]
)
def test_what_is_almost_attention_is_told(form: str, reason: str) -> None:
    g, y = OTHERS[form]()
    assert [m.rule for m in fuse(g.proto(y), CATALOGUE).near_misses if reason in m.reason] == ["Attention"]


def test_a_gate_per_query_on_the_weights_scales_the_output() -> None:
    g = plain(gate=draw(B, 1, S, 1))
    y = g("MatMul", g("Mul", g("Softmax", scores(g), axis=-1), "gate"), "V")
    assert census(assert_same(g.proto(y), g.feeds)) == {"Attention": 1, "Mul": 1}


@pytest.mark.parametrize("where", [(0, 1), (2, 2)])
def test_a_product_beside_another_fill_is_not_lost(where: tuple[int, int]) -> None:
    keep = np.tril(np.ones((S, S), np.float32))
    fill = np.where(keep > 0, 0, -1e4).astype(np.float32)
    fill[where] = -5
    g = Model({name: x[:, :, :S] for name, x in operands().items()})
    assert_same(g.proto(mixed(g, g("Add", g("Mul", scores(g), keep), fill))), g.feeds)


@pytest.mark.parametrize("heads", [[1, 0, 2, 3], [0, 0, 1, 1], [3, 2, 1, 0]])
def test_permuted_heads_are_not_lost(heads: list[int]) -> None:
    g = plain()
    y = attend(g, "Q", g("Gather", "K", ints(*heads), axis=1), "V")
    assert_same(g.proto(y), g.feeds)


@pytest.mark.parametrize("shape", [(H, 1, 1), (B, 1, S, 1), (H, S, 1), (T,), (S, T), (B, 1, 1, T)])
def test_a_factor_of_any_shape_is_not_lost(shape: tuple[int, ...]) -> None:
    """One per row moves to the queries; one per key does not."""
    g = plain(factor=draw(*shape))
    fused = assert_same(g.proto(mixed(g, g("Mul", scores(g), "factor"))), g.feeds)
    assert census(fused)["Attention"] == (shape[-1] == 1)


@pytest.mark.parametrize("fill", [-1e4, -1e9, -3.4e38])
def test_rows_in_which_everything_is_masked(fill: float) -> None:
    keep = some(B, 1, S, T)
    keep[0, 0, 1] = False
    g = plain(keep=keep, bias=draw(B, 1, 1, T))
    masked = g("Add", g("Where", "keep", scores(g), np.float32(fill)), "bias")
    assert_same(g.proto(mixed(g, masked)), g.feeds)


def test_keys_that_are_not_transposed() -> None:
    g = Model({name: draw(B, H, D, D) for name in "QKV"})
    fused = assert_same(g.proto(mixed(g, g("MatMul", "Q", "K"))), g.feeds)
    assert attributes(fused).get("scale") == 1.0


@pytest.mark.parametrize("mask", [None, (T,), (S, T), (1, S, T), (3, S, T)])
def test_one_head_of_one_sequence_has_two_dimensions(mask: tuple[int, ...] | None) -> None:
    feeds = {name: x[0, 0] for name, x in operands().items()} | ({"mask": draw(*mask)} if mask else {})
    g = Model(feeds)
    products = g("MatMul", "Q", g("Transpose", "K", perm=[1, 0]))
    masked = g("Add", products, "mask") if mask else products
    fused = assert_same(g.proto(g("MatMul", g("Softmax", masked, axis=-1), "V")), feeds)
    assert census(fused)["Attention"] == (mask != (3, S, T))  # those are more sequences than there are queries of


@pytest.mark.parametrize("constant", ["K", "V"])
def test_weights_of_a_layer_are_no_keys(constant: str) -> None:
    feeds = {name: x[0, 0] for name, x in operands().items()}
    stored = feeds.pop(constant)
    g = Model(feeds)
    key, value = (stored if name == constant else name for name in "KV")
    products = g("MatMul", "Q", stored.T.copy() if constant == "K" else g("Transpose", key, perm=[1, 0]))
    fused = assert_same(g.proto(g("MatMul", g("Softmax", products, axis=-1), value)), feeds)
    assert census(fused)["Attention"] == 0
