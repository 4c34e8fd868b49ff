"""Before and after: what a conversion writes, and that it computes the same."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

import onnxfuse
from onnxfuse.errors import ModelError
from onnxfuse.precision.convert import convert
from onnxfuse.precision.wanted import Name, Precision
from onnxfuse.proof.oracle import Oracle
from onnxfuse.reporting.conversion import KeptNodes

from .models import parse

HALF = TensorProto.FLOAT16


def given(model: onnx.ModelProto, **weights: np.ndarray) -> onnx.ModelProto:
    """The model with values for its weights."""
    for name, array in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    return model


W = np.linspace(-1, 1, 16).reshape(4, 4)
MLP = "g (float[n, 4] x) => (float[n, 4] y) { a = MatMul(x, w) b = Relu(a) c = MatMul(b, w) y = Add(c, x) }"


def ops(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def same(original: onnx.ModelProto, model: onnx.ModelProto, name: Name = "fp16") -> None:
    onnx.checker.check_model(model)
    precision = Precision(name)
    oracle = Oracle(original, precision=precision.dtype)
    verdict = oracle.compare(model, rtol=precision.rtol)
    assert verdict.verdict == "equal", verdict.note
    assert oracle.cases


@pytest.mark.parametrize("name", ["fp16", "bf16", "mixed"])
def test_casts_at_inputs_and_outputs_alone(name: Name) -> None:
    original = given(parse(MLP), w=W)
    done = convert(original, Precision(name))
    assert ops(done.model) == {"MatMul": 2, "Relu": 1, "Add": 1, "Cast": 2}
    assert [tensor.data_type for tensor in done.model.graph.initializer] == [Precision(name).dtype]
    assert [(cast.value, cast.node) for cast in done.told.casts] == [("x", ""), ("y", "")]
    assert (done.told.half, done.told.float32, done.told.inner) == (4, 0, [])
    same(original, done.model, name)


def test_nodes_that_are_called_as_their_results_keep_names_of_their_own() -> None:
    """Also where a body reads a value in float32, and gives one as the result of the model."""
    body = "b (int64 i, bool c, float[n, 4] p) => (bool d, float[n, 4] q) { d = Identity(c) q = Add(p, a) }"
    original = given(
        parse(
            f"g (float[n, 4] x) => (float[n, 4] y, float[n, 4] z) {{ a = MatMul(x, w) y = Relu(a) "
            f"k = Constant<value = int64 {{2}}>() z = Loop(k, , x) <body = {body}> }}"
        ),
        w=W,
    )
    for node in original.graph.node:
        node.name = node.output[0]
    for bodies in (("Loop",), ()):
        made = convert(original, Precision("fp16"), bodies=bodies).model
        names = [node.name for node in made.graph.node]
        assert len(set(names)) == len(names)
        same(original, made)


def test_a_stretch_of_nodes_may_be_kept() -> None:
    original = given(parse(MLP), w=W)
    done = convert(original, Precision("fp16"), kept=range(2))
    assert (done.told.half, done.told.float32) == (2, 2)
    assert {cast.reason for cast in done.told.inner} == {"what float16 rounds here is too much in the end"}
    same(original, done.model)


def test_what_keeps_nodes_in_float32_is_told_without_any_cast() -> None:
    text = "g (float[n, 4] x, bool k) => (float[n, 1] y) {{ e = Exp(x) t = ReduceL2<axes = [1]>(e) {} }}"
    alone = convert(parse(text.format("y = Neg(t)")), Precision("fp16")).told
    assert (alone.half, alone.float32, alone.casts) == (0, 3, [])
    assert alone.kept == [KeptNodes(2, "sums and squares leave float16")], "the Neg saves a Cast"
    branch = "{} = r () => (float[n, 1] {}) {{ e = Exp(t)  {} = ReduceL2<axes = [1]>(e) }}"
    both = ", ".join(branch.format(f"{name}_branch", name, name) for name in ("then", "else"))
    inside = convert(parse(text.format(f"y = If<{both}>(k)")), Precision("fp16")).told
    assert inside.kept == [KeptNodes(6, "sums and squares leave float16")], "two here, and two in each branch"


def test_inputs_and_outputs_change_where_that_is_asked_for() -> None:
    done = convert(given(parse(MLP), w=W), Precision("fp16", io=True)).model
    onnx.checker.check_model(done, full_check=True)
    assert ops(done) == {"MatMul": 2, "Relu": 1, "Add": 1}
    types = [info.type.tensor_type.elem_type for info in (*done.graph.input, *done.graph.output)]
    assert types == [HALF, HALF]


def test_a_weight_in_two_types_is_there_twice_and_no_more() -> None:
    nodes = "a = MatMul(x, w) e = Exp(w) b = MatMul(a, w) c = Add(b, e) y = Add(c, w)"
    done = convert(given(parse(MLP[: MLP.index("{")] + "{" + nodes + "}"), w=W), Precision("fp16"))
    assert sorted((t.name, t.data_type) for t in done.model.graph.initializer) == [("w", 1), ("w_float16", HALF)]


MASKED = """g (float[b, 4, 4] x, int64[b, 4] m) => (float[b, 4, 4] y) <float low = {-3.4028235e38}, float one = {1},
    int64[1] axis = {1}> {
    f = Cast<to = 1>(m) g = Sub(one, f) h = Mul(g, low) i = Unsqueeze(h, axis)
    s = MatMul(x, w) t = Add(s, i) p = Softmax(t) y = MatMul(p, x) }"""


def test_a_mask_and_its_sum_stay_in_float32_so_that_hidden_rows_stay_numbers() -> None:
    original = given(parse(MASKED), w=W)
    done = convert(original, Precision("fp16"), {"h": 3.4e38, "i": 3.4e38, "t": 3.4e38, "s": 9.0, "p": 1.0})
    assert done.overflows == []
    same(original, done.model)
    x, m = np.ones((1, 4, 4), np.float32), np.zeros((1, 4), np.int64)
    from onnxfuse.runtime.quiet import Session

    (row,) = Session(done.model, optimize=True).run({"x": x, "m": m})
    assert np.isfinite(row).all()
    assert {cast.to for cast in done.told.inner} == {"float16", "float32"}
    assert all("3.4e+38" in cast.reason or "beyond" in cast.reason for cast in done.told.inner)


CONTRIB = """g (float[b, 4, 8] x, bool[b, 1, 4, 4] m) => (float[b, 4, 8] y) <float zero = {0},
    float low = {-3.4028235e38}> {
    i = Where(m, zero, low) y = com.microsoft.MultiHeadAttention<num_heads = 2>(x, x, x, "", "", i) }"""


def test_a_mask_of_the_type_of_the_scores_ends_at_the_lowest_number() -> None:
    original = parse(CONTRIB)
    done = convert(original, Precision("fp16"))
    assert ops(done.model) == {"Where": 1, "Max": 1, "Cast": 3, "MultiHeadAttention": 1}
    assert done.cut_off
    assert not convert(given(parse(MLP), w=W), Precision("fp16")).cut_off


NORM = (
    """g (float[n, 4] x) => (float[n, 4] y) { a = MatMul(x, w) b = onnxfuse.Norm_1(a, s) y = onnxfuse.Norm_1(b, s) }"""
)
BODY = """<domain: "onnxfuse", opset_import: ["": 17]> Norm_1 (X, scale) => (Y) {
    e = Constant<value = float {1e-5}>() eps = CastLike(e, X) q = Mul(X, X) m = ReduceMean<axes = [-1]>(q)
    v = Add(m, eps) r = Sqrt(v) d = Div(X, r) Y = Mul(d, scale) }"""


def test_a_fused_op_calls_a_copy_of_its_function_that_computes_in_float32() -> None:
    original = given(parse(NORM, BODY), w=W, s=np.ones(4))
    done = convert(original, Precision("fp16"))
    assert ops(done.model) == {"MatMul": 1, "Norm_1_fp16": 2, "Cast": 2}
    (function,) = done.model.functions
    assert (function.name, list(function.input), list(function.output)) == ("Norm_1_fp16", ["X", "scale"], ["Y"])
    body = Counter(node.op_type for node in function.node)
    assert body["Cast"] == 4  # two inputs, a number, and the output
    assert "CastLike" not in body
    same(original, done.model)


def test_functions_of_the_model_are_written_out() -> None:
    tail = '<domain: "own", opset_import: ["": 17]> Twice (a) => (b) { b = Add(a, a) }'
    original = given(parse("g (float[n, 4] x) => (float[n, 4] y) { a = own.Twice(x) y = MatMul(a, w) }", tail), w=W)
    done = convert(original, Precision("fp16"))
    assert ops(done.model) == {"Add": 1, "MatMul": 1, "Cast": 2}
    same(original, done.model)


BRANCH = """g (float[n, 4] x, bool c) => (float[n, 4] y) { a = MatMul(x, w) d = If(c) <
    then_branch = t () => (float[n, 4] p) { p = Neg(a) }, else_branch = e () => (float[n, 4] q) { q = Add(a, w) }>
    y = MatMul(d, w) }"""


def test_branches_read_and_give_what_is_there() -> None:
    original = given(parse(BRANCH), w=W)
    done = convert(original, Precision("fp16"))
    same(original, done.model)
    assert not done.told.inner
    kept = convert(original, Precision("fp16"), bodies=())
    same(original, kept.model)
    assert (done.told.half, kept.told.half) == (5, 2)
    reasons = {cast.reason for cast in kept.told.inner}
    assert reasons == {"what goes into the bodies of If_d and comes out of them"}


WITHIN = """g (float[n, 4] x, bool c, bool d) => (float[n, 4] y) { y = If(c) <
    then_branch = t () => (float[n, 4] p) <float[4, 4] own = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}> {
        k = Constant<value = float {0.5}>() a = MatMul(x, w) b = Mul(a, k) e = MatMul(b, own) p = MatMul(e, w) },
    else_branch = s () => (float[n, 4] q) <float[4, 4] own = {6, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}> {
        k = Constant<value = float {2.0}>() a = MatMul(x, own) b = Mul(a, k)
        q = If(d) <then_branch = u () => (float[n, 4] r) { f = MatMul(b, w) r = Mul(f, k) },
                   else_branch = v () => (float[n, 4] z) { z = Exp(b) }> }> }"""


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_weights_of_several_branches_are_converted_once(name: Name) -> None:
    original = given(parse(WITHIN), w=W * 0.1)
    done = convert(original, Precision(name))
    same(original, done.model, name)
    weights = {tensor.name: tensor.data_type for tensor in done.model.graph.initializer}
    half = [key for key, dtype in weights.items() if dtype == Precision(name).dtype and key.startswith("w")]
    assert len(half) == 1
    assert "w" not in weights, "nobody reads it any more"
    branches = [attribute.g for attribute in done.model.graph.node[0].attribute]
    assert [len(branch.initializer) for branch in branches] == [0, 0]
    assert {cast.value for cast in done.told.casts if not cast.node} >= {"x"}
    assert done.told.half >= 8


LOOP = """b = Loop(k, c, a) <body = s (int64 i, bool go, float[n, 4] v) => (bool more, float[n, 4] z) {
    more = Identity(go) u = MatMul(v, w) z = Add(u, a) }>"""


@pytest.mark.parametrize("branch", [False, True])
def test_a_loop_stays_in_float32_unless_it_is_asked_for(branch: bool) -> None:
    """In a branch, too, where it reads a value of the main graph by its name."""
    nodes = (
        f"""d = If(c) <then_branch = t () => (float[n, 4] p) {{ {LOOP} p = MatMul(b, w) }},
        else_branch = e () => (float[n, 4] q) {{ q = MatMul(a, w) }}>"""
        if branch
        else f"{LOOP} d = Identity(b)"
    )
    graph = f"g (float[n, 4] x, int64 k, bool c) => (float[n, 4] y) {{ a = MatMul(x, w) {nodes} y = MatMul(d, w) }}"
    original = given(parse(graph), w=W * 0.1)
    done = convert(original, Precision("fp16"), bodies={"If"})
    same(original, done.model)
    assert sorted((t.name, t.data_type) for t in done.model.graph.initializer) == [("w", 1), ("w_float16", HALF)]


def test_external_data_is_read_from_its_folder(tmp_path: Path) -> None:
    original = given(parse(MLP), w=W)
    path = tmp_path / "m.onnx"
    onnx.save(original, path, save_as_external_data=True, location="m.data", size_threshold=0)
    done = convert(onnx.load(path, load_external_data=False), Precision("fp16"), base_dir=tmp_path).model
    (tensor,) = done.graph.initializer
    np.testing.assert_array_equal(numpy_helper.to_array(tensor), W.astype(np.float16))
    (tmp_path / "m.data").unlink()
    with pytest.raises(ModelError, match="external data of 'w' cannot be read"):
        convert(onnx.load(path, load_external_data=False), Precision("fp16"), base_dir=tmp_path)
    told = convert(onnx.load(path, load_external_data=False), Precision("fp16"), base_dir=tmp_path, weights=False)
    assert [(tensor.data_type, list(tensor.dims)) for tensor in told.model.graph.initializer] == [(HALF, [4, 4])]


def test_outputs_that_are_read_inside_and_inputs_that_are_outputs() -> None:
    original = given(parse("g (float[n, 4] x) => (float[n, 4] a, float[n, 4] y) { a = MatMul(x, w) y = Relu(a) }"), w=W)
    done = convert(original, Precision("fp16"))
    same(original, done.model)
    assert ops(done.model) == {"MatMul": 1, "Relu": 1, "Cast": 3}


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_external_data_is_written_to_disk_and_proved_there(tmp_path: Path, name: Name) -> None:
    nodes = "a = MatMul(x, v) e = Exp(k) b = MatMul(a, w) c = Add(b, e) y = Add(c, k)"
    weights = {"v": W * 0.3, "w": W * 0.2, "k": W[0]}
    onnx.save(
        given(parse(MLP[: MLP.index("{")] + "{" + nodes + "}"), **weights),
        tmp_path / "m.onnx",
        save_as_external_data=True,
        location="m.data",
        size_threshold=0,
    )
    done = onnxfuse.optimize(tmp_path / "m.onnx", tmp_path / "out.onnx", precision=name, fold_limit=0)
    assert done.report.validation.verdict == "equal"
    half = {w for w in "vw" if Precision(name).dtype == tensors_of(tmp_path / "out.onnx")[w].data_type}
    assert half == {"v", "w"}
    places = {e.value for t in tensors_of(tmp_path / "out.onnx").values() for e in t.external_data[:1]}
    assert places == {"out.onnx.data"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.data", "m.onnx", "out.onnx", "out.onnx.data"]
    (tmp_path / "m.data").unlink()
    onnx.load(tmp_path / "out.onnx")


def tensors_of(path: Path) -> dict[str, TensorProto]:
    return {t.name: t for t in onnx.load(path, load_external_data=False).graph.initializer}
