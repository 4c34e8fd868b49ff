"""Numbers that a graph repeats over a whole tensor, and normalizations of channels that do not come last."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto

from onnxfuse.lifting.lift import lift
from onnxfuse.model.graph import roots
from tests.spellings.build import Array
from tests.whole.test_attention import Model, assert_same, census
from tests.whole.test_attention_forms import draw

X = (2, 3, 8)


def gelu(g: Model, number: Callable[[float], str]) -> str:
    error = g("Erf", g("Mul", "x", number(0.70710678)))
    return g("Mul", "x", g("Mul", number(0.5), g("Add", number(1), error)))


def test_a_number_stored_for_each_element_is_that_number() -> None:
    g = Model({"x": draw(*X)})
    y = gelu(g, lambda value: g.constant(np.full(X, value, np.float32)))
    assert census(assert_same(g.proto(y), g.feeds)) == {"Gelu": 1}


def test_a_number_expanded_to_the_shape_of_a_tensor_is_that_number() -> None:
    g = Model({"x": draw(*X)}, {"x": ["b", "s", 8]})
    shape = g("Shape", "x")
    y = gelu(g, lambda value: g("Expand", g.constant(np.array(value, np.float32)), shape))
    assert census(assert_same(g.proto(y), g.feeds)) == {"Gelu": 1}


@pytest.mark.parametrize("shape", [(5, 2, 3, 8), (2, 6, 8)])
def test_a_number_expanded_beyond_a_tensor_widens_it(shape: tuple[int, ...]) -> None:
    g = Model({"x": draw(2, 1, 8)})
    fused = assert_same(g.proto(g("Relu", g("Add", "x", np.ones(shape, np.float32)))), g.feeds)
    assert census(fused) == {"Add": 1, "Relu": 1}


def test_one_element_that_differs_is_no_number_repeated() -> None:
    ones = np.ones(X, np.float32)
    ones[1, 2, 3] = 2
    g = Model({"x": draw(*X)})
    error = g("Erf", g("Mul", "x", np.float32(0.70710678)))
    y = g("Mul", "x", g("Mul", np.float32(0.5), g("Add", ones, error)))
    assert census(assert_same(g.proto(y), g.feeds))["Gelu"] == 0


def normalized(g: Model, axes: list[int], scale: Array, bias: Array, x: str = "x") -> str:
    d = g("Sub", x, g("ReduceMean", x, axes=axes, keepdims=1))
    variance = g("ReduceMean", g("Mul", d, d), axes=axes, keepdims=1)
    return g("Add", g("Mul", g("Div", d, g("Sqrt", g("Add", variance, np.float32(1e-6)))), scale), bias)


@pytest.mark.parametrize("dims", [(2, 6, 5), (2, 6, 4, 5), (2, 6, 3, 4, 5)])
def test_channels_that_come_second_are_normalized_where_they_come_last(dims: tuple[int, ...]) -> None:
    g = Model({"x": draw(*dims)})
    each = (6, *(1 for _ in dims[2:]))
    y = normalized(g, [1], draw(*each), draw(*each))
    assert census(assert_same(g.proto(y), g.feeds)) == {"Transpose": 2, "LayerNormalization": 1}


def test_channels_that_a_view_brought_there_go_back_without_a_transposition() -> None:
    g = Model({"image": draw(2, 4, 5, 6)})
    y = normalized(g, [1], draw(6, 1, 1), draw(6, 1, 1), g("Transpose", "image", perm=[0, 3, 1, 2]))
    last = g("Transpose", y, perm=[0, 2, 3, 1])
    assert census(assert_same(g.proto(last), g.feeds)) == {"LayerNormalization": 1}


@pytest.mark.parametrize("scale", [(1, 5), (6, 4, 1), (1,), (2, 6, 1, 1)])
def test_a_scale_that_is_none_per_channel_stays_behind(scale: tuple[int, ...]) -> None:
    g = Model({"x": draw(2, 6, 4, 5)})
    fused = census(assert_same(g.proto(normalized(g, [1], draw(*scale), draw(6, 1, 1))), g.feeds))
    assert fused["Add"]
    assert fused["Transpose"] == 2


@pytest.mark.parametrize("axes", [[2], [0], [1, 3], [1, 2]])
def test_other_axes_are_no_layer_normalization(axes: list[int]) -> None:
    g = Model({"x": draw(2, 6, 4, 5)})
    fused = census(assert_same(g.proto(normalized(g, axes, draw(6, 1, 1), draw(6, 1, 1))), g.feeds))
    assert fused["LayerNormalization"] == 0


VIEW = """<ir_version: 9, opset_import: ["": 17]>
g (float[b, s, 4, 8] x, float[b, s] other, bool c) => (y, z) <int64[4] to = {0, 2, 2, 8}> {
    y = Reshape (x, to)
    z = Relu (other)
}"""
BRANCH = """<ir_version: 9, opset_import: ["": 17]>
g (float[b, s, 4, 8] x, float[b, s] other, bool c) => (y, z) <int64[4] to = {0, 2, 2, 8}> {
    y = If (c) <
        then_branch = t () => (float[p, q, r, u] a) { a = Reshape (x, to) },
        else_branch = e () => (float[p, q, r, u] a) { a = Relu (x) }
    >
    z = Relu (other)
}"""


@pytest.mark.parametrize(("text", "known"), [(VIEW, True), (BRANCH, False)])
def test_a_view_that_holds_one_position_says_so_if_it_is_always_computed(text: str, known: bool) -> None:
    """And nothing of another input whose dimension has the same name."""
    view = lift(next(roots(onnx.parser.parse_model(text))), None)
    x, other = view.term("x").shape, view.term("other").shape
    assert x is not None
    assert other is not None
    assert (x[1] == 1) is known
    assert other[1] != 1


GROUPED = """<ir_version: 9, opset_import: ["": 17]>
g (float[b, s, 4, 8] q, float[b, 2, 8, t] k) => (scores) <int64[4] to = {0, -1, 2, 0}> {
    rows = Transpose <perm = [0, 2, 1, 3]> (q)
    grouped = Reshape (rows, to)
    scores = MatMul (grouped, k)
}"""


def test_groups_in_place_of_queries_tell_of_a_single_query() -> None:
    """onnxruntime's optimizer writes -1 for the number of key heads: what is twice the queries is 2, and never 1."""
    view = lift(next(roots(onnx.parser.parse_model(GROUPED))), None)
    query, scores = view.term("q").shape, view.term("scores").shape
    assert query is not None
    assert query[1] == 1
    assert scores is not None
    assert scores[1:3] == (2, 2)


@pytest.mark.parametrize("view", ["Identity", "Cast", "Reshape", "Flatten", "Transpose"])
def test_a_sum_is_closed_where_several_use_it_in_any_view(view: str) -> None:
    g = Model({"x": draw(2, 4, 8), "y": draw(2, 4, 8)})
    inner = g("Add", "x", "y")
    attrs = {"Cast": {"to": 1}, "Transpose": {"perm": [1, 0, 2]}, "Flatten": {"axis": 2}}.get(view, {})
    operands = [np.array([4, -1], np.int64)] if view == "Reshape" else []
    seen = g(view, inner, *operands, **attrs)
    y = g("Add", g("Add", seen, np.float32(1)), g("Tanh", seen))
    terms = lift(next(iter(roots(g.proto(y)))), None).terms_of
    below = terms[seen] if terms[seen].op == "Add" else terms[seen].args[0]
    assert below is terms[inner]
    assert below.closed


def test_a_sum_of_one_user_is_taken_apart() -> None:
    g = Model({"x": draw(2, 4), "y": draw(2, 4)})
    inner = g("Add", "x", "y")
    y = g("Add", inner, g("Tanh", "x"))
    terms = lift(next(iter(roots(g.proto(y)))), None).terms_of
    assert not terms[inner].closed
    assert len(terms[y].args) == 3


def test_a_sum_that_is_written_twice_is_one_though_several_use_the_first_alone() -> None:
    g = Model({"x": draw(2, 4), "y": draw(2, 4)})
    first, again = g("Add", "x", "y"), g("Cast", g("Add", g("Cast", "x", to=1), "y"), to=1)
    y = g("Mul", g("Add", first, np.float32(1)), g("Sub", g("Tanh", first), again))
    terms = lift(next(iter(roots(g.proto(y)))), None).terms_of
    assert terms[first].closed
    assert terms[again] is terms[first]


def test_statistics_and_indices_have_types_of_their_own() -> None:
    text = """<ir_version: 9, opset_import: ["": 17]>
    g (float16[2, 3, 8, 8] x, float16[8] w) => (y) {
        n, m, r = LayerNormalization (x, w)
        p, i = MaxPool <kernel_shape = [2, 2]> (n)
        y = Relu (p)
    }"""
    kinds = lift(next(roots(onnx.parser.parse_model(text))), None).dtypes
    assert [kinds[name] for name in "nmrpi"] == [
        TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64
    ]  # fmt: skip


def test_lengths_behind_convolutions_are_those_that_the_graph_computes_if_none_is_too_short_for_them() -> None:
    """Wav2Vec2's front: (n - 5) // 4 - 1 in the graph's words, a quotient of a quotient in the convolutions'."""
    text = """<ir_version: 8, opset_import: ["": 18]> g (float[1,1,n] X) => (Y) <float[1,1,5] W> {
        c = Conv <strides = [2]> (X, W)  d = Conv <strides = [2]> (c, W)
        s = Shape <start = 2> (X)  five = Constant <value_ints = [5]> ()  four = Constant <value_ints = [4]> ()
        one = Constant <value_ints = [1]> ()  t = Sub (s, five)  u = Div (t, four)  v = Sub (u, one)
        last = Constant <value_ints = [-1]> ()  shape = Concat <axis = 0> (v, last)  Y = Reshape (d, shape) }"""
    model = onnx.parser.parse_model(text)
    view = lift(next(roots(model)), None)
    shape = view.term("Y").shape
    assert shape is not None
    assert shape[1] == 1
    assert shape[0] == (view.term("d").shape or ())[2]
    short = onnx.parser.parse_model(text.replace("Conv <strides = [2]>", "Conv <strides = [2], pads = [3, 3]>"))
    view = lift(next(roots(short)), None)
    assert (view.term("Y").shape or ())[0] != (view.term("d").shape or ())[2]


def test_a_sequence_that_is_padded_to_whole_chunks_and_cut_again_is_as_long_as_it_was() -> None:
    """Mamba 2 as torch's newer exporter writes it: 8 - s % 8, modulo 8, is what is missing."""
    text = """<ir_version: 9, opset_import: ["": 18]>
g (float[b, s, 16] x) => (float[b, s, 16] y)
<int64[1] eight = {8}, int64[3] none = {0, 0, 0}, int64[1] zero = {0}, int64[1] one = {1},
 int64[4] apart = {0, -1, 8, 16}, int64[3] together = {0, -1, 16}> {
    length = Shape <start = 1, end = 2> (x)  over = Mod (length, eight)  rest = Sub (eight, over)
    missing = Mod (rest, eight)  pads = Concat <axis = 0> (none, zero, missing, zero)
    padded = Pad (x, pads)  chunks = Reshape (padded, apart)  summed = Exp (chunks)
    back = Reshape (summed, together)  cut = Slice (back, zero, length, one)
    y = Add (x, cut)
}"""
    view = lift(next(roots(onnx.parser.parse_model(text))), None)
    assert view.term("cut").shape == view.term("y").shape == view.term("x").shape
