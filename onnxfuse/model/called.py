"""The nodes of a local function in place of a call of it.

f(x..., attribute=a) = body(x...), with a where the body refers to the attribute (spec: IR, Functions)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from onnx import AttributeProto, FunctionProto, ModelProto, NodeProto, helper

from .graph import DOMAIN
from .in_place import copied, renamed
from .walk import attribute_graphs, called_by, key_of


def callees(model: ModelProto) -> Callable[[NodeProto], FunctionProto | None]:
    """The local function that a node calls, if its nodes can stand for the call: where both mean the same versions of
    ops.  Those of onnxfuse are ops."""
    imported = {entry.domain: entry.version for entry in model.opset_import}
    for entry in (entry for function in model.functions for entry in function.opset_import):
        imported.setdefault(entry.domain, entry.version)
    own = {
        key_of(function): function
        for function in model.functions
        if function.domain != DOMAIN and all(imported[entry.domain] == entry.version for entry in function.opset_import)
    }
    return lambda node: own.get(called_by(node)) if own else None


def in_place_of_call(
    node: NodeProto, function: FunctionProto, named: Callable[[str], str], called: Callable[[str], str]
) -> list[NodeProto]:
    """What stands for a call: the nodes of the function, and copies of what it is given and gives.

    `named` are the new names of the values of the function, `called` gives those of nodes."""
    given = dict(zip(function.input, node.input, strict=False))
    values = [*function.input, *(name for inner in function.node for name in inner.output if name)]
    names = {name: named(name) if given.get(name, name) else "" for name in values}
    names |= {name: "" for name in function.input if not given.get(name)}
    attributes = {attribute.name: attribute for attribute in (*function.attribute_proto, *node.attribute)}
    into = [copied(outer, names[inner]) for inner, outer in given.items() if outer]
    inside = [renamed(inner, names, called) for inner in function.node]
    for inner in inside:
        _resolve(inner, attributes)
    out_of = [copied(names[inner], outer) for inner, outer in zip(function.output, node.output, strict=False) if outer]
    return [*into, *inside, *out_of]


def _resolve(node: NodeProto, attributes: Mapping[str, AttributeProto]) -> None:
    """Give a node the attributes that it takes from the call; one that is given to neither is omitted."""
    made = []
    for attribute in node.attribute:
        if not attribute.ref_attr_name:
            made.append(attribute)
        elif attribute.ref_attr_name in attributes:
            own = AttributeProto()
            own.CopyFrom(attributes[attribute.ref_attr_name])
            own.name = attribute.name
            made.append(own)
    kept = [AttributeProto.FromString(attribute.SerializeToString()) for attribute in made]
    del node.attribute[:]
    node.attribute.extend(kept)
    for _, body in attribute_graphs(node):
        for inner in body.node:
            _resolve(inner, attributes)


def import_ops(model: ModelProto, function: FunctionProto) -> None:
    """Let a model import the domains that a function does."""
    known = {entry.domain for entry in model.opset_import}
    model.opset_import.extend(
        helper.make_opsetid(entry.domain, entry.version) for entry in function.opset_import if entry.domain not in known
    )
