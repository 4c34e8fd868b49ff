"""Masks that exporters of real models write around scores, and dimensions that only their use makes equal."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import onnxfuse
from onnxfuse.fusing.fuse import fuse
from onnxfuse.runtime.quiet import Session
from tests.spellings.mutants import run
from tests.whole.test_attention import CATALOGUE, B, H, Model, S, T, assert_same, attributes, census, operands, scores
from tests.whole.test_attention_forms import LOWEST, draw, mixed, plain, some


def masked(keep: str, g: Model) -> str:
    return g("Where", keep, np.float32(0), LOWEST)


def test_a_floor_below_scores_is_one_below_their_mask() -> None:
    g = plain(keep=some(B, 1, S, T))
    floored = g("Max", g("Add", scores(g), masked("keep", g)), LOWEST)
    assert census(assert_same(g.proto(mixed(g, floored)), g.feeds)) == {"Attention": 1, "Where": 1}


def test_a_floor_below_two_masks_keeps_rows_in_which_both_hide_everything() -> None:
    keep = some(B, 1, S, T)
    keep[0, 0, 1] = False
    g = plain(keep=keep, seen=keep)
    both = g("Add", masked("keep", g), masked("seen", g))
    fused = assert_same(g.proto(mixed(g, g("Max", g("Add", scores(g), both), LOWEST))), g.feeds)
    assert census(fused)["Attention"] == 1


@pytest.mark.parametrize("low", [-1e4, -2.0])
def test_a_floor_that_scores_may_reach_stays(low: float) -> None:
    g = plain(mask=draw(B, 1, S, T) * 1e4)
    floored = g("Max", g("Add", scores(g), "mask"), np.float32(low))
    assert census(assert_same(g.proto(mixed(g, floored)), g.feeds))["Attention"] == 0


@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_masked_scores_that_are_shown_are_hidden_by_infinity(target: str) -> None:
    """Of a mask of booleans, onnxruntime's Attention shows the lowest float32."""
    g = plain(keep=some(B, 1, S, T))
    shown = g("Add", scores(g), g("Where", "keep", np.float32(0), np.float32(-np.inf)))
    model = g.proto(mixed(g, shown), shown, opset=23)
    made = onnxfuse.optimize(model, target=target, validate="off").model
    assert census(made)["Attention"] == 1
    for want, got in zip(*(Session(m, optimize=False).run(g.feeds) for m in (model, made)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    unseen = onnxfuse.optimize(g.proto(mixed(g, shown), opset=23), target="onnx", validate="off").model
    assert census(unseen)["Where"] == 0, "where nobody sees it, booleans do"


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize("target", ["onnxfuse", "onnx"])
def test_scores_that_are_shown_are_hidden_by_infinity_behind_their_order_too(target: str, *, guarded: bool) -> None:
    """Of a causal op, onnxruntime's Attention shows the lowest number; a guarded one is not in ai.onnx."""
    g = plain()
    order = np.triu(np.full((S, T), -np.inf, np.float32), 1)
    shown = g("Add", scores(g), order)
    weights = g("Softmax", shown, axis=-1)
    safe = g("Where", g("IsNaN", weights), np.float32(0), weights) if guarded else weights
    model = g.proto(g("MatMul", safe, "V"), shown, opset=23)
    made = onnxfuse.optimize(model, target=target, validate="off").model
    assert census(made)["Attention"] == 1
    assert bool(attributes(made).get("is_causal")) == (guarded and target == "onnxfuse")
    for want, got in zip(*(Session(m, optimize=False).run(g.feeds) for m in (model, made)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_a_factor_on_scores_and_a_bias_with_a_mask_behind_it() -> None:
    g = plain(bias=draw(B, H, S, T), mask=draw(B, 1, S, T))
    products = g("MatMul", "Q", g("Transpose", "K", perm=[0, 1, 3, 2]))
    scaled = g("Mul", g("Add", products, "bias"), np.float32(0.25))
    fused = assert_same(g.proto(mixed(g, g("Add", scaled, "mask"))), g.feeds)
    assert census(fused) == {"Attention": 1, "Mul": 1, "Add": 1}
    assert attributes(fused)["scale"] == 0.25


def test_a_mask_taken_as_a_truth_is_its_condition_negated() -> None:
    """MPT: 0 and the lowest number become booleans again, which say where to fill."""
    g = plain(keep=some(B, 1, S, T))
    hidden = g("Cast", masked("keep", g), to=9)
    fused = assert_same(g.proto(mixed(g, g("Where", hidden, LOWEST, scores(g)))), g.feeds)
    assert census(fused) == {"Attention": 1, "Where": 1}


DYNAMIC: dict[str, list[int | str]] = {name: ["b", H, "s", x.shape[-1]] for name, x in operands().items()}


def square(**more: np.ndarray) -> Model:
    return Model({name: x[:, :, :S] for name, x in operands().items()} | more)


@pytest.mark.parametrize("told", [S, 1])
def test_a_mask_of_columns_named_otherwise_meets_the_rows_of_the_values(told: int) -> None:
    """A mask of other columns than there are keys would not run, but one of 1 broadcasts."""
    g = square(mask=draw(B, 1, S, told))
    del g.feeds["V"]
    g.dims = DYNAMIC | {"mask": ["b", 1, "s", "other"]}
    y = mixed(g, g("Add", scores(g), "mask"), value=g("Neg", "K"))
    assert census(assert_same(g.proto(y), g.feeds))["Attention"] == 1


def test_a_mask_of_rows_named_otherwise_adds_queries_where_the_body_runs() -> None:
    g = Model({"Q": draw(B, H, 1, 16)} | {name: draw(B, H, S, 16) for name in "KV"} | {"mask": draw(B, 1, 3, S)})
    g.dims = {"Q": ["b", H, "q", 16], "K": ["b", H, "s", 16], "V": ["b", H, "s", 16], "mask": ["b", 1, "other", "s"]}
    assert census(assert_same(g.proto(mixed(g, g("Add", scores(g), "mask"))), g.feeds))["Attention"] == 1


@pytest.mark.parametrize("longest", [32, 1])
def test_what_a_stored_mask_is_cut_to_is_no_longer_than_it(longest: int) -> None:
    """GPT-Neo cuts a stored triangle to the sequence, and views the result by the smaller of the two lengths."""
    g = square()
    g.dims = dict(DYNAMIC)
    size = g("Shape", "Q", start=2, end=3)
    stored = np.tril(np.ones((1, 1, longest, longest), bool))
    rows = g("Slice", stored, np.array([0]), size, np.array([2]))
    cut = g("Slice", rows, np.array([0]), size, np.array([3]))
    y = mixed(g, g("Where", cut, scores(g), LOWEST))
    viewed = g("Reshape", y, g("Concat", np.array([0, 0]), g("Min", size, np.array([longest])), np.array([-1]), axis=0))
    other = mixed(g, g("MatMul", viewed, g("Transpose", viewed, perm=[0, 1, 3, 2])), viewed)
    assert census(assert_same(g.proto(other), g.feeds))["Attention"] == 2


def test_keys_of_another_input_are_viewed_by_the_batch_of_the_queries() -> None:
    """Cross-attention splits heads of the encoder's states with the decoder's batch, and leaves their number open."""
    g = Model({"x": draw(B, S, H * 16), "states": draw(B, T, H * 16)}, {"x": ["b", "s", 64], "states": ["e", T, 64]})
    batch = g("Shape", "x", start=0, end=1)

    def heads(value: str) -> str:
        split = g("Reshape", value, g("Concat", batch, np.array([-1]), np.array([H, 16]), axis=0))
        return g("Transpose", split, perm=[0, 2, 1, 3])

    keys, values = heads(g("Relu", "states")), heads("states")
    y = mixed(g, g("MatMul", heads("x"), g("Transpose", keys, perm=[0, 1, 3, 2])), values)
    assert census(assert_same(g.proto(y), g.feeds))["Attention"] == 1


def test_a_resized_value_has_the_sizes_that_the_graph_computes() -> None:
    """DETR resizes its mask of pixels to the features, whose batch it reads there."""
    g = plain(image=draw(1, B, 8, 8))
    g.dims = {"image": [1, "b", 8, 8]} | {name: ["b", *x.shape[1:]] for name, x in operands().items()}
    sizes = g("Concat", np.array([1]), g("Shape", "Q", start=0, end=1), np.array([S, T]), axis=0)
    resized = g("Resize", "image", "", "", sizes, mode="nearest")
    mask = g("Transpose", resized, perm=[1, 0, 2, 3])
    assert census(assert_same(g.proto(mixed(g, g("Add", scores(g), mask))), g.feeds))["Attention"] == 1


def test_a_guard_of_rows_where_nothing_is_hidden_guards_nothing() -> None:
    """The body of ai.onnx Attention-28: a bias of zeros, and 0 where the largest of a row is -inf."""
    g = square()
    g.dims = dict(DYNAMIC)
    bias = g("ConstantOfShape", g("Concat", *(g("Shape", name, start=2, end=3) for name in "QK"), axis=0))
    weights = g("Softmax", g("Add", scores(g), bias), axis=-1)
    hidden = g("Equal", g("ReduceMax", bias, np.array([-1])), np.array([-np.inf], np.float32))
    y = g("MatMul", g("Where", hidden, np.zeros(1, np.float32), weights), "V")
    assert census(assert_same(g.proto(y, opset=23), g.feeds)) == {"Attention": 1}


def test_a_mask_of_one_row_has_rows_and_columns() -> None:
    g = Model({"Q": draw(B, H, 1, 16)} | {name: draw(B, H, T, 16) for name in "KV"})
    row = np.where(np.arange(T) % 3 == 1, LOWEST, np.float32(0)).reshape(1, T)
    fused = assert_same(g.proto(mixed(g, g("Add", scores(g), row)), opset=23), g.feeds)
    assert census(fused) == {"Attention": 1}


@pytest.mark.parametrize("queries", [1, 2])
def test_one_query_beside_other_keys_behind_a_past_keeps_its_mask(queries: int) -> None:
    """onnxruntime takes one query behind a past for the last key, also where it brings several."""
    feeds = {"Q": draw(B, H, queries, 16)} | {name: draw(B, H, T, 16) for name in "KV"}
    g = Model(feeds | {name: draw(B, H, 2, 16) for name in ("past_key", "past_value")})
    keys, values = (g("Concat", past, name, axis=2) for past, name in (("past_key", "K"), ("past_value", "V")))
    mask = np.where(np.arange(T + 2) > np.arange(queries)[:, None] + 2, -np.inf, 0).astype(np.float32)
    y = mixed(g, g("Add", scores(g, "Q", keys), mask), value=values)
    fused = assert_same(g.proto(y, keys, values, opset=23), g.feeds)
    assert census(fused) == {"Attention": 1}
    assert attributes(fused).get("is_causal", 0) == int(queries > 1)


def some_rows() -> np.ndarray:
    """A mask that hides all keys of one row of a sequence."""
    keep = some(B, 1, S, T)
    keep[0, 0, 1] = False
    return keep


@pytest.mark.parametrize(("fill", "fused"), [(-1e9, True), (-1e10, True), (-1e8, False), (-1e4, False)])
@pytest.mark.parametrize("behind", [False, True])
def test_a_fill_that_swallows_scores_is_added_with_their_bias(fill: float, *, fused: bool, behind: bool) -> None:
    """Attention has one mask.  A row that is hidden throughout weighs all keys alike, as it did: what replaces scores
    and bias does so whatever they are."""
    g = plain(bias=draw(B, H, S, T) * (1 if behind else 100), keep=some_rows())
    products = g("MatMul", "Q", g("Transpose", "K", perm=[0, 1, 3, 2]))
    shown = products if behind else g("Add", products, "bias")
    hidden = g("Where", "keep", g("Mul", shown, np.float32(0.25)), np.float32(fill))
    model = g.proto(mixed(g, g("Add", hidden, "bias") if behind else hidden))
    assert census(assert_same(model, g.feeds))["Attention"] == (fused or not behind)


def cast(model: onnx.ModelProto, kind: type[np.floating], *, given: tuple[str, ...] = ("keep",)) -> onnx.ModelProto:
    """The model in another precision."""
    del model.graph.value_info[:]
    for value in (*model.graph.input, *model.graph.output):
        if value.name not in given:
            value.type.tensor_type.elem_type = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    for tensor in model.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(kind), tensor.name))
    return model


@pytest.mark.parametrize("behind", [False, True])
def test_in_double_precision_no_fill_swallows_a_bias_behind_it(*, behind: bool) -> None:
    g = plain(bias=draw(B, H, S, T), keep=some(B, 1, S, T))
    products = g("MatMul", "Q", g("Transpose", "K", perm=[0, 1, 3, 2]))
    shown = products if behind else g("Add", products, "bias")
    hidden = g("Where", "keep", shown, np.float32(-1e9))
    model = cast(g.proto(mixed(g, g("Add", hidden, "bias") if behind else hidden)), np.float64)
    assert census(onnxfuse.optimize(model).model)["Attention"] == (not behind)


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("fill", [-1e4, -1e9])
@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_scores_that_a_number_replaces_are_hidden_in_standard_ops(
    target: str, fill: float, kind: type[np.floating]
) -> None:
    """Where a row is hidden throughout it weighs all keys alike, be its scores in the hundreds."""
    low = max(fill, float(np.finfo(kind).min))
    g = plain(keep=some_rows())
    model = cast(g.proto(mixed(g, g("Where", "keep", scores(g), np.float32(low))), opset=23), kind)
    made = onnxfuse.optimize(model, target=target, validate="off").model
    assert census(made)["Attention"] == 1
    assert not census(made)["Softmax"]
    feeds = {name: x if x.dtype == bool else x.astype(kind) for name, x in g.feeds.items()}
    feeds["Q"] = feeds["Q"] * kind(100)
    for want, got in zip(*(Session(m, optimize=False).run(feeds) for m in (model, made)), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-2 if kind == np.float16 else 1e-5, atol=1e-3)


def test_in_half_precision_rows_that_are_hidden_throughout_have_neither_queries_nor_bias() -> None:
    """No number swallows all scores there; layers share what finds these rows."""
    keep = some_rows()
    g = plain(bias=draw(1, H, S, T) * 100, keep=keep)
    q = "Q"
    for _ in range(2):
        shown = g("Add", scores(g, q), "bias")
        q = g("Tanh", mixed(g, g("Where", "keep", shown, np.float32(-65504))))
    model = cast(g.proto(q), np.float16)
    fused = fuse(model, CATALOGUE).model
    assert census(fused)["Attention"] == 2
    feeds = {name: x if x.dtype == bool else x.astype(np.float16) for name, x in g.feeds.items()}
    for want, got in zip(run(model, feeds), run(fused, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-2, atol=2e-3)
    assert np.ptp(run(model, feeds)[0][0, :, 1] - np.tanh(feeds["V"][0].mean(-2)), axis=None) < 1e-2


@pytest.mark.parametrize("keys", [T, 1])
@pytest.mark.parametrize("sign", ["Sub", "Add"])
@pytest.mark.parametrize("target", ["onnxfuse", "onnx", "ort"])
def test_a_difference_of_weights_mixes_values_twice(target: str, sign: str, keys: int) -> None:
    """Differential attention.  Weights of a single key would be broadcast to all, which two attentions do not say."""
    g = plain(Q2=draw(B, H, S, 16), K2=draw(B, H, keys, 16), share=draw(H, 1, 1))
    first = g("Softmax", scores(g), axis=-1)
    second = g("Softmax", scores(g, "Q2", "K2"), axis=-1)
    model = g.proto(g("MatMul", g(sign, first, g("Mul", "share", second)), "V"))
    made = onnxfuse.optimize(model, target=target)
    assert made.report.validation.verdict == "equal"
    assert census(made.model)["Attention"] == (2 if keys == T else 0)


@pytest.mark.parametrize("target", ["onnxfuse", "onnx", "ort"])
@pytest.mark.parametrize("masks", [0, 1])
def test_a_difference_of_weights_that_are_neighbours_among_heads_mixes_values_once(target: str, masks: int) -> None:
    """Differential attention as its authors write it: one attention of twice as many heads."""
    g = Model(
        {"Q": draw(B, 2 * H, S, 8), "K": draw(B, 2 * H, T, 8), "V": draw(B, H, T, 16), "mask": draw(B, 1, S, T)},
        {"Q": ["b", 2 * H, "s", 8], "K": ["b", 2 * H, "t", 8], "V": ["b", H, "t", 16], "mask": ["b", 1, "s", "t"]},
    )
    shown = g("Add", scores(g), "mask") if masks else scores(g)
    if not masks:
        del g.feeds["mask"]
    weights = g("Softmax", shown, axis=-1)
    sizes = g("Concat", g("Shape", weights, end=1), np.array([H, 2]), g("Shape", weights, start=2), axis=0)
    pairs = g("Reshape", weights, sizes)
    first, second = (g("Gather", pairs, np.array(i), axis=2) for i in (0, 1))
    model = g.proto(g("MatMul", g("Sub", first, g("Mul", second, np.float32(0.3))), "V"))
    made = onnxfuse.optimize(model, target=target)
    assert made.report.validation.verdict == "equal"
    assert census(made.model)["Attention"] == 1
    assert not census(made.model)["Softmax"]


@pytest.mark.parametrize("length", ["t", "u"])
def test_a_difference_of_weights_has_as_many_keys_on_both_sides(length: str) -> None:
    g = plain(Q2=draw(B, H, S, 16), K2=draw(B, H, T, 16), share=draw(H, 1, 1))
    lengths = {"Q": "s", "Q2": "s", "K": "t", "V": "t", "K2": length}
    g.dims = {name: ["b", H, axis, g.feeds[name].shape[-1]] for name, axis in lengths.items()}
    second = g("Mul", "share", g("Softmax", scores(g, "Q2", "K2"), axis=-1))
    model = g.proto(g("MatMul", g("Sub", g("Softmax", scores(g), axis=-1), second), "V"))
    assert census(assert_same(model, g.feeds))["Attention"] == (2 if length == "t" else 0)
