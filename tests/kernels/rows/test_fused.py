"""One reduction of rows with what is before it and behind it, beside onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.pointwise.expressions import carried
from onnxfuse.kernels.rows.fused import OtherRowsError, rows
from onnxfuse.kernels.rows.places import PlaceError
from tests.region_runs import computed, expected, function, given

LAST = "a = Constant<value = int64[1] {-1}>()"
CASES = {
    "the sum of exponentials": (f"(x0) => (y0) {{ {LAST} e = Exp(x0) y0 = ReduceSum<keepdims = 0>(e, a) }}", [(5, 7)]),
    "of everything": ("(x0) => (y0) { y0 = ReduceMean(x0) }", [(5, 7)]),
    "softmax from its parts": (
        f"(x0) => (y0) {{ {LAST} e = Exp(x0) s = ReduceSum(e, a) y0 = Div(e, s) }}",
        [(3, 5, 70)],
    ),
    "a norm and what is behind it": (
        "(x0, x1, x2) => (y0) { n = LayerNormalization(x0, x1, x2) y0 = Tanh(n) }",
        [(3, 5, 40), (40,), (40,)],
    ),
    "a residual sum before a norm, and both": (
        "(x0, x1, x2, x3) => (y0, y1) { y0 = Add(x0, x3) n = LayerNormalization<epsilon = 0.1>(y0, x1, x2) "
        "y1 = Transpose<perm = [0, 2, 1]>(n) }",
        [(3, 5, 40), (40,), (40,), (3, 5, 40)],
    ),
    "a norm of what is turned": (
        "(x0, x1, x2) => (y0) { t = Transpose<perm = [0, 2, 3, 1]>(x0) y0 = LayerNormalization(t, x1, x2) }",
        [(3, 40, 2, 3), (40,), (40,)],
    ),
    "heads behind a norm": (
        "(x0, x1) => (y0) { n = LayerNormalization(x0, x1) s = Constant<value = int64[4] {3, 5, 8, 5}>() "
        "r = Reshape(n, s) y0 = Transpose<perm = [0, 2, 1, 3]>(r) }",
        [(3, 5, 40), (40,)],
    ),
    "softmax of masked scores": (
        "(x0, x1) => (y0) { t = Add(x0, x1) y0 = Softmax(t) }",
        [(2, 3, 5, 9), (2, 1, 5, 9)],
    ),
    "the logarithm of softmax": ("(x0) => (y0) { t = Neg(x0) y0 = LogSoftmax(t) }", [(4, 300)]),
    "a root mean square from its parts": (
        f"(x0, x1) => (y0) {{ {LAST} s = Mul(x0, x0) m = ReduceMean(s, a) r = Sqrt(m) d = Div(x0, r) "
        "y0 = Mul(d, x1) }",
        [(2, 3, 1500), (1500,)],
    ),
    "a pool behind an activation": (
        "(x0) => (y0) { a = Constant<value = int64[2] {2, 3}>() r = Relu(x0) m = ReduceMean(r, a) y0 = Sigmoid(m) }",
        [(2, 3, 5, 9)],
    ),
    "a row's result beside its elements": (
        f"(x0) => (y0, y1) {{ {LAST} e = Exp(x0) y0 = ReduceMax(e, a) y1 = Sub(e, y0) }}",
        [(4, 33)],
    ),
    "rows that no block holds": (
        f"(x0) => (y0, y1) {{ {LAST} e = Neg(x0) y0 = ReduceMin(e, a) y1 = Sub(e, y0) }}",
        [(2, 30000)],
    ),
    "a virtual tensor": (
        f"(x0, x1) => (y0) {{ {LAST} s = Constant<value = int64[2] {{6, 9}}>() e = Expand(x0, s) t = Add(e, x1) "
        "y0 = ReduceSum<keepdims = 0>(t, a) }",
        [(6, 1), (9,)],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_computes_what_its_nodes_do(name: str) -> None:
    for found, wanted in zip(*computed(CASES[name]), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


def test_nan_goes_through_a_maximum() -> None:
    text = f"(x0) => (y0) {{ {LAST} e = Abs(x0) y0 = ReduceMax<keepdims = 0>(e, a) }}"
    (y,) = given((text, ()), [np.array([[1, np.nan, 3], [1, 2, 3]], np.float32)])
    np.testing.assert_array_equal(y, np.array([np.nan, 3], np.float32))


@pytest.mark.parametrize(
    ("text", "shapes", "reason"),
    [
        (
            f"(x) => (y) {{ {LAST} m = ReduceMax(x, a) d = Sub(x, m) y = Softmax(d) }}",
            [(3, 4)],
            "is a second reduction",
        ),
        ("(x) => (y) { a = Constant<value = int64[1] {0}>() y = ReduceMax(x, a) }", [(3, 4)], "not the last"),
        ("(x) => (y) { s = Softmax<axis = 0>(x) y = Neg(s) }", [(3, 4)], "not the last"),
    ],
)
def test_what_is_no_reduction_of_rows(text: str, shapes: list[tuple[int, ...]], reason: str) -> None:
    body = function(text)
    types = {n: TensorType(np.dtype(np.float32), s) for n, s in zip(body.input, shapes, strict=True)}
    with pytest.raises(OtherRowsError, match=reason):
        rows(list(body.node), types, list(body.output))


def test_a_neighbours_result_is_not_at_hand() -> None:
    body = function(
        """(x) => (y) { s = Softmax(x) b = Constant<value = int64[1] {0}>() c = Constant<value = int64[1] {2}>()
        one = Constant<value = int64[1] {1}>() p = Slice(s, b, c, one) y = Concat<axis = 1>(p, p) }"""
    )
    with pytest.raises(PlaceError):
        rows(list(body.node), {"x": TensorType(np.dtype(np.float32), (3, 4))}, ["y"])
    turned = function("(x, z) => (y) { s = Softmax(x) t = Transpose(s) y = Add(s, t) }")
    types = {n: TensorType(np.dtype(np.float32), (4, 4)) for n in ("x", "z")}
    with pytest.raises(PlaceError):
        rows(list(turned.node), types, ["y"])


def test_what_is_read_under_a_condition_is_no_part() -> None:
    """Its places are none where the condition fails, and what is computed of them overflows."""
    body = function("(x, z) => (y) { c = Concat<axis = 0>(x, z) y = Softmax(c) }")
    types = {n: TensorType(np.dtype(np.float32), (3, 4)) for n in ("x", "z")}
    with pytest.raises(KernelError, match="under a condition"):
        rows(list(body.node), types, ["y"])


@pytest.mark.parametrize("operand", ["s", "b"])
def test_a_norm_takes_operands_of_its_columns(operand: str) -> None:
    """A region is planned at sizes that are assumed where they are unknown, beside those that are."""
    body = function("(x, s, b) => (y) { z = Add(x, x) y = LayerNormalization(z, s, b) }")
    shapes = {"x": (12, 12), "s": (12,), "b": (12,)} | {operand: (3,)}
    types = {name: TensorType(np.dtype(np.float32), shape) for name, shape in shapes.items()}
    with pytest.raises(KernelError, match="do not broadcast"):
        rows(list(body.node), types, ["y"])
    types[operand] = TensorType(np.dtype(np.float32), (2, 12, 12))
    with pytest.raises(KernelError, match="larger operands"):
        rows(list(body.node), types, ["y"])


def test_places_that_32_bits_do_not_count_are_counted_in_64() -> None:
    """Few rows are reduced, of a matrix of more elements than that."""
    body = function(
        """(x) => (y) { a = Constant<value = int64[1] {0}>() b = Constant<value = int64[1] {16000}>()
        c = Constant<value = int64[1] {16008}>() p = Slice(x, b, c, a) y = Softmax(p) }"""
    )
    for height, index in ((16384, "int"), (262144, "long long")):
        types = {"x": TensorType(np.dtype(np.float32), (height, 16384))}
        (loop,) = rows(list(body.node), types, ["y"])[1]
        assert f"typedef {index} Index;" in loop.source.text


@pytest.mark.parametrize("name", ["heads behind a norm", "a virtual tensor", "a norm of what is turned"])
def test_indices_of_64_bits_are_the_same_indices(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carried, "NARROW_LIMIT", 1)
    test_it_computes_what_its_nodes_do(name)


def test_empty_rows_are_no_launch() -> None:
    body = function(f"(x0) => (y0, y1) {{ {LAST} y0 = ReduceSum<keepdims = 0>(x0, a) e = Exp(y0) y1 = Neg(e) }}")
    found, launches = rows(list(body.node), {"x0": TensorType(np.dtype(np.float32), (0, 5, 7))}, ["y0", "y1"])
    assert ([each.shape for each in found], launches) == ([(0, 5), (0, 5)], [])


@pytest.mark.parametrize("op", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"])
def test_rows_of_no_elements_have_a_result(op: str) -> None:
    """And what is behind it is computed, beside elements of which there are none."""
    text = (
        f"(x0, x1) => (y0, y1, y2) {{ {LAST} e = Exp(x0) m = {op}(e, a) y1 = Sub(e, m) y0 = Add(m, x1) "
        "y2 = Transpose<perm = [2, 1, 0]>(y0) }"
    )
    x0, x1 = np.empty((3, 5, 0), np.float32), np.arange(15, dtype=np.float32).reshape(3, 5, 1)
    for own, wanted in zip(given((text, ()), [x0, x1]), expected(function(text), [x0, x1]), strict=True):
        np.testing.assert_array_equal(own, wanted)
