"""What a model does with its inputs: the tables they index, followed through views, offsets, functions and bodies."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from onnxfuse.proof.input_roles import Usage, trace


def parse(graph: str, opset: int = 18, functions: str = "", domains: str = "") -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": {opset}{domains}]>\n{graph}\n{functions}')


def table(model: onnx.ModelProto, **shapes: tuple[int, ...]) -> onnx.ModelProto:
    """Adds float initializers of these shapes."""
    for name, shape in shapes.items():
        values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    return model


def bound(graph: str, **tables: tuple[int, ...]) -> int | None:
    return trace(table(parse(graph), **tables))["ids"].bound({})


@pytest.mark.parametrize(
    ("body", "shape", "limit"),
    [
        ("y = Gather(w, ids)", (50, 8), 50),
        ("y = Gather<axis = 1>(w, ids)", (50, 8), 8),
        ("a = Cast<to = 6>(ids) b = Unsqueeze(a, zero) c = Reshape(b, flat) y = Gather(w, c)", (50, 8), 50),
        ("a = Add(ids, two) y = Gather(w, a)", (50, 8), 48),
        ("a = Sub(ids, two) y = Gather(w, a)", (50, 8), 52),
        ("a = Mul(ids, two) b = Add(a, two) y = Gather(w, b)", (51, 8), 25),
        ("a = Clip(ids, zero0, two) y = Gather(w, a)", (50, 8), None),
        ("a = Clip(ids, zero0, two) y = Gather(w, a)", (2, 8), 2),
        ("a = Transpose(w) b = Gather<axis = 1>(a, ids) y = Identity(b)", (50, 8), 50),
        ("n = Less(ids, zero0) a = Add(ids, fifty) b = Where(n, a, ids) y = Gather(w, b)", (50, 8), 50),
        ("y = Add(ids, two)", (50, 8), None),
    ],
)
def test_indices_are_traced_to_their_table(body: str, shape: tuple[int, ...], limit: int | None) -> None:
    constants = "<int64 two = {2}, int64 zero0 = {0}, int64 fifty = {50}, int64[1] zero = {0}, int64[1] flat = {-1}>"
    assert bound(f"g (int64[3] ids) => (y) {constants} {{ {body} }}", w=shape) == limit


@pytest.mark.parametrize(("body", "times"), [("y = Gather(w, ids)", 0), ("a = Transpose(w) y = Gather(a, ids)", 1)])
def test_shapes_are_inferred_once_and_only_for_a_table_that_declares_none(
    monkeypatch: pytest.MonkeyPatch, body: str, times: int
) -> None:
    asked = []
    infer = onnx.shape_inference.infer_shapes
    monkeypatch.setattr(
        onnx.shape_inference, "infer_shapes", lambda model, **own: asked.append(model) or infer(model, **own)
    )
    found = trace(table(parse(f"g (int64[3] ids, float[3] x) => (y) {{ {body} z = Gather(w, ids) }}"), w=(50, 8)))
    assert found["ids"].bound({}) == (8 if times else 50)
    assert len(asked) == times


def test_the_smallest_of_several_tables_bounds_an_index() -> None:
    assert (
        bound("g (int64[3] ids) => (y) { a = Gather(w, ids) b = Gather(v, ids) y = Add(a, b) }", w=(9, 4), v=(5, 4))
        == 5
    )


def test_indices_are_traced_into_functions_and_bodies() -> None:
    graph = """g (int64[3] ids, bool c) => (y) {
        y = If(c) <then_branch = t () => (float[3, 8] a) { a = Gather(w, ids) },
                   else_branch = e () => (float[3, 8] b) { b = own.Look(v, ids) }> }"""
    look = '<domain: "own", opset_import: ["": 18]> Look (data, where) => (rows) { rows = Gather(data, where) }'
    model = table(parse(graph, functions=look, domains=', "own": 1'), w=(40, 8), v=(30, 8))
    assert sorted(trace(model)["ids"].limits) == [(1, 0, 30), (1, 0, 40)]


def test_indices_are_traced_into_the_overload_that_is_called() -> None:
    look = '<domain: "own", opset_import: ["": 18]> Look (data, where) => (rows) { rows = Gather(data, where) }'
    model = table(
        parse("g (int64[3] ids) => (y) { y = own.Look(w, ids) }", functions=look, domains=', "own": 1'), w=(40, 8)
    )
    other = onnx.parser.parse_function(look.replace("data, where)", "data, p)", 1).replace(", where)", ", p)"))
    other.overload = "without"
    other.node[0].CopyFrom(onnx.helper.make_node("Identity", ["data"], ["rows"]))
    model.functions.append(other)
    assert trace(model)["ids"].limits == [(1, 0, 40)]


def test_a_loop_that_counts_on_does_not_trap_the_trace() -> None:
    graph = """g (int64 ids, int64 trips, bool go) => (y) <int64 one = {1}> {
        y = Loop(trips, go, ids) <body = b (int64 i, bool c, int64 n) => (bool d, int64 m)
            { d = Identity(c) m = Add(n, one) }> }"""
    usages = trace(parse(graph))
    assert usages["trips"].count
    assert usages["ids"].bound({}) is None


def test_a_dynamic_table_bounds_by_its_size() -> None:
    usage = trace(parse("g (float[n, 4] x, int64[2] ids) => (y) { y = Gather(x, ids) }"))["ids"]
    assert usage.bound({"n": 7}) == 7
    assert usage.bound({}) == 1


def test_a_moment_that_an_optimizer_updates_is_positive() -> None:
    """AdamW's second one: v' = 0.999 v + 0.001 g^2, of which the root is taken."""
    usage = trace(
        parse(
            """g (float[4] v, float[4] g) => (float[4] y) <float keep = {0.999}, float add = {0.001}>
            { a = Mul(v, keep) b = Mul(g, g) c = Mul(b, add) d = Add(a, c) y = Sqrt(d) }"""
        )
    )
    assert (usage["v"].positive, usage["g"].positive) == (True, False)


@pytest.mark.parametrize("body", ["a = Mul(x, half) y = Sub(one, a)", "a = Mul(x, less) r = Sqrt(x) y = Add(a, r)"])
def test_a_share_of_an_input_says_nothing_but_its_sign(body: str) -> None:
    text = "g (float[4] x) => (float[4] y) <float half = {0.5}, float one = {1}, float less = {-0.5}> { BODY }"
    usage = trace(parse(text.replace("BODY", body)))["x"]
    assert (usage.mask, usage.positive) == (False, "Sqrt" in body)


@pytest.mark.parametrize(
    ("body", "sizes"),
    [
        ("y = Conv<group = 2>(x, w)", {1: 6}),
        ("c = Cast<to = 1>(x) d = Div(c, scale) y = Conv(d, w)", {1: 3}),
        ("t = Transpose<perm = [0, 2, 1, 3]>(x) y = Conv(t, w)", {}),
        ("wide = Add(x, five) y = Conv(wide, w)", {}),
        ("y = MatMul(x, m)", {3: 5}),
        ("y = MatMul(m, x)", {}),
        ("y = MatMul(x, x)", {}),
        ("y = f(x, w)", {}),
    ],
)
def test_weights_tell_the_sizes_of_axes(body: str, sizes: dict[int, int]) -> None:
    graph = f"g (float[b, c, h, w0] x) => (y) {{ {body} }}"
    model = table(parse(graph), w=(4, 3, 2, 2), m=(5, 7), scale=(1, 3, 1, 1), five=(1, 1, 1, 1, 1))
    assert trace(model)["x"].sizes == sizes


@pytest.mark.parametrize(("attributes", "size"), [("", {1: 5}), ("<transB = 1>", {1: 7}), ("<transA = 1>", {0: 5})])
def test_a_gemm_tells_the_rows_of_its_matrix(attributes: str, size: dict[int, int]) -> None:
    model = table(parse(f"g (float[b, c] x) => (y) {{ y = Gemm{attributes}(x, m) }}"), m=(5, 7))
    assert trace(model)["x"].sizes == size


@pytest.mark.parametrize(
    ("body", "steps"),
    [
        ("r = Range(zero, n, one) u = Unsqueeze(r, axis) l = Unsqueeze(ids, last) y = Less(u, l)", [0]),
        ("f = Cast<to = 1>(ids) r = Cast<to = 1>(places) y = GreaterOrEqual(f, r)", [4]),
        ("i = Cast<to = 6>(ids) y = GRU<hidden_size = 2>(x, w, w, , i)", ["t"]),
        ("i = Cast<to = 6>(ids) y = LSTM<hidden_size = 2, layout = 1>(x, w, w, , i)", [5]),
        ("y = Less(ids, levels)", []),
        ("r = Range(zero, n, one) y = Equal(r, ids)", []),
    ],
)
def test_a_length_counts_the_steps_of_an_axis(body: str, steps: list[int | str]) -> None:
    constants = (
        "<int64 zero = {0}, int64 one = {1}, int64[1] axis = {0}, int64[1] last = {1}, "
        "int64[4] places = {0, 1, 2, 3}, int64[4] levels = {0, 1, 2, 4}>"
    )
    graph = f"g (int64[b] ids, int64 n, float[t, 5, 6] x) => (y) {constants} {{ {body} }}"
    assert trace(table(parse(graph), w=(1, 6, 2)))["ids"].steps == steps


def test_the_longest_length_is_that_of_the_shortest_axis() -> None:
    assert Usage(steps=["t", 0, 9]).longest({"t": 7, "b": 3}) == 7
    assert Usage(steps=[0]).longest({"t": 7, "u": 5}) == 5
    assert Usage(steps=[0]).longest({}) == 2
