"""Inputs: generated so that the model runs and the numbers mean something."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import onnx.parser
import pytest

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


def test_two_consistent_odd_sizes() -> None:
    graph = "g (float[batch, seq, 4] x, float[batch, seq, 4] z) => (y) { y = Add(x, z) }"
    found = cases(parse(graph))
    assert [case.name for case in found[:2]] == ["batch=3 seq=7", "batch=1 seq=13"]
    assert found[0].inputs["x"].shape == found[0].inputs["z"].shape == (3, 7, 4)


@pytest.mark.parametrize(("axis", "size"), [(0, 1), (1, 13)])
def test_an_axis_that_a_model_fixes_inside_is_found_soon(axis: int, size: int) -> None:
    """A recurrent state of one sample: runs at other batches end in an error, behind all that comes before it."""
    model, tried = parse("g (float[batch, seq, 4] x) => (y) { y = Neg(x) }"), []

    def runs(case: Case) -> str:
        tried.append(case.inputs["x"].shape)
        return "" if tried[-1][axis] == size else "no"

    found, _ = generate(model, runs)
    usual = [case.inputs["x"].shape for case in found if not case.unusual]
    assert len({shape[:2] for shape in usual}) >= 2
    assert len(tried) <= 9


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


def test_inputs_that_must_agree_get_no_third_case() -> None:
    found = cases(parse("g (float[b, s, 4] q, float[b, s, 4] k) => (y) { y = Add(q, k) }"))
    assert [case.name for case in found] == ["b=3 s=7", "b=1 s=13", "b=1 s=1"]


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


# ---------------------------------------------------------------------------------------------- what users feed, too


def unusual(graph: str, **tables: tuple[int, ...]) -> dict[str, Case]:
    """By what is unusual about it: the sizes, or the values."""
    found = [case for case in every(table(parse(graph), **tables)) if case.unusual]
    return {case.name.split(", ")[-1] if ", " in case.name else case.name: case for case in found}


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


def test_what_all_sizes_fail_at_is_the_length_of_a_loop_that_was_written_out() -> None:
    """What is shorter lacks the last of its steps, and of what is longer all results are too few."""
    text = "g (float[batch, seq, 4] x) => (y) <int64[1] early = {7}, int64[1] last = {22}>"
    loop = "a = Gather<axis = 1>(x, early) b = Gather<axis = 1>(x, last) c = Mul(a, b) z = Mul(x, c) y = Add(z, v)"
    model = table(parse(f"{text} {{ {loop} }}"), v=(23, 1))
    runs, tried = runner(model), []

    def noted(case: Case) -> str:
        tried.append(case.inputs["x"].shape[1])
        return runs(case)

    assert generate(model, noted)[0][0].inputs["x"].shape == (3, 23, 4)
    assert len(tried) < 80


def test_sizes_are_looked_for_from_the_first_ones_that_fail() -> None:
    """Of 256 columns the error names 253, which is no size to try."""
    text = "g (float[b, s, 4] x) => (y) <int64[1] three = {3}, int64[1] end = {999}, int64[1] one = {1}>"
    model = table(parse(f"{text} {{ part = Slice(x, three, end, one) y = Add(part, v) }}"), v=(5, 1))
    runs, tried = runner(model), []

    def noted(case: Case) -> str:
        tried.append(case.inputs["x"].shape)
        return runs(case)

    assert generate(model, noted)[0][0].inputs["x"].shape[1] in (4, 8)
    assert max(batch for batch, *_ in tried) < 253


def test_a_model_that_wants_two_sizes_gets_them() -> None:
    model = table(parse("g (float[b, s, t] x) => (y) { y = Add(x, p) }"), p=(2, 11, 19))
    assert cases(model)[0].inputs["x"].shape[1:] == (11, 19)


@pytest.mark.parametrize("symbols", [("batch", "batch"), ("texts", "images")])
def test_batches_that_do_not_meet_differ(symbols: tuple[str, str]) -> None:
    """Texts and images of a model that compares them with each other."""
    texts, images = symbols
    graph = f"g (float[{texts}, 4] x, float[{images}, 4] z) => (y) {{ t = Transpose (z) y = MatMul (x, t) }}"
    shapes = {(len(case.inputs["x"]), len(case.inputs["z"])) for case in cases(parse(graph))}
    assert {(3, 3), (3, 2)} <= shapes
    assert ((2, 3) in shapes) == (texts == images)


def test_batches_that_an_op_needs_equal_are() -> None:
    graph = "g (float[batch, 4] x, float[batch, 4] z) => (y) { y = Mul (x, z) }"
    assert all(len(case.inputs["x"]) == len(case.inputs["z"]) for case in cases(parse(graph)))
