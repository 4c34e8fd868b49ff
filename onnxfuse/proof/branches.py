"""Branches of If by themselves: the model with the nodes of one branch in place of the If, whatever its condition says.

So what is fused in a branch is proved as what is fused in the main graph is: on inputs of sizes that the branch takes,
and value by value.  Bodies of Loop and Scan, which run as often as they like, are compared with the whole model alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnx import GraphProto, ModelProto, NodeProto, helper

from onnxfuse.model.graph import label
from onnxfuse.model.standard import STANDARD
from onnxfuse.model.walk import attribute_graphs

INSIDE = "//"
"""Between the path of a branch and the name of a value in it, which no exporter writes."""


@dataclass(frozen=True)
class Branch:
    """One branch of an If that stands in the main graph, or in another such branch."""

    scope: str
    """Its path, as `Graph.path` has it."""
    steps: tuple[tuple[str, str], ...]
    """The path of each If on the way, as `label` has it, and the branch of it."""

    def name(self, value: str) -> str:
        """What a value of the branch is called in `taken`."""
        return f"{self.scope}{INSIDE}{value}"


def branches(model: ModelProto) -> dict[str, Branch]:
    """The branches of a model, by path."""
    found: dict[str, Branch] = {}
    pending: list[tuple[GraphProto, Branch]] = [(model.graph, Branch("", ()))]
    while pending:
        graph, outer = pending.pop()
        for node in graph.node:
            if _is_if(node):
                for name, body in attribute_graphs(node):
                    scope = f"{outer.scope}/{label(node)}.{name}"
                    found[scope] = Branch(scope, (*outer.steps, (label(node), name)))
                    pending.append((body, found[scope]))
    return found


def taken(model: ModelProto, branch: Branch) -> ModelProto | None:
    """A copy of the model in which every If on the way to the branch is what the branch computes; None if the model
    has no such branch."""
    made, scope = ModelProto(), ""
    made.CopyFrom(model)
    for called, name in branch.steps:
        # What an outer branch has brought into the graph bears its path.
        own = f"{scope}{INSIDE}{called}".strip("/") if scope else called
        index = next((i for i, node in enumerate(made.graph.node) if _is_if(node) and label(node) == own), None)
        body = None if index is None else dict(attribute_graphs(made.graph.node[index])).get(name)
        if index is None or body is None:
            return None
        scope = f"{scope}/{called}.{name}"
        _replace(made.graph, index, body, f"{scope}{INSIDE}")
    return made


def _is_if(node: NodeProto) -> bool:
    return node.op_type == "If" and node.domain in STANDARD


def _replace(graph: GraphProto, index: int, body: GraphProto, prefix: str) -> None:
    """Let the nodes of a body stand where the If stands that has it, their values under names of their own."""
    before, node, after = list(graph.node[:index]), graph.node[index], list(graph.node[index + 1 :])
    own = _defined(body)
    names = {name: prefix + name for name in own}
    inside = [_renamed(inner, names, prefix) for inner in body.node]
    results = zip(body.output, node.output, strict=True)
    copies = [
        helper.make_node("Identity", [names.get(result.name, result.name)], [outer])
        for result, outer in results
        if outer
    ]
    for tensor in body.initializer:
        graph.initializer.add().CopyFrom(tensor)
        graph.initializer[-1].name = names[tensor.name]
    for sparse in body.sparse_initializer:
        graph.sparse_initializer.add().CopyFrom(sparse)
        graph.sparse_initializer[-1].values.name = names[sparse.values.name]
    nodes = [NodeProto.FromString(each.SerializeToString()) for each in (*before, *inside, *copies, *after)]
    del graph.node[:]
    graph.node.extend(nodes)


def _defined(body: GraphProto) -> set[str]:
    """The values that a body has of its own."""
    given = {info.name for info in body.input} | {tensor.name for tensor in body.initializer}
    given |= {sparse.values.name for sparse in body.sparse_initializer}
    return given | {name for node in body.node for name in node.output if name}


def _renamed(node: NodeProto, names: Mapping[str, str], prefix: str) -> NodeProto:
    """A copy of a node with other names for these values, also where bodies of it read them."""
    made = NodeProto()
    made.CopyFrom(node)
    called = label(node) if _is_if(node) else node.name
    made.name = called and prefix + called
    made.input[:] = [names.get(name, name) for name in node.input]
    made.output[:] = [names.get(name, name) for name in node.output]
    for _, body in attribute_graphs(made):
        _rename_captured(body, names)
    return made


def _rename_captured(body: GraphProto, names: Mapping[str, str]) -> None:
    """Give other names to the values of scopes around a body that it reads, and bodies in it."""
    own = _defined(body)
    outer = {name: other for name, other in names.items() if name not in own}
    for node in body.node:
        node.input[:] = [outer.get(name, name) for name in node.input]
        for _, inner in attribute_graphs(node):
            _rename_captured(inner, outer)
    for name in sorted({result.name for result in body.output} & outer.keys()):
        body.node.append(helper.make_node("Identity", [outer[name]], [name]))
