"""The nodes of a body of control flow in place of the node that has it, as if they ran once.

If(c, body) = body()
Loop(n, c, x..., body) = body(0, true, x...), with a leading axis of 1 on what each iteration gives
Scan(x..., s..., body) = body(x..., first of s...), with an axis of 1 on what each step gives
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import numpy as np
from onnx import FunctionProto, GraphProto, NodeProto, TypeProto, helper, numpy_helper

from .graph import label
from .schema import attributes_of
from .standard import STANDARD
from .walk import Owner, attribute_graphs

INSIDE = "//"
"""In names that are made of two, or of one and a word: no exporter writes it."""
SINCE = 9
"""The opset from which on Scan has no batch axis of its own."""

Around: TypeAlias = tuple[Iterable[NodeProto], Iterable[NodeProto]]
"""What gives a body its inputs, and what makes the outputs of its node of the body's."""


def stands(node: NodeProto, opset: int = SINCE) -> bool:
    """Is it a node that one of its bodies can stand for?"""
    return node.op_type in _AROUND and node.domain in STANDARD and (opset >= SINCE or node.op_type != "Scan")


def defined(body: GraphProto) -> list[str]:
    """The values that a body has of its own, in its order."""
    given = [info.name for info in body.input] + [tensor.name for tensor in body.initializer]
    given += [sparse.values.name for sparse in body.sparse_initializer]
    return list(dict.fromkeys([*given, *(name for node in body.node for name in node.output if name)]))


def in_place(
    node: NodeProto, body: GraphProto, names: Mapping[str, str], called: Callable[[str], str], opset: int, step: int = 0
) -> list[NodeProto]:
    """What stands for a node: the nodes of its body, at this step of a Loop or a Scan, and what connects them with the
    others.

    `names` are the new names of all values that the body has of its own, `called` gives those of nodes."""
    given = [names[info.name] for info in body.input]
    results = [names.get(info.name, info.name) for info in body.output]
    into, out_of = _AROUND[node.op_type](node, body, given, results, opset, step)
    inside = (renamed(inner, names, called) for inner in body.node)
    return [*_needed(into), *inside, *_needed(out_of)]


def _needed(connecting: Iterable[NodeProto]) -> Iterable[NodeProto]:
    """Without what gives nothing, and copies to a value's own name.  Nodes of bodies may omit their first output."""
    return (each for each in connecting if each.output[0] and each.output[:1] != each.input[:1])


def move_constants(body: GraphProto, owner: Owner, names: Mapping[str, str]) -> list[NodeProto]:
    """Give a scope the initializers of a body; the nodes that hold them, where it is a function, which has none."""
    if isinstance(owner, FunctionProto):
        return [helper.make_node("Constant", [], [names[t.name]], value=t) for t in body.initializer]
    for tensor in body.initializer:
        owner.initializer.add().CopyFrom(tensor)
        owner.initializer[-1].name = names[tensor.name]
    for sparse in body.sparse_initializer:
        owner.sparse_initializer.add().CopyFrom(sparse)
        owner.sparse_initializer[-1].values.name = names[sparse.values.name]
    return []


def _branch(node: NodeProto, body: GraphProto, given: list[str], results: list[str], opset: int, step: int) -> Around:
    return (), (copied(result, outer) for result, outer in zip(results, node.output, strict=False))


def _iteration(
    node: NodeProto, body: GraphProto, given: list[str], results: list[str], opset: int, step: int
) -> Around:
    """An iteration of a Loop, with what the first is given."""
    count, going, *carried = given
    into = [
        _constant(name, value, info.type.tensor_type)
        for name, value, info in zip((count, going), (np.int64(step), np.bool_(True)), body.input, strict=False)
    ]
    into += [copied(outer, inner) for outer, inner in zip(node.input[2:], carried, strict=True)]
    kept = zip(results[1 : len(carried) + 1], node.output, strict=False)
    stacked = zip(results[len(carried) + 1 :], node.output[len(carried) :], strict=False)
    return into, [*(copied(*pair) for pair in kept), *(n for pair in stacked for n in _row(*pair, 0, opset))]


def _scanned(node: NodeProto, body: GraphProto, given: list[str], results: list[str], opset: int, step: int) -> Around:
    """A step of a Scan, with what the first is given."""
    attrs = attributes_of(node, opset)
    count = len(node.input) - attrs["num_scan_inputs"]

    def of(name: str, number: int) -> int:
        return int((attrs.get(name) or [0] * (number + 1))[number])

    into = [copied(*pair) for pair in zip(node.input[:count], given, strict=False)]
    for i, (outer, inner) in enumerate(zip(node.input[count:], given[count:], strict=True)):
        index, axis = f"{inner}{INSIDE}index", of("scan_input_axes", i)
        into.append(_constant(index, np.int64(~step if of("scan_input_directions", i) else step)))
        into.append(helper.make_node("Gather", [outer, index], [inner], axis=axis))
    out_of = [copied(*pair) for pair in zip(results[:count], node.output, strict=False)]
    for i, pair in enumerate(zip(results[count:], node.output[count:], strict=False)):
        out_of += _row(*pair, of("scan_output_axes", i), opset)
    return into, out_of


_AROUND: Mapping[str, Callable[[NodeProto, GraphProto, list[str], list[str], int, int], Around]] = {
    "If": _branch,
    "Loop": _iteration,
    "Scan": _scanned,
}


def copied(value: str, name: str) -> NodeProto:
    """The node that gives a value another name."""
    return helper.make_node("Identity", [value], [name])


def _constant(name: str, value: np.generic, kind: TypeProto.Tensor | None = None) -> NodeProto:
    """A number, or the only one of an axis where it is declared so."""
    array = np.asarray(value).reshape((1,) if kind is not None and len(kind.shape.dim) == 1 else ())
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array))


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


def renamed(node: NodeProto, names: Mapping[str, str], called: Callable[[str], str]) -> NodeProto:
    """A copy of a node with other names for these values, also where bodies of it read them."""
    made = NodeProto()
    made.CopyFrom(node)
    own = label(node) if stands(node) else node.name
    made.name = own and called(own)
    made.input[:] = [names.get(name, name) for name in node.input]
    made.output[:] = [names.get(name, name) for name in node.output]
    for _, body in attribute_graphs(made):
        _rename_captured(body, names)
    return made


def _rename_captured(body: GraphProto, names: Mapping[str, str]) -> None:
    """Give other names to the values of scopes around a body that it reads, and bodies in it."""
    own = set(defined(body))
    outer = {name: other for name, other in names.items() if name not in own and name != other}
    for node in body.node:
        node.input[:] = [outer.get(name, name) for name in node.input]
        for _, inner in attribute_graphs(node):
            _rename_captured(inner, outer)
    for name in sorted({result.name for result in body.output} & outer.keys()):
        body.node.append(helper.make_node("Identity", [outer[name]], [name]))
