"""Calls of local functions → the nodes of the functions, which onnx's version converter does not know.

f(x...) = body(x...)

guarantees   a model in which no function is left, or the model itself; values of the graph keep their names, and those
             of a function bear the name of its call before their own
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from onnx import FunctionProto, ModelProto, NodeProto

from onnxfuse.model.called import callees, import_ops, in_place_of_call
from onnxfuse.model.graph import Names, roots
from onnxfuse.model.walk import nodes

Callee = Callable[[NodeProto], FunctionProto | None]


def inlinable(model: ModelProto) -> bool:
    """Can the nodes of each function stand for its calls: do they mean the ops of the graph?"""
    callee = callees(model)
    calls = (NodeProto(domain=f.domain, op_type=f.name, overload=f.overload) for f in model.functions)
    return all(callee(call) for call in calls)


def inlined(model: ModelProto) -> ModelProto:
    """A copy without local functions; the model itself if it has none, or one whose nodes cannot stand for a call."""
    if not model.functions or not inlinable(model):
        return model
    copy = ModelProto()
    copy.CopyFrom(model)
    callee = callees(copy)
    scopes = list(next(roots(copy)).scopes())
    names = Names.of(scopes)
    for scope in reversed(scopes):  # inner ones first: the nodes around them are copied
        if any(callee(node) for node in scope.nodes):
            made = list(_expanded(scope.nodes, callee, names))
            del scope.proto.node[:]
            scope.proto.node.extend(made)
    for function in copy.functions:
        import_ops(copy, function)
    called = {function.domain for function in copy.functions}
    del copy.functions[:]
    left = {node.domain for node in nodes(copy.graph)}
    for index in reversed(range(len(copy.opset_import))):
        if copy.opset_import[index].domain in called - left:
            del copy.opset_import[index]
    return copy


def _expanded(given: Iterable[NodeProto], callee: Callee, names: Names) -> Iterator[NodeProto]:
    """The nodes, and those that calls among them stand for."""
    for node in given:
        function = callee(node)
        if function is None:
            yield node
            continue
        prefix = f"{node.name}/" if node.name else ""

        def named(name: str, prefix: str = prefix) -> str:
            return names.unique(prefix + name) if name else ""

        yield from _expanded(in_place_of_call(node, function, named, named), callee, names)
