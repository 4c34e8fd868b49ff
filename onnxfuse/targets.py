"""What a target has: its ops, from which opset on, and for which element types there is a kernel.

onnxruntime's kernels stand in ort_kernels.json, which benchmarks/ort_kernels.py makes by asking onnxruntime for each op
and element type.  An op that the table does not name was not asked about and is taken to run: the proof will tell.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from onnx import TensorProto, defs

from .bodies import EXPANDED, allows, is_standard

KERNELS = Path(__file__).with_name("ort_kernels.json")

WORTH_RAISING: Mapping[str, frozenset[str]] = {
    "onnx": frozenset("Attention Gelu GroupNormalization LayerNormalization RMSNormalization RotaryEmbedding".split()),
    "ort": frozenset(("Attention", "LayerNormalization")),
}
"""Target → ops for which a model's opset is raised.  For others (Swish, Mish, ...) the primitives are as fast, or
com.microsoft has them at every opset."""


@cache
def kernels() -> Mapping[str, frozenset[str]]:
    """Op, with its domain if that is not ai.onnx → the element types (`float`, `float16`, ...) that have a kernel on
    onnxruntime's CPU provider."""
    table = json.loads(KERNELS.read_text(encoding="utf-8"))
    return {op: frozenset(types) for op, types in table["kernels"].items()}


def has_kernel(op: str, dtype: int) -> bool:
    """Does onnxruntime run this op (`Gelu`, `com.microsoft.BiasGelu`) on a CPU in this element type?"""
    known = kernels().get(op.removeprefix("ai.onnx."))
    return known is None or TensorProto.DataType.Name(dtype).lower() in known


def can_say(target: str, op: str, attrs: Mapping[str, Any], opset: int, dtype: int, defined: bool) -> bool:
    """Can a node of this op, in this element type, stand in the target's files?  `defined` ops are fused ones, which
    must be standard there."""
    if defined and not (is_standard(op, attrs, opset) and allows(op, opset, dtype)):
        return False
    return target != "ort" or (op not in EXPANDED and has_kernel(op, dtype))


def wanted_opset(target: str, op: str, attrs: Mapping[str, Any]) -> int:
    """The opset that the target's files have to have for this op; 0 if it is not worth raising one for it."""
    opsets = range(1, defs.onnx_opset_version() + 1) if op in WORTH_RAISING[target] else ()
    return next((opset for opset in opsets if is_standard(op, attrs, opset)), 0)
