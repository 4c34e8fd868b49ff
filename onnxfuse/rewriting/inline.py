"""Fused nodes → the nodes of their function bodies: what a fused file is before it is fused for another target.

requires     functions of domain onnxfuse are written for the opset of the graphs that call them, as ours are
guarantees   no node, function or import of domain onnxfuse is left; all else stays, and computes the same
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from onnx import FunctionProto, ModelProto, NodeProto

from onnxfuse.model.graph import DOMAIN, LAUNCHES_KEY, RULE_KEY, Graph, Names, roots

from .provenance import REPLACED_KEY, VERSION_KEY

OWN = (REPLACED_KEY, RULE_KEY, VERSION_KEY, LAUNCHES_KEY)
"""Metadata of a fused node that is not that of what it stands for."""


def expand(model: ModelProto) -> ModelProto:
    """A copy without fused nodes; the model itself if it has none.  Nodes whose function is missing stay."""
    if not any(function.domain == DOMAIN for function in model.functions):
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    bodies = {function.name: function for function in copy.functions if function.domain == DOMAIN}
    scopes = [scope for root in roots(copy) for scope in root.scopes()]
    names = Names.of(scopes)
    for scope in reversed(scopes):  # inner ones first: the nodes around them are copied
        if any(_is_call(node, bodies) for node in scope.nodes):
            _expand_scope(scope, bodies, names)
    for index in reversed(range(len(copy.functions))):
        if copy.functions[index].domain == DOMAIN:
            del copy.functions[index]
    for proto in (copy, *copy.functions):
        for index in reversed(range(len(proto.opset_import))):
            if proto.opset_import[index].domain == DOMAIN:
                del proto.opset_import[index]
    return copy


def _is_call(node: NodeProto, bodies: Mapping[str, FunctionProto]) -> bool:
    return node.domain == DOMAIN and node.op_type in bodies


def _expand_scope(scope: Graph, bodies: Mapping[str, FunctionProto], names: Names) -> None:
    nodes = [inner for node in scope.nodes for inner in _expanded(node, bodies, names)]
    del scope.proto.node[:]
    scope.proto.node.extend(nodes)


def _expanded(node: NodeProto, bodies: Mapping[str, FunctionProto], names: Names) -> Iterator[NodeProto]:
    """The nodes that a call stands for, in the module of the call; of any other node itself."""
    if not _is_call(node, bodies):
        yield node
        return
    body, module = bodies[node.op_type], node.name.rpartition("/")[0]
    renamed = (
        {"": ""} | dict(zip(body.input, node.input, strict=False)) | dict(zip(body.output, node.output, strict=False))
    )
    notes = [entry for entry in node.metadata_props if entry.key not in OWN]
    for inner in body.node:
        made = NodeProto()
        made.CopyFrom(inner)
        made.name = names.unique(f"{module}/{inner.name}" if module else inner.name)
        for value in inner.output:
            if value not in renamed:  # a value may have the name of its node
                path = f"{module}/{value}" if module else value
                renamed[value] = made.name if value == inner.name else names.unique(path)
        made.input[:] = [renamed.get(value, "") for value in inner.input]
        made.output[:] = [renamed[value] for value in inner.output]
        made.metadata_props.extend(notes)
        yield from _expanded(made, bodies, names)
