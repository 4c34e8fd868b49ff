"""Bodies of control flow by themselves: the model with the nodes of one body in place of the If, Loop or Scan.

A branch of an If stands there whatever the condition says; the body of a Loop or a Scan once, as one of its first
steps, and what follows the node is gone.  What is carried is then what was given at first, also where the step is not
the first one: an equation holds for any.  So what is fused in a body is proved as what is fused in the main graph is:
on inputs of sizes that the body takes, and value by value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto, helper, numpy_helper

from onnxfuse.lifting.bodies import SINCE
from onnxfuse.model.graph import label, opset_of
from onnxfuse.model.schema import attributes_of
from onnxfuse.model.standard import STANDARD
from onnxfuse.model.walk import attribute_graphs

STEPS = 2
"""Of a Loop or a Scan, steps that are proved, if it has so many."""
INSIDE = "//"
"""Between the path of a body and the name of a value in it, which no exporter writes."""


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
            for name, body in attribute_graphs(node) if _stands(node, opset) else ():
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
        index = next((i for i, node in enumerate(made.graph.node) if _stands(node, opset) and label(node) == own), None)
        body = None if index is None else dict(attribute_graphs(made.graph.node[index])).get(name)
        if index is None or body is None:
            return None
        scope = f"{scope}/{called}.{name}"
        _replace(made.graph, index, body, f"{scope}{INSIDE}", opset, branch.step)
    return made


def _stands(node: NodeProto, opset: int = SINCE) -> bool:
    """Is it a node that one of its bodies can stand for?"""
    return node.op_type in _AROUND and node.domain in STANDARD and (opset >= SINCE or node.op_type != "Scan")


def _replace(graph: GraphProto, index: int, body: GraphProto, prefix: str, opset: int, step: int) -> None:
    """Let the nodes of a body stand where the node stands that has it, their values under names of their own."""
    before, node, after = list(graph.node[:index]), graph.node[index], list(graph.node[index + 1 :])
    own = _defined(body)
    names = {name: prefix + name for name in own}
    given = [names[info.name] for info in body.input]
    results = [names.get(info.name, info.name) for info in body.output]
    into, out_of = _AROUND[node.op_type](node, given, results, opset, step)
    inside = [*into, *(_renamed(inner, names, prefix) for inner in body.node)]
    copies = [each for each in out_of if each.output[0]]
    if node.op_type != "If":  # what follows may want other sizes than those of one step
        after = []
        del graph.output[:]
        graph.output.extend(ValueInfoProto(name=name) for name in node.output if name)
    for tensor in body.initializer:
        graph.initializer.add().CopyFrom(tensor)
        graph.initializer[-1].name = names[tensor.name]
    for sparse in body.sparse_initializer:
        graph.sparse_initializer.add().CopyFrom(sparse)
        graph.sparse_initializer[-1].values.name = names[sparse.values.name]
    nodes = [NodeProto.FromString(each.SerializeToString()) for each in (*before, *inside, *copies, *after)]
    del graph.node[:]
    graph.node.extend(nodes)


Around: TypeAlias = tuple[Iterable[NodeProto], Iterable[NodeProto]]
"""What gives a body its inputs, and what makes the outputs of its node of the body's."""


def _branch(node: NodeProto, given: list[str], results: list[str], opset: int, step: int) -> Around:
    return (), (_copy(result, outer) for result, outer in zip(results, node.output, strict=True))


def _iteration(node: NodeProto, given: list[str], results: list[str], opset: int, step: int) -> Around:
    """An iteration of a Loop."""
    count, going, *carried = given
    into = [_constant(count, np.int64(step)), _constant(going, np.bool_(True))]
    into += [_copy(outer, inner) for outer, inner in zip(node.input[2:], carried, strict=True)]
    kept = zip(results[1 : len(carried) + 1], node.output, strict=False)
    stacked = zip(results[len(carried) + 1 :], node.output[len(carried) :], strict=True)
    return into, [*(_copy(*pair) for pair in kept), *(n for pair in stacked for n in _row(*pair, 0, opset))]


def _scanned(node: NodeProto, given: list[str], results: list[str], opset: int, step: int) -> Around:
    """A step of a Scan."""
    attrs = attributes_of(node, opset)
    count = len(node.input) - attrs["num_scan_inputs"]

    def of(name: str, number: int) -> int:
        return int((attrs.get(name) or [0] * (number + 1))[number])

    into = [_copy(*pair) for pair in zip(node.input[:count], given, strict=False)]
    for i, (outer, inner) in enumerate(zip(node.input[count:], given[count:], strict=True)):
        index, axis = f"{inner}{INSIDE}index", of("scan_input_axes", i)
        into.append(_constant(index, np.int64(~step if of("scan_input_directions", i) else step)))
        into.append(helper.make_node("Gather", [outer, index], [inner], axis=axis))
    out_of = [_copy(*pair) for pair in zip(results[:count], node.output, strict=False)]
    for i, pair in enumerate(zip(results[count:], node.output[count:], strict=True)):
        out_of += _row(*pair, of("scan_output_axes", i), opset)
    return into, out_of


_AROUND: Mapping[str, Callable[[NodeProto, list[str], list[str], int, int], Around]] = {
    "If": _branch,
    "Loop": _iteration,
    "Scan": _scanned,
}


def _copy(value: str, name: str) -> NodeProto:
    return helper.make_node("Identity", [value], [name])


def _constant(name: str, value: np.generic) -> NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(value)))


def _row(value: str, name: str, axis: int, opset: int) -> list[NodeProto]:
    """What one step gives as the only row of all that they give."""
    if not name:
        return []
    if opset < 13:
        return [helper.make_node("Unsqueeze", [value], [name], axes=[axis])]
    axes = f"{name}{INSIDE}axes"
    return [
        helper.make_node("Constant", [], [axes], value_ints=[axis]),
        helper.make_node("Unsqueeze", [value, axes], [name]),
    ]


def _defined(body: GraphProto) -> set[str]:
    """The values that a body has of its own."""
    given = {info.name for info in body.input} | {tensor.name for tensor in body.initializer}
    given |= {sparse.values.name for sparse in body.sparse_initializer}
    return given | {name for node in body.node for name in node.output if name}


def _renamed(node: NodeProto, names: Mapping[str, str], prefix: str) -> NodeProto:
    """A copy of a node with other names for these values, also where bodies of it read them."""
    made = NodeProto()
    made.CopyFrom(node)
    called = label(node) if _stands(node) else node.name
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
