"""One pass over a model after another, until a pass changes nothing: what is written is what would be written of it.

A pass leaves something to the next where values become one that its terms told apart, where a constant that it makes
is what a rule asks for, where a node that goes was the last to need another.  So a fused file that is fused again stays
as it is, byte for byte.

guarantees   a model of which a pass makes itself is what its passes lead to; where passes go around in a circle, the
             lightest model of it.  Each fused node names the nodes of the original that are gone for it
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import cached_property
from hashlib import blake2s

from onnx import ModelProto

from onnxfuse.model import ir_version
from onnxfuse.model.graph import DOMAIN, nodes_of_scopes
from onnxfuse.model.walk import BODIES, name_of
from onnxfuse.rewriting.provenance import merged, note_replaced
from onnxfuse.rewriting.simplify import weight
from onnxfuse.terms.normal.quantized import BYTES

from .fused import Fused
from .naming import Naming, named

PASSES = 8
"""No file known needs more than four; rules that go on for ever end here, with the lightest model so far."""
LARGE = 1 << 12
"""Bytes of an initializer that is told by its name: those that a pass makes are of the same values every time."""


def settle(model: ModelProto, once: Callable[[ModelProto], Fused], naming: Naming) -> Fused:
    """What passes (`once`) over a model lead to; `naming` are the names that are not to be given.

    A pass that spells the same nodes in another order, or with other names, is not taken."""
    original = names_of(model)
    passed: list[Fused] = []
    known, last, version = [_Words(model)], State(model), 0
    for _ in range(PASSES):
        after = once(passed[-1].model if passed else model)
        version = version or after.model.ir_version
        passed = passed or [replace(after, model=model, sites=[], simplified=frozenset(), vanished=[])]
        words = _Words(after.model)
        if State(after.model) == last:
            return passed[-1] if len(passed) > 1 else after
        if words == known[-1] and (after.sites or after.simplified):
            return _own(passed[-1], model, version)
        whole = joined(passed[-1], after, model, original) if len(passed) > 1 else after
        passed.append(named(whole, naming))
        last = State(passed[-1].model)
        if words in known[:-1]:
            return _own(min(passed[known.index(words) :], key=_weight), model, version)
        known.append(words)
    return min(passed[1:], key=_weight)


def names_of(model: ModelProto) -> frozenset[str]:
    """What its nodes are called: one without a name, after what it makes."""
    return frozenset(filter(None, map(name_of, nodes_of_scopes(model))))


def _own(fused: Fused, model: ModelProto, version: int) -> Fused:
    """What passes gave; a copy where that is the model as it was, of the IR version that the first pass gave it."""
    if fused.model is not model:
        return fused
    copy = ModelProto()
    copy.CopyFrom(model)
    ir_version.raise_to(copy, version)
    return replace(fused, model=copy)


def joined(before: Fused, after: Fused, source: ModelProto, original: Collection[str]) -> Fused:
    """Two passes as one: fused nodes that still stand, and later ones with what they stand for in the original."""
    nodes = {node.name: node for node in nodes_of_scopes(after.model)}
    former = {site.node.name: site for site in before.sites}
    sites = [site for site in before.sites if site.node.name in nodes]
    for site in after.sites:
        whole = merged(site, former, original)
        sites.append(whole)
        note_replaced(nodes[site.node.name], whole.replaced)
    order = {name: place for place, name in enumerate(nodes)}
    sites.sort(key=lambda site: order[site.node.name])
    gone = {name for site in sites for name in site.replaced}
    _drop_uncalled(after.model, {function.name for function in source.functions})
    return replace(
        after,
        sites=sites,
        near_misses=[miss for miss in before.near_misses if miss.node not in gone],
        simplified=before.simplified | after.simplified,
        unread=before.unread | after.unread,
        vanished=[*before.vanished, *after.vanished],
    )


def _drop_uncalled(model: ModelProto, kept: AbstractSet[str]) -> None:
    """Remove the bodies of fused ops that a pass has added and a later one no longer needs."""
    bodies = {function.name: function for function in model.functions if function.domain == DOMAIN}
    stack = [node.op_type for node in nodes_of_scopes(model) if node.domain == DOMAIN]
    called = set[str]()
    while stack:
        name = stack.pop()
        if name in bodies and name not in called:
            called.add(name)
            stack += [node.op_type for node in bodies[name].node if node.domain == DOMAIN]
    for index in reversed(range(len(model.functions))):
        name = model.functions[index].name
        if name in bodies.keys() - called - kept and model.functions[index].domain == DOMAIN:
            del model.functions[index]


def _weight(fused: Fused) -> int:
    return sum(weight(node.op_type) for node in nodes_of_scopes(fused.model))


class _Words:
    """The nodes of all scopes by what they say, not by what they are called or read."""

    def __init__(self, model: ModelProto) -> None:
        self._model = model

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Words) and self._ops == other._ops and self._all == other._all

    @cached_property
    def _ops(self) -> Counter[tuple[str, str]]:
        """How many of each op: where that differs, the rest need not be looked at."""
        every = nodes_of_scopes(self._model)
        return Counter((node.domain, node.op_type) for node in every if node.op_type != "Constant")

    @cached_property
    def _all(self) -> Counter[tuple[object, ...]]:
        """With what a node reads of a table of bytes: the same nodes in another order are less work there."""
        graph = self._model.graph
        given = {value.name: value.type.tensor_type.elem_type for value in graph.input}
        given |= {tensor.name: tensor.data_type for tensor in graph.initializer}
        bytes_of = {name: kind for name, kind in given.items() if kind in BYTES}
        return Counter(
            (
                node.domain,
                node.op_type,
                tuple(bytes_of.get(name, bool(name)) for name in node.input),
                *sorted(a.SerializeToString(deterministic=True) for a in node.attribute if a.type not in BODIES),
            )
            for node in nodes_of_scopes(self._model)
            if node.op_type != "Constant"
        )


class State:
    """What a pass sees of a model, without the elements of large tensors."""

    def __init__(self, model: ModelProto) -> None:
        self._model = model

    def __eq__(self, other: object) -> bool:
        return isinstance(other, State) and self._counts == other._counts and self._digest == other._digest

    @property
    def _counts(self) -> tuple[int, ...]:
        """How many there are of everything: where that differs, as behind most passes, the rest need not be read."""
        model, graph = self._model, self._model.graph
        return tuple(map(len, (graph.node, graph.initializer, graph.value_info, model.functions, model.opset_import)))

    @cached_property
    def _digest(self) -> bytes:
        model, graph, digest = self._model, self._model.graph, blake2s()
        for node in graph.node:
            digest.update(node.SerializeToString(deterministic=True))
        for tensor in graph.initializer:
            small = tensor.ByteSize() < LARGE
            digest.update(tensor.SerializeToString(deterministic=True) if small else tensor.name.encode())
        for part in (*graph.value_info, *model.functions, *model.opset_import):
            digest.update(part.SerializeToString(deterministic=True))
        return digest.digest()
