"""The graphs, functions and nodes of a model, with the bodies that control flow has in attributes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from onnx import AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto

Owner: TypeAlias = GraphProto | FunctionProto
"""What has nodes."""
Key: TypeAlias = tuple[str, str, str]
"""The domain, name and overload of a function."""
BODIES = frozenset({AttributeProto.GRAPH, AttributeProto.GRAPHS})
"""Types of the attributes that hold bodies of control-flow nodes."""


def has_bodies(node: NodeProto) -> bool:
    """Is it a control-flow node?"""
    for attribute in node.attribute:  # noqa: SIM110 - `any` takes a third longer, and every node is asked often
        if attribute.type in BODIES:
            return True
    return False


def attribute_graphs(node: NodeProto) -> Iterator[tuple[str, GraphProto]]:
    """The bodies of a control-flow node, with a name for the scope path."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.name, attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            for i, graph in enumerate(attribute.graphs):
                yield f"{attribute.name}[{i}]", graph


def owners(*roots: Owner) -> Iterator[Owner]:
    """These graphs and functions, the last first, each with all bodies in it at any depth behind it."""
    stack = list(roots)
    while stack:
        owner = stack.pop()
        yield owner
        for node in owner.node:
            if has_bodies(node):
                stack.extend(body for _, body in attribute_graphs(node))


def nodes(*roots: Owner) -> Iterator[NodeProto]:
    """All nodes of these graphs and functions, those of bodies too, in the order of `owners`."""
    stack = list(roots)
    while stack:
        for node in stack.pop().node:
            yield node
            if has_bodies(node):
                stack.extend(body for _, body in attribute_graphs(node))


def nodes_of(model: ModelProto) -> Iterator[NodeProto]:
    """All nodes of a model, those of functions and bodies too."""
    return nodes(model.graph, *model.functions)


def key_of(function: FunctionProto) -> Key:
    """What a function is called by."""
    return function.domain, function.name, function.overload


def called_by(node: NodeProto) -> Key:
    """The key of the function that a node calls, if there is one."""
    return node.domain, node.op_type, node.overload


def name_of(node: NodeProto) -> str:
    """What a node is known by in its scope: its name, else its first output."""
    return node.name or next(iter(node.output), "")


def title(node: NodeProto) -> str:
    """What messages call a node."""
    return node.name or next(filter(None, node.output), f"unnamed {node.op_type}")
