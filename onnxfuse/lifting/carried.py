"""The shapes of what a body of Loop or Scan is given in each step, where it declares none.

    carried     x0 has shape s, and of a value of shape s the body makes one of shape s: it has that in every step
    scanned     one step of a tensor of shape (n, *s) has shape s

An axis that the body changes, as one that grows with every step, is left open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from onnx import NodeProto

from onnxfuse.model.dims import Dim, Shape, symbol
from onnxfuse.model.graph import Graph, label
from onnxfuse.model.in_place import stands
from onnxfuse.model.schema import attributes_of
from onnxfuse.model.symbols import renamed
from onnxfuse.model.walk import attribute_graphs

from .view import View

Partly: TypeAlias = tuple[Dim | None, ...]
"""A shape of which some dimensions may be anything."""


@dataclass(frozen=True)
class Given:
    """One value that a body is given."""

    shape: Partly
    """What it has in the first step."""
    following: str = ""
    """The value of the body that it is in the next step; the empty string where every step gets one like the first."""


def given(parent: View | None, graph: Graph) -> dict[str, Given]:
    """Inputs of a body → what is known of them in the first step.  Empty if the scope is no such body."""
    node = None if parent is None else _node(parent.graph, graph)
    if parent is None or node is None:
        return {}
    states = node.input[2:] if node.op_type == "Loop" else node.input
    own, results = (graph.inputs[2:], graph.outputs[1:]) if node.op_type == "Loop" else (graph.inputs, graph.outputs)
    attrs = attributes_of(node, graph.opset)
    count = len(states) - (attrs["num_scan_inputs"] if node.op_type == "Scan" else 0)
    found: dict[str, Given] = {}
    for position, (name, outer) in enumerate(zip(own, states, strict=True)):
        shape = parent.term(outer).shape
        if shape is None:
            continue
        if position < count:
            found[name] = Given(tuple(shape), results[position])
        else:
            axis = (attrs.get("scan_input_axes") or [0] * len(states))[position - count]
            found[name] = Given(tuple(d for i, d in enumerate(shape) if i != axis % len(shape)))
    return found


def _node(around: Graph, graph: Graph) -> NodeProto | None:
    """The Loop or Scan of a scope that has this body."""
    nodes = [
        node
        for node in (around.nodes[index] for index in around.captures)
        if node.op_type != "If" and stands(node, around.opset)
        for name, body in attribute_graphs(node)
        if f"{around.path}/{label(node)}.{name}" == graph.path and [i.name for i in body.input] == graph.inputs
    ]
    return nodes[0] if len(nodes) == 1 else None


def met(view: View, name: str, declared: Shape | None, first: Given | None) -> Shape | None:
    """The shape of an input of a body: as it is declared, else as what is known of it says."""
    if first is None or (declared is not None and len(declared) != len(first.shape)):
        return declared
    dims: list[Dim] = []
    for axis, dim in enumerate(first.shape):
        said = symbol(f"{name}.{axis}") if declared is None else declared[axis]
        dims.append(said if dim is None or isinstance(said, int) else renamed(dim, view.learned))
    return tuple(dims)


def lasting(view: View, known: Mapping[str, Given]) -> dict[str, Given]:
    """What of that holds in every step, if it holds in one: all of it, or the scope must be lifted again with less."""
    return {name: rest for name, first in known.items() if (rest := _lasting(view, name, first)) is not None}


def _lasting(view: View, name: str, first: Given) -> Given | None:
    if not first.following:
        return first
    before, after = view.term(name).shape, view.term(first.following).shape
    if before is None or after is None or not len(first.shape) == len(before) == len(after):
        return None
    dims = zip(first.shape, before, after, strict=True)
    return Given(tuple(dim if a == b else None for dim, a, b in dims), first.following)
