"""What the ONNX standard says of an op: the one place that asks onnx for schemas."""

from __future__ import annotations

from functools import cache

from onnx import defs

STANDARD = ("", "ai.onnx")
"""The names of the standard's own domain."""


@cache
def schema_of(op: str, opset: int, domain: str = "") -> defs.OpSchema | None:
    """The schema of an op as an opset of its domain has it; None where onnx knows none."""
    return defs.get_schema(op, opset, domain) if defs.has(op, opset, domain) else None


@cache
def in_onnx(op: str, opset: int) -> bool:
    """Has ai.onnx this op at this opset?"""
    return bool(defs.has(op, opset, ""))


@cache
def has_op(op: str, domain: str) -> bool:
    """Does onnx know this op of a domain, at whatever opset?"""
    return bool(defs.has(op, domain))


def newest(op: str) -> defs.OpSchema | None:
    """The schema of an op of ai.onnx at the newest opset that onnx knows; None if that has no such op."""
    return schema_of(op, defs.onnx_opset_version())


@cache
def integer_attributes(op: str) -> frozenset[str]:
    """The attributes of an op of ai.onnx that are integers."""
    schema = newest(op)
    known = {} if schema is None else schema.attributes
    return frozenset(name for name, attribute in known.items() if attribute.type == defs.OpSchema.AttrType.INT)


@cache
def parameters(op: str, opset: int, domain: str = "") -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What types of an op's inputs and outputs are called: variables, or such as `tensor(int64)`; the same name is the
    same type.  Empty for an op that onnx does not know."""
    schema = schema_of(op, opset, domain)
    if schema is None:
        return (), ()
    return tuple(p.type_str for p in schema.inputs), tuple(p.type_str for p in schema.outputs)
