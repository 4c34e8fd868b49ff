"""One product and all that is elementwise behind it, beside onnxruntime."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from onnx import NodeProto

from onnxfuse.errors import KernelError
from onnxfuse.kernels import of_region as kernel
from onnxfuse.kernels.device.device import Buffer, TensorType
from onnxfuse.kernels.device.recorder import ADDRESS, Recorder
from onnxfuse.kernels.emulator.device import Emulated
from onnxfuse.kernels.gemm import epilogue
from onnxfuse.kernels.gemm.autotune import VARIABLE
from onnxfuse.kernels.gemm.reduced import is_reduced, reduced
from onnxfuse.kernels.gemm.region import AFTER, planned_types
from onnxfuse.kernels.rows.region import planned
from onnxfuse.model.op_traits import MATRIX_PRODUCTS
from tests.kernels.gemm import test_reduced
from tests.kernels.rows import test_fused, test_several
from tests.region_runs import Case, at_odd_addresses, computed, function, launches

CASES: dict[str, Case] = {
    "any expression of it, with further operands": (
        "(a, b, z) => (y) { p = MatMul(a, b) s = Sigmoid(p) m = Mul(p, s) y = Mul(m, z) }",
        [(3, 5, 16), (16, 24), (3, 5, 24)],
    ),
    "its heads apart": (
        "(a, b, c) => (y) { p = MatMul(a, b) s = Add(p, c) n = Constant<value = int64[4] {2, 5, 3, 8}>() "
        "r = Reshape(s, n) y = Transpose<perm = [0, 2, 1, 3]>(r) }",
        [(2, 5, 16), (16, 24), (24,)],
    ),
    "what rows share is computed, of neighbours that begin anywhere": (
        "(a, b, c, d) => (y) { p = MatMul(a, b) n = Constant<value = int64[4] {2, 5, 4, 6}>() r = Reshape(p, n) "
        "e = Exp(c) s = Add(r, e) t = Tanh(d) y = Mul(s, t) }",
        [(2, 5, 16), (16, 24), (6,), (4, 6)],
    ),
    "turned as a whole, and itself": (
        "(a, b) => (p, y) { p = MatMul(a, b) e = Exp(p) y = Transpose<perm = [0, 2, 1]>(e) }",
        [(2, 5, 7), (7, 9)],
    ),
    "weights turned": (
        "(a, b) => (y) { w = Transpose(b) p = MatMul(a, w) y = Tanh(p) }",
        [(17, 33), (21, 33)],
    ),
    "a Gemm with what it adds": (
        "(a, b, c) => (y) { p = Gemm<alpha = 0.5, beta = 2.0, transB = 1>(a, b, c) y = Relu(p) }",
        [(6, 10), (12, 10), (6, 1)],
    ),
    "a batch of products": (
        "(a, b, z) => (y) { p = MatMul(a, b) y = Add(p, z) }",
        [(2, 3, 5, 8), (3, 8, 6), (2, 1, 5, 6)],
    ),
    "an empty sum": (
        "(z, a, b) => (y) { p = MatMul(a, b) s = Add(p, z) y = Exp(s) }",
        [(3, 8), (3, 0), (0, 8)],
    ),
    "of several strides": ("(a, b) => (y) { p = MatMul(a, b) y = Neg(p) }", [(2, 3, 5, 8), (2, 1, 8, 6)]),
    "few rows, whose sums are shared": (
        "(a, b, z) => (y) { p = MatMul(a, b) y = Sub(z, p) }",
        [(3, 2048), (2048, 40), (1, 40)],
    ),
    "numbers of the operands' type": (
        "(a, b) => (y) { p = MatMul(a, b) h = Constant<value = float {0.5}>() c = CastLike(h, a) y = Mul(p, c) }",
        [(3, 5, 16), (16, 24)],
    ),
    "a matrix seen as another": (
        "(a, b) => (y) { n = Constant<value = int64[2] {10, 24}>() f = Reshape(a, n) p = MatMul(f, b) "
        "h = Constant<value = int64[3] {2, 5, 7}>() r = Reshape(p, h) y = Softplus(r) }",
        [(2, 5, 4, 6), (24, 7)],
    ),
}


HALF = ("its heads apart", "few rows, whose sums are shared", "turned as a whole, and itself")


@pytest.mark.parametrize("name", CASES)
def test_it_computes_what_its_nodes_do(name: str) -> None:
    for found, wanted in zip(*computed(CASES[name]), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=5e-5)


@pytest.mark.parametrize("name", HALF)
def test_half_precision_is_rounded_once(name: str) -> None:
    for found, wanted in zip(*computed(CASES[name], np.float16), strict=True):
        assert found.dtype == np.float16
        np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("name", ["its heads apart", "a batch of products", "of several strides"])
def test_the_vendors_product_and_a_pass_over_it_is_the_other_form(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "vendor")
    made = launches(monkeypatch)
    for found, wanted in zip(*computed(CASES[name]), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=5e-5)
    assert [one.entry for one in made] == [AFTER]


def test_sums_are_shared_where_there_are_few_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "tiled")
    body, recorder = function(CASES["few rows, whose sums are shared"][0]), Recorder(132)
    made, types = kernel(body, ["float32"] * 3, ["float32"])({}), [(3, 2048), (2048, 40), (1, 40)]
    arrays = [Buffer(ADDRESS, shape, np.dtype(np.float32)) for shape in types]
    made.launch(recorder, arrays, [Buffer(ADDRESS, (3, 40), np.dtype(np.float32))])
    assert [one.entry for one in recorder.launches] == ["partial", AFTER]
    work = made.work([TensorType(x.dtype, x.shape) for x in arrays])
    assert work.flops >= 2 * 3 * 2048 * 40
    assert work.written == 3 * 40 * 4


def test_indices_of_64_bits_are_the_same_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(epilogue, "MOST_NARROW", 1)
    for found, wanted in zip(*computed(CASES["its heads apart"]), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=5e-5)


@pytest.mark.parametrize("name", ["its heads apart", "any expression of it, with further operands"])
@pytest.mark.parametrize("form", ["tiled", "vendor"])
def test_arrays_at_odd_addresses(name: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, form)
    for found, wanted in zip(*at_odd_addresses(CASES[name]), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=5e-5)


def test_nothing_to_multiply_is_nothing_to_launch() -> None:
    body = function(CASES["any expression of it, with further operands"][0])
    made, device = kernel(body, ["float32"] * 3, ["float32"])({}), Emulated()
    arrays = [np.zeros(shape, np.float32) for shape in ((0, 5, 16), (16, 24), (0, 5, 24))]
    (type,) = made.outputs([TensorType(x.dtype, x.shape) for x in arrays])
    assert type.shape == (0, 5, 24)
    made.launch(device, arrays, [np.empty(type.shape, np.float32)])


@pytest.mark.parametrize(
    ("text", "shapes", "reason"),
    [
        ("(a, b) => (y) { p = MatMul(a, b) y = MatMul(p, b) }", [(4, 4), (4, 4)], "second product|computed"),
        ("(a, b) => (y) { e = Exp(a) y = MatMul(e, b) }", [(4, 4), (4, 4)], "computed"),
        ("(a, b) => (y) { t = Transpose(a) y = MatMul(t, b) }", [(4, 6), (4, 4)], "turned"),
        ("(a, b) => (y) { p = MatMul(a, b) t = Transpose(p) y = Add(p, t) }", [(4, 4), (4, 4)], "no one place"),
        ("(a, b) => (y) { p = MatMul(a, b) y = Concat<axis = 0>(p, a) }", [(4, 4), (4, 4)], "no one place"),
        ("(a, b, z) => (y) { p = MatMul(a, b) y = Add(p, z) }", [(4, 4), (4, 4), (3, 4, 4)], "no one place"),
    ],
)
def test_what_is_no_pass_over_a_product(text: str, shapes: list[tuple[int, ...]], reason: str) -> None:
    body = function(text)
    made = kernel(body, ["float32"] * len(shapes), ["float32"])({})
    with pytest.raises(KernelError, match=reason):
        made.outputs([TensorType(np.dtype(np.float32), shape) for shape in shapes])


BODIES: dict[str, Case] = {
    f"{room.__name__.rpartition('.')[2]}: {name}": case
    for room in (test_fused, test_reduced, test_several)
    for name, case in room.CASES.items()
} | CASES
ACROSS: dict[str, Case] = {
    "rows that lie in memory as columns": ("(x) => (y) { t = Transpose(x) y = Softmax(t) }", [(64, 48)]),
    "and are written so": ("(x) => (y) { t = Transpose(x) s = Softmax(t) y = Transpose(s) }", [(64, 48)]),
    "reduced alone": (
        "(x) => (y) { t = Transpose(x) a = Constant<value = int64[1] {1}>() y = ReduceMean(t, a) }",
        [(64, 48)],
    ),
    "beside what is not": (
        "(x, z) => (y) { t = Transpose<perm = [0, 2, 1]>(x) s = Add(t, z) y = LayerNormalization(s, z) }",
        [(2, 64, 48), (64,)],
    ),
    "read in both orders": ("(x) => (y) { t = Transpose(x) s = Softmax(t) u = Transpose(s) y = Add(u, t) }", [(8, 8)]),
}
WRONG: dict[str, Case] = {
    "an operand that is turned": ("(a, b) => (y) { t = Transpose(a) y = MatMul(t, b) }", [(4, 6), (4, 4)]),
    "a neighbour of the product": ("(a, b) => (y) { p = MatMul(a, b) y = Concat<axis = 0>(p, a) }", [(4, 4), (4, 4)]),
    "other rows": ("(x) => (y) { a = Softmax<axis = 0>(x) y = Softmax(a) }", [(8, 8)]),
    "another row's result": ("(x) => (y) { a = Softmax(x) t = Transpose(a) y = Add(a, t) }", [(8, 8)]),
    "rows behind sums of columns": (
        "(x) => (y) { c = Constant<value = int64[1] {0}>() r = Constant<value = int64[1] {1}>() "
        "s = ReduceSum<keepdims = 0>(x, c) m = ReduceMax(x, r) y = Add(s, m) }",
        [(9, 9)],
    ),
    "rows read under a condition": (
        "(x) => (y) { p = Constant<value = int64[4] {0, 1, 0, 1}>() q = Pad(x, p) y = Softmax(q) }",
        [(6, 8)],
    ),
    "a batch of products whose rows are reduced": (
        "(a, b) => (y) { p = MatMul(a, b) y = Softmax(p) }",
        [(2, 5, 8), (2, 8, 16)],
    ),
    "rows of another matrix than the product": (
        "(a, b) => (y) { p = MatMul(a, b) n = Constant<value = int64[2] {16, 5}>() r = Reshape(p, n) y = Softmax(r) }",
        [(5, 8), (8, 16)],
    ),
}
EMPTY: dict[str, Case] = {
    "no rows": ("(x) => (y) { y = Softmax(x) }", [(0, 8)]),
    "rows of nothing": ("(x) => (y) { y = ReduceSum<keepdims = 0>(x) }", [(3, 0)]),
    "no columns of a norm twice": ("(x, g) => (y) { a = Softmax(x) y = LayerNormalization(a, g) }", [(3, 0), (0,)]),
    "no rows of a product": ("(a, b) => (y) { p = MatMul(a, b) y = Softmax(p) }", [(0, 8), (8, 16)]),
}


ELEMENTWISE: dict[str, Case] = {
    "one loop": ("(x, g) => (y) { a = Mul(x, g) y = Tanh(a) }", [(4, 6), (6,)]),
    "along another axis": ("(x, g) => (y) { t = Transpose<perm = [1, 0]>(x) y = Add(t, g) }", [(32, 64), (64, 32)]),
    "two sizes": ("(x, g) => (s, y) { s = Exp(g) y = Mul(x, s) }", [(4, 6), (6,)]),
    "nothing in common": ("(x, g) => (s, y) { s = Exp(g) y = Tanh(x) }", [(4, 6), (6,)]),
    "no elements": ("(x, g) => (s, y) { s = Exp(g) y = Mul(x, s) }", [(0, 6), (6,)]),
}
UNFIT: dict[str, Case] = {
    "does not broadcast": ("(x, g) => (y) { y = Add(x, g) }", [(4, 6), (5,)]),
    "is no elementwise op": ("(x) => (y) { a = Exp(x) y = TopK(a) }", [(4, 6)]),
}


PLANNED = BODIES | ACROSS | WRONG | EMPTY | ELEMENTWISE | UNFIT


@pytest.mark.parametrize("aligned", [True, False], ids=["aligned", "anywhere"])
@pytest.mark.parametrize("name", PLANNED)
def test_what_is_told_without_code_is_what_the_code_does(name: str, aligned: bool) -> None:
    text, shapes = PLANNED[name]
    body = function(text)
    for dtype in (np.float32, np.float16):
        types = {n: TensorType(np.dtype(dtype), s) for n, s in zip(body.input, shapes, strict=True)}
        asked = list(body.node), types, list(body.output)
        told, done = outcome(planned_types, *asked), outcome(partial(written, aligned), *asked)
        assert told == done
        assert isinstance(done[0], type) == (name in WRONG | UNFIT)


def outcome(plan: Callable[..., tuple[Any, Any]], *asked: Any) -> tuple[Any, Any]:
    """What is planned; of what is refused, the kind of error and what it says."""
    try:
        return plan(*asked)
    except KernelError as error:
        return type(error), str(error)


def written(
    aligned: bool, nodes: list[NodeProto], inputs: dict[str, TensorType], outputs: list[str]
) -> tuple[tuple[TensorType, ...], int]:
    """The types and the launches of what has its code."""
    if is_reduced(nodes):
        return reduced(nodes, inputs, outputs, aligned)[0], 1
    if any(node.op_type in MATRIX_PRODUCTS for node in nodes):
        return epilogue.product(nodes, inputs, outputs, aligned).types, 1
    types, launched = planned(nodes, inputs, outputs, aligned)
    return types, sum(each.launches for each in launched)
