"""What lives between forward and backward of a training step.

    kept = { v : a forward node makes v, a backward node reads its elements }

so that memory for it is taken until the reader has run (Chen, Xu, Zhang and Guestrin, "Training deep nets with
sublinear memory cost", arXiv:1604.06174, 2016, call these the intermediate results of a forward pass).  Inputs and
initializers are there anyway; constants and arithmetic with shapes are no activations; a value and its reshapes are
one tensor in memory, called by what makes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnx import FunctionProto, NodeProto

from onnxfuse.lifting.view import View
from onnxfuse.matching.cost import BYTES
from onnxfuse.model.dims import Dim, product
from onnxfuse.model.graph import DOMAIN, elements_read, read_by
from onnxfuse.model.op_traits import RESHAPES, SHAPE_QUERIES
from onnxfuse.model.standard import STANDARD
from onnxfuse.model.symbols import evaluate
from onnxfuse.model.walk import has_bodies

from .step import Step


@dataclass(frozen=True)
class Kept:
    """A value that lives between forward and backward."""

    value: str
    readers: tuple[int, ...]
    """The backward nodes that read it, by their index."""


def kept(view: View, step: Step) -> list[Kept]:
    """The values that live between both, in the order in which they are made."""
    graph = view.graph
    bodies = {f.name: f for f in graph.model.functions if f.domain == DOMAIN}
    readers: dict[str, list[int]] = {}
    for index, node in enumerate(graph.nodes):
        if index in step.forward or root_of(view, next(iter(node.output), "")) not in node.output:
            continue  # a view of a value reads nothing
        for name in reads(node, bodies.get(node.op_type) if node.domain == DOMAIN else None):
            root = root_of(view, name)
            if graph.producer.get(root) in step.forward and root != step.loss and is_activation(view, root):
                readers.setdefault(root, []).append(index)
    order = sorted(readers, key=lambda name: (graph.producer[name], name))
    return [Kept(name, tuple(dict.fromkeys(readers[name]))) for name in order]


def root_of(view: View, name: str) -> str:
    """The tensor that a value is, of which it may be a reshape."""
    graph = view.graph
    while (index := graph.producer.get(name)) is not None:
        node = graph.nodes[index]
        if node.op_type not in RESHAPES or node.domain not in STANDARD or view.term(name).op == "Integers":
            break
        name = node.input[0]
    return name


def is_activation(view: View, name: str) -> bool:
    """Is a value neither the same in every run nor arithmetic with shapes?"""
    term = view.term(name)
    return not term.constant and term.op != "Integers"


def reads(node: NodeProto, body: FunctionProto | None = None) -> Sequence[str]:
    """The inputs of a node whose elements it reads, and what its bodies read.  With the `body` of a fused op, some are
    asked for their shape or type alone."""
    if body is not None:
        inner = {name for each in body.node if each.op_type not in SHAPE_QUERIES for name in elements_read(each)}
        return [name for own, name in zip(body.input, node.input, strict=False) if name and own in inner]
    if node.op_type in SHAPE_QUERIES and node.domain in STANDARD:
        return ()
    return read_by(node) if has_bodies(node) else [name for name in elements_read(node) if name]


def bytes_of(view: View, name: str, known: Mapping[str, int]) -> int | None:
    """The bytes of a value where symbols have the sizes `known`; None if one of its sizes is unknown."""
    term = view.term(name)
    if term.shape is None:
        return None
    size: Dim = product(term.shape) * BYTES.get(view.dtypes.get(name, 0) or term.dtype, 4)
    return size if isinstance(size, int) else evaluate(size, known)
