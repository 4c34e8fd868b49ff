"""What a model launches and moves as a whole, and which of its nodes no fusion covers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from onnx import NodeProto

from onnxfuse.lifting.launched import launched
from onnxfuse.lifting.lifted import Lifted
from onnxfuse.matching.cost import launches_of
from onnxfuse.matching.work import tensor_of
from onnxfuse.model.graph import DOMAIN, REGION, family_of
from onnxfuse.model.op_traits import CONTROL_FLOW, KERNELS, MOVEMENT, PRODUCTS, RANDOM, TRAITS
from onnxfuse.model.standard import STANDARD
from onnxfuse.model.walk import name_of
from onnxfuse.reporting.records import NO_RULE, NearMiss, Remaining, Totals
from onnxfuse.rewriting.provenance import FusedNode
from onnxfuse.terms.term import Term

from .gpus import Card
from .roofline import Demand, Times, demand
from .sizes import Sizes, sized


@dataclass(frozen=True)
class Asked:
    """A node that is launched, and what it asks of a card; None where a size of it depends on the data."""

    scope: str
    """Path of the graph that it stands in."""
    node: NodeProto
    demand: Demand | None

    @property
    def launches(self) -> int:
        return launches_of(self.node)


def asked(lifted: Lifted, at: Sizes, terms: Mapping[str, Mapping[str, Term]] | None = None) -> list[Asked]:
    """The launches of a model.  A body counts once, however often it runs.

    `terms` are those of values, by the path of their graph and by name, which may say what reading the model does not.
    Where a size is no function of those of the inputs that we know, the model is read again with inputs of these sizes,
    and with what the terms say."""
    terms = terms or {}
    found = [
        Asked(view.graph.path, node, demand(view, node, at.known, terms.get(view.graph.path)))
        for view in lifted.views
        for node in launched(view)
    ]
    if not at.shapes or all(each.demand is not None for each in found):
        return found
    main = terms.get("", {})
    open_values = (name for each in found if each.demand is None and not each.scope for name in each.node.output)
    known = ((name, tensor_of(main[name], at.known)) for name in open_values if name in main)
    told = {name: tensor for name, tensor in known if tensor is not None}
    again = Lifted.of(sized(lifted.model, at.shapes, told), lifted.base_dir)
    views = {view.graph.path: view for view in again.views}
    return [
        each if each.demand is not None else replace(each, demand=demand(views[each.scope], each.node, at.known))
        for each in found
    ]


def terms_of(original: Lifted, sites: Iterable[FusedNode]) -> dict[str, dict[str, Term]]:
    """What is known of values that fusing left or made, by the path of their graph and by name: what they are in the
    original, and what fused nodes compute."""
    found = {view.graph.path: dict(view.terms_of) for view in original.views}
    for site in sites:
        own = found.setdefault(site.scope, {})
        own[site.value] = site.term
        if family_of(site.node) == REGION:
            outputs = site.matches[-1].exposed.values()
            own |= dict(zip(site.node.output, outputs, strict=False))
    return found


def spread(launches: Sequence[Asked], lifted: Lifted, nodes: Sequence[Sequence[NodeProto]]) -> list[Asked]:
    """The launches of a model of which a few blocks were read: `nodes` are those that each node of these stands for."""
    own = {id(node): of for node, of in zip(lifted.views[0].graph.nodes, nodes, strict=True)}
    return [replace(each, node=node) for each in launches for node in own[id(each.node)]]


def totals(launches: Sequence[Asked]) -> Totals:
    """All of them together."""
    moved = [each.demand.bytes for each in launches if each.demand is not None]
    return Totals(sum(each.launches for each in launches), sum(moved), len(launches) - len(moved))


def bytes_saved(sites: Iterable[FusedNode], before: Sequence[Asked], after: Sequence[Asked]) -> list[int | None]:
    """What the launches that each site replaces move more than its own does, or 0; None where a size of them is not
    known."""
    was, now = ({(each.scope, name_of(each.node)): each.demand for each in launches} for launches in (before, after))
    result: list[int | None] = []
    for site in sites:
        gone, own = _moved(was, site.scope, site.replaced), _moved(now, site.scope, [site.node.name])
        result.append(None if gone is None or own is None else max(gone - own, 0))
    return result


def _moved(demands: Mapping[tuple[str, str], Demand | None], scope: str, names: Iterable[str]) -> int | None:
    """The bytes that those of some nodes of a scope move which are launched; None where one's are not known."""
    found = [demands[scope, name] for name in names if (scope, name) in demands]
    known = [demand.bytes for demand in found if demand is not None]
    return sum(known) if len(known) == len(found) else None


def remaining(
    launches: Sequence[Asked],
    fused: Collection[str],
    misses: Iterable[NearMiss],
    known_ops: Collection[str],
    card: Card,
) -> list[Remaining]:
    """Those of an output that stand `alone`, an op and a reason each, what takes longest first.

    A launch of unknown size counts as one that moves nothing."""
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for each, reason in alone(launches, fused, misses, known_ops):
        groups[qualified(each.node), reason].append(times(each, card).seconds)
    whole = math.fsum(times(each, card).seconds for each in launches)
    found = [
        Remaining(op, len(seconds), math.fsum(seconds) / whole if whole else 0.0, reason)
        for (op, reason), seconds in groups.items()
    ]
    return sorted(found, key=lambda each: (-each.share, each.op, each.reason))


def alone(
    launches: Sequence[Asked], fused: Collection[str], misses: Iterable[NearMiss], known_ops: Collection[str]
) -> Iterator[tuple[Asked, str]]:
    """The launches of an output that stand for themselves alone, and why.

    `fused` are the names of its fused nodes, `known_ops` the ops that rules can match."""
    near: dict[str, str] = {}
    for miss in misses:
        near.setdefault(miss.node, miss.rule)
    for each in launches:
        name = name_of(each.node)
        if name not in fused and each.node.domain != DOMAIN:
            yield each, _reason(each.node, near.get(name), known_ops)


def qualified(node: NodeProto) -> str:
    """``domain.op_type``; the domain ai.onnx is left out, and so is what tells uses of one op apart."""
    return family_of(node) if node.domain in STANDARD else f"{node.domain}.{family_of(node)}"


def times(each: Asked, card: Card) -> Times:
    """How long a launch takes; one of unknown size is one that moves nothing."""
    return each.demand.on(card) if each.demand is not None else Times(0.0, 0.0, each.launches * card.launch)


def _reason(node: NodeProto, nearly: str | None, known_ops: Collection[str]) -> str:
    op = family_of(node)
    if nearly:
        return f"nearly {nearly}"
    if op == "Dropout":
        return "drops at random, to train: for inference, call eval() before the export"
    if op in RANDOM:
        return "draws random numbers"
    if op not in known_ops and (op not in TRAITS or op in CONTROL_FLOW):
        return "no rule has this op"
    if op in KERNELS:
        return "one kernel already, and nothing beside it to take in"
    if op in PRODUCTS:
        return "a product by itself"
    if op in MOVEMENT:
        return "moves data that no neighbour reads in place"
    return NO_RULE
