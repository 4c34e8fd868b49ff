"""What the rewriter writes: names keep their element types, and nothing is computed twice."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

from onnxfuse.fusing import fuse as fusing
from onnxfuse.fusing.fuse import fuse
from onnxfuse.fusing.fused import Fused
from onnxfuse.fusing.source import Source
from onnxfuse.language import catalogue
from onnxfuse.model.walk import nodes_of
from onnxfuse.targets.target import Target
from tests.spellings.mutants import feeds, run
from tests.whole.test_fusion import HEAD, assert_same_numbers, model, ops

CATALOGUE = catalogue.load()


def test_a_name_keeps_its_element_type_where_a_fused_op_of_several_outputs_gives_another() -> None:
    """Normalized in float32, but all that is read of it is float16."""
    before = parser.parse_model(
        HEAD.format("")
        + """g (float16[2, 3, 8] a, float16[2, 3, 8] b) => (float16[2, 3, 8] total, float16[2, 3, 8] y)
        <float epsilon = {0.00001}, float two = {2}, float16[8] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[2, 3, 8] n> {
            total = Add (a, b)
            x = Cast <to = 1> (total)
            square = Pow (x, two)
            mean = ReduceMean <axes = [-1]> (square)
            shifted = Add (mean, epsilon)
            root = Sqrt (shifted)
            n = Div (x, root)
            half = Cast <to = 10> (n)
            y = Add (w, half)
        }"""
    )
    onnx.checker.check_model(before, full_check=True)
    after = fuse(before, CATALOGUE).model
    onnx.checker.check_model(after, full_check=True)
    assert "onnxfuse.SkipSimplifiedLayerNormalization" in ops(after.graph)
    declared = {info.name: info.type.tensor_type.elem_type for info in after.graph.value_info}
    assert declared["n"] == onnx.TensorProto.FLOAT
    assert run(_returning(after, "n"), feeds(before))[-1].dtype == np.float32
    inputs = feeds(before)
    for got, want in zip(run(after, inputs), run(before, inputs), strict=True):
        assert abs(got.astype(float) - want.astype(float)).max() <= 4e-3 * abs(want.astype(float)).max()


def _returning(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """A copy of which a value is the last output, of whatever type a runtime gives it."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.graph.output.add(name=name)
    return copy


def test_copies_of_a_node_are_one_use_of_what_they_read() -> None:
    """The sum within is closed for both of its users or for none; here one of them reads a copy of it."""
    before = model(
        """g (float[N, 4] x, float[4, 4] w) => (float[N, 4] y)
        <float[4] bias = {1, 2, 3, 4}, float k = {0.044715}, float c = {0.7978845608}, float half = {0.5},
        float one = {1}, float three = {3}> {
            p = MatMul (x, w)
            l = Add (p, bias)
            again = Add (p, bias)
            cube = Pow (again, three)
            small = Mul (cube, k)
            inner = Add (l, small)
            scaled = Mul (inner, c)
            t = Tanh (scaled)
            s = Add (t, one)
            twice = Add (p, bias)
            h = Mul (twice, half)
            y = Mul (h, s)
        }"""
    )
    assert ops(fuse(before, CATALOGUE).model.graph) == ["onnxfuse.FusedMatMul"]


def test_a_fused_value_and_a_no_op_of_it_are_computed_once() -> None:
    before = model(
        """g (float[N, 2, 5, 4] q, float[N, 2, 7, 4] k, float[N, 2, 7, 4] v) => (float[N, 5, 8] y, int64[4] sizes)
        <float zero = {0}, int64[3] shape = {0, 5, 8}> {
            kt = Transpose <perm = [0, 1, 3, 2]> (k)
            scores = MatMul (q, kt)
            p = Softmax <axis = -1> (scores)
            context = MatMul (p, v)
            same = Add (context, zero)
            sizes = Shape (context)
            rows = Transpose <perm = [0, 2, 1, 3]> (same)
            y = Reshape (rows, shape)
        }"""
    )
    after = fuse(before, CATALOGUE).model
    assert Counter(ops(after.graph))["onnxfuse.Attention"] == 1
    assert Counter(ops(after.graph))["MatMul"] == 0


def test_causal_attention_over_positions_is_not_attention_over_groups_of_heads() -> None:
    before = parser.parse_model(
        HEAD.format("").replace("17", "23")
        + """g (float[2, 3, 4, 8] q, float[2, 3, 6, 8] k, float[2, 3, 6, 8] v) => (float[2, 3, 4, 8] y)
        { y = Attention <is_causal = 1> (q, k, v) }"""
    )
    assert ops(fuse(before, CATALOGUE).model.graph) == ["Attention"]


def test_outputs_of_a_node_that_no_rule_made() -> None:
    """The normal form of Attention has one output; this one has four, and a view behind it."""
    before = parser.parse_model(
        HEAD.format("").replace("17", "23")
        + """g (float[2, 3, 4, 8] q, float[2, 3, 6, 8] k, float[2, 3, 6, 8] v)
        => (float[2, 3, 4, 8] y, float[2, 3, 4, 6] scores) { y = Attention (q, k, v) }"""
    )
    before.graph.node[0].output.extend(["", "", "scores"])
    after = fuse(before, CATALOGUE).model
    assert list(after.graph.node) == list(before.graph.node)


def test_a_declaration_of_another_rank_than_its_value_does_not_stay() -> None:
    """No checker sees through a Reshape of the axes; it does once they are a constant."""
    before = model(
        """g (float[N, 3, 4, 4] x, float[3, 5] w) => (float[N, 5] y)
        <int64[2] pair = {2, 3}, int64[1] flat = {-1}, int64[2] rows = {-1, 3}, float[N, 3, 1, 1] total> {
            axes = Reshape (pair, flat)  r = Relu (x)
            total = ReduceSum <keepdims = 0> (r, axes)
            view = Reshape (total, rows)
            y = MatMul (view, w)
        }"""
    )
    after = fuse(before, CATALOGUE).model
    onnx.checker.check_model(after, full_check=True)
    assert np.array_equal(run(after, feeds(before))[0], run(before, feeds(before))[0])


def test_normalizations_that_share_their_statistics_are_both_fused() -> None:
    """As in models whose attention and MLP stand side by side; a third user of the mean would have it exposed."""
    text = """g (float[N, 3, 8] x, float[8] s, float[8] t, float[8] b) => ({outputs})
        <float two = {{2}}, float epsilon = {{0.00001}}> {{
            mean = ReduceMean <axes = [-1]> (x)  d = Sub (x, mean)  square = Pow (d, two)
            variance = ReduceMean <axes = [-1]> (square)  shifted = Add (variance, epsilon)  root = Sqrt (shifted)
            n = Div (d, root)  first = Mul (n, s)  y = Add (first, b)  second = Mul (n, t)  z = Add (second, b)
            {further}
        }}"""
    both = "float[N, 3, 8] y, float[N, 3, 8] z"
    for outputs, further in ((both, ""), (both + ", float[N, 3, 1] m", "m = Neg (mean)")):
        before = model(text.format(outputs=outputs, further=further))
        after = fuse(before, CATALOGUE).model
        onnx.checker.check_model(after, full_check=True)
        found = ops(after.graph)
        assert further or found == ["onnxfuse.LayerNormalization", "onnxfuse.LayerNormalization"]
        assert "ReduceMean" not in found
        inputs = feeds(before)
        for got, want in zip(run(after, inputs), run(before, inputs), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_a_reduction_is_written_without_the_dims_that_nothing_wants() -> None:
    """The normal form keeps dims of 1 and drops them behind the op; a node may drop them itself."""
    before = model(
        """g (float[N, 4, 6] x) => (float[N, 6] y, float[N, 4, 1] z)
        <int64[1] second = {1}, int64[1] last = {2}> {
            square = Mul (x, x)
            total = ReduceSum <keepdims = 0> (square, second)
            y = Sqrt (total)
            absolute = Abs (x)
            z = ReduceSum (absolute, last)
        }""",
    )
    after = fuse(before, CATALOGUE).model
    assert sorted(ops(after.graph)) == ["ReduceL1", "ReduceL2"]
    onnx.checker.check_model(after, full_check=True)
    inputs = feeds(before)
    for got, want in zip(run(after, inputs), run(before, inputs), strict=True):
        assert np.allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("op", ["ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"])
def test_a_reduction_that_is_there_is_left_as_it_is(op: str) -> None:
    """The normal form takes it apart."""
    before = model(f"g (float[N, 4, 6] x) => (float[N, 4, 6] z) {{ y = {op} <axes = [-1]> (x)  z = Mul (x, y) }}")
    after = fuse(before, CATALOGUE)
    assert after.sites == []
    assert list(after.model.graph.node) == list(before.graph.node)


def test_dims_that_something_else_wants_are_kept() -> None:
    before = model(
        """g (float[N, 4, 6] x) => (float[N, 6] y, float[N, 1, 6] z)
        <int64[1] second = {1}> {
            absolute = Abs (x)
            y = ReduceSum <keepdims = 0> (absolute, second)
            kept = ReduceSum (absolute, second)
            z = Exp (kept)
        }""",
    )
    after = fuse(before, CATALOGUE).model
    assert sum(op.startswith("Reduce") for op in ops(after.graph)) == 1
    inputs = feeds(before)
    for got, want in zip(run(after, inputs), run(before, inputs), strict=True):
        assert np.allclose(got, want, rtol=1e-5)


def test_a_branch_reads_what_an_if_is_kept_for_under_another_name() -> None:
    """The Expand widens nothing, so that y is what the If gives; the Transpose moves nothing, so that t is f."""
    before = model(
        """g (float[b, s, 4, 6] x) => (float[?, ?] y) <float zero = {0}, int64[2] ones = {1, 1}> {
            f = Flatten <axis = 1> (x)  t = Transpose <perm = [0, 1]> (f)  l = LogSoftmax <axis = 1> (f)
            r = ReduceSum <keepdims = 0> (t)  c = Greater (r, zero)
            v = If (c) <then_branch = p () => (float[?, ?] u) { s = Sigmoid (l)  u = Mul (l, s) },
                        else_branch = q () => (float[?, ?] w) { w = Identity (t) }>
            y = Expand (v, ones)
        }"""
    )
    onnx.checker.check_model(before, full_check=True)
    onnx.checker.check_model(fuse(before, CATALOGUE).model, full_check=True)


def test_what_is_read_in_float32_is_not_computed_in_half() -> None:
    """The result of attention is cast to half, its scores are not."""
    before = model(
        """g (float[1, 2, 4, 8] x) => (float16[1, 2, 4, 8] y, float[1, 2, 4, 4] z) {
            t = Transpose <perm = [0, 1, 3, 2]> (x)  s = MatMul (x, t)  w = Softmax <axis = -1> (s)
            m = MatMul (w, x)  y = Cast <to = 10> (m)  z = Sin (s)
        }"""
    )
    after = fuse(before, CATALOGUE).model
    inputs = feeds(before)
    for got, want, most in zip(run(after, inputs), run(before, inputs), (4e-3, 1e-5), strict=True):
        assert abs(got.astype(float) - want.astype(float)).max() <= most * abs(want.astype(float)).max()


@pytest.mark.parametrize("target", ["onnxfuse", "onnx", "ort"])
@pytest.mark.parametrize("given", ["float", "float16"])
def test_what_is_rounded_last_is_not_rounded_first(given: str, target: str) -> None:
    """A norm of float32 that is read in half is not one of inputs in half; one of inputs in half is."""
    widened = (
        "a = Cast <to = 1> (x)  b = Cast <to = 1> (r)" if given == "float16" else "a = Identity(x)  b = Identity(r)"
    )
    before = model(
        f"""g ({given}[3, 4] x, {given}[3, 4] r) => (float16[3, 4] y) <float[4] w = {{1, 2, 3, 4}}> {{
            {widened}  s = Add (a, b)  n = LayerNormalization (s, w)  y = Cast <to = 10> (n)
        }}"""
    )
    after = fuse(before, CATALOGUE.serving(Target(target))).model
    casts = sum(node.op_type == "Cast" for node in after.graph.node)
    assert given == "float" or target != "onnxfuse" or not casts
    inputs = {name: 100 * value for name, value in feeds(before).items()}
    (got,), (want,) = run(after, inputs), run(before, inputs)
    np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=2.0**-9)


@pytest.mark.parametrize("target", ["onnxfuse", "onnx", "ort"])
def test_a_folded_sum_that_is_read_in_half_as_well_is_not_computed_in_half(target: str) -> None:
    before = model(
        """g (float[3, 4] x) => (float[3, 2] z, float16[3, 2] y)
        <float[4, 2] w = {1, 2, 3, 4, 5, 6, 7, 8}, float[2] c = {0.3, 0.7}, float[2] s = {0.1, 0.9}> {
            p = MatMul (x, w)  a = Add (p, c)  m = Mul (a, s)
            h = Cast <to = 10> (m)  z = Cast <to = 1> (m)  y = Ceil (h)
        }"""
    )
    after = fuse(before, CATALOGUE.serving(Target(target))).model
    assert len(after.graph.node) < len(before.graph.node)
    inputs = feeds(before)
    np.testing.assert_allclose(run(after, inputs)[0], run(before, inputs)[0], rtol=1e-5)


def test_a_product_of_several_whose_type_is_not_told_is_written_as_products_of_two() -> None:
    """onnx knows no type of what a local function gives in which com.microsoft's Gelu stands, as on the second pass."""
    text = """<ir_version: 8, opset_import: ["" : 13, "own" : 1]> g (float x, bool t) => (float o) {
        v = own.F(x)
        o = If<then_branch = a () => (float y) { s = Sin(v) q = Mul(v, v) c = Mul(v, q) y = Add(v, c) },
               else_branch = e () => (float n) { n = Neg(x) }>(t) }
        <domain: "own", opset_import: ["" : 13]> F (a) => (b) {
            r = Constant<value = float {1.4142135}>() h = Constant<value = float {0.5}>()
            u = Constant<value = float {1.0}>() d = Div(a, r) e = Erf(d) f = Add(e, u) g = Mul(a, f) b = Mul(g, h) }"""
    fused = fuse(parser.parse_model(text), catalogue.load().serving(Target("ort"))).model
    assert [len(node.input) for node in nodes_of(fused) if node.op_type == "Mul"] == [2, 2]
    onnx.checker.check_model(fused)


def test_what_nothing_reads_goes_though_every_node_stays() -> None:
    """Nothing is written, and so nothing drafted; what stands around the nodes is put in order all the same."""
    before = model(
        """g (float[2, 3] x) => (float[2, 3] y)
        <float[3] w = {1, 2, 3}, float[3] unread = {4, 5, 6}, float[2, 3] a> { a = Tanh (x)  y = Max (a, w) }"""
    )
    info = before.graph.value_info.add(name="nowhere")
    info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    after = fuse(before, CATALOGUE).model
    assert list(after.graph.node) == list(before.graph.node)
    assert [tensor.name for tensor in after.graph.initializer] == ["w"]
    assert [info.name for info in after.graph.value_info] == ["a"]


def test_nodes_that_compute_the_same_are_one_though_no_other_is_touched() -> None:
    before = model(
        """g (float[2, 3] x) => (float[2, 3] y) {
            a = Tanh (x)  b = Tanh (x)  c = Sin (a)  d = Erf (b)  y = Max (c, d)
        }"""
    )
    assert ops(fuse(before, CATALOGUE).model.graph) == ["Tanh", "Sin", "Erf", "Max"]


def test_what_follows_a_value_is_not_what_that_is_made_of() -> None:
    """The sum is written anew from what its views see; what comes of it later is no reason to forget what it needs."""
    before = model(
        """g (float[2, 20, 32] x, float[32, 32] v, float[32] b, float[4, 2, 20, 8] u)
        => (float[2, 20, 32] y) <int64[4] heads = {2, 20, 4, 8}, int64[3] merged = {8, 20, 8},
         int64[4] apart = {4, 2, 20, 8}, int64[3] whole = {2, 20, 32}> {
            xv = MatMul (x, v)
            sv = Add (xv, b)
            rv = Relu (sv)
            v4 = Reshape (rv, heads)
            vt = Transpose <perm = [2, 0, 1, 3]> (v4)
            v8 = Reshape (vt, merged)
            uw = Softmax (u)
            w8 = Reshape (uw, merged)
            z = Add (v8, w8)
            split = Reshape (z, apart)
            back = Transpose <perm = [1, 2, 0, 3]> (split)
            y = Reshape (back, whole)
        }"""
    )
    fused = fuse(before, CATALOGUE)
    assert_same_numbers(before, fused.model)
    assert [node.input[0] for node in fused.model.graph.node if node.output[0] == "uw"] == ["u"]
    made = [node.name for node in fused.model.graph.node if node.domain == "onnxfuse"]
    assert made == [site.node.name for site in fused.sites] != []


def test_the_numbers_of_a_product_are_stored_in_its_constant(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a product of two constants they would be what a further pass stores."""
    before = model(
        """g (float[B, 4] x) => (float[B, 4] y, float[B, 4] z)
        <float[4] v = {1, 2, 3, 4}, float[4] w = {5, 6, 7, 8}> {
            a = Neg (x)
            b = Mul (a, v)
            c = Neg (b)
            d = Mul (c, w)
            y = Sin (d)
            z = Cos (a)
        }"""
    )
    passes: list[int] = []
    once = fusing._fuse

    def counted(*given: Any) -> Fused:
        passes.append(1)
        return once(*given)

    monkeypatch.setattr(fusing, "_fuse", counted)
    after = fuse(before, CATALOGUE).model
    assert ops(after.graph) == ["Neg", "Mul", "Sin", "Cos"]
    (stored,) = after.graph.initializer
    assert numpy_helper.to_array(stored).tolist() == [-5, -12, -21, -32]
    assert len(passes) == 2, "the second finds nothing"
    assert_same_numbers(before, after)


def test_scales_of_a_resize_stay_float32_beside_half_precision() -> None:
    before = parser.parse_model(
        HEAD.format("")
        + """g (float16[1, 2, 3, 3] x) => (float16[1, 2, 6, 6] y)
        <float16 one = {15360}, float[4] scales = {1, 1, 2, 2}> {
            same = Div (x, one)
            y = Resize <mode = "nearest"> (same, , scales)
        }"""
    )
    onnx.checker.check_model(before, full_check=True)
    after = fuse(before, CATALOGUE).model
    onnx.checker.check_model(after, full_check=True)
    assert ops(after.graph) == ["Resize"]
    x = np.arange(18, dtype=np.float16).reshape(1, 2, 3, 3)
    assert_same_numbers(before, after, x=x)


@pytest.mark.parametrize("target", ["onnxfuse", "ort"])
def test_a_chain_of_any_length_is_written(target: str) -> None:
    """Each layer is scaled before it is added, as LayerScale has it: what is written of it is new throughout."""
    rng, layers, text = np.random.default_rng(0), 260, ""
    for i in range(layers):
        text += (
            f"m{i} = MatMul (x{i}, w{i}) a{i} = Add (m{i}, b{i}) s{i} = Mul (a{i}, g{i}) x{i + 1} = Add (x{i}, s{i})\n"
        )
    given = parser.parse_model(f"{HEAD.format('')} g (float[n,8] x0) => (float[n,8] x{layers}) {{ {text} }}")
    for i in range(layers):
        for name, dims in (("w", (8, 8)), ("b", (8,)), ("g", (8,))):
            weight = rng.normal(scale=0.1, size=dims).astype(np.float32)
            given.graph.initializer.append(numpy_helper.from_array(weight, f"{name}{i}"))
    build = catalogue.load().serving(Target(target))
    fused = fuse(Source(given, None, build, repeats=False), build).model
    assert len(fused.graph.node) <= 3 * layers
    assert_same_numbers(given, fused, x0=rng.normal(size=(3, 8)).astype(np.float32))
