"""When a number, an attribute or a tensor of a graph is what a rule asks for."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto

from onnxfuse.model import dims
from onnxfuse.model.dims import Sym
from onnxfuse.terms.normal.ranges import in_range
from onnxfuse.terms.term import REAL, Term, Terms, is_number

KIND_TEXT = {
    "const": "a constant",
    "bool": "booleans",
    "real": "real numbers",
    "int": "integers",
    "bytes": "bytes",
}


def kind_fits(kind: str, t: Term) -> bool:
    """Is the term of this kind (the annotation in a rule's head)?"""
    if kind == "const":
        return t.constant
    if kind == "bool":
        return t.dtype == TensorProto.BOOL
    if kind == "real":
        return t.dtype in REAL
    if kind == "int":
        return t.dtype in (TensorProto.INT64, TensorProto.INT32)
    if kind == "bytes":
        return t.dtype in (TensorProto.INT8, TensorProto.UINT8)
    return True


def same(a: Any, b: Any) -> bool:
    """Are two attribute values or dimensions equal for certain?"""
    if isinstance(a, float) and isinstance(b, int | float):
        return math.isclose(a, b, rel_tol=1e-6)
    if isinstance(a, int | Sym) and isinstance(b, int | Sym):
        return dims.equal(a, b) is True
    return bool(a == b)


def close(wanted: float, seen: float, dtype: int) -> bool:
    """Is `seen` the literal `wanted`, within 2 ulp of the dtype or 5e-4, whichever is larger?  A number that every type
    has, such as 1, nobody rounds: it is met within the last digits of float32, that it may have been computed with.

    Nothing but 0 is 0: of Max(x, 1e-12) a logarithm is finite everywhere, and of Relu(x) it is not."""
    if wanted == seen:
        return True
    few = float(ml_dtypes.bfloat16(wanted)) == wanted == float(np.float16(wanted))
    ulp = 2.0**-10 if dtype == TensorProto.FLOAT16 else 2.0**-7 if dtype == TensorProto.BFLOAT16 else 0.0
    return bool(np.isfinite(seen)) and math.isclose(wanted, seen, rel_tol=max(1e-6 if few else 5e-4, 2 * ulp))


def collected(terms: Terms, op: str, operands: list[Term]) -> list[Term]:
    """The operands of a sum or product with its numbers as one, as the normal form and patterns have them; where that
    one is out of range, they stay as they are."""
    numbers = [o for o in operands if is_number(o)]
    if len(numbers) < 2:
        return operands
    values = [n.scalar for n in numbers if n.scalar is not None]
    value, rank = math.prod(values) if op == "Mul" else math.fsum(values), max(n.rank or 0 for n in numbers)
    if not math.isfinite(value) or not in_range(value, numbers[0].dtype):
        return operands
    return [*(o for o in operands if not is_number(o)), terms.number(value, numbers[0].dtype, rank)]
