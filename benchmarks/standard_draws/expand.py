"""A model's function ops → the nodes of the bodies that the standard gives them, one step or to the last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import onnx
from onnx import AttributeProto, FunctionProto, GraphProto, NodeProto, TypeProto, defs, shape_inference

DEEP = 6
"""Steps after which every body is expanded: those of the standard are three deep."""


def body_versions(schema: Any) -> list[int]:
    """The opsets that an op has bodies for, by its schema (what these are called is missing from onnx's stubs)."""
    versions = schema.function_opset_versions if schema.has_function else []
    if schema.has_context_dependent_function:
        versions = [*versions, *schema.context_dependent_function_opset_versions]
    return sorted(versions)


def expanded(model: onnx.ModelProto, *, deep: bool) -> onnx.ModelProto:
    """A copy, in which function ops are nodes of their bodies: only those that there are, or those of bodies, too."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    opset = next(entry.version for entry in copy.opset_import if not entry.domain)
    for step in range(DEEP if deep else 1):
        types = _types(copy)
        if not _expand(copy.graph, opset, types, f"e{step}_"):
            break
    del copy.graph.value_info[:]
    return copy


def _types(model: onnx.ModelProto) -> dict[str, TypeProto]:
    """What is known of each value of the main graph."""
    graph = shape_inference.infer_shapes(model, data_prop=True).graph
    known = {info.name: info.type for info in (*graph.value_info, *graph.input, *graph.output)}
    for tensor in graph.initializer:
        known[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    return known


def _expand(graph: GraphProto, opset: int, types: Mapping[str, TypeProto], prefix: str) -> bool:
    """Expand the nodes of a graph and of graphs in it; was there anything to do?"""
    nodes, found = list[NodeProto](), False
    for index, node in enumerate(graph.node):
        for attribute in node.attribute:
            if attribute.type == AttributeProto.GRAPH:
                found |= _expand(attribute.g, opset, types, f"{prefix}{index}_")
        body = _body(node, opset, types)
        found |= body is not None
        nodes += [node] if body is None else _inlined(node, body, opset, f"{prefix}{index}_")
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)
    return found


def _body(node: NodeProto, opset: int, types: Mapping[str, TypeProto]) -> FunctionProto | None:
    """The body of a node as the standard has it at an opset; None if it has none, or wants types that nobody knows."""
    if node.domain or not defs.has(node.op_type, opset):
        return None
    schema: Any = defs.get_schema(node.op_type, opset)
    version = max((v for v in body_versions(schema) if v <= opset), default=0)
    if not version:
        return None
    body = FunctionProto()
    if schema.has_function and version in schema.function_opset_versions:
        body.ParseFromString(schema.get_function_with_opset_version(version))
        return body
    if any(name and name not in types for name in node.input):
        return None
    given = [types.get(name, TypeProto()).SerializeToString() for name in node.input]
    try:
        text = schema.get_context_dependent_function_with_opset_version(version, node.SerializeToString(), given)
    except Exception:  # the builder says so where a rank or a type is missing
        return None
    if not text:
        return None
    body.ParseFromString(text)
    return body if body.node else None


def _inlined(node: NodeProto, body: FunctionProto, opset: int, prefix: str) -> Iterator[NodeProto]:
    """The nodes of a body, with the node's inputs, outputs and attributes."""
    schema = defs.get_schema(node.op_type, opset)
    attributes = {name: a.default_value for name, a in schema.attributes.items() if a.default_value.name}
    attributes |= {attribute.name: attribute for attribute in node.attribute}
    names = {"": ""}
    for i, name in enumerate(body.input):
        names[name] = node.input[i] if i < len(node.input) else ""
    for i, name in enumerate(body.output):
        if i < len(node.output) and node.output[i]:
            names[name] = node.output[i]
    for inner in body.node:
        yield _renamed(inner, names, attributes, prefix)


def _renamed(
    node: NodeProto, names: dict[str, str], attributes: Mapping[str, AttributeProto], prefix: str
) -> NodeProto:
    made = NodeProto()
    made.CopyFrom(node)
    for value in node.output:
        names.setdefault(value, prefix + value)
    made.input[:] = [names.get(value, prefix + value) for value in node.input]
    made.output[:] = [names[value] for value in node.output]
    made.name = prefix + (node.name or (node.output[0] if node.output else ""))
    del made.attribute[:]
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            if attribute.ref_attr_name in attributes:
                given = made.attribute.add()
                given.CopyFrom(attributes[attribute.ref_attr_name])
                given.name = attribute.name
            continue
        given = made.attribute.add()
        given.CopyFrom(attribute)
        if given.type == AttributeProto.GRAPH:
            _rename_graph(given.g, names, attributes, prefix)
    return made


def _rename_graph(
    graph: GraphProto, outer: Mapping[str, str], attributes: Mapping[str, AttributeProto], prefix: str
) -> None:
    """A graph inside a body: what it defines gets names of its own."""
    names = dict(outer)
    for info in graph.input:
        names[info.name] = info.name = prefix + info.name
    for tensor in graph.initializer:
        names[tensor.name] = tensor.name = prefix + tensor.name
    nodes = [_renamed(node, names, attributes, prefix) for node in graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    for info in graph.output:
        info.name = names.get(info.name, prefix + info.name)
    del graph.value_info[:]
