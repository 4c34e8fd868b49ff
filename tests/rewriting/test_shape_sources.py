"""Names of dimensions lie: inputs that share one are fed different sizes, and the fused model still computes the same.

A name is believed only where the model would make no sense otherwise: of what is broadcast together neither is taken
for 1, and what is viewed as [batch of the other, -1] is taken to have that batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, parser

from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from tests.spellings.mutants import REFUSALS, run
from tests.whole.test_fusion import HEAD, ops

CATALOGUE = catalogue.load()

SIZES = (2, 3, 6)
"""What a symbolic dimension may be: one divides another, none is 1."""

MODELS = {
    "a constant expanded to the sum's other operand": """(float[N, 4] x, float[N, 4] y, float[1, 4] v)
        => (float[A, 4] z, float[B, 4] w) { z = Add (x, y)  s = Shape (y)  w = Expand (v, s) }""",
    "a sum viewed with the size of one operand": """(float[N, S, 4] x, float[N, S, 4] y)
        => (float[A, B] z, float[C, D] w) <int64[1] rest = {-1}, int64[1] zero = {0}, int64[1] one = {1}> {
            a = Add (x, y)  s = Shape (y)  n = Slice (s, zero, one)  t = Concat <axis = 0> (n, rest)
            z = Reshape (a, t)  b = Mul (y, y)  w = Reshape (b, t) }""",
    "an input expanded to the other": """(float[N, 4] x, float[N, 4] y) => (float[A, B] z, float[C, D] w) {
            s = Shape (x)  e = Expand (y, s)  z = Mul (e, x)  g = Sigmoid (e)  w = Mul (e, g) }""",
    "a range as long as the other": """(float[N, S] x, int64[N, S] m) => (float[A, B] z, int64[C] r)
        <int64 one = {1}, int64 zero = {0}> {
            s = Shape (m)  n = Gather (s, one)  r = Range (zero, n, one)  z = Sigmoid (x) }""",
    "a table gathered by a range as long as the other": """(float[N, S] x, int64[N, S] m, float[12, 4] w)
        => (float[A, 4] z, float[B, C] y) <int64 one = {1}, int64 zero = {0}> {
            s = Shape (m)  n = Gather (s, one)  r = Range (zero, n, one)  z = Gather (w, r)  y = Sigmoid (x) }""",
    "a slice as long as the other": """(float[N, S] x, float[N, S] y) => (float[A, B] z)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}> {
            s = Shape (y)  n = Slice (s, one, two)  z = Slice (x, zero, n, one) }""",
    "a slice as long as the other, added to it": """(float[N, S] x, float[N, S] y) => (float[A, B] z)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}> {
            s = Shape (y)  n = Slice (s, one, two)  a = Slice (x, zero, n, one)  z = Add (a, y) }""",
    "an input viewed like the other": """(float[N, S, 4] x, float[N, S] y) => (float[A, B, C] z, float[D, E] w)
        <int64[1] four = {4}> { s = Shape (y)  t = Concat <axis = 0> (s, four)  z = Reshape (x, t)  w = Mul (y, y) }""",
    "rows viewed like the other": """(float[N, S, 8] x, float[N, S, 8] y) => (float[A, B, 8] z)
        <int64[2] flat = {-1, 8}> {
            a = Reshape (x, flat)  b = Relu (a)  s = Shape (y)  z = Reshape (b, s) }""",
    "parts of both put together and taken apart": """(float[N, S] x, float[N, S] y) => (float[A, B] z, float[C, D] w)
        <int64[1] zero = {0}, int64[1] one = {1}, int64[1] two = {2}> {
            a = Concat <axis = 1> (x, y)  s = Shape (x)  n = Slice (s, one, two)  z = Slice (a, zero, n, one)
            t = Shape (a)  e = Slice (t, one, two)  w = Slice (a, n, e, one) }""",
    "the larger of both sizes": """(float[N, S] x, float[N, S] y, float[1, 1] c) => (float[A, B] z) {
            s = Shape (x)  t = Shape (y)  m = Max (s, t)  z = Expand (c, m) }""",
    "whether the sizes are equal": """(float[N, S] x, float[N, S] y) => (float[A, B] z) {
            s = Shape (x)  t = Shape (y)  e = Equal (s, t)  i = Cast <to = 7> (e)  p = ReduceProd <keepdims = 0> (i)
            f = Cast <to = 1> (p)  z = Mul (x, f) }""",
    "one size divided by the other": """(float[N, S] x, float[N, S] y) => (int64[A] z, int64[B] w)
        <int64 one = {1}, int64 zero = {0}> {
            s = Shape (x)  n = Gather (s, one)  t = Shape (y)  k = Gather (t, one)  d = Div (n, k)
            z = Range (zero, d, one)  w = Range (zero, n, one) }""",
    "attention with a cache and a mask named like the new positions": """(float[N, 2, S, 8] q,
            float[N, 2, S, 8] k, float[N, 2, S, 8] v, float[N, 2, P, 8] pk, float[N, 2, P, 8] pv,
            float[N, S] mask) => (float[A, 2, B, 8] o, float[C, 2, D, 8] keys, float[E, 2, F, 8] values, float[G, H] m)
        <int64[2] axes = {1, 2}, float scale = {0.35}> {
            keys = Concat <axis = 2> (pk, k)  values = Concat <axis = 2> (pv, v)
            kt = Transpose <perm = [0, 1, 3, 2]> (keys)  s = MatMul (q, kt)  t = Mul (s, scale)
            u = Unsqueeze (mask, axes)  c = Add (t, u)  p = Softmax (c)  o = MatMul (p, values)  m = Neg (mask) }""",
    "a product and its transposed operand": """(float[N, S] x, float[S, N] y) => (float[A, B] z, float[C, D] w) {
            z = MatMul (x, y)  s = Shape (y)  t = Transpose (x)  w = Expand (t, s) }""",
}

FUSED = {
    "a gate": (
        """(float[N, 4] x, float[N, 4] y) => (float[A, 4] z, float[B, 4] w) {
            s = Sigmoid (x)  a = Mul (x, s)  z = Mul (a, y)  t = Shape (y)  h = Tanh (y)  w = Expand (h, t) }""",
        "onnxfuse.SwiGLU",
    ),
    "a residual": (
        """(float[N, S, 8] x, float[N, S, 8] y, float[8] g, float[8] b) => (float[A, B, 8] z, int64[3] w) {
            a = Add (x, y)  z = LayerNormalization (a, g, b)  w = Shape (y) }""",
        "onnxfuse.SkipLayerNormalization",
    ),
    "attention with a mask": (
        """(float[N, 2, S, 8] q, float[N, 2, S, 8] k, float[N, 2, S, 8] v, float[N, S] mask)
        => (float[A, 2, B, 8] o, float[G, H] m) <int64[2] axes = {1, 2}, float scale = {0.35}> {
            kt = Transpose <perm = [0, 1, 3, 2]> (k)  s = MatMul (q, kt)  t = Mul (s, scale)
            u = Unsqueeze (mask, axes)  c = Add (t, u)  p = Softmax (c)  o = MatMul (p, v)  m = Neg (mask) }""",
        "onnxfuse.Attention",
    ),
}
"""Models in which inputs that are used together are equal after all, and a fused op that they lead to."""


def parsed(text: str) -> onnx.ModelProto:
    model = parser.parse_model(HEAD.format("") + "g " + text)
    onnx.checker.check_model(model, full_check=True)
    return model


def fed(model: onnx.ModelProto, batch: int | None, limit: int = 200) -> Iterator[dict[str, Any]]:
    """Inputs in which every axis of every input has a size of its own, of some of all combinations; `batch` is that of
    all axes N."""
    rng = np.random.default_rng(0)
    axes = [
        (value.name, axis, dim.dim_param)
        for value in model.graph.input
        for axis, dim in enumerate(value.type.tensor_type.shape.dim)
        if dim.dim_param
    ]
    combinations = list(product(*((batch,) if batch and name == "N" else SIZES for _, _, name in axes)))
    for i in sorted(rng.permutation(len(combinations))[:limit]):
        sizes = {(name, axis): size for (name, axis, _), size in zip(axes, combinations[i], strict=True)}
        given = {}
        for value in model.graph.input:
            tensor = value.type.tensor_type
            shape = [dim.dim_value or sizes[value.name, axis] for axis, dim in enumerate(tensor.shape.dim)]
            drawn = (
                rng.standard_normal(shape) if tensor.elem_type == onnx.TensorProto.FLOAT else rng.integers(0, 2, shape)
            )
            given[value.name] = drawn.astype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        yield given


def assert_same(before: onnx.ModelProto, after: onnx.ModelProto, batch: int | None = None) -> None:
    ran = 0
    for given in fed(before, batch, 6000 if len(before.graph.input) > 5 else 200):
        try:
            want = run(before, given)
        except REFUSALS:
            continue
        ran += 1
        for a, b in zip(run(after, given), want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5, err_msg=str({n: x.shape for n, x in given.items()}))
    assert ran


@pytest.mark.parametrize("name", MODELS)
def test_sizes_of_one_name_differ(name: str) -> None:
    before = parsed(MODELS[name])
    after = fuse(before, CATALOGUE).model
    assert_same(before, after)
    assert_same(before, after, batch=1)


@pytest.mark.parametrize("name", FUSED)
def test_what_must_be_equal_is_fused(name: str) -> None:
    text, op = FUSED[name]
    before = parsed(text)
    after = fuse(before, CATALOGUE).model
    assert op in ops(after.graph)
    assert_same(before, after, batch=2)
    assert_same(before, after, batch=1)
