"""What is computed alike of slices, and put together again, is computed of the whole."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import parser

from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from tests.spellings.mutants import run
from tests.whole.test_fusion import HEAD, ops

CATALOGUE = catalogue.load()

ALIKE = {
    "a stack of features": (
        """g (float[b, 12] x, float[4] w) => (float[b, 3, 4] y) <int64[3] size = {4, 4, 4}, int64[1] one = {1}> {
            a, b, c = Split <axis = 1> (x, size)
            p = Tanh (a)  q = Tanh (b)  r = Tanh (c)
            k = Mul (p, w)  l = Mul (w, q)  m = Mul (r, w)
            t = Unsqueeze (k, one)  u = Unsqueeze (l, one)  v = Unsqueeze (m, one)
            y = Concat <axis = 1> (t, u, v)
        }""",
        {"x": (5, 12), "w": (4,)},
        ["Tanh", "Mul"],
    ),
    "rows under each other": (
        """g (float[6, 8] x) => (float[6, 8] y) <int64[2] size = {3, 3}> {
            a, b = Split <axis = 0> (x, size)
            p = Softmax <axis = -1> (a)  q = Softmax <axis = -1> (b)
            y = Concat <axis = 0> (p, q)
        }""",
        {"x": (6, 8)},
        ["Softmax"],
    ),
    "attention head by head": (
        """g (float[b, s, 8] x) => (float[b, s, 8] y) <int64[2] size = {4, 4}, float scale = {0.5}> {
            q = Sin (x)  k = Cos (x)  v = Tanh (x)
            q0, q1 = Split <axis = 2> (q, size)  k0, k1 = Split <axis = 2> (k, size)
            v0, v1 = Split <axis = 2> (v, size)
            t0 = Transpose <perm = [0, 2, 1]> (k0)  t1 = Transpose <perm = [0, 2, 1]> (k1)
            m0 = MatMul (q0, t0)  m1 = MatMul (q1, t1)  n0 = Mul (m0, scale)  n1 = Mul (m1, scale)
            p0 = Softmax <axis = -1> (n0)  p1 = Softmax <axis = -1> (n1)
            y0 = MatMul (p0, v0)  y1 = MatMul (p1, v1)
            y = Concat <axis = 2> (y0, y1)
        }""",
        {"x": (2, 5, 8)},
        ["Sin", "Cos", "Tanh", "onnxfuse.Attention"],
    ),
}

APART = {
    "what ends from an end that is not known": (
        """g (float[b, s, 8] x) => (float[b, t, 8] y)
            <int64[1] zero = {0}, int64[1] one = {1}, int64[1] before = {-1}> {
            first = Slice (x, zero, one, one)  rest = Slice (x, zero, before, one)
            y = Concat <axis = 1> (first, rest)
        }""",
        {"x": (2, 5, 8)},
    ),
    "slices of two lengths": (
        """g (float[6, 4] x) => (float[6, 4] y) <int64[2] size = {2, 4}> {
            a, b = Split <axis = 0> (x, size)  p = Tanh (a)  q = Tanh (b)  y = Concat <axis = 0> (p, q)
        }""",
        {"x": (6, 4)},
    ),
    "slices in another order": (
        """g (float[6, 4] x) => (float[6, 4] y) <int64[2] size = {3, 3}> {
            a, b = Split <axis = 0> (x, size)  p = Tanh (b)  q = Tanh (a)  y = Concat <axis = 0> (p, q)
        }""",
        {"x": (6, 4)},
    ),
    "two functions": (
        """g (float[6, 4] x) => (float[6, 4] y) <int64[2] size = {3, 3}> {
            a, b = Split <axis = 0> (x, size)  p = Tanh (a)  q = Erf (b)  y = Concat <axis = 0> (p, q)
        }""",
        {"x": (6, 4)},
    ),
    "two weights": (
        """g (float[6, 4] x, float[4] v, float[4] w) => (float[6, 4] y) <int64[2] size = {3, 3}> {
            a, b = Split <axis = 0> (x, size)  p = Mul (a, v)  q = Mul (b, w)  y = Concat <axis = 0> (p, q)
        }""",
        {"x": (6, 4), "v": (4,), "w": (4,)},
    ),
    "two tensors": (
        """g (float[6, 4] x, float[6, 4] z) => (float[6, 4] y) <int64[2] size = {3, 3}> {
            a, b = Split <axis = 0> (x, size)  c, d = Split <axis = 0> (z, size)
            p = Tanh (a)  q = Tanh (d)  y = Concat <axis = 0> (p, q)
        }""",
        {"x": (6, 4), "z": (6, 4)},
    ),
    "a product with vectors": (
        """g (float[2, 2] x, float[4] z) => (float[4] y) <int64[2] size = {2, 2}> {
            a, b = Split <axis = 0> (z, size)  p = MatMul (x, a)  q = MatMul (x, b)  y = Concat <axis = 0> (p, q)
        }""",
        {"x": (2, 2), "z": (4,)},
    ),
}


def check(text: str, shapes: dict[str, tuple[int, ...]]) -> list[str]:
    """The ops of the fused model, whose numbers must be those of the model."""
    before = parser.parse_model(HEAD.format("") + text)
    onnx.checker.check_model(before, full_check=True)
    after = fuse(before, CATALOGUE).model
    rng = np.random.default_rng(0)
    given = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    np.testing.assert_allclose(run(after, given)[0], run(before, given)[0], rtol=1e-6, atol=1e-6)
    return ops(after.graph)


@pytest.mark.parametrize("name", ALIKE)
def test_what_is_computed_alike_is_computed_once(name: str) -> None:
    text, shapes, wanted = ALIKE[name]
    assert [op for op in check(text, shapes) if op != "Reshape"] == wanted


@pytest.mark.parametrize("name", APART)
def test_what_differs_stays_apart(name: str) -> None:
    assert "Concat" in check(*APART[name])


def test_coordinates_that_each_repeat_along_an_axis_of_its_own_are_a_mesh() -> None:
    """Nothing is repeated of all of them together: a part of fixed size that is added to (MViT by TorchScript)."""
    text = """g (float[1, 130, 130] x, float[1, 129, 129] u) => (float[1, 130, 130] y)
        <int64[2] ones = {1, 1}, int64[2] ends = {130, 130}, int64[2] axes = {1, 2}, int64 zero = {0}, int64 n = {129},
         int64 one = {1}, int64[1] last = {3}, int64[4] whole = {1, 129, 129, 1}, int64[2] column = {129, 1},
         int64[3] mesh = {1, 129, 129}, int64[1] single = {0}> {
            part = Slice (x, ones, ends, axes)  sum = Add (part, u)
            from_zero = Range (zero, n, one)  places = Add (from_zero, one)  rows = Reshape (places, column)
            a = Expand (single, mesh)  b = Expand (rows, mesh)  c = Expand (places, mesh)
            i = Unsqueeze (a, last)  j = Unsqueeze (b, last)  k = Unsqueeze (c, last)
            index = Concat <axis = -1> (i, j, k)
            y = ScatterND (x, index, sum)
        }"""
    assert "ScatterND" not in check(text, {"x": (1, 130, 130), "u": (1, 129, 129)})
