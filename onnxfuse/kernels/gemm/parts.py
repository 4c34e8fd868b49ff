"""Products whose columns are taken apart behind them: each part is a product with some of the columns of the weights.

Queries, keys and values of one packed projection are such, and a gate packed beside what it gates.  What is elementwise
between the product and the Split is done to each part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from onnx import NodeProto, numpy_helper

from onnxfuse.errors import KernelError

from .source import PRODUCT


@dataclass(frozen=True, slots=True)
class Part:
    """One of the outputs of a Split."""

    axis: int
    number: int
    sizes: tuple[int, ...]
    """Of all parts; empty if they are equal."""
    count: int
    made: frozenset[str]
    """What is computed of it where the Split would not have been met yet."""

    def span(self, columns: int, rank: int) -> tuple[int, int]:
        """The first of its columns, and how many it has.  Raises KernelError where other axes are taken apart."""
        if self.axis % rank != rank - 1:
            raise KernelError("rows of a product are taken apart, not columns")
        each = -(-columns // self.count)
        sizes = self.sizes or tuple(min(each, columns - each * i) for i in range(self.count))
        if sum(sizes) != columns or min(sizes) < 0:
            raise KernelError(f"parts of {list(sizes)} columns are not {columns}")
        return sum(sizes[: self.number]), sizes[self.number]


def span(part: Part | None, columns: int, rank: int) -> tuple[int, int]:
    """The same of what may be all columns."""
    return (0, columns) if part is None else part.span(columns, rank)


def taken_apart(nodes: Sequence[NodeProto]) -> tuple[list[NodeProto], dict[str, Part]]:
    """Nodes without a Split, with a product for each of its outputs, and what each such product is a part of.

    Nodes are in topological order.  Raises KernelError for a Split of anything but one product."""
    made: list[NodeProto] = []
    parts: dict[str, Part] = {}
    for node in nodes:
        if node.op_type != "Split":
            made.append(node)
            continue
        before = list(_before(made, node.input[0]))[::-1]
        if sum(each.op_type == PRODUCT for each in before) != 1:
            raise KernelError("what is taken apart is not one product")
        if any(each.output[0] in parts for each in before):
            raise KernelError("a part of a product is taken apart once more")
        axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
        sizes = _sizes(nodes, node)
        for number, output in enumerate(node.output):
            if not output:
                continue
            names = {name: f"{name}@{output}" for each in before for name in each.output} | {node.input[0]: output}
            copies = [_renamed(each, names) for each in before]
            made += copies
            inner = frozenset(names.values()) if len(copies) > 1 else frozenset[str]()
            product = next(each.output[0] for each in copies if each.op_type == PRODUCT)
            parts[product] = Part(axis, number, sizes, len(node.output), inner)
    return made, parts


def _before(nodes: Sequence[NodeProto], name: str) -> Iterator[NodeProto]:
    """What a value is computed by, back to products, from the last to the first."""
    wanted = {name}
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.output):
            wanted.update(() if node.op_type == PRODUCT else node.input)
            yield node


def _renamed(node: NodeProto, names: dict[str, str]) -> NodeProto:
    copy = NodeProto(op_type=node.op_type, domain=node.domain, attribute=node.attribute)
    copy.input.extend(names.get(name, name) for name in node.input)
    copy.output.extend(names.get(name, name) for name in node.output)
    return copy


def _sizes(nodes: Sequence[NodeProto], split: NodeProto) -> tuple[int, ...]:
    """Those of the parts; empty if they are equal.  Raises KernelError where they are computed."""
    for attribute in split.attribute:
        if attribute.name == "split":
            return tuple(attribute.ints)
    if len(split.input) < 2 or not split.input[1]:
        return ()
    for node in nodes:
        if node.op_type == "Constant" and node.output[0] == split.input[1]:
            for attribute in node.attribute:
                if attribute.name == "value":
                    return tuple(int(size) for size in numpy_helper.to_array(attribute.t).ravel())
                if attribute.name == "value_ints":
                    return tuple(attribute.ints)
    raise KernelError("the sizes of parts are computed")
