"""Bodies of control flow by themselves: the model with the nodes of one body in place of the If, Loop or Scan.

A branch of an If stands there whatever the condition says; the body of a Loop or a Scan once, as one of its first
steps, and what follows the node is gone.  What is carried is then what was given at first, also where the step is not
the first one: an equation holds for any.  So what is fused in a body is proved as what is fused in the main graph is:
on inputs of sizes that the body takes, and value by value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

from onnxfuse.model.graph import label, opset_of
from onnxfuse.model.in_place import INSIDE, defined, in_place, move_constants, stands
from onnxfuse.model.walk import attribute_graphs

STEPS = 2
"""Of a Loop or a Scan, steps that are proved, if it has so many."""


@dataclass(frozen=True)
class Branch:
    """One body of a node that stands in the main graph, or in another such body."""

    scope: str
    """Its path, as `Graph.path` has it."""
    steps: tuple[tuple[str, str], ...]
    """Each node on the way, as `label` has it, and which body of it."""
    ops: tuple[str, ...] = ()
    """The op types of these nodes."""

    step: int = 0
    """Which of the steps of each Loop and Scan."""

    @property
    def repeats(self) -> bool:
        """Is one of these nodes a Loop or a Scan, so that a single step is all that stands for it?"""
        return not {"If"}.issuperset(self.ops)

    def each_step(self) -> list[Branch]:
        """The branch at the steps that are proved: a number that is 0 hides a factor, and what is added to it."""
        return [replace(self, step=step) for step in range(STEPS if self.repeats else 1)]

    def name(self, value: str) -> str:
        """What a value of the branch is called in `taken`."""
        return f"{self.scope}{INSIDE}{value}"


def branches(model: ModelProto) -> dict[str, Branch]:
    """The bodies of a model that can stand for their nodes, by path."""
    found: dict[str, Branch] = {}
    opset = opset_of(model)
    pending: list[tuple[GraphProto, Branch]] = [(model.graph, Branch("", ()))]
    while pending:
        graph, outer = pending.pop()
        for node in graph.node:
            for name, body in attribute_graphs(node) if stands(node, opset) else ():
                scope = f"{outer.scope}/{label(node)}.{name}"
                found[scope] = Branch(scope, (*outer.steps, (label(node), name)), (*outer.ops, node.op_type))
                pending.append((body, found[scope]))
    return found


def taken(model: ModelProto, branch: Branch) -> ModelProto | None:
    """A copy of the model in which every node on the way to the branch is what its body computes; None if the model
    has no such branch."""
    made, scope, opset = ModelProto(), "", opset_of(model)
    made.CopyFrom(model)
    for called, name in branch.steps:
        # What an outer branch has brought into the graph bears its path.
        own = f"{scope}{INSIDE}{called}".strip("/") if scope else called
        index = next((i for i, node in enumerate(made.graph.node) if stands(node, opset) and label(node) == own), None)
        body = None if index is None else dict(attribute_graphs(made.graph.node[index])).get(name)
        if index is None or body is None:
            return None
        scope = f"{scope}/{called}.{name}"
        _replace(made.graph, index, body, f"{scope}{INSIDE}", opset, branch.step)
    return made


def _replace(graph: GraphProto, index: int, body: GraphProto, prefix: str, opset: int, step: int) -> None:
    """Let the nodes of a body stand where the node stands that has it, their values under names of their own."""
    before, node, after = list(graph.node[:index]), graph.node[index], list(graph.node[index + 1 :])
    names = {name: prefix + name for name in defined(body)}
    inside = in_place(node, body, names, lambda name: prefix + name, opset, step)
    if node.op_type != "If":  # what follows may want other sizes than those of one step
        after = []
        del graph.output[:]
        graph.output.extend(ValueInfoProto(name=name) for name in node.output if name)
    move_constants(body, graph, names)
    nodes = [NodeProto.FromString(each.SerializeToString()) for each in (*before, *inside, *after)]
    del graph.node[:]
    graph.node.extend(nodes)
