"""A body in the element type of what it reads, whatever that becomes.

A converter to half precision makes float16 of what a node of the graph reads and gives, and does not look into bodies:
there float32 has to be the type of an operand, and of nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onnx import NodeProto, TensorProto, helper

from onnxfuse.language.functions import CAST_LIKE


def generic(nodes: Sequence[NodeProto], like: str, opset: int) -> Iterator[NodeProto]:
    """The nodes of a body, of which those that name float32 take the type of `like` instead, an operand that is float32
    in the model as it is; with no such operand, and before opset 15, as they are."""
    if not like or opset < CAST_LIKE:
        yield from nodes
        return
    made: set[str] = set()
    for node in nodes:
        name = node.output[0] if node.output else ""
        if node.op_type == "Cast" and node.attribute and _to(node) == TensorProto.FLOAT:
            yield helper.make_node("CastLike", [node.input[0], like], [name])
        elif is_real(node):
            yield from _typed(node, like)
        elif node.op_type == "Range" and not made.isdisjoint(node.input):
            yield from _range(node, like)
        else:
            yield node
            continue
        made.add(name)


def untyped(nodes: Sequence[NodeProto], opset: int, inputs: Sequence[str], outputs: Sequence[str]) -> bool:
    """Does a body give float32 that none of its inputs is?  `inputs` and `outputs` are element types."""
    if opset < CAST_LIKE or "float32" not in outputs or "float32" in inputs:
        return False
    return any(is_real(node) or (node.op_type == "Cast" and _to(node) == TensorProto.FLOAT) for node in nodes)


def is_real(node: NodeProto) -> bool:
    """Does a node make float32 of nothing?"""
    if node.op_type == "Constant":
        return any(
            a.name in ("value_float", "value_floats") or a.t.data_type == TensorProto.FLOAT for a in node.attribute
        )
    if node.op_type == "ConstantOfShape":
        return not node.attribute or node.attribute[0].t.data_type == TensorProto.FLOAT
    return False


def _to(node: NodeProto) -> int:
    return next((attribute.i for attribute in node.attribute if attribute.name == "to"), 0)


def _typed(node: NodeProto, like: str) -> Iterator[NodeProto]:
    """A node, and its result in the type of `like`."""
    before = f"{node.output[0]}\0typed"
    own = NodeProto()
    own.CopyFrom(node)
    own.output[0] = before
    yield own
    yield helper.make_node("CastLike", [before, like], [node.output[0]])


def _range(node: NodeProto, like: str) -> Iterator[NodeProto]:
    """A Range of real numbers, which has no half precision."""
    own = NodeProto()
    own.CopyFrom(node)
    for number, name in enumerate(node.input):
        own.input[number] = f"{node.output[0]}\0{number}"
        yield helper.make_node("Cast", [name], [own.input[number]], to=TensorProto.FLOAT)
    yield from _typed(own, like)
