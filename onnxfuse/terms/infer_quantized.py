"""Shapes and types of what quantizers write (ai.onnx; onnxruntime's docs/ContribOperators.md).

An op on integers takes each of its tensors with a scale and a zero point behind it, and is otherwise the op on real
numbers that it is called after.
"""

from __future__ import annotations

from onnx import TensorProto

from onnxfuse.model.broadcast import broadcast
from onnxfuse.model.dims import exact

from .infer_table import FLOAT, RULES, Inferred, normal_axis, rule
from .term import Attributes, Term, Terms

INT32, UINT8 = int(TensorProto.INT32), int(TensorProto.UINT8)


def _alike(op: str, terms: Terms, args: list[Term], attrs: Attributes, dtype: int) -> Inferred:
    """The shape that an op has on real numbers, and this element type."""
    ((shape, _), *_) = RULES[op](terms, args, attrs, 1)
    return [(shape, dtype)]


@rule("QuantizeLinear", "com.microsoft.QuantizeLinear")
def _quantize(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """ai.onnx QuantizeLinear-21: the type is that of the zero point, else `output_dtype`, else uint8."""
    named = int(attrs.get("output_dtype", 0)) or UINT8
    given = len(args) > 2 and args[2].op != "Absent"
    return [(args[0].shape, args[2].dtype if given else named)]


@rule("DequantizeLinear", "com.microsoft.DequantizeLinear")
def _dequantize(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """ai.onnx DequantizeLinear-23: the type is `output_dtype`, else that of the scale."""
    return [(args[0].shape, int(attrs.get("output_dtype", 0)) or args[1].dtype)]


@rule("DynamicQuantizeLinear")
def _dynamic_quantize(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """ai.onnx DynamicQuantizeLinear-11: bytes, with one scale and one zero point for all of them."""
    known: Inferred = [(args[0].shape, UINT8), ((), FLOAT), ((), UINT8)]
    return known[:outputs]


@rule("MatMulInteger", "com.microsoft.MatMulInteger16")
def _integer_product(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    return _alike("MatMul", terms, args[:2], {}, INT32)


@rule("ConvInteger")
def _integer_convolution(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    return _alike("Conv", terms, args[:2], attrs, INT32)


@rule("QLinearMatMul")
def _linear_product(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point."""
    return _alike("MatMul", terms, [args[0], args[3]], {}, args[7].dtype)


@rule("QLinearConv", "com.microsoft.QLinearConv")
def _linear_convolution(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, B."""
    if attrs.get("channels_last"):
        return [(None, args[7].dtype)]
    return _alike("Conv", terms, [args[0], args[3]], attrs, args[7].dtype)


@rule("com.microsoft.DynamicQuantizeMatMul")
def _dynamic_product(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """A, B, b_scale, b_zero_point, bias."""
    return _alike("MatMul", terms, args[:2], {}, args[0].dtype)


@rule("com.microsoft.MatMulIntegerToFloat")
def _scaled_product(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """A, B, a_scale, b_scale, a_zero_point, b_zero_point, bias."""
    return _alike("MatMul", terms, args[:2], {}, args[2].dtype)


@rule("com.microsoft.QGemm")
def _linear_gemm(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """A, a_scale, a_zero_point, B, b_scale, b_zero_point, C, y_scale, y_zero_point; floats without these."""
    dtype = args[8].dtype if len(args) > 8 and args[8].op != "Absent" else args[1].dtype
    return _alike("Gemm", terms, [args[0], args[3]], attrs, dtype)


@rule("com.microsoft.QLinearAdd", "com.microsoft.QLinearMul")
def _linear_broadcast(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """A, A_scale, A_zero_point, B, B_scale, B_zero_point, C_scale, C_zero_point."""
    a, b = args[0].shape, args[3].shape
    return [(None if a is None or b is None else broadcast(a, b), args[0].dtype)]


@rule("com.microsoft.QLinearWhere")
def _linear_choice(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """condition, X, x_scale, x_zero_point, Y, y_scale, y_zero_point, z_scale, z_zero_point."""
    shapes = [shape for shape in (args[0].shape, args[1].shape, args[4].shape) if shape is not None]
    return [(broadcast(*shapes) if len(shapes) == 3 else None, args[1].dtype)]


@rule("com.microsoft.QLinearSigmoid", "com.microsoft.QLinearLeakyRelu", "com.microsoft.QLinearSoftmax")
def _linear_unary(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    return [(args[0].shape, args[0].dtype)]


@rule("com.microsoft.QLinearConcat")
def _linear_concat(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """Y_scale, Y_zero_point, and each tensor with its scale and its zero point."""
    return _alike("Concat", terms, args[2::3], attrs, args[1].dtype)


@rule("com.microsoft.QLinearGlobalAveragePool")
def _linear_global_pool(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    if attrs.get("channels_last"):
        return [(None, args[0].dtype)]
    return _alike("GlobalAveragePool", terms, args[:1], {}, args[0].dtype)


@rule("com.microsoft.QLinearAveragePool")
def _linear_pool(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    if attrs.get("channels_last"):
        return [(None, args[0].dtype)]
    return _alike("AveragePool", terms, args[:1], attrs, args[0].dtype)


@rule("com.microsoft.MatMulNBits", "com.microsoft.MatMulBnb4")
def _packed_product(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """A product with packed weights of N columns."""
    x = args[0].shape
    return [(None if x is None else (*x[:-1], attrs["N"]), args[0].dtype)]


@rule("com.microsoft.GatherBlockQuantized")
def _packed_rows(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """data, indices, scales, zero_points: rows of a table whose elements are scaled in blocks; bytes hold two of 4
    bits."""
    data, indices = args[0], args[1]
    if data.shape is None or indices.shape is None:
        return [(None, args[2].dtype)]
    axis = normal_axis(attrs.get("gather_axis", 0), len(data.shape))
    packed = 8 // attrs.get("bits", 4) if data.dtype == UINT8 else 1
    shape = (*data.shape[:-1], data.shape[-1] * packed)
    return [((*shape[:axis], *indices.shape, *shape[axis + 1 :]), args[2].dtype)]


@rule("com.microsoft.QAttention")
def _packed_attention(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """input, weight, bias, input_scale, ...: the input's shape with a third of the columns of the weights."""
    x, w = args[0].shape, args[1].shape
    size = exact(w[1], 3) if w is not None and len(w) == 2 else None
    return [(None if x is None or size is None else (*x[:2], size), args[3].dtype)]


@rule("com.microsoft.QEmbedLayerNormalization")
def _packed_embedding(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """input_ids, segment_ids, word_embedding, ...: a row of the table for each id."""
    ids, table = args[0].shape, args[2].shape
    return [(None if ids is None or table is None else (*ids, table[-1]), FLOAT)]
