"""What a fused file says, by the names that the definition of an op gives its inputs and outputs."""

from __future__ import annotations

from onnx import FunctionProto, ModelProto, NodeProto, defs


def body(model: ModelProto, node: NodeProto) -> FunctionProto:
    """The function that a node calls."""
    (found,) = [f for f in model.functions if (f.domain, f.name) == (node.domain, node.op_type)]
    return found


def inputs(model: ModelProto, node: NodeProto) -> dict[str, str]:
    """Input of the op → the value that a fused or standard node gives."""
    names = (p.name for p in defs.get_schema(node.op_type).inputs) if not node.domain else body(model, node).input
    return {name: given for name, given in zip(names, node.input, strict=False) if given}


def outputs(model: ModelProto, node: NodeProto) -> dict[str, str]:
    """Output of the op → the value that a fused node makes."""
    return dict(zip(body(model, node).output, node.output, strict=True))
