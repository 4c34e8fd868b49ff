"""Convolutions of the reference are onnxruntime's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from onnxfuse.proof import reference_conv
from onnxfuse.proof.reference import Evaluator
from onnxfuse.runtime.quiet import Session


@st.composite
def cases(draw: st.DrawFn, transpose: bool) -> tuple[list[np.ndarray[Any, Any]], dict[str, Any]]:
    rank, group = draw(st.integers(1, 3 - transpose)), draw(st.integers(1, 2))
    sizes = st.integers(1, 3)
    kernel = [draw(sizes) for _ in range(rank)]
    attributes: dict[str, Any] = {
        "strides": [draw(sizes) for _ in range(rank)],
        "dilations": [draw(st.integers(1, 2)) for _ in range(rank)],
        "group": group,
    }
    size = [draw(st.integers(5, 8)) for _ in range(rank)]
    match draw(st.sampled_from(["pads", "SAME_UPPER", "SAME_LOWER", "VALID", "none", "shape"])):
        case "pads":
            attributes["pads"] = [draw(st.integers(0, 1)) for _ in range(2 * rank)]
        case "shape" if transpose:
            attributes["output_shape"] = [
                (s - 1) * t + (k - 1) * d + 1 - draw(st.integers(0, 2))
                for s, t, k, d in zip(size, attributes["strides"], kernel, attributes["dilations"], strict=True)
            ]
        case ("SAME_UPPER" | "SAME_LOWER") as auto if not transpose:
            # onnxruntime refuses these with dilations.
            attributes |= {"auto_pad": auto, "dilations": [1] * rank}
        case "VALID":
            attributes["auto_pad"] = "VALID"
    inner, outer = draw(sizes), draw(sizes)
    channels = (group * inner, outer) if transpose else (group * outer, inner)
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    shapes = [(2, group * inner, *size), (*channels, *kernel), (group * outer,)]
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    return arrays[: draw(st.integers(2, 3))], attributes


def same(op: str, arrays: list[np.ndarray[Any, Any]], attributes: dict[str, Any]) -> None:
    names = ["x", "w", "b"][: len(arrays)]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in zip(names, arrays, strict=True)]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([helper.make_node(op, names, ["y"], **attributes)], "g", infos, [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    feeds = dict(zip(names, arrays, strict=True))
    (expected,) = Session(model, None, optimize=False, threads=1).run(feeds)
    (found,) = Evaluator(model).run(None, feeds)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


@given(cases(transpose=False))
@settings(max_examples=25, deadline=None, derandomize=True, database=None)
def test_conv(case: tuple[list[np.ndarray[Any, Any]], dict[str, Any]]) -> None:
    same("Conv", *case)


@given(cases(transpose=True))
@settings(max_examples=25, deadline=None, derandomize=True, database=None)
def test_conv_transpose(case: tuple[list[np.ndarray[Any, Any]], dict[str, Any]]) -> None:
    same("ConvTranspose", *case)


@pytest.mark.parametrize("auto", ["SAME_UPPER", "SAME_LOWER"])
def test_a_transposed_convolution_of_the_same_size(auto: str) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((1, 2, 4, 5)).astype(np.float32), rng.standard_normal((2, 3, 4, 3)).astype(np.float32)
    same("ConvTranspose", [x, w], {"auto_pad": auto, "strides": [2, 2]})


def test_a_batch_of_nothing() -> None:
    empty, w = np.zeros((0, 4, 9, 7)), np.ones((6, 2, 3, 3))
    assert reference_conv.convolved(empty, w, [2, 1], [1, 2], [1, 0, 2, 1], 2).shape == (0, 6, 5, 4)
    assert reference_conv.transposed(empty, np.ones((4, 3, 2, 2)), [2, 1], [1, 1], 2).shape == (0, 6, 18, 8)


def test_a_window_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        reference_conv.convolved(np.zeros((1, 1, 2)), np.zeros((1, 1, 3)), [1], [1], [0, 0], 1)
