"""Each node of a model and of what it became: what it takes on a card, where it comes from, and what stands for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from onnx import NodeProto

from onnxfuse.lifting.lifted import Lifted
from onnxfuse.lifting.view import View
from onnxfuse.model.standard import STANDARD
from onnxfuse.reporting.records import Node, Nodes
from onnxfuse.reporting.tell import worth_telling
from onnxfuse.rewriting.module_paths import ModulePaths
from onnxfuse.rewriting.provenance import FusedNode

from .gpus import Card
from .roofline import Times
from .totals import Asked, qualified, times


@dataclass(frozen=True, slots=True)
class Side:
    """A model as it was read, and its launches."""

    lifted: Lifted
    launches: Sequence[Asked]


@dataclass(frozen=True, slots=True)
class _Place:
    """A node, the view that it stands in, and the numbers of the nodes whose values it reads."""

    view: View
    node: NodeProto
    reads: tuple[int, ...]

    @property
    def key(self) -> tuple[str, str]:
        """Path of its graph, and its name there."""
        return self.view.graph.path, self.name

    @property
    def name(self) -> str:
        return self.node.name or next(filter(None, self.node.output), "")


def before_and_after(
    original: Side, output: Side, sites: Sequence[FusedNode], reasons: Mapping[int, str], card: Card
) -> Nodes:
    """All nodes; `sites` are what the output's fused nodes stand for, `reasons` say by `id` why a node of the output
    stands for itself alone."""
    was, now = list(_places(original.lifted)), list(_places(output.lifted))
    number = {place.key: index for index, place in enumerate(now)}
    fused = {(site.scope, site.node.name): site for site in sites}
    told = {(site.scope, site.node.name): index for index, site in enumerate(filter(worth_telling, sites))}
    becomes = {place.key: number[place.key] for place in was if place.key in number and place.key not in fused}
    for key, site in fused.items():
        becomes |= {(site.scope, name): number[key] for name in site.replaced if key in number}
    scopes = _scopes(original.lifted, was)
    before = [
        _node(place, asked, scopes[place.key], card, becomes=becomes.get(place.key))
        for place, asked in _asked(was, original.launches)
    ]
    kept = scopes | {key: f"{site.scope}{site.module}" for key, site in fused.items()}
    after = [
        _node(place, asked, scope, card, fusion=told.get(place.key), reason=reasons.get(id(place.node), ""))
        for (place, asked), scope in zip(_asked(now, output.launches), _placed(now, kept), strict=True)
    ]
    return Nodes(card.name, tuple(before), tuple(after))


def _places(lifted: Lifted) -> Iterator[_Place]:
    """All nodes but Constants, graph after graph."""
    numbers: dict[int, dict[str, int]] = {}
    count = 0
    for view in lifted.views:
        graph = view.graph
        known = dict(numbers[id(view.parent)]) if view.parent is not None else {}
        numbers[id(view)] = known
        for index, node in enumerate(graph.nodes):
            if node.op_type == "Constant" and node.domain in STANDARD:
                continue
            names = (*node.input, *graph.captures.get(index, ()))
            yield _Place(view, node, tuple(sorted({known[name] for name in names if name in known})))
            known |= {name: count for name in node.output if name}
            count += 1


def _asked(places: Sequence[_Place], launches: Sequence[Asked]) -> Iterator[tuple[_Place, Asked | None]]:
    """Each node with what it asks of a card, None for one that is not launched."""
    known = {id(each.node): each for each in launches}
    for place in places:
        yield place, known.get(id(place.node))


def _node(
    place: _Place,
    asked: Asked | None,
    scope: str,
    card: Card,
    *,
    becomes: int | None = None,
    fusion: int | None = None,
    reason: str = "",
) -> Node:
    demand = asked.demand if asked is not None else None
    time = times(asked, card) if asked is not None else Times(0.0, 0.0, 0.0)
    unknown = 0 if asked is None else None
    return Node(
        name=place.name,
        op=qualified(place.node),
        scope=scope,
        launches=asked.launches if asked is not None else 0,
        seconds=time.seconds,
        memory_seconds=time.bytes,
        compute_seconds=time.flops,
        bound=time.bound if asked is not None else None,
        bytes=demand.bytes if demand is not None else unknown,
        flops=demand.flops if demand is not None else unknown,
        reads=place.reads,
        becomes=becomes,
        fusion=fusion,
        reason=reason,
    )


def _scopes(lifted: Lifted, places: Sequence[_Place]) -> dict[tuple[str, str], str]:
    """The module path of each node of the original."""
    modules = {id(view): ModulePaths(view.graph.nodes) for view in lifted.views}
    return {place.key: f"{place.view.graph.path}{modules[id(place.view)].of([place.node])}" for place in places}


def _placed(places: Sequence[_Place], known: Mapping[tuple[str, str], str]) -> list[str]:
    """The module path of each node of the output: what was written anew stands where those do that read it."""
    readers: dict[int, list[str]] = {}
    found = [""] * len(places)
    for index in range(len(places) - 1, -1, -1):
        place = places[index]
        scope = known.get(place.key)
        found[index] = scope if scope is not None else _around(readers.get(index, []), place.view.graph.path)
        for read in place.reads:
            readers.setdefault(read, []).append(found[index])
    return found


def _around(scopes: Sequence[str], path: str) -> str:
    """The innermost module around all `scopes`; that of the graph `path` if there is none."""
    together = takewhile(lambda level: len(set(level)) == 1, zip(*(scope.split("/") for scope in scopes), strict=False))
    return "/".join(level[0] for level in together) or path
