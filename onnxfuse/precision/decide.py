"""Which nodes of a scope compute in float32: those that must, and those around them that save Casts by it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from onnx import NodeProto

from onnxfuse.model.graph import DOMAIN
from onnxfuse.model.op_traits import PRODUCTS

from .partition import CAST, HALF_SIDE, SINGLE_SIDE, Crossing, in_single
from .ports import ANY, MASK, SHARED, SINGLE
from .scope import Scope

_AT_THE_EDGE = CAST // 100
"""What a Cast of an input or an output of the model costs, which there must be."""
_PRODUCT, _NODE = 1000 * CAST, CAST // 10
"""What it costs to compute a product of matrices or a fused op in float32, and anything else."""
_FIRST = 2
"""The number of the first node in a cut, behind the two sides."""


@dataclass(frozen=True)
class Decided:
    """A scope, and which of its nodes compute in float32."""

    scope: Scope
    single: frozenset[int]
    reasons: Mapping[int, str]
    """Of those that must, why."""

    def is_half(self, name: str) -> bool:
        """Is a value made in half precision, or given in it?"""
        scope = self.scope
        if name in scope.producer:
            return scope.port_of(name) != SINGLE and scope.producer[name] not in self.single
        return scope.inputs.get(name, False)

    def wants_half(self, index: int, port: str) -> bool:
        """Does a node want half precision at one of its inputs?"""
        return port == SHARED and index not in self.single

    def wanted(self, name: str) -> set[bool]:
        """The types that a value is read in; what takes any is content with the one that there is."""
        read = self.scope.readers.get(name, ())
        typed = {self.wants_half(i, port) for i, port in read if port not in (ANY, MASK)}
        return typed | {False for i, port in read if port == MASK and i in self.single}

    @property
    def mostly_half(self) -> bool:
        """Are most products and fused ops in half precision, or as many as are not?"""
        heavy = {index for index, node in enumerate(self.scope.nodes) if _is_heavy(node)}
        return 2 * len(heavy & self.single) <= len(heavy)

    def why(self, index: int) -> str:
        """Why a node is in float32, or the nearest one that must be."""
        pending, seen = [index], {index}
        while pending:
            at = pending.pop(0)
            if at in self.reasons:
                return self.reasons[at]
            near = [self.scope.producer.get(name, -1) for name in self.scope.nodes[at].input]
            near += [i for name in self.scope.nodes[at].output for i, _ in self.scope.readers.get(name, ())]
            pending += [i for i in near if i in self.single and i not in seen]
            seen.update(near)
        return "saves a Cast"


def decide(scope: Scope, reasons: Mapping[int, str]) -> Decided:
    """The nodes that must stay in float32, for these `reasons`, and what goes with them."""
    weights = {index + _FIRST: _PRODUCT if _is_heavy(node) else _NODE for index, node in enumerate(scope.nodes)}
    single = in_single(weights, [index + _FIRST for index in reasons], list(_crossings(scope)))
    return Decided(scope, frozenset(at - _FIRST for at in single), reasons)


def _is_heavy(node: NodeProto) -> bool:
    return node.op_type in PRODUCTS or node.domain == DOMAIN


def _crossings(scope: Scope) -> Iterator[Crossing]:
    for name, index in scope.producer.items():
        if scope.real(name) and name not in scope.constants:
            yield from _crossing(scope, name, SINGLE_SIDE if scope.port_of(name) == SINGLE else index + _FIRST)
    for name, half in scope.inputs.items():
        if scope.real(name):
            yield from _crossing(scope, name, HALF_SIDE if half else SINGLE_SIDE)


def _crossing(scope: Scope, name: str, producer: int) -> Iterator[Crossing]:
    read = [(index, port) for index, port in scope.readers.get(name, ()) if port not in (ANY, MASK)]
    edge = name in scope.inputs and not scope.body
    if read:
        readers = tuple(index + _FIRST if port == SHARED else SINGLE_SIDE for index, port in read)
        yield Crossing(producer, readers, _AT_THE_EDGE if edge else CAST)
    if name in scope.outputs:
        side = HALF_SIDE if scope.outputs[name] else SINGLE_SIDE
        yield Crossing(producer, (side,), CAST if scope.body else _AT_THE_EDGE)
