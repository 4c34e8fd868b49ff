"""Laws of what quantizers write: the same steps are taken once, and views go between the two ops."""

from __future__ import annotations

import numpy as np

from onnxfuse.terms.fold import value_of
from onnxfuse.terms.term import Term, UnknownValueError

from .inside import BYTES
from .table import Applied, law, make
from .views import reshape, transpose

_LEAST, _MOST = 1e-30, 1e30
"""Scales by which no number of steps overflows float32, or loses its last digits."""


@law("QuantizeLinear", "QuantizeLinear(DequantizeLinear(q, c), c) = q")
def _again(a: Applied) -> Term | None:
    """Of q steps of a scale, float32 gives q of them again: two roundings of a number below 2^8 are off by 2^-15."""
    x = a.args[0]
    if x.op != "DequantizeLinear" or x.args[1:] != tuple(a.args[1:]) or a.attrs.get("block_size"):
        return None
    q, scale = x.args[:2]
    several = scale.shape not in ((), (1,))
    if q.dtype != a.dtype or q.dtype not in BYTES or (several and x.attr("axis", 1) != a.attrs.get("axis", 1)):
        return None
    return q if scale.constant and _ordinary(scale) else None


def _ordinary(scale: Term) -> bool:
    try:
        size = np.abs(value_of(scale))
    except UnknownValueError:
        return False
    return bool(((size >= _LEAST) & (size <= _MOST)).all())


@law("QuantizeLinear", "QuantizeLinear(T(x), c) = T(QuantizeLinear(x, c))")
def _of_view(a: Applied) -> Term | None:
    """One scale for all elements: bytes are moved in place of numbers."""
    x = a.args[0]
    plain = a.dtype in BYTES and all(arg.op == "Absent" or arg.shape in ((), (1,)) for arg in a.args[1:])
    if not plain or x.op not in ("Reshape", "Transpose") or len(x.args) != 1 or x.shape is None:
        return None
    inner = make(a.terms, a.op, [x.args[0], *a.args[1:]], a.attrs, x.args[0].shape, a.dtype)
    return reshape(a.terms, inner, x.shape) if x.op == "Reshape" else transpose(a.terms, inner, x.attr("perm"))
