"""Control flow in half precision: what goes into the bodies of an If, a Loop or a Scan, and comes out of them.

A node that is in half precision gives all its real results in it.  What a Loop or a Scan carries has one type from its
initial value to its last one: where the node is in half precision, so are

    the initial values, and what a Scan goes through                          inputs of the node
    what the body is given of them, and gives in their place, and what each step adds       inputs, outputs of the body
    the last values, and what the steps have given                            outputs of the node

and where it is not, none is.  What bodies compute in between is decided for each by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from onnx import GraphProto, NodeProto, helper

from onnxfuse.model.standard import STANDARD
from onnxfuse.model.walk import attribute_graphs

from .ports import ANY, SHARED, Ports

_SCAN_WITHOUT_BATCH = 9
"""The first opset at which a Scan is what it is since."""
_COUNTED = 2
"""Inputs of a Loop, and of its body, that say how often it runs; none that it carries is among them."""


def converts(node: NodeProto, opset: int, which: Collection[str]) -> bool:
    """Are the bodies of a node converted, if those of the ops `which` are to be?  None that give or take anything but
    tensors."""
    if node.op_type not in which or node.domain not in STANDARD:
        return False
    values = [info for _, body in attribute_graphs(node) for info in (*body.input, *body.output)]
    tensors = all(info.type.WhichOneof("value") in (None, "tensor_type") for info in values)
    return tensors and (node.op_type != "Scan" or opset >= _SCAN_WITHOUT_BATCH)


def ports(node: NodeProto) -> Ports:
    """What the types of the inputs and outputs of a node are whose bodies are converted."""
    free = {"If": len(node.input), "Loop": _COUNTED}.get(node.op_type, 0)
    inputs = [ANY if number < free else SHARED for number in range(len(node.input))]
    return Ports(tuple(inputs), (SHARED,) * len(node.output))


def results(node: NodeProto, body: GraphProto, wanted: Sequence[bool], *, half: bool) -> list[bool]:
    """Which outputs of a body are in half precision, where the node itself is, or not, and `wanted` says the same of
    what is read of its outputs."""
    return list(wanted) if node.op_type == "If" else [half] * len(body.output)


def apart(body: GraphProto, kept: Collection[str]) -> dict[str, str]:
    """Let each output of a body be made by a node of its own that can give it in either type; those `kept` are.

    Of a result that is a constant, or a value of the graph around, the type is not the body's to say.  Returns the new
    name of each such output → the value."""
    made = {name for node in body.node if node.op_type != "Constant" for name in node.output}
    found: dict[str, str] = {}
    for number, info in enumerate(body.output):
        if info.name not in made and info.name not in kept:
            result = f"{info.name}/result/{number}"
            found[result] = info.name
            body.node.append(helper.make_node("Identity", [info.name], [result], name=result))
            info.name = result
    return found
