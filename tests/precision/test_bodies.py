"""Bodies of Loop and Scan in half precision: what is carried has one type all the way."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxfuse.model.op_traits import CONTROL_FLOW
from onnxfuse.model.walk import attribute_graphs, nodes
from onnxfuse.precision import bodies
from onnxfuse.precision.convert import Converted, convert
from onnxfuse.precision.wanted import Name, Precision
from onnxfuse.proof.bfloat16 import emulated
from onnxfuse.runtime.quiet import Session

from .models import parse

HALF = int(TensorProto.FLOAT16)
W = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32) * 0.4
FEEDS = {
    "x": np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32),
    "xs": np.random.default_rng(2).standard_normal((5, 3, 4)).astype(np.float32),
    "k": np.array(3),
    "c": np.array(True),
}
INPUTS = "float[n, 4] x, float[t, n, 4] xs, int64 k, bool c"

DECODER = """a = MatMul(x, w)
    state, none, tokens = Loop(k, c, a, a) <body = step (int64 i, bool go, float[n, 4] v, float[n, 4] u) =>
        (bool more, float[n, 4] next, float[n, 4] kept, float[n, 4] token) {
            more = Identity(go) p = MatMul(v, w) q = Add(p, u) next = Tanh(q) kept = Identity(u) token = MatMul(next, w)
        }>
    y = MatMul(state, w)"""
"""What it carries last nobody reads."""
RNN = """zero = Constant<value = float[1, 4] {0, 0, 0, 0}>() h0 = Mul(x, zero)
    state, y = Scan(h0, xs) <num_scan_inputs = 1, body = step (float[n, 4] h, float[n, 4] e) =>
        (float[n, 4] next, float[n, 4] out) { p = MatMul(h, w) q = MatMul(e, w) r = Add(p, q) next = Tanh(r)
            out = Identity(next) }>"""
BACKWARDS = RNN.replace("<num", "<scan_input_directions = [1], scan_output_directions = [1], num")
NESTED = """y = Loop(k, c, x) <body = outer (int64 i, bool go, float[n, 4] v) => (bool more, float[n, 4] r) {
        more = Identity(go) a = MatMul(v, w)
        b = Loop(k, c, a) <body = inner (int64 j, bool on, float[n, 4] s) => (bool again, float[n, 4] t) {
            again = Identity(on) d = Add(s, v) e = MatMul(d, w) t = Tanh(e) }>
        r = If(go) <then_branch = p () => (float[n, 4] f) { f = Add(b, a) },
                    else_branch = q () => (float[n, 4] g) { g = MatMul(b, w) }> }>"""
CONSTANT = """one = Constant<value = float[1, 1] {0.5}>()
    l, m, y = Loop(k, c, one, x) <body = b (int64 i, bool go, float[p, q] s, float[n, 4] v) =>
        (bool more, float[1, 1] same, float[n, 4] v, float[n, 4] z) {
            more = Identity(go) same = Constant<value = float[1, 1] {2.0}>() t = Mul(v, s) z = MatMul(t, w) }>"""
"""What is carried next is a constant, and what was given."""


def model(text: str) -> onnx.ModelProto:
    stacked = "steps, " if text in (RNN, BACKWARDS, CONSTANT) else ""
    made = parse(f"g ({INPUTS}) => (float[{stacked}rows, 4] y) {{ {text} }}")
    made.graph.initializer.append(onnx.numpy_helper.from_array(W, "w"))
    return made


def same(original: onnx.ModelProto, done: Converted, name: Name = "fp16") -> None:
    onnx.checker.check_model(done.model)
    wanted, found = (Session(emulated(m), optimize=False).run(FEEDS) for m in (original, done.model))
    for a, b in zip(wanted, found, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert np.abs(a - b).max() <= Precision(name).rtol * np.abs(a).max()


def kinds(done: Converted) -> dict[str, set[int]]:
    """The op type of each node with bodies → the real types of what the bodies take and give."""
    found: dict[str, set[int]] = {}
    for node in nodes(done.model.graph):
        for _, body in attribute_graphs(node):
            said = {info.type.tensor_type.elem_type for info in (*body.input, *body.output)}
            found.setdefault(node.op_type, set()).update(said - {TensorProto.INT64, TensorProto.BOOL})
    return found


@pytest.mark.parametrize("name", ["fp16", "bf16"])
@pytest.mark.parametrize("text", [DECODER, RNN, BACKWARDS, NESTED, CONSTANT])
def test_what_is_carried_has_one_type_all_the_way(text: str, name: Name) -> None:
    original = model(text)
    done = convert(original, Precision(name))
    same(original, done, name)
    assert set.union(*kinds(done).values()) == {Precision(name).dtype}
    assert [cast for cast in done.told.inner if "bodies" in cast.reason] == []
    assert "w" not in {tensor.name for tensor in done.model.graph.initializer}, "converted once, for all bodies"


@pytest.mark.parametrize("text", [DECODER, RNN])
def test_a_node_that_stays_in_float32_carries_float32_and_computes_products_in_half(text: str) -> None:
    original = model(text)
    at = next(i for i, node in enumerate(original.graph.node) if node.op_type in ("Loop", "Scan"))
    done = convert(original, Precision("mixed"), kept=range(at, at + 1))
    same(original, done)
    assert set.union(*kinds(done).values()) == {TensorProto.FLOAT}


@pytest.mark.parametrize(("which", "there"), [({"Loop"}, {HALF}), ({"If", "Scan"}, {1})])
def test_only_the_bodies_that_are_asked_for_are_converted(which: set[str], there: set[int]) -> None:
    original = model(DECODER)
    done = convert(original, Precision("fp16"), bodies=which)
    same(original, done)
    assert kinds(done)["Loop"] == there


def test_a_body_in_one_that_stays_float32_does_so_too() -> None:
    original = model(NESTED)
    done = convert(original, Precision("fp16"), bodies={"If"})
    same(original, done)
    assert kinds(done) == {"Loop": {1}, "If": {1}}


def test_a_body_that_stays_float32_in_one_that_does_not_reads_float32() -> None:
    original = model(NESTED)
    done = convert(original, Precision("fp16"), bodies={"Loop"})
    same(original, done)
    assert kinds(done)["If"] == {1}
    assert HALF in kinds(done)["Loop"]


def test_what_carries_no_tensors_stays_as_it_is() -> None:
    text = """none = SequenceEmpty<dtype = 1>()
    all = Loop(k, c, none) <body = b (int64 i, bool go, seq(float[n, 4]) s) => (bool more, seq(float[n, 4]) z) {
        more = Identity(go) d = MatMul(x, w) z = SequenceInsert(s, d) }>
    y = ConcatFromSequence<axis = 0>(all)"""
    original = model(text)
    loop = next(node for node in original.graph.node if node.op_type == "Loop")
    assert not bodies.converts(loop, 17, CONTROL_FLOW)
    same(original, convert(original, Precision("fp16")))


def test_a_scan_of_batches_stays_as_it_is() -> None:
    (scan,) = (node for node in model(RNN).graph.node if node.op_type == "Scan")
    assert bodies.converts(scan, 9, CONTROL_FLOW)
    assert not bodies.converts(scan, 8, CONTROL_FLOW)
    own = onnx.NodeProto.FromString(scan.SerializeToString())
    own.domain = "own"
    assert not bodies.converts(own, 9, CONTROL_FLOW)


def test_results_that_nodes_do_not_make_are_made() -> None:
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Neg", ["v"], ["n"]), helper.make_node("Constant", [], ["k"], value_float=1.0)],
        "body",
        [value("v", TensorProto.FLOAT, [2])],
        [value(name, TensorProto.FLOAT, None) for name in ("n", "k", "v", "outer", "outer")],
    )
    made = bodies.apart(body, {"v"})
    assert list(made.values()) == ["k", "outer", "outer"]
    assert [info.name for info in body.output] == ["n", *list(made)[:1], "v", *list(made)[1:]]
    assert len(body.node) == 5
