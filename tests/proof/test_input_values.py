"""Values of inputs: what their roles in the model ask for, usual ones and those that test rows masked throughout."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from onnxfuse.errors import UsageError
from tests.proof.test_inputs import cases, every, parse, table, unusual


@pytest.mark.parametrize(
    ("type", "body"),
    [
        ("int64", "b = Cast<to = 9>(m) y = Where(b, x, low)"),
        ("int64", "b = Equal(m, i0) y = Where(b, low, x)"),
        ("float", "i = Sub(f1, m) s = Mul(i, low) y = Add(x, s)"),
        ("float", "u = Unsqueeze(m, axes) i = Sub(f1, u) s = Mul(i, low) y = Add(x, s)"),
        ("bool", "y = Where(m, x, low)"),
    ],
)
def test_masks_are_zeros_and_ones_with_a_one_in_every_row(type: str, body: str) -> None:
    constants = "<int64 i0 = {0}, float f1 = {1}, float low = {-10000}, int64[1] axes = {1}>"
    model = parse(f"g (float[b, s] x, {type}[b, s] m) => (y) {constants} {{ {body} }}")
    for case in cases(model):
        mask = case.inputs["m"].astype(np.int64)
        assert set(np.unique(mask)) == ({0, 1} if mask.size > 1 else {1})
        assert (mask.sum(axis=-1) >= 1).all()


@pytest.mark.parametrize(
    ("type", "body"),
    [
        ("bool", "y = Where(m, low, x)"),
        ("bool", "y = Where(m, infinite, x)"),
        ("float", "b = Cast<to = 9>(m) u = Unsqueeze(b, axes) y = Where(u, infinite, x)"),
    ],
)
def test_a_mask_that_hides_where_it_holds_has_a_zero_in_every_row(type: str, body: str) -> None:
    """torch's key_padding_mask: with the order of positions, its first key is all that the first query sees."""
    constants = "<float low = {-10000}, int64[1] axes = {1}>"
    model = parse(f"g (float[b, s] x, {type}[b, s] m) => (y) {constants} {{ {body} }}")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.float32(-np.inf), "infinite"))
    for case in cases(model):
        assert not case.inputs["m"][..., 0].any()
    assert cases(model)[0].inputs["m"].any()


def test_a_token_id_compared_with_its_padding_is_no_mask() -> None:
    graph = "g (int64[b, s] ids) => (y, p) <int64 pad = {1}> { y = Gather(w, ids) p = Equal(ids, pad) }"
    assert cases(table(parse(graph), w=(100, 4)))[0].inputs["ids"].max() > 1


def test_lengths_of_padded_sequences_are_neither_empty_nor_longer_than_the_axis() -> None:
    """An empty one masks its row throughout, which seldom has a number; recurrent ops refuse one that is longer."""
    places = "<int32 zero = {0}, int32 one = {1}, int64[1] last = {1}>"
    body = """n = Shape<start = 1>(x) m = Squeeze(n) i = Cast<to = 6>(m) r = Range(zero, i, one)
        l = Unsqueeze(lengths, last) seen = Less(r, l) y = Where(seen, x, x)"""
    graph = f"g (float[b, s] x, int32[b] lengths) => (y) {places} {{ {body} }}"
    for case in cases(parse(graph)):
        lengths, steps = case.inputs["lengths"], case.inputs["x"].shape[1]
        assert (lengths[0], lengths.min() >= 1, lengths.max() <= steps) == (steps, True, True)
    assert unusual(graph)["one large"].inputs["lengths"][1] == 1


def test_position_ids_count_up_within_their_table() -> None:
    graph = "g (int64[b, s] position_ids) => (y) { y = Gather(w, position_ids) }"
    for case in cases(table(parse(graph), w=(5, 2))):
        positions = case.inputs["position_ids"]
        np.testing.assert_array_equal(positions[0], np.arange(positions.shape[1]) % 5)


SWITCHED = """g (bool{0} c, bool{0} d, float[n, 4] x) => (y, z) {{
    y = If(c) <then_branch = t () => (float[n, 4] a) {{ a = Neg(x) }},
               else_branch = e () => (float[n, 4] b) {{ b = Abs(x) }}>
    z = If(d) <then_branch = t () => (float[n, 4] a1) {{ a1 = Neg(x) }},
               else_branch = e () => (float[n, 4] b1) {{ b1 = Reshape(x, {1}) }}> }}"""


@pytest.mark.parametrize("shape", ["", "[1]"])
def test_switches_are_on_and_each_is_off_once(shape: str) -> None:
    model = parse(SWITCHED.format(shape, "like"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([-1, 4], np.int64), "like"))
    thrown = [(case.inputs["c"].all(), case.inputs["d"].all()) for case in every(model)]
    assert thrown[:2] == [(True, True), (True, True)]
    assert thrown[-2:] == [(False, True), (True, False)]
    assert cases(model)[-1].name.endswith(", d off")


def test_what_a_branch_wants_is_tried_where_its_switch_is_off() -> None:
    """It takes 12 numbers; the other branch takes any."""
    model = parse(SWITCHED.format("", "like"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([2, 6], np.int64), "like"))
    off = [case for case in every(model) if not case.inputs["d"].all()]
    assert [case.inputs["x"].shape for case in off] == [(3, 4)]


def test_a_switch_of_which_only_one_way_runs_stays_there() -> None:
    model = parse(SWITCHED.format("", "like"))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.array([7, 11], np.int64), "like"))
    assert {bool(case.inputs["d"]) for case in every(model)} == {True}


def test_inputs_of_a_logarithm_are_positive() -> None:
    assert cases(parse("g (float[64] x) => (y) { y = Log(x) }"))[0].inputs["x"].min() > 0


def test_sequences_optionals_and_strings_are_fed() -> None:
    model = parse("g (seq(float[2, n]) s) => (y) { y = ConcatFromSequence<axis = 1>(s) }")
    assert {len(case.inputs["s"]) for case in every(model)} == {2}
    model = parse("g (optional(float[2, n]) o) => (float[2, n] y) { y = OptionalGetElement(o) }")
    assert cases(model)[0].inputs["o"].shape[0] == 2
    model = parse("g (string[n] s) => (string[n] y) { y = Identity(s) }")
    assert all(isinstance(text, str) for text in cases(model)[0].inputs["s"])


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others() -> None:
    model = parse("g (float[64] x) => (y) { y = Relu(x) }")
    first, again, other = (cases(model, seed=seed)[0].inputs["x"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shapes": {"nope": (1,)}}, "--shape nope: no such input; the model has x"),
        ({"shapes": {"x": (2, 5)}}, r"--shape x:2,5 does not fit the declared \[n,4\]"),
        ({"shapes": {"x": (2,)}}, r"--shape x:2 does not fit"),
        ({"given": {}}, r"input 'x' is missing; the model wants float32\[n,4\]"),
        ({"given": {"x": np.zeros((2, 4))}}, r"input 'x' is float64\[2,4\]; the model wants float32\[n,4\]"),
        ({"given": {"x": np.zeros((2, 5), np.float32)}}, r"input 'x' is float32\[2,5\]; the model wants"),
        (
            {"given": {"x": np.zeros((2, 4), np.float32)}, "shapes": {"x": (3, 4)}},
            "--shape x:3,4 is not what --inputs has, 2,4: give one of them",
        ),
        ({"given": {"z": np.zeros(1)}}, "'z' is no input of the model, which wants x"),
    ],
)
def test_what_the_user_gives_must_fit(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        cases(parse("g (float[n, 4] x) => (y) { y = Relu(x) }"), **options)


def test_given_inputs_are_the_only_case() -> None:
    x = np.ones((5, 4), np.float32)
    (case,) = cases(parse("g (float[n, 4] x) => (y) { y = Relu(x) }"), given={"x": x})
    assert case.name == "given"
    assert case.inputs["x"] is x


MASKED = "u = Unsqueeze(m, axes) i = Sub(one, u) n = Mul(i, low) y = Add(x, n)"


@pytest.mark.parametrize("type", ["int64", "float", "bool"])
def test_a_sample_of_padding_and_one_without(type: str) -> None:
    body = MASKED if type == "float" else f"b = Cast<to = 1>(m) {MASKED.replace('(m,', '(b,')}"
    constants = "<float one = {1}, float low = {-10000}, int64[1] axes = {1}>"
    found = unusual(f"g (float[b, 4, s] x, {type}[b, s] m) => (y) {constants} {{ {body} }}")
    mask = found["one large"].inputs["m"]
    assert len(mask) == 3
    assert mask[0].astype(float).sum() > 0
    if type == "float":
        assert (mask[1] == np.finfo(np.float32).min).all()
        assert (mask[2] == 0).all()
    else:
        assert (mask[1] == 0).all()
        assert (mask[2] == 1).all()


def test_every_mask_has_such_a_sample() -> None:
    body = "c = Cast<to = 9>(m) d = Cast<to = 9>(n) e = And(c, d) y = Where(e, x, x)"
    found = unusual(f"g (float[b, s] x, int64[b, s] m, int64[b, s] n) => (y) {{ {body} }}")
    assert all((found["one large"].inputs[name][1] == 0).all() for name in "mn")


def test_padding_that_ids_tell() -> None:
    graph = "g (int64[b, s] ids) => (y, p) <int64 pad = {5}> { y = Gather(w, ids) p = Equal(ids, pad) }"
    ids = unusual(graph, w=(100, 4))["one large"].inputs["ids"]
    assert (ids[1] == 5).all()
    assert (ids[0] != 5).any()


def test_numbers_are_zero_and_large() -> None:
    x = unusual("g (float[b, 16] x) => (y) { y = Relu(x) }")["one large"].inputs["x"]
    assert (x[1] == 0).all()
    assert np.abs(x[2]).max() > 10 * np.abs(x[0]).max()


@pytest.mark.parametrize(
    ("body", "least", "most"),
    [
        ("b = GreaterOrEqual (scale, m)", 50.0, 162.5),
        ("b = Less (m, scale)", 50.0, 162.5),
        ("b = LessOrEqual (scale, m)", 387.5, 500.0),
        ("r = Reshape (m, one)  b = Greater (r, scale)", 387.5, 500.0),
    ],
)
def test_a_bound_lies_within_the_scale_that_it_is_compared_with(body: str, least: float, most: float) -> None:
    """The lowest or highest frequency of a detector: beyond all of them, it finds nothing."""
    scale = "<float[4] scale = {50, 200, 350, 500}, int64[1] one = {-1}>"
    for case in every(
        parse(f"g (float m, float[b, 4] x) => (y) {scale} {{ {body} f = Cast <to = 1> (b) y = Mul (x, f) }}")
    ):
        assert least <= float(case.inputs["m"]) <= most


def test_data_that_is_compared_with_a_scale_is_drawn_as_other_data_is() -> None:
    text = (
        "g (float[b, 4] x) => (y) <float[4] scale = {50, 200, 350, 500}> { b = Less (x, scale) y = Cast <to = 1> (b) }"
    )
    assert all(np.abs(case.inputs["x"]).max() < 10 for case in cases(parse(text)))
