"""Control flow of which it is known what will run → the nodes that run.

    If(true, a, b) = a        If(false, a, b) = b
    Loop(1, true, x..., body) = body(0, true, x...)

An exporter asks at run time what it does not know (is this axis of size 1?); its answer may be a constant of the file.
What stands in a branch would be fused by itself alone, and what is around it apart from it.

guarantees   the values of the scope, its outputs among them, keep their names; values and nodes of a body keep theirs
             where nothing else in the model has them; what is left out cannot run
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

from onnxfuse.lifting.lifted import Lifted
from onnxfuse.lifting.view import View
from onnxfuse.model import protobuf
from onnxfuse.model.graph import Graph, Names
from onnxfuse.model.in_place import defined, in_place, move_constants, stands
from onnxfuse.model.walk import Owner, attribute_graphs, has_bodies, nodes_of


def straightened(model: ModelProto, base_dir: Path | None = None) -> ModelProto:
    """A copy in which no If has a condition that is known, and no Loop is known to run once; the model itself if that
    is so already.  Each round may tell of more: what a branch gives was not known before."""
    while any(has_bodies(node) for node in nodes_of(model)):
        lifted = Lifted.of(model, base_dir)
        if not any(_running(view, node) for view in lifted.views for node in view.graph.nodes):
            break
        model, views = lifted.copy()
        naming = _Naming.of(view.graph for view in views)
        for view in reversed(views):  # inner ones first: what is around them copies them
            _straighten(view, naming)
    return model


@dataclass
class _Naming:
    """Names of what moves into another scope."""

    names: Names
    once: set[str]
    """Those that one scope has, which may keep them; what has no name of its own yet is in none."""

    @staticmethod
    def of(graphs: Iterable[Graph]) -> _Naming:
        """With the names of all scopes of a model."""
        scopes = list(graphs)
        held: Counter[str] = Counter()
        for graph in scopes:
            values = {*graph.producer, *graph.initializers, *graph.inputs}
            held.update({*values, *(n.name for n in graph.nodes)})
        return _Naming(Names.of(scopes), {name for name, count in held.items() if count == 1})

    def __call__(self, name: str) -> str:
        return name if name in self.once else self.names.unique(name)


def _straighten(view: View, naming: _Naming) -> None:
    """Edit one scope in place."""
    owner, made = view.graph.proto, list[NodeProto]()
    bodies = [_running(view, node) for node in view.graph.nodes]
    if not any(bodies):
        return
    for node, body in zip(view.graph.nodes, bodies, strict=True):
        if body is None:
            made.append(NodeProto.FromString(node.SerializeToString()))
            continue
        results = _results(node, body)
        names = dict(zip((info.name for info in body.input[2:]), node.input[2:], strict=True))
        computed = {name for inner in body.node for name in inner.output}
        for outer, info in results.items():
            if info.name in computed:
                names.setdefault(info.name, outer)
        names |= {name: naming(name) for name in defined(body) if name not in names}
        made += move_constants(body, owner, names)
        made += in_place(node, body, names, naming, view.graph.opset)
        _declare(owner, body, results, names)
    del owner.node[:]
    owner.node.extend(made)


def _running(view: View, node: NodeProto) -> GraphProto | None:
    """The body that will run in place of a node, once; None if that is not known."""
    if node.op_type not in ("If", "Loop") or not stands(node):
        return None
    bodies = dict(attribute_graphs(node))
    if node.op_type == "Loop":
        count, going = (_number(view, name) for name in (*node.input, "", "")[:2])
        taken = bodies["body"] if count == 1 and (going or not any(node.input[1:2])) else None
    else:
        condition = _number(view, node.input[0])
        taken = None if condition is None else bodies["then_branch" if condition else "else_branch"]
    if taken is None or taken.quantization_annotation or (view.graph.is_function and _unheld(taken)):
        return None
    return taken


def _number(view: View, name: str) -> float | None:
    """The number that a value is, if that is known before a run."""
    term = view.terms_of.get(name)
    return None if term is None else term.scalar


def _unheld(body: GraphProto) -> bool:
    """Are there weights that no node of a function can hold?"""
    return bool(body.sparse_initializer) or any(t.data_location == TensorProto.EXTERNAL for t in body.initializer)


def _results(node: NodeProto, body: GraphProto) -> dict[str, ValueInfoProto]:
    """Values that a node gives just as its body computes them → what the body says of each."""
    passed = body.output if node.op_type == "If" else body.output[1 : len(node.input) - 1]
    return {outer: info for outer, info in zip(node.output, passed, strict=False) if outer}


def _declare(owner: Owner, body: GraphProto, results: Mapping[str, ValueInfoProto], names: Mapping[str, str]) -> None:
    """Say of the values in their new scope what the body said; both bodies of an If may have been meant before."""
    told = {outer: info for outer, info in results.items() if info.type.WhichOneof("value")}
    told |= {names[info.name]: info for info in body.value_info if info.name in names}
    protobuf.remove(owner.value_info, lambda info: info.name in told)
    known = {info.name for info in (*owner.output, *owner.input)} if isinstance(owner, GraphProto) else set()
    for name, info in told.items():
        if name not in known:
            owner.value_info.add().CopyFrom(info)
            owner.value_info[-1].name = name
