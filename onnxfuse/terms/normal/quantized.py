"""Laws of what quantizers write: views move outside of both ops, and steps that were taken are not taken again.

Q and DQ stand side by side then, and beside what is computed: so onnxruntime finds its kernels on integers.  Bytes with
a sign stay as they are: on x86 it has most kernels for those without, and makes such of them only where it finds a Q
and a DQ, and no view around that it would have to move first (core/optimizer/qdq_transformer/qdq_s8_to_u8.cc).

com.microsoft's Q and DQ compute what ai.onnx's do, of which they have more types (docs/ContribOperators.md).
"""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from onnxfuse.terms.fold import decided
from onnxfuse.terms.infer_table import normal_axis
from onnxfuse.terms.term import Array, Term, UnknownValueError

from .merges import merges_rows
from .table import Applied, law, make
from .views import reshape, transpose

BYTES = frozenset({TensorProto.INT8, TensorProto.UINT8})
"""Types of at most 256 steps, whose arithmetic float32 has exactly."""
_LEAST, _MOST = 1e-30, 1e30
"""Scales by which no number of steps overflows float32, or loses its last digits."""


_QUANTIZE = "QuantizeLinear com.microsoft.QuantizeLinear"
_DEQUANTIZE = "DequantizeLinear com.microsoft.DequantizeLinear"


@law(_QUANTIZE, "QuantizeLinear(DequantizeLinear(q, c), c) = q")
def _again(a: Applied) -> Term | None:
    """Of q steps of a scale, float32 gives q of them again: two roundings of a number below 2^8 are off by 2^-15.  In
    bfloat16 they may be off by one, and in float16 a few steps of a large scale overflow."""
    x = a.args[0]
    if x.op not in _DEQUANTIZE.split() or x.args[1:] != tuple(a.args[1:]) or a.attrs.get("block_size"):
        return None
    q, scale = x.args[:2]
    several = scale.shape not in ((), (1,))
    computed = {x.dtype, scale.dtype, a.attrs.get("precision") or TensorProto.FLOAT}
    if computed != {TensorProto.FLOAT}:
        return None
    if q.dtype != a.dtype or q.dtype not in BYTES or (several and x.attr("axis", 1) != a.attrs.get("axis", 1)):
        return None
    return q if scale.constant and _ordinary(scale) else None


def _ordinary(scale: Term) -> bool:
    try:
        return decided(scale, _moderate)
    except UnknownValueError:
        return False


def _moderate(scale: Array) -> bool:
    return bool(((np.abs(scale) >= _LEAST) & (np.abs(scale) <= _MOST)).all())


@law("MatMulInteger", "MatMulInteger(merge(q), p) = merge(MatMulInteger(q, p))")
def _of_merged_rows(a: Applied) -> Term | None:
    """The product of rows is that of MatMul; they have one zero point."""
    x, y, *zeros = a.args
    if a.shape is None or y.rank != 2 or (x.rank or 0) < 2 or not merges_rows(x):
        return None
    if zeros and zeros[0].op != "Absent" and zeros[0].shape not in ((), (1,)):
        return None
    return reshape(a.terms, make(a.terms, "MatMulInteger", [x.args[0], y, *zeros], {}), a.shape)


@law("Cast", "Cast(merge(MatMulInteger(q, p))) = merge(Cast(MatMulInteger(q, p)))")
def _of_converted_rows(a: Applied) -> Term | None:
    x = a.args[0]
    if not merges_rows(x) or x.args[0].op != "MatMulInteger" or a.shape is None:
        return None
    inner = make(a.terms, "Cast", [x.args[0]], a.attrs, x.args[0].shape, a.dtype)
    return reshape(a.terms, inner, a.shape)


@law(_QUANTIZE, "QuantizeLinear(T(x), c) = T(QuantizeLinear(x, c))")
def _quantized_view(a: Applied) -> Term | None:
    return _view_of(a) if a.dtype == TensorProto.UINT8 else None


@law(_DEQUANTIZE, "DequantizeLinear(T(q), c) = T(DequantizeLinear(q, c))")
def _dequantized_view(a: Applied) -> Term | None:
    return _view_of(a) if a.args[0].dtype == TensorProto.UINT8 else None


def _view_of(a: Applied) -> Term | None:
    """With one scale for all elements, any view that only reorders them moves outside; with one for each index of an
    axis a Transpose does, with which the axis moves."""
    x = a.args[0]
    if x.op not in ("Reshape", "Transpose") or len(x.args) != 1 or x.shape is None:
        return None
    attrs = dict(a.attrs)
    if any(arg.op != "Absent" and arg.shape not in ((), (1,)) for arg in a.args[1:]):
        if x.op == "Reshape" or attrs.get("block_size") or any(arg.rank != 1 for arg in a.args[1:]):
            return None
        attrs["axis"] = x.attr("perm")[normal_axis(attrs.get("axis", 1), len(x.shape))]
    inner = make(a.terms, a.op, [x.args[0], *a.args[1:]], attrs, x.args[0].shape, a.dtype)
    return reshape(a.terms, inner, x.shape) if x.op == "Reshape" else transpose(a.terms, inner, x.attr("perm"))
