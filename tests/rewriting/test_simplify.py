"""Simplification, before and after: fewer nodes, the same numbers, and nothing that a rounding or a name would show."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, parser

from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from onnxfuse.model.graph import family_of
from tests.spellings.build import Array
from tests.spellings.mutants import run

CATALOGUE = catalogue.load()
HEAD = '<ir_version: 10, opset_import: ["": 17]>\n'

CASES: dict[str, tuple[str, list[str]]] = {
    "an Einsum that multiplies matrices as they lie": (
        """g (float[B, S, 12] x, float[12, 6] w) => (float[B, S, 6] y) {
            y = Einsum <equation = "abc,cd->abd"> (x, w)
        }""",
        ["MatMul"],
    ),
    "the same with the matrices first": (
        """g (float[S, 12] x, float[3, 12, 6] w) => (float[3, S, 6] y) {
            y = Einsum <equation = "edf,td->etf"> (w, x)
        }""",
        ["MatMul"],
    ),
    "an Einsum with a matrix for each expert": (
        """g (float[S, 12] x, float[3, 12, 6] w) => (float[3, S, 6] y) {
            y = Einsum <equation = "td,edf->etf"> (x, w)
        }""",
        ["MatMul"],
    ),
    "an Einsum with weights for each head": (
        """g (float[B, S, 24] x) => (float[B, S, 4, 16] y) <float[24, 4, 16] w> {
            y = Einsum <equation = "bsd,dhk->bshk"> (x, w)
        }""",
        ["MatMul", "Reshape"],
    ),
    "an Einsum of rows with weights for each head": (
        """g (float[S, 24] x) => (float[S, 4, 16] y) <float[24, 4, 16] w> {
            y = Einsum <equation = "sd,dhk->shk"> (x, w)
        }""",
        ["MatMul", "Reshape"],
    ),
    "an Einsum of heads with the weights of each": (
        """g (float[B, S, 4, 16] x) => (float[B, S, 24] y) <float[4, 16, 24] w> {
            y = Einsum <equation = "bshk,hkd->bsd"> (x, w)
        }""",
        ["Reshape", "MatMul"],
    ),
    "a part that is written over in place": (
        """g (float[B, 6] x) => (float[B, 6] z)
        <int64 zero = {0}, int64 one = {1}, int64[1] last = {-1}, int64[1] first = {0}, int64[1] one_ = {1},
         int64[1] two = {2}, int64[1] four = {4}, int64[1, 2, 1] columns = {2, 3}> {
            part = Slice (x, two, four, one_)
            y = Exp (part)
            shape = Shape (x)
            batch = Gather (shape, zero)
            rows = Range (zero, batch, one)
            down = Unsqueeze (rows, last)
            cell = Unsqueeze (down, last)
            size = Slice (shape, first, last)
            box = Concat <axis = 0> (size, two, one_)
            i = Expand (cell, box)
            j = Expand (columns, box)
            index = Concat <axis = -1> (i, j)
            z = ScatterND (x, index, y)
        }""",
        ["Split", "Exp", "Concat"],
    ),
    "parts between zeros that lie side by side": (
        """g (float[B, 2, 12] x, float[B, 1, 12] y, float[B, 3, 12] z) => (float[B, 6, 12] w)
        <int64[6] first = {0, 0, 0, 0, 4, 0}, int64[6] second = {0, 2, 0, 0, 3, 0},
         int64[6] third = {0, 3, 0, 0, 0, 0}> {
            a = Pad (x, first)
            b = Pad (y, second)
            c = Pad (z, third)
            ab = Add (a, b)
            w = Add (ab, c)
        }""",
        ["Concat"],
    ),
    "parts between zeros that lie over one another": (
        """g (float[B, 2, 12] x, float[B, 2, 12] y) => (float[B, 3, 12] w)
        <int64[6] first = {0, 0, 0, 0, 1, 0}, int64[6] second = {0, 1, 0, 0, 0, 0}> {
            a = Pad (x, first)
            b = Pad (y, second)
            w = Add (a, b)
        }""",
        ["Pad", "Pad", "Add"],
    ),
    "a target of a Reshape that is computed from a shape": (
        """g (float[B, S, 12] x) => (float[B, S, 3, 4] y)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[2] heads = {3, 4}> {
            shape = Shape (x)
            b = Gather (shape, zero)
            s = Gather (shape, one)
            target = Concat <axis = 0> (b, s, heads)
            y = Reshape (x, target)
        }""",
        ["Reshape"],
    ),
    "a target that two Reshapes share": (
        """g (float[B, S, 12] x) => (float[B, S, 3, 4] y, float[B, S, 3, 4] z)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[2] heads = {3, 4}> {
            shape = Shape (x)
            b = Gather (shape, zero)
            s = Gather (shape, one)
            target = Concat <axis = 0> (b, s, heads)
            e = Exp (x)
            y = Reshape (x, target)
            z = Reshape (e, target)
        }""",
        ["Exp", "Reshape", "Reshape"],
    ),
    "views that cancel": (
        """g (float[B, 4, 2, 3] x) => (float[B, 2, 3, 4] y)
        <int64[3] joined = {0, 4, 6}, int64[4] split = {0, 2, 3, 4}> {
            rows = Reshape (x, joined)
            turned = Transpose <perm = [0, 2, 1]> (rows)
            y = Reshape (turned, split)
        }""",
        ["Transpose"],
    ),
    "a mask gathered by a mesh of ranges": (
        """g (int64[B, S] mask) => (bool[B, 1, 1, S] y)
        <int64 zero = {0}, int64 one = {1}, int64[1] first = {0}, int64[1] second = {1}, int64[3] b_axes = {1, 2, 3},
         int64[3] s_axes = {0, 1, 2}> {
            flags = Cast <to = 9> (mask)
            shape = Shape (flags)
            b = Gather (shape, zero)
            s = Gather (shape, one)
            rows = Range (zero, b, one)
            columns = Range (zero, s, one)
            i = Unsqueeze (rows, b_axes)
            j = Unsqueeze (columns, s_axes)
            width = Gather (shape, second)
            start = Mul (i, width)
            index = Add (start, j)
            flat = Reshape (flags, minus)
            y = Gather (flat, index)
        }""".replace("one = {1},", "one = {1}, int64[1] minus = {-1},", 1),
        ["Cast", "Unsqueeze"],
    ),
    "positions gathered by a range": (
        """g (float[S, 8] x) => (float[S, 8] y)
        <int64 zero = {0}, int64 one = {1}, float[3, 8] table> {
            shape = Shape (x)
            s = Gather (shape, zero)
            positions = Range (zero, s, one)
            rows = Gather <axis = 0> (table, positions)
            y = Add (x, rows)
        }""",
        ["Shape", "Slice", "Add"],
    ),
    "a comparison of positions that always holds": (
        """g (bool[S] keep) => (bool[S] y) <int64 zero = {0}, int64 one = {1}> {
            shape = Shape (keep)
            s = Gather (shape, zero)
            positions = Range (zero, s, one)
            always = GreaterOrEqual (positions, zero)
            both = And (always, keep)
            y = Not (both)
        }""",
        ["Not"],
    ),
    "zeros around what is convolved": (
        """g (float[B, 2, 6, 6] x) => (float[B, 3, 3, 3] y)
        <int64[8] pads = {0, 0, 0, 0, 0, 0, 1, 1}, float[3, 2, 3, 3] w> {
            padded = Pad (x, pads)
            y = Conv <strides = [2, 2], auto_pad = "VALID"> (padded, w)
        }""",
        ["Conv"],
    ),
    "a view behind which ones are the neutral element": (
        """g (bool[B, S] keep) => (bool[B, 1, S, S] y)
        <bool[1] true = {1}, int64 zero = {0}, int64 one = {1}, int64[1] first = {0}, int64[1] ones = {1},
         int64[2] axes = {1, 2}> {
            shape = Shape (keep)
            b = Gather (shape, first)
            s = Gather (shape, ones)
            all = Concat <axis = 0> (b, ones, s, s)
            full = Expand (true, all)
            wide = Unsqueeze (keep, axes)
            both = And (full, wide)
            y = Not (both)
        }""",
        ["Unsqueeze", "Not", "Shape", "Concat", "Expand"],
    ),
    "the same twice": (
        """g (float[B, 4] x) => (float[B, 4] y) {
            a = Sin (x)
            b = Sin (x)
            c = Sub (a, x)
            d = Mul (b, c)
            y = Cos (d)
        }""",
        ["Sin", "Sub", "Mul", "Cos"],
    ),
    "a choice that is written by products": (
        """g (float[B, 4] x, bool[B, 1] c) => (float[B, 4] y) <float low = {-1000}> {
            other = Not (c)
            keep = Cast <to = 1> (c)
            hide = Cast <to = 1> (other)
            kept = Mul (x, keep)
            hidden = Mul (hide, low)
            y = Add (kept, hidden)
        }""",
        ["Where"],
    ),
    "a choice of integers that is written by products": (
        """g (bool[B, 4] c) => (int64[B, 4] y) <int64 first = {9000000000000000000}, int64[4] second = {1, -2, 3, 4}> {
            other = Not (c)
            keep = Cast <to = 7> (c)
            hide = Cast <to = 7> (other)
            kept = Mul (keep, first)
            hidden = Mul (second, hide)
            y = Add (hidden, kept)
        }""",
        ["Where"],
    ),
    "an Einsum of what a table has for places that are counted": (
        """g (float[B, 4, 4, 8] x) => (float[B, 4, 4, 4] y)
        <float[7, 8] table, int64 zero = {0}, int64 one = {1}, int64 three = {3}, int64 four = {4},
         int64[1] first = {0}, int64[1] second = {1}> {
            places = Range (zero, four, one)
            rows = Unsqueeze (places, second)
            columns = Unsqueeze (places, first)
            apart = Sub (rows, columns)
            index = Add (apart, three)
            positions = Gather (table, index)
            y = Einsum <equation = "bhwc,hkc->bhwk"> (x, positions)
        }""",
        ["Einsum"],
    ),
}
KEPT: dict[str, tuple[str, list[str]]] = {
    "constants whose product is cut to an integer": (
        """g (float[B, 4] x) => (int64[B, 4] y) <float sixteen = {2.7725887}, float eight = {8.0}> {
            a = Div (x, sixteen)
            b = Mul (a, eight)
            y = Cast <to = 7> (b)
        }""",
        ["Div", "Mul", "Cast"],
    ),
    "constants whose product is rounded down": (
        """g (float[B, 4] x) => (float[B, 4] y) <float sixteen = {2.7725887}, float eight = {8.0}> {
            a = Div (x, sixteen)
            b = Mul (a, eight)
            y = Floor (b)
        }""",
        ["Div", "Mul", "Floor"],
    ),
    "a rounding to half precision": (
        """g (float[B, 4] x) => (float[B, 4] y) {
            half = Cast <to = 10> (x)
            single = Cast <to = 1> (half)
            y = Sin (single)
        }""",
        ["Cast", "Cast"],
    ),
    "an Einsum that turns what it multiplies": (
        """g (float[B, S, 12] x, float[B, S, 6] z) => (float[B, 6, 12] y) {
            y = Einsum <equation = "bsd,bsf->bfd"> (x, z)
        }""",
        ["Einsum"],
    ),
    "an Einsum by weights that another reads as they are": (
        """g (float[S, 24] x, float[S, 1, 1, 1] s) => (float[S, 4, 16] y, float[S, 24, 4, 16] z)
        <float[24, 4, 16] w> {
            y = Einsum <equation = "sd,dhk->shk"> (x, w)
            z = Mul (w, s)
        }""",
        ["Einsum"],
    ),
    "the order of a sum": (
        """g (float[B, 4] x) => (float[B, 4] y) <float large = {100000000.0}> {
            a = Add (x, large)
            b = Sub (a, x)
            c = Sub (b, large)
            y = Sin (c)
        }""",
        ["Add", "Sub", "Sub"],
    ),
    "an Identity that an output is named by": (
        "g (string[B] x) => (string[B] y) { y = Identity (x) }",
        ["Identity"],
    ),
    "indices that may run over into the next row": (
        """g (float[B, S] x, float[T] like) => (float[B, T] y)
        <int64 zero = {0}, int64 one = {1}, int64[1] minus = {-1}, int64[1] first = {0}, int64[1] second = {1}> {
            shape = Shape (x)
            b = Gather (shape, zero)
            width = Gather (shape, second)
            other = Shape (like)
            t = Gather (other, zero)
            rows = Range (zero, b, one)
            columns = Range (zero, t, one)
            i = Unsqueeze (rows, second)
            start = Mul (i, width)
            index = Add (start, columns)
            flat = Reshape (x, minus)
            y = Gather (flat, index)
        }""",
        ["Gather", "Gather", "Gather"],
    ),
    "what a Pad puts there that is not zero": (
        """g (float[B, 2, 6, 6] x) => (float[B, 3, 6, 6] y)
        <int64[8] pads = {0, 0, 1, 1, 0, 0, 1, 1}, float value = {1}, float[3, 2, 3, 3] w> {
            padded = Pad (x, pads, value)
            y = Conv (padded, w)
        }""",
        ["Pad", "Conv"],
    ),
}


def model(text: str) -> onnx.ModelProto:
    """The model; what is declared and not computed is an initializer of normal numbers."""
    rng = np.random.default_rng(0)
    parsed = parser.parse_model(HEAD + text)
    for info in parsed.graph.value_info:
        dims = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        numbers = rng.standard_normal(dims).astype(np.float32)
        parsed.graph.initializer.append(onnx.numpy_helper.from_array(numbers, info.name))
    del parsed.graph.value_info[:]
    return parsed


def feeds(graph: onnx.GraphProto, sizes: dict[str, int]) -> dict[str, Array]:
    rng, result = np.random.default_rng(1), {}
    for info in graph.input:
        kind = info.type.tensor_type
        shape = [d.dim_value or sizes[d.dim_param] for d in kind.shape.dim]
        numbers = rng.standard_normal(shape)
        if kind.elem_type == TensorProto.STRING:
            result[info.name] = numbers.astype(str).astype(object)
        else:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
            result[info.name] = numbers.astype(dtype) if dtype == np.float32 else (numbers > 0).astype(dtype)
    return result


def equal(before: onnx.ModelProto, after: onnx.ModelProto, sizes: dict[str, int]) -> None:
    given = feeds(before.graph, sizes)
    for want, got in zip(run(before, given), run(after, given), strict=True):
        if want.dtype == object:
            assert (want == got).all()
        else:
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_before_and_after(name: str) -> None:
    text, expected = CASES[name]
    before = model(text)
    after = fuse(before, CATALOGUE).model
    onnx.checker.check_model(after, full_check=True)
    assert [family_of(node) for node in after.graph.node] == expected
    for sizes in ({"B": 2, "S": 3, "T": 2}, {"B": 1, "S": 1, "T": 1}):
        equal(before, after, sizes)


@pytest.mark.parametrize("name", KEPT)
def test_what_stays(name: str) -> None:
    text, expected = KEPT[name]
    before = model(text)
    after = fuse(before, CATALOGUE).model
    ops = [family_of(node) for node in after.graph.node]
    assert [op for op in ops if op in expected] == expected
    equal(before, after, {"B": 2, "S": 5, "T": 3})


def test_a_name_of_two_dimensions_is_no_proof_that_they_are_one() -> None:
    """Exporters call a sequence and its cache alike; the model runs with both."""
    text = """g (float[S, 4] x, float[S, 4] cache) => (float[M, 2] y)
        <int64[1] zero = {0}, int64[1] two = {2}, int64[1] factor = {2}> {
            shape = Shape (cache)
            s = Gather (shape, zero)
            rows = Mul (s, factor)
            target = Concat <axis = 0> (rows, two)
            all = Concat <axis = 0> (x, cache)
            halves = Slice (cache, zero, s, zero)
            y = Reshape (halves, target)
        }"""
    before = model(text)
    after = fuse(before, CATALOGUE).model
    rng = np.random.default_rng(0)
    given = {name: rng.standard_normal((n, 4)).astype(np.float32) for name, n in (("x", 1), ("cache", 5))}
    np.testing.assert_array_equal(run(after, given)[0], run(before, given)[0])
    assert len(after.graph.node) == 1
