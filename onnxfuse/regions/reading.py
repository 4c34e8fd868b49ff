"""Which nodes of a scope are launches, what each of them reads and makes, and which may be part of a region."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from onnx import FunctionProto, NodeProto, TensorProto

from onnxfuse.kernels.rows.fused import NORMS, PLACED, ROWS, SOFTMAXES
from onnxfuse.language.functions import CAST_LIKE
from onnxfuse.lifting.view import View
from onnxfuse.matching.cost import launches_of
from onnxfuse.model.graph import DOMAIN, REGION, family_of
from onnxfuse.model.onnxruntime_ops import added
from onnxfuse.model.op_traits import COERCED, FREE, MATRIX_PRODUCTS, RANDOM, RESHAPES, SHAPE_QUERIES
from onnxfuse.model.standard import STANDARD
from onnxfuse.model.walk import has_bodies
from onnxfuse.terms.term import REAL
from onnxfuse.training.step import Step

from .scope import Kind, Launch, Scope
from .spelled import Body, asked, body, refusal, standard


def read(view: View, told: View, functions: Mapping[str, FunctionProto], products: bool = True) -> Scope:
    """The launches of a scope; `told` is that with `functions`, those of domain onnxfuse, written out."""
    scope = Scope(view, told, functions)
    graph = view.graph
    step = Step.of(view) if Step.possible(graph.model) else None
    scope.forward = step.forward if step is not None else frozenset()
    for index, node in enumerate(graph.nodes):
        role = _role(scope, index, node)
        if role == "view":
            scope.root_of[node.output[0]] = node.input[0]
        elif role == "host":
            scope.hosted |= {name: index for name in node.output if name}
        if role != "launch":
            continue
        steps = standard(scope, index)
        reason, written = _fixed(scope, index, node), None
        if not reason:
            written = body(scope, [index])
            made = asked(scope, written, _read(scope, node))
            reason = refusal(scope, made, most=launches_of(node))
        if not products and _kind([step.op_type for step in steps]) == "product":
            reason = reason or "it is a product, which is to be found by itself"
        scope.launches.append(_launch(scope, index, node, reason, steps, None if reason else written))
    _pin(scope)
    return scope


def _pin(scope: Scope) -> None:
    """Find the tensors that must exist: outputs, what bodies capture, and those whose shape something asks that stays
    outside of regions, such as a Reshape of what a product gives."""
    graph = scope.view.graph
    made = {name for launch in scope.launches if launch.kind != "fixed" for name in launch.makes}
    captured = [name for names in graph.captures.values() for name in names]
    scope.needed |= {scope.root(name) for name in (*graph.outputs, *captured)}
    pending = [*graph.outputs, *captured]
    for launch in scope.launches:
        names = launch.node.input if launch.kind == "fixed" else launch.operands
        pending += [name for name in names if launch.kind == "fixed" or scope.root(name) not in made]
    seen = set[str]()
    while pending:
        name = pending.pop()
        if name in seen or not (name in scope.hosted or name in scope.root_of):
            continue
        seen.add(name)
        for source in graph.nodes[graph.producer[name]].input:
            if name in scope.hosted and source not in scope.hosted:
                scope.needed.add(scope.root(source))
            pending.append(source)


def _role(scope: Scope, index: int, node: NodeProto) -> Literal["constant", "view", "host", "launch"]:
    view = scope.view
    terms = [scope.term(name) for name in node.output if name]
    if view.effects[index] or has_bodies(node):
        return "launch"
    if terms and all(term.constant for term in terms):
        return "constant"
    if terms and all(term.op == "Integers" for term in terms):
        return "host"
    if node.domain in STANDARD and node.op_type in SHAPE_QUERIES:
        return "host"
    if node.domain in STANDARD and len(terms) == 1 and node.input:
        relabels = terms[0].op in FREE and terms[0].args and scope.term(node.input[0]) in (*terms[0].args, terms[0])
        if node.op_type in RESHAPES or (relabels and node.op_type != "Cast"):
            return "view"
    return "launch"


def _fixed(scope: Scope, index: int, node: NodeProto) -> str:
    """Why a node is none that a region may have, before it is asked what it computes; empty if it may."""
    view = scope.view
    if view.effects[index] or has_bodies(node) or node.op_type in RANDOM:
        return "it does more than compute its outputs"
    if family_of(node) == REGION and node.domain == DOMAIN:
        return "it is a region"
    if added(node, view.graph.opset):
        return f"{node.op_type} is onnxruntime's own at this opset, which crashes on it in a body"
    if _on_integers(view, index, node):
        return "onnxruntime runs it on integers, or what reads it"
    if view.graph.opset < CAST_LIKE and _makes_real(scope, node):
        return "before opset 15 no body makes real numbers of the type of its inputs"
    if view.graph.opset < 13 and node.op_type in COERCED:
        return "before opset 13 it works on a matrix of its input"
    if any(attribute.ref_attr_name for attribute in node.attribute):
        return "an attribute of the function around it is asked"
    if any(name and 0 in (scope.term(name).shape or ()) for name in node.output):
        return "there is nothing to compute"
    for name in (*node.input, *_read(scope, node)):
        if name and scope.term(name).shape is None:
            return f"the rank of {name} is unknown"
        if name and not scope.dtype(name):
            return f"the element type of {name} is unknown"
    return ""


def _read(scope: Scope, node: NodeProto) -> list[str]:
    """The outputs of a node that something reads, of which the others are not known to be anything; all if nothing is
    read."""
    own = [name for name in node.output if name]
    return [name for name in own if name in scope.view.graph.uses] or own


def _makes_real(scope: Scope, node: NodeProto) -> bool:
    """Does a node cast integers or booleans to float32, which a converter to half precision takes for float16?"""
    real = node.op_type == "Cast" and any(a.name == "to" and a.i == TensorProto.FLOAT for a in node.attribute)
    return real and scope.dtype(node.input[0]) not in REAL


def _on_integers(view: View, index: int, node: NodeProto) -> bool:
    """Does onnxruntime run a node on integers, or see past it that what reads it may be run so?"""
    if index in view.integer:
        return True
    beside = (view.graph.nodes[other].input for other in view.integer) if node.op_type == "Transpose" else ()
    return any(name in node.output for names in beside for name in names)


def _launch(
    scope: Scope, index: int, node: NodeProto, reason: str, steps: Sequence[NodeProto], written_out: Body | None
) -> Launch:
    graph = scope.view.graph
    own = [name for name in node.input if name] + sorted(graph.captures.get(index, ()))
    names = own if written_out is None else written_out.inputs
    made = tuple(_read(scope, node))
    written = sum(map(scope.bytes, made))
    reads: dict[str, int] = {}
    weights = 0
    moves = not reason and _moves(steps)
    for name in names:
        size = scope.bytes(name) if name in own else 0
        size = min(size, written) if moves else size
        if scope.constant(name):
            weights += size
        elif name not in scope.hosted:
            root = scope.root(name)
            reads[root] = max(reads.get(root, 0), size)
    ops = tuple(step.op_type for step in steps)
    kind: Kind = "fixed" if reason else _kind(ops)
    results = {scope.term(name).shape for name in made}
    shape = results.pop() if PLACED.issuperset(ops) and len(results) == 1 else None
    elements = max(map(scope.elements, (*names, *made)), default=0)
    matrix = (*node.input[:1], *made) if kind == "rows" else made if kind == "product" else ()
    numbers = frozenset(number for name in matrix if (number := scope.numel(name)) is not None)
    waits = _waits(scope, [*own, *names])
    axes = None if shape is None or reason else _axes(steps, len(shape))
    nodes = 0 if written_out is None else len(written_out.nodes) + 2 * sum(_views(scope, name) for name in names)
    operands = tuple(names)
    return Launch(
        index, node, kind, reads, weights, made, ops, reason, elements, numbers, shape, operands, nodes, axes, waits
    )


def _views(scope: Scope, name: str) -> int:
    """How many views lead to a value."""
    count = 0
    while name in scope.root_of:
        name, count = scope.root_of[name], count + 1
    return count


def _axes(steps: Sequence[NodeProto], rank: int) -> tuple[int, int] | None:
    """The first and the last axis that a softmax or a norm of a tensor of this rank reduces; None for anything else."""
    if len(steps) != 1 or steps[0].op_type not in (*NORMS, *SOFTMAXES):
        return None
    given = next((attribute.i for attribute in steps[0].attribute if attribute.name == "axis"), -1)
    return given % rank, given % rank if steps[0].op_type in SOFTMAXES else rank - 1


def _kind(ops: Sequence[str]) -> Kind:
    if not MATRIX_PRODUCTS.isdisjoint(ops):
        return "product"
    return "pointwise" if ROWS.isdisjoint(ops) else "rows"


def _waits(scope: Scope, names: Sequence[str]) -> frozenset[str]:
    """The tensors behind values, by way of views and of what is computed of shapes as well; nothing waits for
    constants, of which there may be more than of anything else."""
    graph, pending, seen = scope.view.graph, list(names), set[str]()
    while pending:
        name = pending.pop()
        if name and name not in seen and not scope.constant(name):
            seen.add(name)
            if name in scope.hosted or name in scope.root_of:
                pending += graph.nodes[graph.producer[name]].input
    return frozenset(name for name in seen if name not in scope.hosted and name not in scope.root_of)


MOVED = frozenset("Gather GatherElements Slice Split Transpose".split())
"""Ops that read no more than they give."""


def _moves(steps: Sequence[NodeProto]) -> bool:
    return all(step.op_type in MOVED for step in steps if step.op_type != "Constant")
