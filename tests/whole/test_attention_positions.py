"""Attention by position: windows, causal masks beside others, masks shorter than the keys, a sink beside them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from onnxfuse.fusing.fuse import lower
from onnxfuse.language import catalogue
from onnxfuse.model.graph import family_of
from onnxfuse.targets.target import Target
from tests.spellings.build import Array
from tests.spellings.mutants import run
from tests.whole.test_attention import B, D, H, Model, S, T, assert_same, attributes, census, operands, scores
from tests.written import inputs

CATALOGUE = catalogue.load()
HIDDEN, SHOWN = np.float32(-np.inf), np.float32(0)


N = 6
"""Positions, where there are as many keys as queries."""


def square() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal((B, H, N, D)).astype(np.float32) for name in "QKV"}


def attended(g: Model, masked: str, *, guarded: bool = True, value: str = "V") -> str:
    weights = g("Softmax", masked, axis=-1)
    if guarded:
        weights = g("Where", g("IsNaN", weights), SHOWN, weights)
    return g("MatMul", weights, value)


def node_of(model: onnx.ModelProto) -> onnx.NodeProto:
    (node,) = [node for node in model.graph.node if family_of(node) == "Attention"]
    return node


def operands_of(model: onnx.ModelProto) -> dict[str, str]:
    return inputs(model, node_of(model))


def bounds(model: onnx.ModelProto) -> tuple[int, int, int]:
    """(left, right, causal) of the only Attention."""
    found = attributes(model)
    left, right = (int(str(found.get(f"{side}_window_size", -1))) for side in ("left", "right"))
    return left, right, int(str(found.get("is_causal", 0)))


def band(queries: int, keys: int, left: int, right: int) -> Array:
    """True from `left` before each query to `right` behind it, without a bound where that is -1."""
    apart = np.arange(keys)[None, :] - np.arange(queries)[:, None]
    return ((left < 0) | (apart >= -left)) & ((right < 0) | (apart <= right))


# ------------------------------------------------------------------------------------------------ windows


@pytest.mark.parametrize("fill", [-np.inf, -1e9, -1e4])
@pytest.mark.parametrize(("left", "right"), [(1, 0), (1, 2), (2, 1), (0, 0), (1, -1), (-1, 1)])
@pytest.mark.parametrize("opset", [17, 23])
def test_a_constant_band_is_a_window(left: int, right: int, fill: float, opset: int) -> None:
    g = Model(square())
    mask = np.where(band(N, N, left, right), 0, fill).astype(np.float32)
    fused = assert_same(g.proto(attended(g, g("Add", scores(g), mask), guarded=False), opset=opset), g.feeds)
    causal = right == 0
    expected = (left, -1 if causal else right, int(causal)) if fill < -1e4 else (-1, -1, 0)
    assert bounds(fused) == expected
    assert len(node_of(fused).input) == (3 if fill < -1e4 else 4)


@pytest.mark.parametrize("where", [(0, 0), (3, 2), (4, 1)])
def test_a_band_with_a_flaw_is_no_window(where: tuple[int, int]) -> None:
    g = Model(square())
    keep = band(N, N, 1, 0)
    keep[where] ^= True
    mask = np.where(keep, SHOWN, HIDDEN)
    assert bounds(assert_same(g.proto(attended(g, g("Add", scores(g), mask))), g.feeds)) == (-1, -1, 0)


def test_a_window_that_leaves_the_first_query_no_key_of_its_own_is_none() -> None:
    """Keys strictly before a query are no window around it."""
    g = Model(square())
    mask = np.where(band(N, N, 2, -1) & ~band(N, N, 0, -1), SHOWN, HIDDEN)
    assert bounds(assert_same(g.proto(attended(g, g("Add", scores(g), mask))), g.feeds)) == (-1, -1, 0)


@pytest.mark.parametrize("queries", [S, T])
def test_queries_behind_the_last_key_of_their_window(queries: int) -> None:
    """A finite fill shows where a query sees nothing else."""
    feeds = {name: np.repeat(x, 2, axis=2)[:, :, : (queries if name == "Q" else 3)] for name, x in operands().items()}
    g = Model(feeds)
    left = 1
    mask = np.where(band(queries, 3, left, -1), 0, -1e9).astype(np.float32)
    fused = assert_same(g.proto(attended(g, g("Add", scores(g), mask), guarded=False)), feeds)
    assert bounds(fused) == ((left, -1, 0) if queries <= 3 + left else (-1, -1, 0))


def ranges(g: Model, shift: int, size: int, style: str) -> tuple[str, str]:
    """(what is not later than `shift` behind, what is less than `size` before) each query, of X's length."""
    length = g("Gather", g("Shape", "X"), np.array(2, np.int64), axis=0)
    positions = g("Range", np.array(0, np.int64), length, np.array(1, np.int64))
    rows = g("Unsqueeze", positions, np.array([0, 1, 3], np.int64))
    columns = g("Unsqueeze", positions, np.array([0, 1, 2], np.int64))
    limit = g("Add", rows, np.array(shift, np.int64))
    if style == "greater":
        return g("LessOrEqual", columns, limit), g("Greater", columns, g("Sub", rows, np.array(size, np.int64)))
    distance = g("Sub", rows, columns)
    return g("GreaterOrEqual", limit, columns), g("Less", distance, np.array(size, np.int64))


@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.parametrize("style", ["greater", "distance"])
@pytest.mark.parametrize("joined", ["and", "where", "added"])
def test_a_window_of_every_length(joined: str, style: str, opset: int) -> None:
    """As transformers masks: j <= i and j > i - size, with no length known."""
    feeds = {"X": operands()["Q"]}
    g = Model(feeds, {"X": ["batch", H, "seq", D]})
    causal, near = ranges(g, 0, 2, style)
    products = scores(g, "X", "X")
    match joined:
        case "and":
            masked = g("Add", products, g("Where", g("And", causal, near), SHOWN, HIDDEN))
        case "where":
            masked = g("Where", near, g("Where", causal, products, HIDDEN), HIDDEN)
        case _:
            one, other = (g("Where", part, SHOWN, HIDDEN) for part in (causal, near))
            masked = g("Add", g("Add", products, one), other)
    fused = assert_same(g.proto(attended(g, masked, value="X"), opset=opset), feeds)
    assert bounds(fused) == (1, -1, 1)
    assert len(node_of(fused).input) == 3


@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_a_window_stays_a_mask_where_onnxruntime_must_read_it(target: str) -> None:
    g = Model(square())
    y = attended(g, g("Add", scores(g), np.where(band(N, N, 1, 0), SHOWN, HIDDEN)), guarded=False)
    _, fused = lower(g.proto(y, opset=25), CATALOGUE.serving(Target(target)))
    assert bounds(fused.model) == (-1, -1, 0)
    assert len(node_of(fused.model).input) == 4


@pytest.mark.parametrize("shift", [0, 1, -4])
def test_windows_of_padded_sequences_count_from_their_last_key(shift: int) -> None:
    feeds = operands() | {"lengths": np.array([3, 5], np.int64)}
    g = Model(feeds)
    column = g("Unsqueeze", "lengths", np.array([1, 2, 3], np.int64))
    positions = np.arange(T).reshape(1, 1, 1, T)
    last = g("Add", g("Sub", column, np.array(S, np.int64)), np.arange(S).reshape(1, 1, S, 1))
    near = g("GreaterOrEqual", positions, g("Sub", last, np.array(2 + shift, np.int64)))
    kept = [g("Less", positions, column), g("LessOrEqual", positions, last), near]
    masked = scores(g)
    for part in kept:
        masked = g("Add", masked, g("Where", part, SHOWN, HIDDEN))
    fused = assert_same(g.proto(attended(g, masked), opset=24), feeds)
    assert bounds(fused) == ((2 + shift, -1, 1) if shift >= 0 else (-1, -1, 1))
    assert operands_of(fused)["nonpad_kv_seqlen"] == "lengths"


# ------------------------------------------------------------------------------------------------ beside others


@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.parametrize("fill", [-np.inf, -3.4e38])
@pytest.mark.parametrize("kind", ["causal", "window", "shifted"])
@pytest.mark.parametrize("order", [0, 1])
def test_positions_beside_padding(order: int, kind: str, fill: float, opset: int) -> None:
    """A finite fill shows where padding hides all that positions leave, so that only -inf lets them part."""
    feeds = {"X": operands()["Q"], "padding": np.array([[True] * S, [False] + [True] * (S - 1)])}
    g = Model(feeds, {"X": [B, H, "seq", D], "padding": [B, "seq"]})
    causal, near = ranges(g, 1 if kind == "shifted" else 0, 2, "greater")
    padding = g("Unsqueeze", "padding", np.array([1, 2], np.int64))
    parts = [causal, padding] if order else [padding, causal]
    keep = g("And", *parts)
    if kind == "window":
        keep = g("And", near, keep)
    masked = g("Add", scores(g, "X", "X"), g("Where", keep, SHOWN, np.float32(fill)))
    fused = assert_same(g.proto(attended(g, masked, value="X"), opset=opset), feeds)
    expected = {"causal": (-1, -1, 1), "window": (1, -1, 1), "shifted": (-1, 1, 0)}[kind]
    assert bounds(fused) == (expected if fill == -np.inf else (-1, -1, 0))


def test_positions_or_others_are_not_parted() -> None:
    feeds = square() | {"keep": np.random.default_rng(0).random((B, 1, N, N)) < 0.5}
    g = Model(feeds)
    either = g("Or", np.tril(np.ones((N, N), bool)), "keep")
    fused = assert_same(g.proto(attended(g, g("Add", scores(g), g("Where", either, SHOWN, HIDDEN)))), feeds)
    assert bounds(fused) == (-1, -1, 0)


# ------------------------------------------------------------------------------------------------ short masks


@pytest.mark.parametrize("given", [1, 2, T - 1])
@pytest.mark.parametrize("fill", [-np.inf, -1e9])
@pytest.mark.parametrize("opset", [18, 23])
def test_a_mask_lengthened_by_minus_infinity_is_given_short(given: int, fill: float, opset: int) -> None:
    """A mask of one key would be one for all of them."""
    feeds = operands() | {"mask": np.random.default_rng(0).standard_normal((B, 1, S, given)).astype(np.float32)}
    g = Model(feeds)
    pads, axes = np.array([0, T - given], np.int64), np.array([-1], np.int64)
    padded = g("Pad", "mask", pads, np.float32(fill), axes)
    fused = assert_same(g.proto(attended(g, g("Add", scores(g), padded), guarded=False), opset=opset), feeds)
    assert (census(fused)["Pad"] == 0) == (given > 1 and fill == -np.inf)


@pytest.mark.parametrize("pads", [[0, 0, 0, 1, 0, 0, 0, 0], [0, 0, 0, 2, 0, 0, 0, -1]])
def test_a_mask_lengthened_elsewhere_stays_so(pads: list[int]) -> None:
    feeds = operands() | {"mask": np.random.default_rng(0).standard_normal((B, 1, S, T - 1)).astype(np.float32)}
    g = Model(feeds)
    padded = g("Pad", "mask", np.array(pads, np.int64), HIDDEN)
    fused = assert_same(g.proto(attended(g, g("Add", scores(g), padded), guarded=False), opset=18), feeds)
    assert operands_of(fused)["attn_mask"] != "mask"


# ------------------------------------------------------------------------------------------------ sinks


def with_sink(
    g: Model, masked: str, sink: str | Array, *, stop: int = T, shifted: bool = True, value: str = "V"
) -> str:
    both = g("Concat", masked, sink, axis=-1)
    if shifted:
        both = g("Sub", both, g("ReduceMax", both, axes=[-1], keepdims=1))
    weights = g("Softmax", both, axis=-1)
    return g("MatMul", g("Slice", weights, *(np.array([i], np.int64) for i in (0, stop, -1))), value)


def logits() -> Array:
    return np.random.default_rng(4).standard_normal(H).astype(np.float32)


@pytest.mark.parametrize("stop", [T, -1])
@pytest.mark.parametrize("shifted", [True, False])
@pytest.mark.parametrize("source", ["input", "expanded constant", "constant"])
@pytest.mark.parametrize("mask", [None, "real"])
def test_a_sink_per_head_is_an_input(mask: str | None, source: str, shifted: bool, stop: int) -> None:
    feeds = operands() | ({"sink": logits()} if source == "input" else {})
    if mask:
        feeds["mask"] = np.random.default_rng(0).standard_normal((B, 1, S, T)).astype(np.float32)
    g = Model(feeds)
    column = g("Reshape", "sink" if source == "input" else logits(), np.array([1, H, 1, 1], np.int64))
    sink: str | Array = g("Expand", column, np.array([B, H, S, 1], np.int64))
    if source == "constant":
        sink = np.broadcast_to(logits().reshape(1, H, 1, 1), (B, H, S, 1)).copy()
    masked = g("Add", scores(g), "mask") if mask else scores(g)
    fused = assert_same(g.proto(with_sink(g, masked, sink, stop=stop, shifted=shifted), opset=17), feeds)
    assert "head_sink" in operands_of(fused)
    assert not census(fused)["Softmax"]


@pytest.mark.parametrize("opset", [17, 23])
def test_a_sink_beside_a_causal_mask_and_repeated_heads(opset: int) -> None:
    feeds = square() | {"sink": logits()}
    feeds |= {name: feeds[name][:, ::2] for name in "KV"}
    g = Model(feeds)
    key, value = (g("Gather", name, np.repeat(np.arange(H // 2), 2), axis=1) for name in "KV")
    masked = g("Add", scores(g, "Q", key), np.where(band(N, N, -1, 0), SHOWN, HIDDEN))
    column = g("Expand", g("Reshape", "sink", np.array([1, H, 1, 1], np.int64)), np.array([B, H, N, 1], np.int64))
    fused = assert_same(g.proto(with_sink(g, masked, column, stop=N, shifted=False, value=value), opset=opset), feeds)
    assert bounds(fused) == (-1, -1, 1)
    assert operands_of(fused) == {"Q": "Q", "K": "K", "V": "V", "head_sink": "sink"}


@pytest.mark.parametrize("kind", ["per row", "first", "two", "other slice"])
def test_what_is_almost_a_sink_computes_the_same(kind: str) -> None:
    rng = np.random.default_rng(5)
    g = Model(operands())
    width = 2 if kind == "two" else 1
    shape = (B, H, S, 1) if kind == "per row" else (1, H, 1, 1)
    sink = np.broadcast_to(rng.standard_normal(shape), (B, H, S, width)).astype(np.float32)
    both = g("Concat", sink, scores(g), axis=-1) if kind == "first" else g("Concat", scores(g), sink, axis=-1)
    weights = g("Softmax", both, axis=-1)
    start = 1 if kind in ("first", "other slice") else 0
    part = g("Slice", weights, *(np.array([i], np.int64) for i in (start, start + T, -1)))
    fused = assert_same(g.proto(g("MatMul", part, "V")), g.feeds)
    assert census(fused)["Attention"] == 0


@pytest.mark.parametrize("target", ["onnx", "ort"])
@pytest.mark.parametrize("opset", [17, 23])
def test_a_sink_beside_a_mask_is_a_key_of_zeros_where_attention_has_none(opset: int, target: str) -> None:
    mask = np.random.default_rng(6).standard_normal((B, 1, S, T)).astype(np.float32)
    g = Model(operands() | {"sink": logits(), "mask": mask})
    column = g("Reshape", "sink", np.array([1, H, 1, 1], np.int64))
    sink = g("Expand", column, np.array([B, H, S, 1], np.int64))
    model = g.proto(with_sink(g, g("Add", scores(g), "mask"), sink, shifted=False), opset=opset)
    _, fused = lower(model, CATALOGUE.serving(Target(target)))
    assert not census(fused.model)["Softmax"]
    assert census(fused.model)["Attention"] == 1
    for want, got in zip(run(model, g.feeds), run(fused.model, g.feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", ["onnx", "ort"])
def test_a_sink_stays_a_softmax_where_attention_has_none(target: str) -> None:
    g = Model(operands() | {"sink": logits()})
    column = g("Reshape", "sink", np.array([1, H, 1, 1], np.int64))
    sink = g("Expand", column, np.array([B, H, S, 1], np.int64))
    _, fused = lower(g.proto(with_sink(g, scores(g), sink)), CATALOGUE.serving(Target(target)))
    assert census(fused.model)["Attention"] == 0
    assert census(fused.model)["Softmax"] == 1


def gated(masked: str, g: Model, *, keepdims: int, own: str = "") -> str:
    """Attention whose result is gated by sigmoid(logsumexp(scores) - sink)."""
    total = g("ReduceLogSumExp", own or masked, axes=[-1], keepdims=keepdims)
    gate = g("Sigmoid", g("Sub", total, g("Reshape", "sink", np.array([H, 1] + [1] * keepdims, np.int64))))
    return g("Mul", attended(g, masked, guarded=False), gate if keepdims else g("Unsqueeze", gate, axes=[-1]))


@pytest.mark.parametrize("target", ["onnxfuse", "onnx", "ort"])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_a_gate_of_the_sum_of_weights_is_a_sink(keepdims: int, target: str) -> None:
    mask = np.where(np.random.default_rng(6).random((B, 1, S, T)) < 0.5, SHOWN, np.finfo(np.float32).min)
    mask[0, 0, 1] = np.finfo(np.float32).min  # a row that hides every key: its gate is 0
    g = Model(operands() | {"sink": logits(), "mask": mask.astype(np.float32)})
    model = g.proto(gated(g("Add", scores(g), "mask"), g, keepdims=keepdims), opset=12)
    _, fused = lower(model, CATALOGUE.serving(Target(target)))
    ops = census(fused.model)
    assert ops["Attention"] == 1
    assert not ops["Softmax"] + ops["ReduceLogSumExp"] + ops["Sigmoid"]
    for want, got in zip(run(model, g.feeds), run(fused.model, g.feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["other sums", "each query"])
def test_a_gate_of_other_sums_or_of_each_query_is_no_sink(kind: str) -> None:
    g = Model(operands() | {"sink": logits()})
    if kind == "each query":
        g = Model(operands() | {"sink": np.random.default_rng(4).standard_normal(S).astype(np.float32)})
        total = g("ReduceLogSumExp", scores(g), axes=[-1], keepdims=0)
        gate = g("Unsqueeze", g("Sigmoid", g("Sub", total, "sink")), axes=[-1])
        y = g("Mul", attended(g, scores(g), guarded=False), gate)
    else:
        y = gated(scores(g), g, keepdims=1, own=g("Neg", scores(g)))
    fused = assert_same(g.proto(y, opset=12), g.feeds)
    assert census(fused)["Sigmoid"] == 1


# ------------------------------------------------------------------------------------------------ single heads


@pytest.mark.parametrize("how", ["split", "slice", "gather"])
def test_heads_one_by_one_are_attention_each(how: str) -> None:
    feeds = {name: x.transpose(0, 2, 1, 3).reshape(B, -1, H * D) for name, x in operands().items()}
    g = Model(feeds)
    heads = []
    for h in range(H):
        parts = []
        for name in "QKV":
            if how == "gather":
                split = g("Reshape", name, np.array([B, -1, H, D], np.int64))
                parts.append(g("Gather", split, np.array(h, np.int64), axis=2))
            else:
                parts.append(g("Slice", name, *(np.array([i], np.int64) for i in (h * D, (h + 1) * D, 2))))
        query, key, value = parts
        products = g("MatMul", query, g("Transpose", key, perm=[0, 2, 1]))
        heads.append(g("MatMul", g("Softmax", g("Mul", products, np.float32(0.25)), axis=-1), value))
    y = g("Concat", *heads, axis=-1)
    fused = assert_same(g.proto(y), feeds)
    assert census(fused)["Attention"] in (1, H)
    assert not census(fused)["Softmax"]


def plus_one(g: Model, form: str) -> str:
    """Weights of which one share goes to a score of 0 that no key has."""
    x = scores(g)
    if form == "plain":
        e = g("Exp", x)
        return g("Div", e, g("Add", np.float32(1), g("ReduceSum", e, np.array([-1]))))
    top = g("ReduceMax", x, axes=[-1])
    top = g("Max", top, np.float32(0)) if form == "largest or 0" else top
    e = g("Exp", g("Sub", x, top))
    return g("Div", e, g("Add", g("ReduceSum", e, np.array([-1])), g("Exp", g("Neg", top))))


@pytest.mark.parametrize("form", ["plain", "largest", "largest or 0"])
def test_a_softmax_with_room_for_a_score_of_0_has_a_sink_of_0(form: str) -> None:
    g = Model(operands())
    fused = assert_same(g.proto(g("MatMul", plus_one(g, form), "V")), g.feeds)
    assert census(fused) == {"Attention": 1}
    [node] = (n for n in fused.graph.node if family_of(n) == "Attention")
    sinks = [x for x in fused.graph.initializer if x.name in node.input]
    assert [numpy_helper.to_array(x).tolist() for x in sinks] == [[0.0] * H]
