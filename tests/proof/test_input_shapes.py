"""What a model declares of its inputs, and sizes for the axes that it leaves open."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.proof.input_shapes import evaluate, fits, named, symbols_of, text_of
from onnxfuse.proof.inputs import assumed, generate
from tests.proof.test_inputs import cases, parse, runner, table


def test_an_image_need_not_be_square() -> None:
    found = cases(parse("g (float[b, 3, h, w] x) => (y) { y = GlobalAveragePool(x) }"))
    assert [case.inputs["x"].shape[2:] for case in found] == [(37, 37), (64, 64), (37, 64), (1, 1)]


@pytest.mark.parametrize(("channels", "sizes"), [(3, {(64, 64), (64, 96)}), (4, {(24, 24), (24, 40)})])
def test_features_are_smaller_than_an_image(channels: int, sizes: set[tuple[int, int]]) -> None:
    """A U-Net halves both sides three times; its attention has all places of latents in a row."""
    model = parse(f"""g (float[b, {channels}, s1, s2] x) => (y)
        <float[4] less = {{1, 1, 0.125, 0.125}}, float[4] more = {{1, 1, 8, 8}}> {{
        a = Resize<mode = "nearest">(x, , less) c = Resize<mode = "nearest">(a, , more) y = Add(x, c) }}""")
    assert {case.inputs["x"].shape[2:] for case in cases(model)} - {(1, 1)} == sizes


def test_a_signal_of_one_channel_may_have_it_last() -> None:
    """Moonshine in Keras: windows of 127 samples, of which no sequence of words is as long."""
    found = cases(parse("g (float[b, unk, 1] x) => (y) { y = Identity(x) }"))
    assert [case.inputs["x"].shape[1] for case in found][:2] == [401, 1601]
    found = cases(parse("g (float[b, unk, 2] x) => (y) { y = Identity(x) }"))
    assert found[0].inputs["x"].shape[1] == 7


@pytest.mark.parametrize("mask", ["seq", "total", "past + seq"])
def test_a_mask_beside_a_cache_covers_it(mask: str) -> None:
    name = mask if mask.isidentifier() else "t"
    graph = f"""g (int64[batch, seq] ids, int64[batch, {name}] attention_mask, float[batch, 1, past, 4] past_key) => (y)
        <int64[1] one = {{1}}, int64[2] both = {{1, 2}}, float low = {{-10000}}> {{
        q = Gather(w, ids)
        q4 = Unsqueeze(q, one)
        k = Concat<axis = 2>(past_key, q4)
        kt = Transpose<perm = [0, 1, 3, 2]>(k)
        scores = MatMul(q4, kt)
        b = Cast<to = 9>(attention_mask)
        b4 = Unsqueeze(b, both)
        y = Where(b4, scores, low) }}"""
    model = table(parse(graph), w=(10, 4))
    model.graph.input[1].type.tensor_type.shape.dim[1].dim_param = mask
    first = cases(model)[0].inputs
    assert first["attention_mask"].shape[1] == first["past_key"].shape[2] + first["ids"].shape[1] == 12


def test_a_mask_that_a_cache_of_its_own_goes_with_has_the_length_of_that() -> None:
    """A decoder's step: the mask is that of the encoder's keys, which never grow, cut to their length by the model."""
    model = parse("""g (int64[batch, source] encoder_mask, int64[batch, seq] ids, float[batch, 1, past, 4] past_key,
            float[batch, 1, source, 4] past_encoder_key) => (y, present)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[2] both = {1, 2}, float low = {-10000}> {
        q = Gather(w, ids)
        q4 = Unsqueeze(q, one)
        present = Concat<axis = 2>(past_key, q4)
        kt = Transpose<perm = [0, 1, 3, 2]>(past_encoder_key)
        scores = MatMul(q4, kt)
        shape = Shape(past_encoder_key)
        length = Gather(shape, two)
        mask = Slice(encoder_mask, zero, length, one)
        b = Cast<to = 9>(mask)
        b4 = Unsqueeze(b, both)
        y = Where(b4, scores, low) }""")
    first = cases(table(model, w=(10, 4)))[0].inputs
    assert first["encoder_mask"].shape[1] == first["past_encoder_key"].shape[2] == 7


def test_channels_are_as_many_as_the_weights_have() -> None:
    """Sizes of the patches' table fit one side alone: an error about channels would be the first of several."""
    model = parse("""g (float[b, channels, h, w0] x) => (y) <int64[3] rows = {0, 4, -1}> {
        c = Conv<kernel_shape = [16, 16], strides = [16, 16]>(x, w) r = Reshape(c, rows) y = Add(r, positions) }""")
    first = cases(table(model, w=(4, 3, 16, 16), positions=(1, 4, 16)))[0]
    assert (first.name, first.inputs["x"].shape) == ("b=3 h=64 w0=64", (3, 3, 64, 64))


def test_a_name_of_which_weights_tell_two_sizes_has_both() -> None:
    model = parse("g (float[n, d] x, float[n, d] z) => (y, t) { y = MatMul(x, w) t = MatMul(z, v) }")
    first = cases(table(model, w=(5, 4), v=(6, 4)))[0].inputs
    assert (first["x"].shape, first["z"].shape) == ((3, 5), (3, 6))


def test_a_size_that_weights_tell_holds_wherever_its_name_stands() -> None:
    model = parse("g (float[n, d] x, float[d, n] z) => (y, t) { y = MatMul(x, w) t = MatMul(x, z) }")
    first = cases(table(model, w=(5, 4)))[0].inputs
    assert (first["x"].shape, first["z"].shape) == ((3, 5), (5, 3))


def test_a_shape_that_is_given_need_not_be_what_weights_tell() -> None:
    """Two inputs may bear one name and have two sizes: whoever gives them knows."""
    model = parse("g (float[n, d] x, float[n, d] z) => (y, t) { y = MatMul(x, w) t = Relu(z) }")
    model = table(model, w=(5, 4))
    assert cases(model, shapes={"z": (3, 9)})[0].inputs["z"].shape == (3, 9)
    given = {"x": np.ones((2, 5), np.float32), "z": np.ones((2, 9), np.float32)}
    assert cases(model, given=given)[0].inputs["z"].shape == (2, 9)


def test_dims_without_a_name_are_symbols_of_their_own() -> None:
    model = parse("g (float[a, 4] x) => (y) { y = Relu(x) }")
    model.graph.input[0].type.tensor_type.shape.dim[0].Clear()
    assert [case.name for case in cases(model)] == ["x.0=3", "x.0=1"]


def test_a_declared_size_of_zero_is_taken_at_its_word() -> None:
    assert cases(parse("g (float[0, 4] x) => (y) { y = Relu(x) }"))[0].inputs["x"].shape == (0, 4)


@pytest.mark.parametrize(
    ("dim", "size"),
    [("2*n", 6), ("n + 1", 4), ("(n + 5) // 2", 4), ("batch-size", 3), ("None", 3), ("n.m", 3), ("a b", 3)],
)
def test_a_symbol_may_be_arithmetic_or_just_a_label(dim: str, size: int) -> None:
    model = parse("g (float[n, 4] x, float[m, 4] z) => (y) { a = Shape(x) y = Shape(z) }")
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_param = dim
    first = cases(model)[0].inputs
    assert (first["x"].shape[0], first["z"].shape[0]) == (3, size)


def test_an_input_without_a_rank_wants_a_shape() -> None:
    model = parse("g (float[2, 3] x) => (y) { y = Relu(x) }")
    model.graph.input[0].type.tensor_type.ClearField("shape")
    found, reason = generate(model, runner(model))
    assert not found
    assert "--shape x:" in reason
    assert cases(model, shapes={"x": (2, 5)})[0].inputs["x"].shape == (2, 5)


def test_initializers_that_are_listed_as_inputs_are_not_fed() -> None:
    model = table(parse("g (float[2] x, float[2] w) => (y) { y = Mul(x, w) }"), w=(2,))
    assert list(cases(model)[0].inputs) == ["x"]


def test_shape_fixes_the_dims_of_one_input_and_its_symbols_everywhere() -> None:
    model = parse("g (float[b, s] x, float[b, s] z) => (y) { y = Add(x, z) }")
    found = cases(model, shapes={"x": (2, 9)})
    assert [case.name for case in found] == ["b=2 s=9"]
    assert found[0].inputs["z"].shape == (2, 9)


def test_a_size_below_0_is_one_that_is_not_known() -> None:
    """Paddle writes -1 where others leave a dimension out."""
    model = parse("g (float[2, 3] x) => (y) { y = Relu(x) }")
    for dim in model.graph.input[0].type.tensor_type.shape.dim:
        dim.dim_value = -1
    model.graph.output[0].Clear()
    model.graph.output[0].name = "y"
    first, second = cases(model)[:2]
    assert first.inputs["x"].shape != second.inputs["x"].shape


def test_n_is_a_number_of_samples_where_it_stands_behind_the_batch() -> None:
    """A model that takes windows of 400 samples does not run on three."""
    model = parse(
        "g (float[batch_size, N] x) => (float[batch_size, M] y) <int64[1] t = {240}, int64[1] e = {400}, "
        "int64[1] one = {1}, int64[2] shape = {0, 160}> { w = Slice(x, t, e, one) y = Reshape(w, shape) }"
    )
    assert cases(model)[0].inputs["x"].shape[1] >= 400


def test_large_inputs_are_not_made_for_their_sizes() -> None:
    model = parse("g (float[batch, n] x) => (y) { y = Relu(x) }")
    assert assumed(model, {"x": (1 << 20, 1 << 30)}) == ({"x": (1 << 20, 1 << 30)}, "")


@pytest.mark.parametrize(
    ("dim", "past", "size"),
    [
        ("past + seq", 0, 7),
        ("seq + past", 0, 7),
        ("seq * past", 0, 0),
        ("seq - past", 0, 7),
        ("seq // 2", 0, 3),
        ("seq / past", 0, 7),
    ],
)
def test_arithmetic_in_a_name_is_that_of_integers(dim: str, past: int, size: int) -> None:
    """But for a division by nothing, of which no model says what it is."""
    assert evaluate(dim, {"seq": 7, "past": past}) == size


def test_what_is_no_arithmetic_is_a_label() -> None:
    assert symbols_of("batch-size") == {"batch-size"}
    assert symbols_of("f(x)") == {"f(x)"}
    assert symbols_of("x ** 2") == {"x ** 2"}
    assert symbols_of("a - 2*b") == {"a", "b"}
    assert symbols_of(4) == set()


def test_sizes_are_named_once_where_all_inputs_have_the_same() -> None:
    assert named({"x": {"batch": 3, "seq": 7}, "y": {"batch": 3, "seq": 12}}) == "batch=3 seq=7/12"


def test_dims_that_fit() -> None:
    assert fits((2, 3), ("n", 3))
    assert not fits((2, 4), ("n", 3))
    assert not fits((2,), ("n", 3))
    assert text_of(("n", 3)) == "n,3"
