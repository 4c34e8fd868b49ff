"""Of large values little is kept, and what is kept is right."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import onnx.parser
import pytest

from onnxfuse.proof import outlines
from onnxfuse.proof.input_values import Case
from onnxfuse.proof.observed import observe
from onnxfuse.proof.outlines import SAMPLE, Outline

ROWS = 2 * SAMPLE
MODEL = """<ir_version: 9, opset_import: ["": 18]> g (float[n, 8] x) => (float[n, 8] y)
    <float zero = {0}, float many = {1e4}, float half = {0.5}, float low = {-1e30}, int64[1] last = {-1}> {
    signed = Tanh(x) unsigned = Abs(x) square = Mul(x, x) seen = Less(x, half) wide = Cast<to = 10>(x)
    mask = Where(seen, zero, low) ones = Cast<to = 1>(seen) flat = Mul(x, zero) nan = Div(flat, flat)
    row = ReduceSum<keepdims = 0>(x, last) y = Add(signed, unsigned) }"""
"""Values of every sort, and beside them a small one."""
KEPT = {"signed", "unsigned", "square", "wide", "flat"}
CASES = [
    Case("usual", {"x": np.random.default_rng(0).standard_normal((ROWS, 8)).astype(np.float32)}),
    Case("other", {"x": np.random.default_rng(1).standard_normal((ROWS, 8)).astype(np.float32)}, True),
]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A value of a few thousand elements is large, and of those one is too much to hold."""
    monkeypatch.setattr(outlines, "_LARGE", ROWS)
    monkeypatch.setattr(outlines, "_HELD", ROWS)
    return iter(())


def parse() -> onnx.ModelProto:
    return onnx.parser.parse_model(MODEL)


def test_an_outline_has_the_shape_the_range_and_a_few_elements() -> None:
    model = parse()
    for told, values in zip(outlines.outlines(model, KEPT, CASES), observe(model, KEPT, CASES), strict=True):
        for name in KEPT:
            outline, value = told[name], values[name]
            assert isinstance(outline, Outline)
            assert (outline.shape, outline.dtype) == (value.shape, value.dtype)
            assert (outline.least, outline.most) == (value.min(), value.max())
            np.testing.assert_array_equal(outline.sample, value.ravel()[:: value.size // SAMPLE])
    assert model == parse()


def test_what_can_be_held_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlines, "_HELD", 1 << 20)
    assert not any(
        isinstance(value, Outline) for told in outlines.outlines(parse(), KEPT, CASES) for value in told.values()
    )


def test_names_of_the_model_are_left_alone() -> None:
    """A constant may have the name that a part would get."""
    model = parse()
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(1, np.float32), "signed/shape"))
    told, *_ = outlines.outlines(model, ["signed"], CASES)
    assert told["signed"].shape == (ROWS, 8)
