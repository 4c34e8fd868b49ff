"""Constant folding computes what the reference of onnx computes, and nothing where an op is undefined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnxfuse.model.op_traits import FOLDABLE
from onnxfuse.terms.fold import decided, value_of
from onnxfuse.terms.fold_layers import LAYERS
from onnxfuse.terms.infer import infer
from onnxfuse.terms.term import Term, Terms, UnknownValueError

FLOAT, INT64, BOOL, DOUBLE = (
    int(t) for t in (TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.DOUBLE)
)
KINDS = {"f": DOUBLE, "i": INT64, "b": BOOL}
RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((2, 3)), RNG.standard_normal((2, 3))
M = X > 0
A, B = np.array([[-7, 7, 3], [4, -4, 0]]), np.array([[2, -2, 5], [3, 3, -1]])

UNARY = "Abs Ceil Cos Exp Floor Identity Neg Reciprocal Relu Round Sigmoid Sign Sin Tanh IsNaN".split()
BINARY = "Add Sub Mul Div Greater Less GreaterOrEqual LessOrEqual Equal Min Max Sum Mean".split()
CASES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    *((op, (X * 3,), {}) for op in UNARY),
    ("Round", (np.array([0.5, 1.5, -0.5, 2.5]),), {}),
    ("IsNaN", (np.array([np.nan, np.inf, 0]),), {}),
    *((op, (X**2,), {}) for op in ("Sqrt", "Log")),
    *((op, (X, Y), {}) for op in BINARY),
    *((op, (A, B), {}) for op in ("Add", "Sub", "Mul", "Equal", "Greater")),
    ("Div", (A, B), {}),
    ("Mod", (A, B), {}),
    ("Mod", (A, B), {"fmod": 1}),
    ("Pow", (X**2, Y), {}),
    ("Sum", (X, Y, X), {}),
    ("Mean", (X, Y, Y), {}),
    ("MatMul", (X, Y.T), {}),
    *((op, (M, Y > 0), {}) for op in ("And", "Or", "Xor")),
    ("Not", (M,), {}),
    ("Where", (M, X, Y), {}),
    ("Cast", (X * 5,), {"to": INT64}),
    ("Cast", (A,), {"to": BOOL}),
    ("Clip", (X, np.array(-0.2), np.array(0.4)), {}),
    ("Clip", (X, np.array(-0.2)), {}),
    *((f"Reduce{how}", (X,), {"axes": (-1,), "keepdims": 0}) for how in ("Mean", "Sum", "Prod", "Max", "Min")),
    ("ReduceMax", (X,), {}),
    *(("ReduceLogSumExp", (X * n,), {"keepdims": keep}) for n in (1, 1e30) for keep in (0, 1)),
    ("Reshape", (X, np.array([3, -1])), {}),
    ("Squeeze", (X[:, :1],), {"axes": (1,)}),
    ("Unsqueeze", (X,), {"axes": (1,)}),
    ("Expand", (X, np.array([2, 1, 3])), {}),
    ("Tile", (X, np.array([2, 3])), {}),
    ("Transpose", (X,), {"perm": (1, 0)}),
    ("Concat", (X, Y), {"axis": -1}),
    ("Gather", (X, np.array([-1, 0])), {"axis": 1}),
    ("GatherND", (X, np.array([[1, 2], [0, 0]])), {}),
    ("ScatterND", (X, np.array([[1], [0]]), Y), {}),
    ("ConstantOfShape", (np.array([2, 3]),), {}),
    ("ConstantOfShape", (np.array([2]),), {"value": numpy_helper.from_array(np.array([7]))}),
    ("Shape", (X,), {"start": 1}),
    ("Size", (X,), {}),
    ("Range", (np.array(1), np.array(8), np.array(3)), {}),
    ("Trilu", (X,), {}),
    ("Trilu", (X, np.array(1)), {"upper": 0}),
    ("CumSum", (X, np.array(1)), {}),
    ("Pad", (X, np.array([0, 1, 2, 0]), np.array(5.0)), {}),
    ("Pad", (X, np.array([0, 1, 2, 0])), {}),
]
OPSET = 12


def term_of(terms: Terms, op: str, arrays: tuple[Any, ...], attrs: dict[str, Any]) -> Term:
    """The op over constants, as it stands."""
    args = [terms.constant(array, KINDS[array.dtype.kind]) for array in arrays]
    known = {
        name: ("tensor", value.SerializeToString()) if isinstance(value, TensorProto) else value
        for name, value in attrs.items()
    }
    shape, dtype = infer(terms, op, args, known)[0]
    return terms.raw(op, args, tuple(known.items()), shape=shape, dtype=dtype)


def reference(op: str, arrays: tuple[Any, ...], attrs: dict[str, Any]) -> NDArray[Any]:
    opset = OPSET if "axes" in attrs else 16
    names = [f"i{i}" for i in range(len(arrays))]
    infos = [
        helper.make_tensor_value_info(name, KINDS[a.dtype.kind], a.shape) for name, a in zip(names, arrays, strict=True)
    ]
    result = helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)
    node = helper.make_node(op, names, ["y"], **attrs)
    model = helper.make_model(
        helper.make_graph([node], "g", infos, [result]), opset_imports=[helper.make_opsetid("", opset)]
    )
    return np.asarray(ReferenceEvaluator(model).run(None, dict(zip(names, arrays, strict=True)))[0])


@pytest.mark.parametrize(("op", "arrays", "attrs"), CASES, ids=[f"{op} {attrs or ''}" for op, _, attrs in CASES])
def test_values_are_those_of_the_reference(op: str, arrays: tuple[Any, ...], attrs: dict[str, Any]) -> None:
    found = value_of(term_of(Terms(), op, arrays, attrs))
    wanted = reference(op, arrays, attrs)
    assert found.dtype.kind == wanted.dtype.kind
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


BY_HAND = {"Erf", "GatherElements", "Repeat", "Slice"}
"""Ops of terms alone, and those that the reference computes otherwise or in less than float64."""


def test_every_op_that_is_folded_is_computed_here() -> None:
    assert {op for op, _, _ in CASES} | BY_HAND | LAYERS.keys() >= FOLDABLE


def test_elements_are_gathered_along_an_axis() -> None:
    terms = Terms()
    assert value_of(term_of(terms, "GatherElements", (A, np.array([[2, 0], [-1, 1]])), {"axis": 1})).tolist() == [
        [3, -7],
        [0, -4],
    ]
    assert value_of(term_of(terms, "GatherElements", (A, np.array([[1, 0, 1]])), {"axis": 0})).tolist() == [[4, 7, 0]]


def test_the_error_function_is_that_of_double_precision() -> None:
    assert value_of(term_of(Terms(), "Erf", (np.array([0.5]),), {}))[0] == 0.5204998778130465


@pytest.mark.parametrize(
    ("start", "stop", "step", "taken"),
    [
        (1, 4, 1, [1, 2, 3]),
        (0, 10**9, 2, [0, 2, 4]),
        (-1, -(10**9), -1, [4, 3, 2, 1, 0]),
        (3, 0, -2, [3, 1]),
        (4, 2, 1, []),
    ],
)
def test_slices_of_one_axis(start: int, stop: int, step: int, taken: list[int]) -> None:
    terms = Terms()
    x = terms.constant(np.arange(10).reshape(2, 5), INT64)
    attrs = {"axis": 1, "start": start, "stop": stop, "step": step}
    term = terms.raw("Slice", [x], tuple(attrs.items()), shape=(2, len(taken)), dtype=INT64)
    assert value_of(term)[0].tolist() == taken


@pytest.mark.parametrize("low", [True, False])
@pytest.mark.parametrize("high", [True, False])
def test_a_bound_that_is_absent_is_none(low: bool, high: bool) -> None:
    terms = Terms()
    bounds = [terms.constant(np.array(b), DOUBLE) if given else terms.absent for b, given in ((-0.2, low), (0.4, high))]
    x = terms.constant(X, DOUBLE)
    ((shape, dtype),) = infer(terms, "Clip", [x, *bounds], {})
    found = value_of(terms.raw("Clip", [x, *bounds], shape=shape, dtype=dtype))
    np.testing.assert_array_equal(found, np.clip(X, -0.2 if low else -np.inf, 0.4 if high else np.inf))


def test_repeats_stand_side_by_side() -> None:
    terms = Terms()
    x = terms.constant(np.array([1, 2]), INT64)
    twice = terms.raw("Repeat", [x], (("axis", 0), ("n", 2)), shape=(4,), dtype=INT64)
    assert value_of(twice).tolist() == [1, 1, 2, 2]


@pytest.mark.parametrize(
    ("op", "arrays", "attrs"),
    [
        ("Gather", (X, np.array([2])), {}),
        ("Pad", (X, np.array([0, 0, 0, -1])), {}),
        ("Pad", (X, np.array([0, 0, 0, 1])), {"mode": "reflect"}),
        ("GatherND", (X, np.array([[0], [1]])), {"batch_dims": 1}),
        ("ScatterND", (X, np.array([[1], [0]]), Y), {"reduction": "add"}),
        ("CumSum", (X, np.array(0)), {"reverse": 1}),
        ("Reshape", (X, np.array([4, 2])), {}),
    ],
)
def test_what_is_undefined_or_not_folded_has_no_value_from_then_on(
    op: str, arrays: tuple[Any, ...], attrs: dict[str, Any]
) -> None:
    terms = Terms()
    term = term_of(terms, op, arrays, attrs)
    above = terms.raw("Neg", [term], shape=term.shape, dtype=term.dtype)
    with pytest.raises(UnknownValueError, match="cannot be computed"):
        value_of(above)
    assert not term.constant
    with pytest.raises(UnknownValueError, match="is not a constant"):
        value_of(term)


def test_a_long_chain_is_folded_without_recursion() -> None:
    terms = Terms()
    term = terms.constant(np.array(0), INT64)
    one = terms.constant(np.array(1), INT64)
    for _ in range(3000):
        term = terms.raw("Add", [term, one], shape=(), dtype=INT64)
    assert value_of(term) == 3000


def test_real_numbers_are_folded_in_double_precision() -> None:
    terms = Terms()
    third = terms.raw("Reciprocal", [terms.constant(np.array(3, np.float16), 10)], shape=(), dtype=10)
    assert value_of(third) == 1 / 3


def test_a_question_of_a_constant_that_is_computed() -> None:
    terms = Terms()
    x = terms.stored("x", (2, 3), DOUBLE, lambda: X)
    doubled = terms.raw("Add", [x, x], shape=(2, 3), dtype=DOUBLE)
    assert decided(doubled, _largest, 2) == 2 * X[:2].max()
    with pytest.raises(UnknownValueError):
        decided(terms.input("y", (2, 3), DOUBLE), _largest, 2)


def _largest(values: NDArray[Any], rows: int) -> float:
    return float(values[:rows].max())
