"""One form for each op, whatever the opset: attributes that became inputs are attributes again, defaults are left out.

This reads a NodeProto's op into that form; `realize` writes it for a given opset.  Only what rules and the normal
form look at is listed; every other op passes through unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, TypeAlias, cast

import numpy as np
from onnx import AttributeProto, NodeProto, TensorProto, helper, numpy_helper

from .onnxruntime_ops import IN_AI_ONNX
from .standard import STANDARD, schema_of
from .types import type_name

Attrs: TypeAlias = tuple[tuple[str, Any], ...]
"""The attributes of a term, sorted by name; hashable, see `freeze`."""

AXES_INPUT: dict[str, tuple[int, str, int]] = {
    # op: (position of the input, name of the attribute it was, opset that turned it into an input)
    "Squeeze": (1, "axes", 13),
    "Unsqueeze": (1, "axes", 13),
    "ReduceSum": (1, "axes", 13),
    "Split": (1, "split", 13),
    **{
        f"Reduce{kind}": (1, "axes", 18)
        for kind in ("Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")
    },
}
"""Ops with integers that moved from an attribute to an input."""

BOUNDS_ATTRIBUTE: dict[str, tuple[str, ...]] = {
    # op: attributes in the order of the inputs they became
    "Slice": ("starts", "ends", "axes"),
    "Clip": ("min", "max"),
    "Pad": ("pads", "value"),
    "TopK": ("k",),
}
"""Ops whose old attribute form is read as the new input form."""

IGNORED: frozenset[tuple[str, str]] = frozenset(
    {("LayerNormalization", "stash_type"), ("Split", "num_outputs"), ("Cast", "saturate"), ("Cast", "round_mode")}
)
"""Attributes that say how, not what."""


def attribute_value(attribute: AttributeProto) -> Any:
    """A hashable Python value."""
    kind = attribute.type
    if kind == AttributeProto.INT:
        return attribute.i
    if kind == AttributeProto.INTS:
        return tuple(attribute.ints)
    if kind == AttributeProto.FLOAT:
        return attribute.f
    if kind == AttributeProto.STRING:
        return attribute.s.decode("utf-8", "surrogateescape")
    if kind == AttributeProto.TENSOR:
        return ("tensor", attribute.t.SerializeToString(deterministic=True))
    if kind == AttributeProto.FLOATS:
        return tuple(attribute.floats)
    if kind == AttributeProto.STRINGS:
        return tuple(s.decode("utf-8", "surrogateescape") for s in attribute.strings)
    return ("proto", attribute.SerializeToString(deterministic=True))


@cache
def defaults(op: str, domain: str, opset: int) -> dict[str, Any]:
    """Attribute defaults of the op's schema at an opset; empty for an op that onnx does not know."""
    schema = schema_of(op, opset, domain)
    if schema is None:
        return dict(IN_AI_ONNX.get(op, {})) if domain in STANDARD else {}
    return {
        name: attribute_value(a.default_value)
        for name, a in schema.attributes.items()
        if a.default_value.type != AttributeProto.UNDEFINED
    }


@cache
def standard_attributes(op: str, opset: int) -> frozenset[str] | None:
    """The attributes of this ai.onnx op at an opset; None if that has no such op."""
    schema = schema_of(op, opset)
    return None if schema is None else frozenset(schema.attributes)


def is_standard(op: str, attrs: Iterable[str], opset: int, inputs: int = 0) -> bool:
    """Does ai.onnx have this op, with these attributes and so many inputs, at this opset?  GroupNormalization of 18,
    whose scale is another one, it has withdrawn."""
    known, schema = standard_attributes(op, opset), schema_of(op, opset)
    if known is None or schema is None or schema.deprecated:
        return False
    moved = integers_as_input(op, opset)
    return set(attrs) - ({moved[1]} if moved else set()) <= known and inputs <= schema.max_input


@cache
def allows(op: str, opset: int, dtype: int) -> bool:
    """Does the schema of the standard op take this element type as its first input?"""
    schema = schema_of(op, opset)
    return schema is not None and f"tensor({type_name(dtype)})" in schema.inputs[0].types


@cache
def single_precision(op: str, opset: int) -> frozenset[int]:
    """Positions of the inputs of a standard op that are float32 where others may be float16: a Resize's scales."""
    schema = schema_of(op, opset)
    kinds = [set(given.types) for given in schema.inputs] if schema is not None else []
    halves = ["tensor(float16)" in allowed for allowed in kinds]
    if not any(halves):
        return frozenset()
    return frozenset(i for i, allowed in enumerate(kinds) if "tensor(float)" in allowed and not halves[i])


def attributes_of(node: NodeProto, opset: int) -> dict[str, Any]:
    """The node's attributes without those that equal their default."""
    standard = defaults(node.op_type, node.domain, opset)
    found = {}
    for attribute in node.attribute:
        value = attribute_value(attribute)
        name = attribute.name
        if standard.get(name, _MISSING) != value and (node.op_type, name) not in IGNORED:
            found[name] = value
    return found


_MISSING = object()


def freeze(attrs: dict[str, Any]) -> Attrs:
    if not attrs:
        return ()
    return tuple(sorted(attrs.items(), key=lambda item: item[0]))


def make_attribute(name: str, value: Any) -> AttributeProto:
    """The inverse of `attribute_value`."""
    if isinstance(value, tuple) and value and value[0] == "tensor":
        value = TensorProto.FromString(value[1])
    if isinstance(value, tuple) and value and value[0] == "proto":
        return cast(AttributeProto, AttributeProto.FromString(value[1]))
    if isinstance(value, tuple) and not value:
        return AttributeProto(name=name, type=AttributeProto.INTS)
    if isinstance(value, np.generic):
        value = value.item()
    return helper.make_attribute(name, list(value) if isinstance(value, tuple) else value)


def tensor(array: np.ndarray[Any, Any], name: str, dtype: int) -> TensorProto:
    """An initializer of the given dtype."""
    with np.errstate(over="ignore"):  # a mask's -3.4e38 is -inf in half precision
        values = np.ascontiguousarray(array).astype(helper.tensor_dtype_to_np_dtype(dtype))
    return numpy_helper.from_array(values.reshape(array.shape), name)


def integers_as_input(op: str, opset: int) -> tuple[int, str] | None:
    """(input position, attribute name) if this op takes integers as an input at this opset."""
    if op not in AXES_INPUT:
        return None
    position, name, since = AXES_INPUT[op]
    return (position, name) if opset >= since else None


def old_bounds(op: str, attrs: dict[str, Any]) -> Sequence[tuple[str, Any]]:
    """(attribute, value) pairs of an old Slice, Clip, Pad or TopK, in input order; empty for the input form."""
    names = BOUNDS_ATTRIBUTE.get(op, ())
    if not any(n in attrs for n in names):
        return ()
    return [(n, attrs.pop(n, None)) for n in names]
