"""Integers that count rows and places in them, however they are computed."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from onnxfuse.terms.normal.affine import Affine, affine
from onnxfuse.terms.term import Term
from tests.spellings.mutants import run
from tests.terms.normal.space import INT64, Space, b, s
from tests.whole.test_attention import census
from tests.whole.test_fusion import HEAD

CATALOGUE = catalogue.load()


def numbers(t: Space, *values: object) -> Term:
    return t.terms.integers(np.array(values, object))


def counted(t: Space) -> Term:
    """0, 1, 2, ... in b rows of s."""
    ones = t.op("Expand", t.terms.constant(np.array([1]), INT64), numbers(t, b * s))
    return t.reshape(t.op("CumSum", ones, t.terms.constant(np.array(0), INT64), exclusive=1), b, s)


def test_what_counts_row_by_row_is_divided_by_the_length_of_a_row() -> None:
    t = Space()
    places = counted(t)
    length = t.terms.integers(np.array(s, object))
    assert affine(places) == Affine(0, (s, 1))
    assert affine(t.op("Mod", places, length)) == Affine(0, (0, 1))
    assert affine(t.op("Div", places, length)) == Affine(0, (1, 0))


def test_what_is_divided_by_another_length_is_not_known() -> None:
    t = Space()
    places = counted(t)
    for other in (b, s + 1, 3):
        divisor = t.terms.integers(np.array(other, object))
        assert affine(t.op("Mod", places, divisor)) is None
        assert affine(t.op("Div", places, divisor)) is None
    behind = t.op("Add", places, numbers(t, 1))
    assert affine(t.op("Mod", behind, t.terms.integers(np.array(s, object)))) is None


def test_an_axis_that_becomes_several_counts_by_their_lengths() -> None:
    t = Space()
    positions = t.op("Range", *(t.terms.integers(np.array(n, object)) for n in (5, 5 + 6 * s, 1)))
    assert affine(t.reshape(positions, 2, 1, s, 3)) == Affine(5, (3 * s, 0, 3, 1))
    assert affine(t.reshape(t.reshape(t.input("x", 6, dtype=INT64), 2, 3), 3, 2)) is None


BAND = """g (float[B,4,S,8] q, float[B,4,S,8] k, float[B,4,S,8] v) => (float[B,4,S,8] y)
    <int64[1] one = {{1}}, int64 zero = {{0}}, int64[1] two = {{2}}, int64[1] three = {{3}}, int64[1] start = {{0}},
     float scale = {{0.25}}, float low = {{-inf}}, bool true = {{1}}, int64[1] width = {{{width}}}> {{
        t = Transpose <perm = [0, 1, 3, 2]> (k)  product = MatMul (q, t)  scores = Mul (product, scale)
        shape = Shape (scores)  rows = Slice (shape, two, three, start)  square = Concat <axis = 0> (rows, rows)
        whole = Mul (rows, rows)  ones = Expand (one, whole)  count = CumSum <exclusive = 1> (ones, zero)
        places = Reshape (count, square)  column = Mod (places, rows)  row = Div (places, rows)
        behind = Sub (column, row)  later = Greater (behind, width)  keep = Not (later)
        full = Expand (true, square)  fullfloat = Cast <to = 1> (full)  keepfloat = Cast <to = 1> (keep)
        band = Mul (keepfloat, fullfloat)  mask = Cast <to = 9> (band)
        masked = Where (mask, scores, low)  weights = Softmax <axis = -1> (masked)  y = MatMul (weights, v)
    }}"""


@pytest.mark.parametrize(("width", "causal"), [(0, 1), (2, 0)])
def test_a_band_of_a_matrix_is_a_causal_mask(width: int, causal: int) -> None:
    """As tf2onnx writes MatrixBandPart, which Keras makes causal masks with."""
    before = parser.parse_model(HEAD.format("") + BAND.format(width=width))
    onnx.checker.check_model(before, full_check=True)
    after = fuse(before, CATALOGUE).model
    assert (census(after)["Attention"], census(after)["CumSum"]) == (1, 0)
    (node,) = (node for node in after.graph.node if node.op_type.startswith("Attention"))
    assert {a.name: a.i for a in node.attribute}.get("is_causal", 0) == causal
    rng = np.random.default_rng(0)
    for sizes in ((2, 4, 5, 8), (1, 4, 1, 8)):
        given = {name: rng.standard_normal(sizes).astype(np.float32) for name in "qkv"}
        np.testing.assert_allclose(run(after, given)[0], run(before, given)[0], rtol=1e-5, atol=1e-6)
