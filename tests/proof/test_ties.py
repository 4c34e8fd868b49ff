"""Indices of equal numbers: either may come first; of other numbers, none but their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

from onnxfuse.proof.input_values import Case
from onnxfuse.proof.oracle import TIED, Oracle
from onnxfuse.proof.ties import Ties

HIDDEN = float(np.finfo(np.float32).min)
ROW = np.array([[1.0, 3.0, 3.0, 2.0], [HIDDEN, -5.0, 0.5, 0.5 + 3e-5]], np.float32)
"""In either row two numbers are equal but for rounding."""


def parse(graph: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]>\n{graph}')


def ties(nodes: str, result: str = "int64[2, 1] y") -> Ties:
    head = f"g (float[2, 4] x) => ({result}) <int64[1] k = {{2}}, int64[1] last = {{1}}>"
    return Ties(parse(f"{head} {{ s = Neg(x) t = Neg(s) {nodes} }}"), None)


def says(own: Ties, expected: Any, actual: Any) -> bool:
    return own.explain(Case("given", {"x": ROW}), "y", np.array(expected), np.array(actual))


@pytest.mark.parametrize(
    ("nodes", "result"),
    [
        ("y = ArgMax <axis = 1> (t)", "int64[2, 1] y"),
        ("y = ArgMax <axis = -1, keepdims = 0> (t)", "int64[2] y"),
        ("m = ArgMax <axis = 1> (t) n = Squeeze(m, last) y = Cast <to = 6> (n)", "int32[2] y"),
        ("y = ArgMin <axis = 1> (s)", "int64[2, 1] y"),
    ],
)
def test_either_of_two_equal_numbers_may_be_the_largest(nodes: str, result: str) -> None:
    own = ties(nodes, result)
    shape = (2, 1) if "2, 1" in result else (2,)
    kind = np.int32 if "int32" in result else np.int64
    expected = np.reshape(np.array([1, 3], kind), shape)
    assert says(own, expected, np.reshape(np.array([2, 2], kind), shape))
    for wrong in ([0, 3], [1, 0], [1, 1], [3, 3], [1, 4], [1, -1]):
        assert not says(own, expected, np.reshape(np.array(wrong, kind), shape)), wrong


def test_indices_along_the_first_axis() -> None:
    own = Ties(parse("g (float[3, 2] x) => (int64[1, 2] y) { y = ArgMax(x) }"), None)
    case = Case("given", {"x": np.array([[1, 5], [4, 2], [4, 2]], np.float32)})
    assert own.explain(case, "y", np.array([[1, 0]]), np.array([[2, 0]]))
    assert not own.explain(case, "y", np.array([[1, 0]]), np.array([[1, 2]]))


def test_equal_ones_among_the_largest_change_places_and_none_comes_twice() -> None:
    own = ties("v, y = TopK(t, k)", "int64[2, 2] y")
    assert says(own, [[1, 2], [3, 2]], [[2, 1], [2, 3]])
    assert not says(own, [[1, 2], [3, 2]], [[1, 1], [3, 2]])
    assert not says(own, [[1, 2], [3, 2]], [[1, 3], [3, 2]])


def test_what_is_no_index_is_not_looked_up() -> None:
    assert not says(ties("c = Cast <to = 7> (t) y = ArgMax <axis = 1> (c)"), [[1], [3]], [[2], [3]]), "of integers"
    shifted = ties("m = ArgMax <axis = 1> (t) y = Add(m, last)")
    assert not says(shifted, [[2], [4]], [[3], [3]]), "a number that was computed"
    values = Ties(parse("g (float[2, 4] x) => (float[2, 2] y) <int64[1] k = {2}> { y, i = TopK(x, k) }"), None)
    assert not values.explain(Case("given", {"x": ROW}), "y", ROW[:, :2], ROW[:, 2:])


def test_the_proof_takes_either_and_says_so() -> None:
    head = "g (float[2, 4] x) => (float[2, 4] t, int64[2, 1] y) <float[4] digits = {%s}>"
    body = "{ u = Mul(x, digits) t = Identity(u) y = ArgMax <axis = 1> (u) }"
    original = parse(f"{head % '1, 1, 1, 1'} {body}")
    oracle = Oracle(original, given={"x": ROW})
    same = oracle.compare(parse(f"{head % '1, 1, 1.0000002, 1'} {body}"))
    assert (same.verdict, same.note) == ("equal", TIED)
    other = oracle.compare(parse(f"{head % '1, 1, 1, 2'} {body}"))
    assert other.verdict == "mismatch"
    assert oracle.compare(original).note == ""
