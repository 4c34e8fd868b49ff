"""What real files hold besides tensors in and tensors out: it is kept, and what is fused around it is right."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, parser

from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from tests.spellings.mutants import feeds, run
from tests.whole.test_fusion import HEAD, ops

CATALOGUE = catalogue.load()
SWISH = "s = Sigmoid (x)  y = Mul (x, s)"

STRANGE = {
    "a sequence in the middle": (
        """g (float[N, 4] x) => (float[N, 4] y) <int64 zero = {0}> {
            a = Sigmoid (x)  b = Mul (x, a)  all = SequenceConstruct (b, x)
            c = SequenceAt (all, zero)  d = Sigmoid (c)  y = Mul (c, d)
        }""",
        ["Swish", "Swish"],
    ),
    "an optional in the middle": (
        """g (float[N, 4] x) => (float[N, 4] y) {
            a = Sigmoid (x)  b = Mul (x, a)  o = Optional (b)  c = OptionalGetElement (o)
            d = Sigmoid (c)  y = Mul (c, d)
        }""",
        ["Swish", "Swish"],
    ),
    "strings beside it": (
        'g (float[N, 4] x) => (float[N, 4] y, string[1] t) <string[1] w = {"a"}> { t = Identity (w) ' + SWISH + " }",
        ["Swish"],
    ),
    "a dropout that does not train": (
        "g (float[N, 4] x) => (float[N, 4] y) <float r = {0.5}> "
        "{ s = Sigmoid (x)  t = Dropout (s, r)  y = Mul (x, t) }",
        ["Swish"],
    ),
    "a quantized value in the middle": (
        """g (float[N, 4] x) => (float[N, 4] y) <float k = {0.1}, uint8 z = {128}> {
            a = Sigmoid (x)  b = Mul (x, a)  q = QuantizeLinear (b, k, z)  c = DequantizeLinear (q, k, z)
            d = Sigmoid (c)  y = Mul (c, d)
        }""",
        ["Swish", "Swish"],
    ),
    "one element and no axis": ("g (float x) => (float y) { " + SWISH + " }", ["Swish"]),
}


@pytest.mark.parametrize("name", STRANGE)
def test_strange_but_valid(name: str) -> None:
    text, fused_ops = STRANGE[name]
    before = parser.parse_model(HEAD.format("") + text)
    onnx.checker.check_model(before, full_check=True)
    after = fuse(before, CATALOGUE).model
    onnx.checker.check_model(after, full_check=True)
    assert [op.removeprefix("onnxfuse.") for op in ops(after.graph) if op.startswith("onnxfuse.")] == fused_ops
    inputs = feeds(before)
    for got, want in zip(run(after, inputs), run(before, inputs), strict=True):
        assert got.dtype == want.dtype
        if want.dtype.kind == "f":
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
        else:
            assert (got == want).all()


def test_a_cast_that_rounds_is_not_a_quantization() -> None:
    """Nor is one through integers the identity that one between float types is."""
    before = parser.parse_model(
        HEAD.format("")
        + "g (float[N, 4] x) => (float[N, 4] y) { i = Cast <to = 7> (x)  f = Cast <to = 1> (i)  s = Sigmoid (f) "
        "y = Mul (x, s) }"
    )
    after = fuse(before, CATALOGUE).model
    assert ops(after.graph) == ["Cast", "Cast", "onnxfuse.GLU"], "a gate, and no Swish of x"


def test_no_element() -> None:
    before = parser.parse_model(HEAD.format("") + "g (float[N, 4] x) => (float[N, 4] y) { " + SWISH + " }")
    after = fuse(before, CATALOGUE).model
    assert run(after, {"x": np.zeros((0, 4), np.float32)})[0].shape == (0, 4)


def test_random_draws_are_neither_merged_nor_moved() -> None:
    before = parser.parse_model(
        HEAD.format("")
        + "g (float[N, 4] x) => (float[N, 4] y) { a = RandomNormalLike (x)  b = RandomNormalLike (x)  y = Sub (a, b) }"
    )
    after = fuse(before, CATALOGUE).model
    assert ops(after.graph) == ["RandomNormalLike", "RandomNormalLike", "Sub"]
    assert np.abs(run(after, feeds(before))[0]).max() > 0


def test_a_sparse_initializer_is_kept_and_feeds_what_it_fed() -> None:
    before = parser.parse_model(
        HEAD.format("") + "g (float[2, 4] x) => (float[2, 4] y) { z = Add (x, w) " + "s = Sigmoid (z)  y = Mul (z, s) }"
    )
    values = helper.make_tensor("w", TensorProto.FLOAT, [2], [1.0, -2.0])
    places = helper.make_tensor("w_indices", TensorProto.INT64, [2], [1, 6])
    before.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [2, 4]))
    after = fuse(before, CATALOGUE).model
    assert list(after.graph.sparse_initializer) == list(before.graph.sparse_initializer)
    assert ops(after.graph) == ["Add", "onnxfuse.Swish"]
    inputs = feeds(before)
    np.testing.assert_allclose(run(after, inputs)[0], run(before, inputs)[0], rtol=1e-5)


def test_node_names_that_repeat_or_are_missing() -> None:
    before = parser.parse_model(HEAD.format("") + "g (float[N, 4] x) => (float[N, 4] y) { " + SWISH + " }")
    for name in ("", "same"):
        for node in before.graph.node:
            node.name = name
        assert ops(fuse(before, CATALOGUE).model.graph) == ["onnxfuse.Swish"]
