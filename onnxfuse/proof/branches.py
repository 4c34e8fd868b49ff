"""Bodies by themselves: the model with the nodes of one body in place of the If, Loop, Scan or call that it belongs to.

A branch of an If stands there whatever the condition says; the body of a Loop or a Scan once, as one of its first
steps, and what follows the node is gone.  What is carried is then what was given at first, also where the step is not
the first one: an equation holds for any.  So what is fused in a body is proved as what is fused in the main graph is:
on inputs of sizes that the body takes, and value by value.  The body of a local function stands for its first call; of
functions that no control flow is around, all do at once (`with_calls`), since no inputs but the model's own are wanted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto, ValueInfoProto

from onnxfuse.model.called import callees, import_ops, in_place_of_call
from onnxfuse.model.graph import function_path, label, opset_of
from onnxfuse.model.in_place import INSIDE, defined, in_place, move_constants, stands
from onnxfuse.model.walk import Owner, attribute_graphs, nodes_of

STEPS = 2
"""Of a Loop or a Scan, steps that are proved, if it has so many."""


@dataclass(frozen=True)
class Branch:
    """One body of a node that stands in the main graph, or in another such body."""

    scope: str
    """Its path, as `Graph.path` has it."""
    way: tuple[tuple[str, str], ...]
    """Each node on the way, as `label` has it, and which body of it: of a call, that of its function, which has no
    name."""
    ops: tuple[str, ...] = ()
    """The op types of those that are control flow."""

    step: int = 0
    """Which of the steps of each Loop and Scan."""

    @property
    def chosen(self) -> bool:
        """Does it run where conditions say so, so that nothing else shows what it computes?"""
        return bool(self.ops) and not self.repeats

    @property
    def repeats(self) -> bool:
        """Is one of these nodes a Loop or a Scan, so that a single step is all that stands for it?"""
        return not {"If"}.issuperset(self.ops)

    @property
    def called(self) -> bool:
        """Is it the body of a function that is called wherever the model runs?"""
        return bool(self.way) and not self.ops

    def each_step(self) -> list[Branch]:
        """The branch at the steps that are proved: a number that is 0 hides a factor, and what is added to it."""
        return [replace(self, step=step) for step in range(STEPS if self.repeats else 1)]

    def is_in(self, model: ModelProto) -> bool:
        """Has a model that was made of the branch's own the same calls on the way?  What nobody reads is left out, and
        functions may be of another opset than the graph."""
        if all(name for _, name in self.way):
            return True
        found = branches(model).get(self.scope)
        return found is not None and found.way == self.way

    def name(self, value: str) -> str:
        """What a value of the branch is called in `taken`, and in `with_calls`."""
        return f"{self.scope}{INSIDE}{value}" if self.scope else value


WHOLE = Branch("", ())
"""The main graph itself."""


def branches(model: ModelProto) -> dict[str, Branch]:
    """The bodies of a model that can stand for their nodes, by path."""
    found: dict[str, Branch] = {}
    opset, callee = opset_of(model), callees(model)
    pending: list[tuple[Owner, Branch]] = [(model.graph, Branch("", ()))]
    while pending:
        graph, outer = pending.pop()
        for node in graph.node:
            for name, body in attribute_graphs(node) if stands(node, opset) else ():
                scope = f"{outer.scope}/{label(node)}.{name}"
                found[scope] = Branch(scope, (*outer.way, (label(node), name)), (*outer.ops, node.op_type))
                pending.append((body, found[scope]))
            function = callee(node)
            if function is not None and function_path(function) not in found:
                scope = function_path(function)
                found[scope] = Branch(scope, (*outer.way, (label(node), "")), outer.ops)
                pending.append((function, found[scope]))
    return found


def taken(model: ModelProto, branch: Branch) -> ModelProto | None:
    """A copy of the model in which every node on the way to the branch is what its body computes; None if the model
    has no such branch."""
    made, scope, opset = _labelled(model), "", opset_of(model)
    callee = callees(made)
    for called, name in branch.way:
        own = _own_label(scope, called)
        known = (i for i, node in enumerate(made.graph.node) if stands(node, opset) or callee(node))
        index = next((i for i in known if label(made.graph.node[i]) == own), None)
        if index is None:
            return None
        node = made.graph.node[index]
        body = callee(node) if not name else dict(attribute_graphs(node)).get(name)
        if isinstance(body, FunctionProto):
            scope = function_path(body)
            import_ops(made, body)
            _replace(made.graph, index, _called(node, body, f"{scope}{INSIDE}"))
        elif body is not None:
            scope = f"{scope}/{called}.{name}"
            _replace_by_body(made.graph, index, body, f"{scope}{INSIDE}", opset, branch.step)
        else:
            return None
    return made


def called_alike(original: ModelProto, fused: ModelProto, scopes: Iterable[str]) -> list[Branch]:
    """Those of the bodies at `scopes` that are `called`, and such as calls of them are in, outer ones first.  Left out
    are those whose first calls differ."""
    before, after = branches(original), branches(fused)
    alike = [b for b in before.values() if b.called and b.scope in after and after[b.scope].way == b.way]
    asked = [before[scope].way for scope in scopes if scope in before]
    return [b for b in alike if any(way[: len(b.way)] == b.way for way in asked)]


def with_calls(model: ModelProto, functions: Sequence[Branch]) -> ModelProto:
    """A copy of the model in which the bodies of functions stand for their first calls."""
    made = _labelled(model)
    callee = callees(made)
    scopes = {branch.way: branch.scope for branch in (WHOLE, *functions)}
    first = {_own_label(scopes[branch.way[:-1]], branch.way[-1][0]): branch.scope for branch in functions}

    def expanded(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
        for node in nodes:
            function = callee(node)
            scope = first.pop(label(node), "") if function is not None else ""
            if function is None or not scope:
                yield node
            else:
                import_ops(made, function)
                yield from expanded(_called(node, function, f"{scope}{INSIDE}"))

    _set_nodes(made.graph, expanded(made.graph.node))
    return made


def _labelled(model: ModelProto) -> ModelProto:
    """A copy in which calls bear their labels as names."""
    made = ModelProto()
    made.CopyFrom(model)
    callee = callees(made)
    for node in nodes_of(made) if made.functions else ():
        node.name = label(node) if callee(node) else node.name
    return made


def _own_label(scope: str, called: str) -> str:
    """The label of a node: what an outer branch has brought into the graph bears its path."""
    return f"{scope}{INSIDE}{called}".strip("/") if scope else called


def _called(node: NodeProto, function: FunctionProto, prefix: str) -> list[NodeProto]:
    return in_place_of_call(node, function, lambda name: prefix + name, lambda name: prefix + name)


def _replace_by_body(graph: GraphProto, index: int, body: GraphProto, prefix: str, opset: int, step: int) -> None:
    """Let the nodes of a body stand where the node stands that has it, their values under names of their own."""
    node = graph.node[index]
    names = {name: prefix + name for name in defined(body)}
    inside = in_place(node, body, names, lambda name: prefix + name, opset, step)
    if node.op_type != "If":  # what follows may want other sizes than those of one step
        del graph.node[index + 1 :]
        del graph.output[:]
        graph.output.extend(ValueInfoProto(name=name) for name in node.output if name)
    move_constants(body, graph, names)
    _replace(graph, index, inside)


def _replace(graph: GraphProto, index: int, inside: list[NodeProto]) -> None:
    """Let nodes stand where another stood."""
    _set_nodes(graph, [*graph.node[:index], *inside, *graph.node[index + 1 :]])


def _set_nodes(graph: GraphProto, nodes: Iterable[NodeProto]) -> None:
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
