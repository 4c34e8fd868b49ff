"""Bodies that are of the type of what they read, as whoever converts a file to half precision takes them to be."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, parser
from onnxruntime import InferenceSession
from onnxruntime.transformers.float16 import convert_float_to_float16

from onnxfuse import optimize
from onnxfuse.regions.generic import generic, is_real, untyped
from tests import exports

from .written import calls, fused, model, regions


def nodes(text: str) -> list[NodeProto]:
    return list(parser.parse_function(f'<opset_import: ["": 20], domain: "d"> f (x, n) => (y) {{ {text} }}').node)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("y = Cast<to = 1>(n)", "CastLike(n,x)"),
        ("y = Cast<to = 7>(n)", "Cast(n)"),
        ("y = Constant<value = float {2}>()", "Constant() CastLike(_,x)"),
        ("y = Constant<value_float = 2.0>()", "Constant() CastLike(_,x)"),
        ("y = Constant<value = int64 {2}>()", "Constant()"),
        ("y = ConstantOfShape(n)", "ConstantOfShape(n) CastLike(_,x)"),
        ("y = ConstantOfShape<value = int64[1] {2}>(n)", "ConstantOfShape(n)"),
        ("y = Range(n, n, n)", "Range(n,n,n)"),
        ("a = Cast<to = 1>(n) y = Range(a, a, a)", "CastLike(n,x) Cast(a) Cast(a) Cast(a) Range(_,_,_) CastLike(_,x)"),
    ],
)
def test_what_names_float32_takes_the_type_of_an_operand(before: str, after: str) -> None:
    given = nodes(before)
    made = list(generic(given, "x", 20))
    told = [f"{node.op_type}({','.join('_' if chr(0) in name else name for name in node.input)})" for node in made]
    assert " ".join(told) == after
    assert made[-1].output == given[-1].output
    assert list(generic(given, "", 20)) == given
    assert list(generic(given, "x", 14)) == given


def test_only_float32_of_nothing_is_real() -> None:
    found = nodes("a = Constant<value_floats = [1.0]>() b = Constant<value_ints = [1]>() y = Exp(x)")
    assert [is_real(node) for node in found] == [True, False, False]


def test_a_body_that_makes_float32_of_none_needs_a_number() -> None:
    found = nodes("y = Cast<to = 1>(n)")
    assert untyped(found, 20, ["int64"], ["float32"])
    assert not untyped(found, 14, ["int64"], ["float32"])
    assert not untyped(found, 20, ["int64", "float32"], ["float32"])
    assert not untyped(found, 20, ["float16"], ["float16"]), "what lies between two casts is nobody else's"
    assert not untyped(nodes("y = Exp(x)"), 20, ["float64"], ["float32"])


MASK = """g (int64[N,6] x, float[N,6] z) => (float[N,6] a, float[N,6] y)
<float none = {0}, float low = {-3.4028235e38}, int64 pad = {0}> {
    m = Equal(x, pad) s = Where(m, low, none) a = Softmax(s) y = Exp(z) }"""
COUNTS = "g (int64[N,6] x, int64 n) => (float[N,6] y) { m = Equal(x, n) k = Not(m) y = Cast<to = 1>(k) }"
ANGLES = "g (int64[N,6] x, float[6] f) => (float[N,6] y) { a = Cast<to = 1>(x) b = Mul(a, f) y = Cos(b) }"
SHIFTED = """g (int64[N,6] x) => (float[N,6] y) <float one = {1}, float low = {-10000}> {
    a = Cast<to = 1>(x) b = Sub(one, a) c = Mul(b, low) y = Exp(c) }"""
SQUARES = """g (float[N,6] x) => (float[N,6] y) <float two = {2}, float half = {0.5}> {
    a = Pow(x, two) b = Mul(a, half) y = Exp(b) }"""
BRANCHES = """g (int64[N,6] x, bool c) => (float[6,N] y) { y = If(c) <
    then_branch = t () => (float[6,N] p) { b = Equal(x, x) d = Cast<to = 1>(b) p = Transpose<perm = [1, 0]>(d) },
    else_branch = e () => (float[6,N] q) { f = Cast<to = 1>(x) q = Transpose<perm = [1, 0]>(f) }> }"""


@pytest.mark.parametrize("opset", [13, 20])
@pytest.mark.parametrize("text", [MASK, COUNTS, ANGLES, SHIFTED, SQUARES, BRANCHES])
def test_a_converter_to_half_precision_makes_of_a_fused_file_what_it_makes_of_the_original(
    text: str, opset: int
) -> None:
    before = model(text, opset)
    after = fused(text, opset).model
    assert after.functions or opset == 13
    rows = np.array([[0, 0, 0, 0, 0, 0], [0, 1, 2, 0, 1, 3]])
    feeds = {"x": rows, "z": rows / 4, "n": np.array(1), "f": np.arange(6) / 4, "c": np.array(True)}
    expected, got = (in_half(each, feeds) for each in (before, after))
    for one, other in zip(expected, got, strict=True):
        assert other.dtype == np.float16
        np.testing.assert_allclose(other, one, rtol=2e-3)


def in_half(original: ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What a model gives once it is converted."""
    made = convert_float_to_float16(original)
    session = InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    types = {"tensor(float16)": np.float16, "tensor(int64)": np.int64, "tensor(bool)": np.bool_}
    given = {each.name: feeds[each.name].astype(types[each.type]) for each in session.get_inputs()}
    return list(session.run(None, given))


def test_a_row_that_is_masked_throughout_is_no_nan() -> None:
    """The lowest number of float32 is -Inf in half precision, if nobody makes the lowest of float16 of it."""
    made = fused(MASK).model
    (node,) = [node for node in regions(made) if "Where" in node.op_type]
    low = [tensor.name for tensor in made.graph.initializer if tensor.data_type == TensorProto.FLOAT]
    assert set(low) <= set(node.input)
    converted = in_half(made, {"x": np.zeros((1, 6)), "z": np.zeros((1, 6))})
    np.testing.assert_allclose(converted[0], 1 / 6, rtol=1e-3)


def test_a_file_with_such_regions_stays_as_it_is() -> None:
    once = fused(COUNTS).model
    assert calls(once) == ["Region"]
    assert optimize(once, level=2).model.SerializeToString(deterministic=True) == once.SerializeToString(
        deterministic=True
    )


def test_the_number_that_is_given_is_one() -> None:
    made = fused(COUNTS).model
    (number,) = [tensor for tensor in made.graph.initializer if tensor.data_type == TensorProto.FLOAT]
    assert regions(made)[0].input[-1] == number.name
    assert helper.tensor_dtype_to_np_dtype(number.data_type) == np.float32


STEMS = "activations bert.ts bert_opset13.ts convnext_opset13.ts gpt2.dynamo t5_encoder.ts"


@pytest.mark.parametrize("stem", STEMS.split())
def test_models_are_converted_to_half_precision(stem: str) -> None:
    path = exports.MODELS / f"{stem}.onnx"
    original = onnx.load(path)
    made = optimize(original, level=2, validate="off").model
    assert regions(made)
    feeds = exports.feeds(original)
    half = exports.run(convert_float_to_float16(made, keep_io_types=True), feeds)
    for name, wanted in exports.run(original, feeds).items():
        assert np.abs(half[name] - wanted).max() < 0.02 * np.abs(wanted).max()
