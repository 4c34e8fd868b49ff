"""Launches → groups: which run together.

guarantees   every launch is in a group; groups do not wait for each other; the same scope gives the same groups
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, count
from typing import TypeAlias

from onnxfuse.model.dims import Dim, Sym

from . import legality
from .groups import Group, Groups
from .products import gates, side_by_side
from .scope import Scope
from .updates import together


@dataclass(frozen=True)
class Apart:
    """Two groups that are not one, though one reads what the other writes."""

    producer: Group
    consumer: Group
    reason: str


def partition(scope: Scope) -> Groups:
    """The groups of a scope's launches: first what is no product, then that with products, last these beside others,
    and what updates parameters."""
    groups = Groups(scope)
    gates(groups, packed=False)
    _downwards(groups)
    _again(groups)
    _downwards(groups)
    _sideways(groups)
    _downwards(groups)
    _again(groups)
    gates(groups, packed=True)  # what reads the parts has gone into what takes them apart
    _downwards(groups, products=True)
    side_by_side(groups)
    together(groups)
    return groups


def separated(groups: Groups) -> Iterator[Apart]:
    """The pairs that stay apart where one launch would move less, and why.

    Where others lie between, it is those that keep them apart; where computing again would move more, nothing is lost;
    that norms and products are kernels of their own is no miss, nor that there are more elements of one than of the
    other: of the same symbols numbers differ at nearly all sizes.
    """
    for consumer in groups:
        for number in sorted(groups.sources(consumer)):
            producer = groups.of[number]
            if producer.fixed or consumer.fixed or not _saved(groups, producer, consumer):
                continue
            if consumer.product or groups.reaches(producer, consumer, direct=False):
                continue
            reason = legality.obstacle(groups, producer, consumer)
            if reason == legality.SIZES and not _alike(groups.together(producer, consumer)):
                continue
            if reason and reason != legality.PRODUCT:
                yield Apart(producer, consumer, reason)


def _alike(sizes: Iterable[Dim]) -> bool:
    """May two of these numbers be equal for what is known, since each has a symbol that the other has not?"""
    named = [dim.symbols if isinstance(dim, Sym) else set[str]() for dim in sizes]
    return any(a - b and b - a for a, b in combinations(named, 2))


def _downwards(groups: Groups, *, products: bool = False) -> None:
    """Producers into consumers, those first that save the most bytes; with `products`, only where there is one."""
    serial = count()
    heap = [entry for group in groups for entry in _pairs(groups, group, serial, products)]
    heapq.heapify(heap)
    while heap:
        entry = heapq.heappop(heap)
        *_, a, b = entry
        if groups.of.get(a.number) is not a or groups.of.get(b.number) is not b:
            continue
        if (saved := -_saved(groups, a, b)) != entry[0]:  # what is around them has changed
            heapq.heappush(heap, (saved, *entry[1:3], next(serial), a, b))
        elif not legality.obstacle(groups, a, b):
            whole = groups.join(a, b)
            around = groups.sources(whole) | groups.targets(whole)
            for number in (whole.number, *around):
                for pair in _pairs(groups, groups.of[number], serial, products):
                    heapq.heappush(heap, pair)


_Pair: TypeAlias = "tuple[int, int, int, int, Group, Group]"


def _pairs(groups: Groups, b: Group, serial: Iterator[int], products: bool) -> Iterator[_Pair]:
    """What may go into a group, in the order in which it is tried: what saves most, then the first in the graph."""
    if b.fixed:
        return
    for number in groups.sources(b):
        a = groups.of[number]
        if not a.fixed and (a.product or b.product) == products:
            yield -_saved(groups, a, b), a.number, b.number, next(serial), a, b


def _saved(groups: Groups, a: Group, b: Group) -> int:
    """Bytes that are not moved if a producer goes into its consumer."""
    names = b.reads.keys() & a.made
    between = sum(groups.scope.bytes(name) * (1 if groups.asked(name, a, b) else 2) for name in names)
    return between + sum(min(a.reads[name], b.reads[name]) for name in a.reads.keys() & b.reads.keys())


def _again(groups: Groups) -> None:
    """What several groups read is computed again in each, where that does not move more: all results of a group, or
    one of them."""
    for group in reversed(list(groups)):
        choices = [groups.written(group)]
        choices += [[name] for name in choices[0]] if len(choices[0]) > 1 else []
        for names in choices if not group.fixed else ():
            current = groups.of.get(group.number)
            if current is not None and set(names) <= set(groups.written(current)):
                _spread(groups, current, names)


def _spread(groups: Groups, group: Group, names: Sequence[str]) -> None:
    users = {user for name in names for user in groups.readers(name)}
    if not users or (len(users) < 2 and names == groups.written(group)) or legality.kept(groups, group, names):
        return
    around = {group.number, *users}
    before = sum(groups.traffic(groups.of[number]) for number in around)
    done = groups.spread(group, names)
    after = sum(groups.traffic(groups.of[number]) for number in around & groups.of.keys())
    if after > before or (after == before and group.number in groups.of):  # then no launch is saved either
        groups.gather(done)


def _sideways(groups: Groups) -> None:
    """Siblings of one tensor become one group with the outputs of all."""
    while True:
        found = sorted(_siblings(groups), key=lambda entry: entry[:3])
        joined = set[int]()
        for _, first, second, a, b in found:
            if not joined.intersection((first, second)) and not legality.apart(groups, a, b):
                joined |= {first, second}
                groups.join(a, b)
        if not joined:
            return


def _siblings(groups: Groups) -> Iterator[tuple[int, int, int, Group, Group]]:
    """Groups that read one tensor, those of the most bytes in common first."""
    seen = set[tuple[int, int]]()
    for users in groups.users.values():
        loops = [groups.of[number] for number in sorted(users) if not groups.of[number].fixed]
        for at, a in enumerate(loops):
            for b in loops[at + 1 : at + 1 + _NEAR]:
                if (a.number, b.number) not in seen:
                    seen.add((a.number, b.number))
                    common = sum(min(a.reads[name], b.reads[name]) for name in a.reads.keys() & b.reads.keys())
                    yield -common, a.number, b.number, a, b


_NEAR = 8
"""Siblings that are tried with each one: of a mask that all layers read, the nearest."""
