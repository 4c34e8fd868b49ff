"""Which nodes are launches, and what keeps one out of regions."""

from __future__ import annotations

import pytest

from onnxfuse.language.catalogue import load
from onnxfuse.lifting.lifted import Lifted
from onnxfuse.regions.reading import read

from .written import calls, fused, model, scope


def kinds(text: str) -> dict[str, str]:
    return {launch.node.op_type: launch.kind for launch in scope(text).launches}


def test_views_constants_and_shapes_are_no_launches() -> None:
    text = """g (float[N,6] x) => (float[6,N] y) {
        s = Shape(x) one = Constant<value = int64[1] {0}>() n = Gather(s, one) six = Constant<value = int64[1] {6}>()
        t = Concat<axis = 0>(six, n) r = Reshape(x, t) y = Exp(r) }"""
    found = scope(text)
    assert [launch.node.op_type for launch in found.launches] == ["Exp"]
    assert {"s", "n", "t"} <= found.hosted.keys()


def test_products_are_fixed_and_what_is_elementwise_is_not() -> None:
    text = "g (float[N,6] x, float[6,6] w) => (float[N,6] y) { a = Relu(x) b = MatMul(a, w) y = Neg(b) }"
    assert kinds(text) == {"Relu": "pointwise", "MatMul": "product", "Neg": "pointwise"}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("y = CumSum(x, axis)", "CumSum neither computes elements nor moves them, nor reduces rows"),
        ("r = RandomNormalLike(x) y = Add(x, r)", "it does more than compute its outputs"),
        ("d = Cast<to = 11>(x) y = Cast<to = 1>(d)", "d is float64, which no kernel takes"),
    ],
)
def test_what_is_fixed_says_why(line: str, reason: str) -> None:
    text = f"g (float[N,6] x) => (float[N,6] y) {{ axis = Constant<value = int64 {{1}}>() {line} }}"
    assert reason in [launch.reason for launch in scope(text).launches]


@pytest.mark.parametrize(("opset", "kind"), [(14, "fixed"), (15, "pointwise")])
def test_before_opset_15_real_numbers_of_integers_are_made_outside(opset: int, kind: str) -> None:
    """A body could not say that they are of the type of its inputs, whatever that becomes."""
    text = "g (int64[N,6] x, float[N,6] z) => (float[N,6] y) { a = Cast<to = 1>(x) y = Mul(a, z) }"
    view = Lifted.of(model(text, opset), None, load()).views[0]
    assert [launch.kind for launch in read(view, view, {}).launches] == [kind, "pointwise"]


def test_a_bound_that_depends_on_the_data_keeps_a_slice_out() -> None:
    text = """g (float[N,6] x, int64[1] stop) => (float[M,6] y) {
        start = Constant<value = int64[1] {0}>() y = Slice(x, start, stop) }"""
    (launch,) = scope(text).launches
    assert launch.kind == "fixed"
    assert launch.reason


def test_what_a_slice_reads_is_what_it_gives() -> None:
    text = """g (float[64,8] x) => (float[2,8] y) {
        a = Constant<value = int64[1] {0}>() b = Constant<value = int64[1] {2}>() y = Slice(x, a, b) }"""
    (launch,) = scope(text).launches
    assert launch.reads == {"x": 64}


def test_outputs_must_exist_and_so_must_what_is_asked_for_its_shape_outside() -> None:
    text = """g (float[N,6] x, float[6,6] w) => (float[M] y) {
        a = Relu(x) b = Exp(a) s = Shape(b) m = MatMul(b, w) f = Reshape(m, s) one = Constant<value = int64[1] {-1}>()
        y = Reshape(f, one) }"""
    assert scope(text).needed >= {"m"}


def test_of_a_training_step_the_nodes_that_the_loss_waits_for_are_known() -> None:
    text = """g (float[6,8] x) => (float loss, float[6,8] dx)
    { a = Mul(x, x) loss = ReduceSum<keepdims = 0>(a) dx = Add(x, x) }"""
    assert scope(text).forward == {0, 1}
    assert scope(text.replace("float loss", "float[6,8] a")).forward == frozenset()


@pytest.mark.parametrize(
    ("line", "axes"),
    [
        ("y = Softmax<axis = 1>(x)", (1, 1)),
        ("y = LogSoftmax(x)", (2, 2)),
        ("y = LayerNormalization<axis = 1>(x, w)", (1, 2)),
        ("y = Exp(x)", None),
        ("r = ReduceMax<keepdims = 0>(x) y = Sub(x, r)", None),
    ],
)
def test_the_axes_of_what_reduces_rows_by_itself(line: str, axes: tuple[int, int] | None) -> None:
    launches = scope(f"g (float[N,5,6] x, float[5,6] w) => (float[N,5,6] y) {{ {line} }}").launches
    assert launches[0].axes == axes


def test_the_nodes_of_a_body_and_of_the_views_before_it() -> None:
    text = """g (float[4,6] x) => (float[24] y) {
        h = Constant<value = float {0.5}>() s = Constant<value = int64[1] {24}>()
        a = Neg(x) r = Reshape(a, s) y = Mul(r, h) }"""
    first, last = scope(text).launches
    assert (first.nodes, last.nodes) == (1, 2 + 2)
    assert set(last.operands) == {"r"}


def test_what_onnxruntime_alone_has_in_the_standards_domain_is_in_no_body() -> None:
    """Its own optimizer writes LayerNormalization into files of opset 13; in a function it crashes on that."""
    text = """g (float[N,5,6] x, float[6] w) => (float[N,6,5] y) {
        n = LayerNormalization(x, w, w) t = Transpose<perm = [0, 2, 1]>(n) y = Neg(t) }"""
    older, newer = (
        read(view, view, {}) for view in (Lifted.of(model(text, n), None, load()).views[0] for n in (13, 17))
    )
    assert [launch.kind for launch in newer.launches] == ["rows", "pointwise", "pointwise"]
    assert [launch.kind for launch in older.launches] == ["fixed", "pointwise", "pointwise"]
    assert older.launches[0].reason.startswith("LayerNormalization is onnxruntime's own at this opset")
    assert calls(fused(text, 13).model) == ["LayerNormalization", "Region"]
