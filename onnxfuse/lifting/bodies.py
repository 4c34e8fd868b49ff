"""What the bodies of If and Scan compute, as terms of the scope around them.

    If(true, a, b) is a, inside of a body (a scope itself has no such node left: `rewriting.inline_control_flow`)
    If(c, a, b) and Scan(x, ..., body) are terms by what their bodies compute: equal terms for equal bodies

No node is written from such a term: a value that has it keeps its node.  A body with anything that no term shows, such
as a random number or a sequence, leaves its node a leaf, and so does a large one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from onnx import GraphProto, NodeProto

from onnxfuse.model.dims import Shape
from onnxfuse.model.graph import Graph, captured_in, captured_names
from onnxfuse.model.in_place import SINCE
from onnxfuse.model.schema import attributes_of
from onnxfuse.model.standard import STANDARD
from onnxfuse.model.walk import attribute_graphs, nodes
from onnxfuse.terms.normal.table import hoisted
from onnxfuse.terms.term import SMALL, Term

from .constants import constant_term
from .effects import Effect
from .sharing import shared_values
from .view import View

Results: TypeAlias = list[tuple[Term, int]]
"""The term and the element type of each output."""
LiftNode: TypeAlias = Callable[[View, int, NodeProto], Results]
LARGEST = 100
"""Nodes of the bodies of a node that is looked into."""


def enclosed(view: View, node: NodeProto, lift_node: LiftNode) -> Results | None:
    """The outputs of an If or a Scan; None if they are to be leaves."""
    known = {"If": _if, "Scan": _scan}.get(node.op_type)
    bodies = dict(attribute_graphs(node))
    if known is None or node.domain not in STANDARD or view.graph.is_function or view.graph.opset < SINCE:
        return None
    return None if sum(1 for _ in nodes(*bodies.values())) > LARGEST else known(view, node, bodies, lift_node)


def _if(view: View, node: NodeProto, bodies: Mapping[str, GraphProto], lift_node: LiftNode) -> Results | None:
    condition = view.term(node.input[0])
    if condition.scalar is not None and view.within:
        return results(view, bodies["then_branch" if condition.scalar else "else_branch"], {}, lift_node)
    branches = [results(view, bodies[name], {}, lift_node) for name in ("then_branch", "else_branch")]
    then, other = branches
    if then is None or other is None:
        return None
    args = [condition, *_around(view, node)]
    return [
        _made(view, node, position, (), args, (a, b), a.shape if a.shape == b.shape else None, dtype)
        for position, ((a, dtype), (b, _)) in enumerate(zip(then, other, strict=True))
    ]


def _scan(view: View, node: NodeProto, bodies: Mapping[str, GraphProto], lift_node: LiftNode) -> Results | None:
    attrs = {name: value for name, value in attributes_of(node, view.graph.opset).items() if name != "body"}
    count = attrs.pop("num_scan_inputs")
    if any(value and any(value) for value in attrs.values()):  # along another axis than the first, or backwards
        return None
    body, given, length = bodies["body"], dict[str, tuple[Term, int]](), None
    carried = len(node.input) - count
    for position, (name, info) in enumerate(zip(node.input, body.input, strict=True)):
        shape, dtype = view.term(name).shape, view.dtypes[name]
        if position >= carried and shape is not None:
            length, shape = shape[0], shape[1:]
        key = ("step", view.steps, position, shape)
        given[info.name] = view.terms.raw("Input", shape=shape, dtype=dtype, key=key), dtype
    found = results(view, body, given, lift_node, view.steps + 1)
    if found is None:
        return None
    args = [*map(view.term, node.input), *_around(view, node)]
    computed = tuple(term for term, _ in found)
    shapes: list[Shape | None] = []
    for position, term in enumerate(computed):
        whole = None if length is None or term.shape is None else (length, *term.shape)
        shapes.append(args[position].shape if position < carried else whole)
    factors = (("factors", tuple(hoisted(term)[1] for term in computed)),)  # of a step, for rules to see
    return [_made(view, node, i, factors, args, computed, shapes[i], dtype) for i, (_, dtype) in enumerate(found)]


def _made(
    view: View,
    node: NodeProto,
    position: int,
    attrs: Sequence[tuple[str, object]],
    args: Sequence[Term],
    computed: Sequence[Term],
    shape: Shape | None,
    dtype: int,
) -> tuple[Term, int]:
    """One output of a node by what its bodies compute."""
    key = ("bodies", *computed)
    term = view.terms.raw(node.op_type, args, (*attrs, ("output", position)), shape=shape, dtype=dtype, key=key)
    if not view.within:
        view.hidden[term.id] = sorted(captured_names(node))  # the node stays, and reads them by name
    return term, dtype


def _around(view: View, node: NodeProto) -> list[Term]:
    """What bodies read from around them: the same terms in the same order, whatever they are called.  Numbers and sizes
    are what they are in the body."""
    read = (view.term(name) for name in captured_names(node))
    found = {term.id: term for term in read if not term.constant and term.op != "Integers"}
    return [found[i] for i in sorted(found)]


def results(
    view: View, body: GraphProto, given: Mapping[str, tuple[Term, int]], lift_node: LiftNode, steps: int | None = None
) -> Results | None:
    """What a body computes of what it is `given` by name, and of values around it; None if a leaf is among it.

    `steps` is how many Scans it lies in, if not as many as the scope."""
    graph = Graph(body, view.graph.model, view.graph.opset, view.graph, view.graph.path)
    effects = [Effect.NONE] * len(graph.nodes)
    inside = View(graph, view.terms, view.base_dir, shared=shared_values(graph, effects), effects=effects)
    inside.catalogue, inside.unread = view.catalogue, view.unread
    inside.within, inside.steps = True, view.steps if steps is None else steps
    for name, (term, dtype) in given.items():
        inside.terms_of[name], inside.dtypes[name] = term, dtype
    for name, tensor in graph.initializers.items():
        if math.prod(tensor.dims) > SMALL:
            return None
        inside.terms_of[name], inside.dtypes[name] = constant_term(inside, name, tensor), tensor.data_type
    for name in captured_in(body):
        inside.terms_of[name], inside.dtypes[name] = view.term(name), view.dtypes[name]
    before = len(view.terms)
    for index, node in enumerate(graph.nodes):
        for name, (term, dtype) in zip(node.output, lift_node(inside, index, node), strict=False):
            if name:
                inside.define(name, term, dtype)
    view.looked_into.append((before, len(view.terms)))
    if inside.hidden or inside.read:
        return None
    return [(inside.terms_of[name], inside.dtypes[name]) for name in graph.outputs]
