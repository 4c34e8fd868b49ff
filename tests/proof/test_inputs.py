"""Inputs: generated so that the model runs and the numbers mean something."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx.parser
import pytest

from onnxfuse.errors import UsageError
from onnxfuse.proof.inputs import Case, assumed, generate
from onnxfuse.runtime.quiet import Session, SessionError


def parse(graph: str, opset: int = 18, functions: str = "", domains: str = "") -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}{domains}]>\n{graph}\n{functions}')


def table(model: onnx.ModelProto, **shapes: tuple[int, ...]) -> onnx.ModelProto:
    """Adds float initializers of these shapes."""
    for name, shape in shapes.items():
        values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return model


def runner(model: onnx.ModelProto) -> Callable[[Case], str]:
    session = Session(model, None, optimize=False)

    def runs(case: Case) -> str:
        try:
            session.run(case.inputs)
        except SessionError as error:
            return str(error)
        return ""

    return runs


def every(model: onnx.ModelProto, **options: object) -> list[Case]:
    found, reason = generate(model, runner(model), **options)  # type: ignore[arg-type]
    assert reason == ""
    return found


def cases(model: onnx.ModelProto, **options: object) -> list[Case]:
    """The usual ones."""
    return [case for case in every(model, **options) if not case.unusual]


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


def test_a_token_id_compared_with_its_padding_is_no_mask() -> None:
    graph = "g (int64[b, s] ids) => (y, p) <int64 pad = {1}> { y = Gather(w, ids) p = Equal(ids, pad) }"
    assert cases(table(parse(graph), w=(100, 4)))[0].inputs["ids"].max() > 1


def test_two_consistent_odd_sizes() -> None:
    graph = "g (float[batch, seq, 4] x, float[batch, seq, 4] z) => (y) { y = Add(x, z) }"
    found = cases(parse(graph))
    assert [case.name for case in found[:2]] == ["batch=3 seq=7", "batch=1 seq=13"]
    assert found[0].inputs["x"].shape == found[0].inputs["z"].shape == (3, 7, 4)


def test_static_shapes_give_one_case() -> None:
    assert [case.name for case in cases(parse("g (float[2, 3] x) => (y) { y = Relu(x) }"))] == ["static shapes"]


def test_a_model_without_inputs_gives_one_case() -> None:
    assert cases(parse("g () => (y) { y = Constant<value_float = 1.0>() }")) == [Case("no inputs", {})]


def test_other_sizes_are_tried_until_the_model_runs() -> None:
    graph = "g (float[batch, 3, h, w] x) => (y) <int64[4] shape = {-1, 3, 64, 64}> { y = Reshape(x, shape) }"
    whole = "g (float[batch, 3, h, w] x) => (y) { z = Add(x, p) y = Relu(z) }"
    assert cases(parse(graph))[0].inputs["x"].shape == (3, 3, 64, 64)
    found = cases(table(parse(whole), p=(1, 3, 224, 224)))
    assert [case.inputs["x"].shape for case in found] == [(3, 3, 224, 224), (1, 3, 224, 224), (1, 3, 1, 1)]


def test_a_model_that_never_runs_says_why() -> None:
    model = table(parse("g (float[n, 4] x) => (y) { y = MatMul(x, p) }"), p=(5, 5))
    found, reason = generate(model, lambda case: "MatMul dimension mismatch")
    assert (found, reason) == ([], "MatMul dimension mismatch")


def test_inputs_with_one_symbol_differ_where_the_model_lets_them() -> None:
    graph = "g (float[b, s, 4] q, float[b, s, 4] k) => (y) { t = Transpose<perm = [0, 2, 1]>(k) y = MatMul(q, t) }"
    third = cases(parse(graph))[2].inputs
    assert third["q"].shape == (3, 7, 4)
    assert third["k"].shape == (3, 13, 4)


def test_an_image_need_not_be_square() -> None:
    found = cases(parse("g (float[b, 3, h, w] x) => (y) { y = GlobalAveragePool(x) }"))
    assert [case.inputs["x"].shape[2:] for case in found] == [(37, 37), (64, 64), (37, 64), (1, 1)]


def test_inputs_that_must_agree_get_no_third_case() -> None:
    found = cases(parse("g (float[b, s, 4] q, float[b, s, 4] k) => (y) { y = Add(q, k) }"))
    assert [case.name for case in found] == ["b=3 s=7", "b=1 s=13", "b=1 s=1"]


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


def test_position_ids_count_up_within_their_table() -> None:
    graph = "g (int64[b, s] position_ids) => (y) { y = Gather(w, position_ids) }"
    for case in cases(table(parse(graph), w=(5, 2))):
        positions = case.inputs["position_ids"]
        np.testing.assert_array_equal(positions[0], np.arange(positions.shape[1]) % 5)


def test_a_switch_is_thrown_both_ways() -> None:
    graph = """g (bool c, float[n] x) => (y) {
        y = If(c) <then_branch = t () => (float[n] a) { a = Neg(x) },
                   else_branch = e () => (float[n] b) { b = Abs(x) }> }"""
    assert [bool(case.inputs["c"]) for case in cases(parse(graph))[:2]] == [True, False]


def test_inputs_of_a_logarithm_are_positive() -> None:
    assert cases(parse("g (float[64] x) => (y) { y = Log(x) }"))[0].inputs["x"].min() > 0


def test_sequences_optionals_and_strings_are_fed() -> None:
    model = parse("g (seq(float[2, n]) s) => (y) { y = ConcatFromSequence<axis = 1>(s) }")
    assert {len(case.inputs["s"]) for case in every(model)} == {2}
    model = parse("g (optional(float[2, n]) o) => (float[2, n] y) { y = OptionalGetElement(o) }")
    assert cases(model)[0].inputs["o"].shape[0] == 2
    model = parse("g (string[n] s) => (string[n] y) { y = Identity(s) }")
    assert all(isinstance(text, str) for text in cases(model)[0].inputs["s"])


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


def test_the_same_seed_gives_the_same_numbers_and_another_seed_others() -> None:
    model = parse("g (float[64] x) => (y) { y = Relu(x) }")
    first, again, other = (cases(model, seed=seed)[0].inputs["x"] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_shape_fixes_the_dims_of_one_input_and_its_symbols_everywhere() -> None:
    model = parse("g (float[b, s] x, float[b, s] z) => (y) { y = Add(x, z) }")
    found = cases(model, shapes={"x": (2, 9)})
    assert [case.name for case in found] == ["b=2 s=9"]
    assert found[0].inputs["z"].shape == (2, 9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shapes": {"nope": (1,)}}, "--shape nope: no such input; the model has x"),
        ({"shapes": {"x": (2, 5)}}, r"--shape x:2,5 does not fit the declared \[n,4\]"),
        ({"shapes": {"x": (2,)}}, r"--shape x:2 does not fit"),
        ({"given": {}}, r"input 'x' is missing; the model wants float32\[n,4\]"),
        ({"given": {"x": np.zeros((2, 4))}}, r"input 'x' is float64\[2,4\]; the model wants float32\[n,4\]"),
        ({"given": {"x": np.zeros((2, 5), np.float32)}}, r"input 'x' is float32\[2,5\]; the model wants"),
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


def test_sizes_that_are_assumed_are_those_tried_first() -> None:
    graph = """g (int64[batch, s] ids, int64[batch, total] attention_mask, float[batch, 2, past, 4] past_key)
        => (y) { y = Shape(ids) }"""
    model = parse(graph)
    (first,) = generate(model, lambda case: "", one=True)[0]
    shapes, named = assumed(model)
    assert shapes == {name: array.shape for name, array in first.inputs.items()}
    assert shapes["attention_mask"] == (3, 12)
    assert named == first.name == "batch=3 s=7 total=12 past=5"
    shapes, named = assumed(model, {"ids": (2, 9)})
    assert (shapes["ids"], shapes["past_key"]) == ((2, 9), (2, 2, 5, 4))
    assert named == "total=14 past=5"
    assert assumed(parse("g (float[3] x) => (y) { y = Relu(x) }")) == ({"x": (3,)}, "")


def test_large_inputs_are_not_made_for_their_sizes() -> None:
    model = parse("g (float[batch, n] x) => (y) { y = Relu(x) }")
    assert assumed(model, {"x": (1 << 20, 1 << 30)}) == ({"x": (1 << 20, 1 << 30)}, "")


# ---------------------------------------------------------------------------------------------- what users feed, too

MASKED = "u = Unsqueeze(m, axes) i = Sub(one, u) n = Mul(i, low) y = Add(x, n)"


def unusual(graph: str, **tables: tuple[int, ...]) -> dict[str, Case]:
    """By what is unusual about it: the sizes, or the values."""
    found = [case for case in every(table(parse(graph), **tables)) if case.unusual]
    return {case.name.split(", ")[-1] if ", " in case.name else case.name: case for case in found}


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


def test_nothing_of_anything_where_the_model_runs_on_it() -> None:
    found = unusual("g (float[b, s, 4] x) => (y) { y = Relu(x) }")
    assert {"b=0 s=7", "b=3 s=0"} <= found.keys()
    model = parse("g (float[b, s, 4] x) => (y) { y = ArgMax<axis = 1>(x) }")
    assert "b=3 s=0" not in [case.name for case in every(model)]


@pytest.mark.parametrize(
    ("body", "size"),
    [("y = MatMul(x, w)", 4), ("y = Reshape(x, rows)", 6), ("a = Exp(x) y = Add(a, v)", 11)],
)
def test_sizes_that_errors_tell_of_are_tried(body: str, size: int) -> None:
    """Of a fixed size inside the model nothing is declared; 48 is 8 times one."""
    model = parse(f"g (float[b, 8, s] x) => (y) <int64[2] rows = {{0, 48}}> {{ {body} }}")
    assert cases(table(model, w=(4, 3), v=(11,)))[0].inputs["x"].shape[2] == size


def test_a_model_that_wants_two_sizes_gets_them() -> None:
    model = table(parse("g (float[b, s, t] x) => (y) { y = Add(x, p) }"), p=(2, 11, 19))
    assert cases(model)[0].inputs["x"].shape[1:] == (11, 19)
