"""A node of a standard or contributed op, as the opset at hand has it."""

from __future__ import annotations

from typing import Any

from onnx import TensorProto

from onnxfuse.model.onnxruntime_ops import named
from onnxfuse.model.schema import integers_as_input
from onnxfuse.model.standard import STANDARD
from onnxfuse.targets.contrib import REQUIRED_OUTPUTS
from onnxfuse.terms.term import REAL, Term

from .plan import NewNode, Plan, UnrealisableError

WINDOWS = ("BlackmanWindow", "HammingWindow", "HannWindow")
"""Ops that say in an attribute which type they give."""


def op_node(plan: Plan, op: str, inputs: list[str], attrs: dict[str, Any], dtype: int, limit: float, name: str) -> str:
    """A new node just before `limit` for an op in the normal form's spelling, without its inputs and attributes that
    this opset has otherwise; the name of its output.  Raises UnrealisableError where the opset has no such op."""
    domain, _, kind = op.rpartition(".")
    domain = "" if domain in STANDARD else domain  # ai.onnx.Sum is the op as it is, not its normal form
    moved = integers_as_input(kind, plan.draft.opset)
    if moved is not None and moved[1] in attrs:
        inputs = [*inputs, plan.integers(attrs.pop(moved[1]))]
    if op == "Cast":
        attrs["to"] = dtype
    if kind in WINDOWS and dtype in REAL and dtype != TensorProto.FLOAT:
        attrs["output_datatype"] = dtype
    if op in ("Softmax", "LogSoftmax"):
        axis = attrs.setdefault("axis", -1)
        if plan.draft.opset < 13 and axis != -1:
            raise UnrealisableError(f"before opset 13 {op} works on all axes from {axis} on")
    if not domain:  # onnxruntime's own, of which another is made
        kind = named(kind, plan.draft.opset)
    output = plan.node(kind, inputs, attrs, limit, name, domain)
    complete(plan, op, plan.nodes[-1])
    return output


def complete(plan: Plan, op: str, node: NewNode) -> None:
    """Name the outputs that an op's nodes must have."""
    for i in range(1, REQUIRED_OUTPUTS.get(op, 1)):
        unread = "" if node.outputs[i:] and node.outputs[i] else plan.names.unique(f"onnxfuse/{node.op}")
        node.outputs[i : i + 1] = [unread or node.outputs[i]]


def counted(x: Term, attrs: dict[str, Any]) -> dict[str, Any]:
    """The attributes of a reduction with its axes counted from the first: onnxruntime (1.31) gives the wrong shape to
    what is reduced of an empty tensor along axes that count from the end."""
    if x.rank is None or "axes" not in attrs:
        return attrs
    return attrs | {"axes": tuple(axis % x.rank for axis in attrs["axes"])}
