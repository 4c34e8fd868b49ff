"""Attention: what models hold already stays what it is, what exporters spell out becomes one node."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from onnxfuse.model.graph import family_of
from tests.spellings.build import Array
from tests.spellings.mutants import run
from tests.written import inputs

CATALOGUE = catalogue.load()
B, H, S, T, D = 2, 4, 3, 5, 8


def attention_node(
    feeds: dict[str, Array], inputs: list[str], outputs: int, opset: int, **attrs: object
) -> onnx.ModelProto:
    """A model of one ai.onnx Attention node."""
    names = ["Y", "present_key", "present_value", "qk_matmul_output"][:outputs]
    kinds = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(bool): TensorProto.BOOL, np.dtype(np.int64): 7}
    node = helper.make_node("Attention", inputs, names, **attrs)
    graph = helper.make_graph(
        [node],
        "attention",
        [helper.make_tensor_value_info(name, kinds[x.dtype], x.shape) for name, x in feeds.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["a", "b", "c", "d"]) for name in names],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def operands() -> dict[str, Array]:
    """Queries, keys and values as [B,H,S,D], [B,H,T,D], [B,H,T,D]."""
    rng = np.random.default_rng(0)
    return {
        name: rng.standard_normal((B, H, n, D)).astype(np.float32) for name, n in zip("QKV", (S, T, T), strict=True)
    }


def assert_same(model: onnx.ModelProto, feeds: dict[str, Array]) -> onnx.ModelProto:
    """The fused model, whose outputs are those of the model."""
    fused = fuse(model, CATALOGUE).model
    onnx.checker.check_model(fused)
    for want, got in zip(run(model, feeds), run(fused, feeds), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    return fused


def census(model: onnx.ModelProto) -> Counter[str]:
    return Counter(family_of(node) for node in model.graph.node if family_of(node) != "Constant")


@pytest.mark.parametrize(
    "attrs", [{"is_causal": 1}, {"softcap": 2.0}, {"scale": 0.3, "is_causal": 1}, {"softmax_precision": 1}]
)
def test_attention_of_the_input_keeps_its_attributes(attrs: dict[str, object]) -> None:
    assert_same(attention_node(operands(), ["Q", "K", "V"], 1, 23, **attrs), operands())


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
def test_attention_of_the_input_keeps_its_outputs(mode: int) -> None:
    feeds = operands()
    feeds |= {"past_key": feeds["K"][:, :, :2], "past_value": feeds["V"][:, :, :2]}
    inputs = ["Q", "K", "V", "", "past_key", "past_value"]
    model = attention_node(feeds, inputs, 4, 23, is_causal=1, qk_matmul_output_mode=mode)
    assert fused_graph(assert_same(model, feeds)) == fused_graph(model)


def test_attention_of_the_input_keeps_its_lengths() -> None:
    feeds = operands() | {"nonpad_kv_seqlen": np.array([3, 4], np.int64)}
    model = attention_node(feeds, ["Q", "K", "V", "", "", "", "nonpad_kv_seqlen"], 1, 24, is_causal=1)
    assert_same(model, feeds)


def fused_graph(model: onnx.ModelProto) -> bytes:
    return bytes(model.graph.SerializeToString(deterministic=True))


def test_a_causal_model_of_one_position_per_head_does_not_move_positions_to_heads() -> None:
    """Queries as [B,G,N,D] are N positions if they are causal, whatever Reshape they come from."""
    feeds = operands()
    feeds["Q"] = feeds["Q"].reshape(B, 1, H * S * D)
    model = attention_node(feeds, ["split", "K", "V"], 1, 23, is_causal=1)
    shape = helper.make_tensor("shape", TensorProto.INT64, [4], [B, H, S, D])
    model.graph.initializer.append(shape)
    model.graph.node.insert(0, helper.make_node("Reshape", ["Q", "shape"], ["split"]))
    assert_same(model, feeds)


# ------------------------------------------------------------------------------------------------ spelled out

MASKS: dict[str, tuple[bool, Array]] = {
    # name: (is it causal?, what is added to the scores of S queries and S keys)
    "lower triangle": (True, np.tril(np.ones((S, S)))),
    "an entry of the future seen": (False, np.tril(np.ones((S, S))) + np.eye(S, k=2)),
    "an entry of the past hidden": (False, np.tril(np.ones((S, S))) - np.eye(S, k=-1)),
    "the next key seen": (False, np.tril(np.ones((S, S)), 1)),
    "the present hidden": (False, np.tril(np.ones((S, S)), -1) + np.eye(S, 1)),
    "the other triangle": (False, np.triu(np.ones((S, S)))),
    "first row for all": (False, np.array([[1.0, 0, 0]])),
}
FILLS = {"-inf": -np.inf, "lowest": float(np.finfo(np.float32).min), "-1e9": -1e9, "-1e4": -1e4}


class Model:
    """Nodes written one after another; names of values are those of their ops, counted."""

    def __init__(self, feeds: dict[str, Array], dims: dict[str, list[int | str]] | None = None) -> None:
        self.feeds, self.nodes, self.initializers = feeds, list[onnx.NodeProto](), list[onnx.TensorProto]()
        self.dims = dims or {}

    def __call__(self, op: str, *inputs: str | Array, **attrs: object) -> str:
        names = [i if isinstance(i, str) else self.constant(i) for i in inputs]
        name = f"{op}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, names, [name], **attrs))
        return name

    def constant(self, array: Array) -> str:
        name = f"constant_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(array, name))
        return name

    def proto(self, *outputs: str, opset: int = 17) -> onnx.ModelProto:
        kinds = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(bool): TensorProto.BOOL, np.dtype(np.int64): 7}
        inputs = [
            helper.make_tensor_value_info(name, kinds[x.dtype], self.dims.get(name, x.shape))
            for name, x in self.feeds.items()
        ]
        made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "spelled", inputs, made, self.initializers)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
        return onnx.shape_inference.infer_shapes(model)


def attributes(model: onnx.ModelProto) -> dict[str, object]:
    """The attributes of the one Attention node."""
    (node,) = [node for node in model.graph.node if family_of(node) == "Attention"]
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def scores(g: Model, query: str = "Q", key: str = "K") -> str:
    products = g("MatMul", query, g("Transpose", key, perm=[0, 1, 3, 2]))
    return g("Mul", products, np.float32(0.25))


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("where", [False, True], ids=["added", "where"])
@pytest.mark.parametrize("mask", MASKS)
def test_a_constant_mask_is_causal_if_every_entry_is(mask: str, where: bool, fill: str) -> None:
    causal, keep = MASKS[mask]
    feeds = operands() | {name: x[:, :, :S] for name, x in operands().items()}
    g = Model(feeds)
    if where:
        masked = g("Where", keep.astype(bool), scores(g), np.float32(FILLS[fill]))
    else:
        masked = g("Add", scores(g), np.where(keep > 0, 0, FILLS[fill]).astype(np.float32))
    y = g("MatMul", g("Softmax", masked, axis=-1), "V")
    fused = assert_same(g.proto(y), feeds)
    assert census(fused)["Attention"] == 1
    assert attributes(fused).get("is_causal", 0) == (causal and fill != "-1e4")


@pytest.mark.parametrize("shift", [-1, 0, 1])
@pytest.mark.parametrize("spelling", ["GreaterOrEqual", "Greater", "Less", "Trilu", "stored"])
def test_positions_compared_are_causal_if_they_are_for_every_length(spelling: str, shift: int) -> None:
    feeds = {"X": operands()["Q"]}
    g = Model(feeds, {"X": ["batch", H, "seq", D]})
    length = g("Gather", g("Shape", "X"), np.array(2, np.int64), axis=0)
    zero, one = np.array(0, np.int64), np.array(1, np.int64)
    positions = g("Range", zero, length, one)
    later = g("Add", positions, np.array(shift, np.int64))
    rows, columns = g("Unsqueeze", later, np.array([1], np.int64)), g("Unsqueeze", positions, np.array([0], np.int64))
    match spelling:
        case "GreaterOrEqual":
            keep = g("GreaterOrEqual", rows, columns)
        case "Greater":
            keep = g("Not", g("Greater", columns, rows))
        case "Less":
            keep = g("Less", columns, g("Add", rows, one))
        case "Trilu":
            square = g("Concat", *[g("Unsqueeze", length, np.array([0], np.int64))] * 2, axis=0)
            ones = g("Expand", np.ones(1, np.float32), square)
            keep = g("Cast", g("Trilu", ones, np.array(shift, np.int64), upper=0), to=TensorProto.BOOL)
        case _:
            size = g("Unsqueeze", length, np.array([0], np.int64))
            stored: str | Array = np.tril(np.ones((1, 1, 16, 16), bool), shift)
            for axis in (2, 3):
                stored = g("Slice", stored, np.array([0], np.int64), size, np.array([axis], np.int64))
            keep = str(stored)
    masked = g("Where", keep, scores(g, "X", "X"), np.float32(FILLS["lowest"]))
    fused = assert_same(g.proto(g("MatMul", g("Softmax", masked, axis=-1), "X")), feeds)
    assert attributes(fused).get("is_causal", 0) == (shift == 0)


@pytest.mark.parametrize("fill", FILLS)
def test_a_finite_fill_needs_no_guard(fill: str) -> None:
    """With -inf a row may have no key, and is 0 behind a guard; a finite fill leaves every score alike."""
    feeds = operands() | {"keep": np.random.default_rng(2).random((B, 1, S, T)) > 0.4}
    feeds["keep"][0, 0, 1] = False
    g = Model(feeds)
    added = g("Add", scores(g), g("Where", "keep", np.float32(0), np.float32(FILLS[fill])))
    weights = g("Softmax", added, axis=-1)
    safe = g("Where", g("IsNaN", weights), np.float32(0), weights)
    fused = assert_same(g.proto(g("MatMul", safe, "V")), feeds)
    assert attributes(fused).get("nan_to_zero", 0) == (fill == "-inf")


@pytest.mark.parametrize("hidden", [True, False])
def test_the_future_beside_other_masks(hidden: bool) -> None:
    """A finite fill shows where everything is masked, so that only -inf leaves a mask beside it."""
    feeds = operands() | {name: x[:, :, :S] for name, x in operands().items()}
    feeds["bias"] = np.random.default_rng(1).standard_normal((B, 1, S, S)).astype(np.float32)
    g = Model(feeds)
    triangle = np.where(np.tril(np.ones((S, S))) > 0, 0, -np.inf if hidden else -1e9).astype(np.float32)
    y = g("MatMul", g("Softmax", g("Add", g("Add", scores(g), "bias"), triangle), axis=-1), "V")
    fused = assert_same(g.proto(y), feeds)
    assert attributes(fused).get("is_causal", 0) == hidden
    (node,) = [node for node in fused.graph.node if family_of(node) == "Attention"]
    assert (node.input[3] == "bias") == hidden


@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kept", [False, True])
def test_a_cache_goes_in_and_comes_out(kept: bool, causal: bool, opset: int) -> None:
    past = 2
    feeds = operands()
    feeds |= {"past_key": feeds["K"][:, :, :past], "past_value": feeds["V"][:, :, :past]}
    g = Model(feeds)
    keys, values = g("Concat", "past_key", "K", axis=2), g("Concat", "past_value", "V", axis=-2)
    seen = np.tril(np.ones((S, T + past)), past if causal else past + 1)
    masked = g("Add", scores(g, key=keys), np.where(seen > 0, 0, -np.inf).astype(np.float32))
    y = g("MatMul", g("Softmax", masked, axis=-1), values)
    fused = assert_same(g.proto(*([y, keys, values] if kept else [y]), opset=opset), feeds)
    assert census(fused) == ({"Attention": 1} if kept else {"Attention": 1, "Concat": 2})
    assert attributes(fused).get("is_causal", 0) == (causal and kept)


@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.parametrize("repeated", [False, True])
@pytest.mark.parametrize("shown", ["scores", "masked", "weights"])
def test_what_something_else_uses_is_the_fourth_output(shown: str, repeated: bool, opset: int) -> None:
    feeds = operands() | {"mask": np.random.default_rng(1).standard_normal((B, 1, S, T)).astype(np.float32)}
    if repeated:
        feeds |= {name: feeds[name][:, :2] for name in "KV"}
    g = Model(feeds)
    names = {"K": "K", "V": "V"}
    if repeated:
        for name in "KV":
            wide = g("Expand", g("Unsqueeze", name, np.array([2], np.int64)), np.array([B, 2, 2, T, D], np.int64))
            names[name] = g("Reshape", wide, np.array([B, H, T, D], np.int64))
    values = {"scores": scores(g, key=names["K"])}
    values["masked"] = g("Add", values["scores"], "mask")
    values["weights"] = g("Softmax", values["masked"], axis=-1)
    y = g("MatMul", values["weights"], names["V"])
    fused = assert_same(g.proto(y, values[shown], opset=opset), feeds)
    floor = {"Mul": 1, "Add": 1, "Max": 1} if opset == 23 and shown != "masked" else {}
    assert census(fused) == {"Attention": 1} | floor  # the caller may fill the mask with the lowest number of all
    assert attributes(fused).get("qk_matmul_output_mode", 0) == {"scores": 0, "masked": 2, "weights": 3}[shown]


LENGTHS = {
    "Less": True,
    "GreaterOrEqual": False,
    "one more": False,
    "one less": False,
    "turned": False,
    "of queries": False,
}
"""How positions are compared with the lengths, and whether key j is seen exactly where j < length."""


def padded(g: Model, kind: str) -> str:
    """A mask that adds 0 or -inf, as [B,1,1,T], by comparing positions with lengths of [B]."""
    length: str | Array = "lengths"
    if kind in ("one more", "one less"):
        length = g("Add", "lengths", np.array(1 if kind == "one more" else -1, np.int64))
    column = g("Unsqueeze", length, np.array([1], np.int64))
    positions = np.arange(T)
    match kind:
        case "GreaterOrEqual":
            seen = g("GreaterOrEqual", column, positions)
        case "turned":
            seen = g("Greater", positions, column)
        case _:
            seen = g("Less", positions, column)
    hidden, shown = np.float32(-np.inf), np.float32(0)
    return g("Unsqueeze", g("Where", seen, np.asarray(shown), np.asarray(hidden)), np.array([1, 2], np.int64))


@pytest.mark.parametrize("opset", [17, 24])
@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize("kind", LENGTHS)
def test_a_padding_mask_is_lengths_if_it_is_for_every_key(kind: str, guarded: bool, opset: int) -> None:
    feeds = operands() | {"lengths": np.array([2, 3], np.int64)}
    g = Model(feeds)
    mask = padded(g, kind)
    if kind == "of queries":  # along the wrong axis
        feeds |= {name: x[:, :, :S] for name, x in feeds.items() if name != "lengths"}
        part = g("Slice", mask, *(np.array([i], np.int64) for i in (0, S, 3)))
        mask = g("Transpose", part, perm=[0, 1, 3, 2])
    weights = g("Softmax", g("Add", scores(g), mask), axis=-1)
    if guarded or kind == "of queries":
        weights = g("Where", g("IsNaN", weights), np.asarray(np.float32(0)), weights)
    fused = assert_same(g.proto(g("MatMul", weights, "V"), opset=opset), feeds)
    (node,) = [node for node in fused.graph.node if family_of(node) == "Attention"]
    lengths = inputs(fused, node).get("nonpad_kv_seqlen") == "lengths"
    assert lengths == (LENGTHS[kind] and guarded and opset >= 24)


@pytest.mark.parametrize("shift", [-1, 0, 1])
def test_queries_of_padded_sequences_count_from_their_last_key(shift: int) -> None:
    feeds = operands() | {"lengths": np.array([3, 5], np.int64)}
    g = Model(feeds)
    offset = g("Unsqueeze", g("Sub", "lengths", np.array(S + shift, np.int64)), np.array([1, 2, 3], np.int64))
    rows = g("Add", np.arange(S).reshape(1, 1, S, 1), offset)
    later = g("Greater", np.arange(T).reshape(1, 1, 1, T), rows)
    hidden, shown = (np.asarray(np.float32(x)) for x in (-np.inf, 0))
    masked = g("Add", g("Add", scores(g), g("Where", later, hidden, shown)), padded(g, "Less"))
    weights = g("Softmax", masked, axis=-1)
    weights = g("Where", g("IsNaN", weights), shown, weights)
    fused = assert_same(g.proto(g("MatMul", weights, "V"), opset=24), feeds)
    assert attributes(fused).get("is_causal", 0) == (shift == 0)


@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.parametrize("shown", ["scores", "weights"])
def test_heads_that_have_joined_the_batch_give_theirs_out_as_well(shown: str, opset: int) -> None:
    """As torch.nn.MultiheadAttention multiplies them where its caller wants the weights."""
    feeds = {name: x.reshape(B * H, -1, D) for name, x in operands().items()}
    g = Model(feeds | {"mask": np.random.default_rng(1).standard_normal((B * H, S, T)).astype(np.float32)})
    products = g("MatMul", g("Mul", "Q", np.float32(D**-0.5)), g("Transpose", "K", perm=[0, 2, 1]))
    weights = g("Softmax", g("Add", products, "mask"), axis=-1)
    shared = {"scores": products, "weights": weights}[shown]
    fused = assert_same(g.proto(g("MatMul", weights, "V"), shared, opset=opset), g.feeds)
    counts = census(fused)
    assert counts.pop("Attention") == 1
    assert not {"MatMul", "Softmax", "Transpose"} & counts.keys()
