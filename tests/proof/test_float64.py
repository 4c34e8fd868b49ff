"""The float64 twin of a model: every narrow float becomes a double, nothing else changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxfuse
from onnxfuse.proof import reference
from onnxfuse.proof.float64 import NARROW, NARROWED, Evaluator, evaluate, to_float64
from onnxfuse.runtime.quiet import Session


def parse(graph: str, tail: str = "") -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18, "own": 1]>\n{graph}\n{tail}')


def test_the_twin_computes_with_doubles_throughout() -> None:
    graph = """g (float[2] x, bool c) => (float[2] y, int64[2] i) <float[2] w = {0.1, 3.0}> {
        k = Constant<value_float = 0.5>()
        z = ConstantOfShape(n)
        h = Cast<to = 10>(x)
        f = Cast<to = 1>(h)
        a = Mul(f, w)
        b = If(c) <then_branch = t () => (float[2] p) { s = Constant<value = float {2.0}>() p = Mul(a, s) },
                   else_branch = e () => (float[2] q) { q = own.Half(a) }>
        d = Add(b, z)
        y = Mul(d, k)
        i = Cast<to = 7>(x)
    }"""
    half = """<domain: "own", opset_import: ["": 18]> Half (a) => (b) {
        two = Constant<value_floats = [2.0, 2.0]>() b = Div(a, two) }"""
    model = parse(graph.replace("{0.1, 3.0}>", "{0.1, 3.0}, int64[1] n = {2}>"), half)
    wide = to_float64(model)
    onnx.checker.check_model(wide)
    x = np.array([1.0 + 2.0**-40, -7.0])
    for flag, factor in ((True, 1.0), (False, 0.25)):
        y, i = Session(wide, None, optimize=False).run({"x": x, "c": np.array(flag)})
        assert y.dtype == np.float64
        np.testing.assert_array_equal(y, x * np.array([0.1, 3.0], np.float32).astype(np.float64) * factor)
        np.testing.assert_array_equal(i, [1, -7])
    assert model.graph.initializer[0].data_type == TensorProto.FLOAT


def test_a_number_that_is_the_same_whatever_is_fed_is_rounded_as_it_was() -> None:
    """The root of a head's size, which TorchScript computes in float32 for scores in half precision; the same in a cut,
    which is fed the shape.  What is fed is not rounded."""
    whole = "g (float16[2, 24] x, float[2] r) => (float16[2, 24] y, float16[2] z) { shape = Shape (x)"
    cut = "g (float16[2, 24] x, float[2] r, int64[2] shape) => (float16[2, 24] y, float16[2] z) {"
    steps = """last = Constant <value = int64 {1}> ()  size = Gather (shape, last)  real = Cast <to = 1> (size)
        root = Sqrt (real)  half = Cast <to = 10> (root)  y = Div (x, half)  z = Cast <to = 10> (r) }"""
    fed = {"x": np.ones((2, 24)), "r": np.array([0.1, 0.3]), "shape": np.array([2, 24])}
    for text in (whole, cut):
        model = parse(text + steps)
        y, z = Evaluator(to_float64(model)).run({info.name: fed[info.name] for info in model.graph.input})
        assert (y == 1 / 4.8984375).all()
        assert (z == [0.1, 0.3]).all()


def test_the_scales_of_a_resize_stay_float32() -> None:
    graph = "g (float[1, 1, 2, 2] x) => (y) <float[4] s = {1, 1, 2, 2}> { y = Resize(x, , s) }"
    wide = to_float64(parse(graph))
    x = np.arange(4.0).reshape(1, 1, 2, 2)
    (y,) = evaluate(wide, [{"x": x}])[0]
    np.testing.assert_array_equal(y, np.kron(x[0, 0], np.ones((2, 2)))[None, None])


def test_group_normalization_computes_in_doubles_whatever_its_own_type_is() -> None:
    text = """<ir_version: 10, opset_import: ["": {opset}]>
    g (float[1, 4, 3] x) => (float[1, 4, 3] y) <float[{of}] s = {{{ones}}}, float[{of}] b = {{{ones}}}> {{
        y = GroupNormalization <num_groups = 2> (x, s, b)
    }}"""
    x = np.arange(12.0).reshape(1, 4, 3) + 1e-9
    rows = x.reshape(2, 6)
    want = (rows - rows.mean(1, keepdims=True)) / np.sqrt(rows.var(1, keepdims=True) + 1e-5) + 1
    wide = to_float64(onnx.parser.parse_model(text.format(opset=21, of=4, ones="1, 1, 1, 1")))
    onnx.checker.check_model(wide)
    (y,) = evaluate(wide, [{"x": x}])[0]
    np.testing.assert_allclose(y.reshape(2, 6), want, rtol=1e-12)
    older = to_float64(onnx.parser.parse_model(text.format(opset=18, of=2, ones="1, 1")))
    assert [a.name for a in older.graph.node[0].attribute] == ["num_groups"]


def test_typed_containers_are_widened() -> None:
    wide = to_float64(
        parse("g (seq(float[2]) s, optional(float16[2]) o) => (y) { y = ConcatFromSequence<axis = 0>(s) }")
    )
    kinds = [wide.graph.input[0].type.sequence_type.elem_type, wide.graph.input[1].type.optional_type.elem_type]
    assert not NARROW & {kind.tensor_type.elem_type for kind in kinds}


def large(folder: Path, *, external: bool) -> onnx.ModelProto:
    """A product with a weight that is worth not to be held in float64; its body is read by an If, too."""
    model = parse("""g (float[2, 512] x, bool c) => (float[2, 512] y) <float[2] small = {0.1, 3.0}> {
        a = MatMul(x, w)
        y = If(c) <then_branch = t () => (float[2, 512] p) { p = MatMul(a, w) },
                   else_branch = e () => (float[2, 512] q) { q = Identity(a) }>
    }""")
    weight = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32)
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    if external:
        onnx.save(model, folder / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=1000)
        model = onnx.load(folder / "m.onnx", load_external_data=False)
        assert model.graph.initializer[1].data_location == TensorProto.EXTERNAL
    return model


@pytest.mark.parametrize("external", [False, True])
def test_a_large_weight_stays_what_and_where_it_is_until_it_is_read(tmp_path: Path, external: bool) -> None:
    model = large(tmp_path, external=external)
    wide = to_float64(model, tmp_path)
    kinds = {tensor.name: tensor.data_type for tensor in wide.graph.initializer}
    assert kinds == {"small": TensorProto.DOUBLE, "w" + NARROWED: TensorProto.FLOAT}
    assert wide.ByteSize() < 10_000 or not external
    x, weight = (
        np.random.default_rng(1).standard_normal((2, 512)),
        numpy_helper.to_array(large(tmp_path, external=False).graph.initializer[1]),
    )
    for taken in (True, False):
        want = x @ weight.astype(np.float64)
        want = want @ weight.astype(np.float64) if taken else want
        feeds = {"x": x, "c": np.array(taken)}
        found = [
            Evaluator(wide, tmp_path).run(feeds)[0],
            reference.Evaluator(wide, base_dir=tmp_path).run(None, feeds)[0],
        ]
        for y in found:
            np.testing.assert_allclose(y, want, rtol=1e-12, atol=1e-10)


def test_large_weights_that_are_to_be_moved_are_moved(tmp_path: Path) -> None:
    wide = to_float64(large(tmp_path, external=True), tmp_path, lambda array: 2.0 * array.astype(np.float64))
    weight = numpy_helper.to_array(large(tmp_path, external=False).graph.initializer[1]).astype(np.float64)
    np.testing.assert_array_equal(numpy_helper.to_array(wide.graph.initializer[1]), 2 * weight)


def test_a_weight_that_is_an_input_is_as_wide_as_its_type_says(tmp_path: Path) -> None:
    model = large(tmp_path, external=False)
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [512, 512]))
    wide = to_float64(model)
    assert wide.graph.initializer[1].data_type == TensorProto.DOUBLE
    onnx.checker.check_model(wide)


def test_the_mean_of_a_normalization_is_a_double() -> None:
    """onnxruntime has the mean that LayerNormalization gives besides in float32 alone."""
    model = parse(
        "g (float[B, 3] x) => (float[B, 3] y, float[B, 1] mean) <float[3] w = {1.0, 1.0, 1.0}> {"
        " y, mean = LayerNormalization(x, w) }"
    )
    del model.graph.output[1].type.tensor_type.shape.dim[:]
    model.graph.output[1].ClearField("type")
    x = np.array([[1.0, 2.0, 2.0 + 2.0**-40]])
    _, mean = Evaluator(to_float64(model)).run({"x": x})
    assert mean.dtype == np.float64
    assert mean[0, 0] == pytest.approx(x.mean(), rel=1e-15)


def test_a_series_that_is_normalized_and_gets_its_mean_back_is_proved() -> None:
    """RevIN: the mean and the deviation of a window are taken off, and given back at the end."""
    model = parse(
        """g (float[B, 24] x) => (float[B, 24] z) <int64[1] last = {1}, float epsilon = {0.00001}> {
            mean = ReduceMean(x, last)
            d = Sub(x, mean)
            square = Mul(d, d)
            variance = ReduceMean(square, last)
            shifted = Add(variance, epsilon)
            deviation = Sqrt(shifted)
            y = Div(d, deviation)
            positive = Relu(y)
            scaled = Mul(positive, deviation)
            z = Add(scaled, mean)
        }"""
    )
    result = onnxfuse.optimize(model, target="onnx")
    assert not result.report.left_out
    assert "LayerNormalization" in [node.op_type for node in result.model.graph.node]
