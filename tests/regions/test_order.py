"""What an order of groups says is what a search of all ways says, whatever has become one."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest

from onnxfuse.regions.groups import Groups
from onnxfuse.regions.order import Order

from .written import scope


class Graph:
    """Numbers, and the pairs of which the second waits for the first."""

    def __init__(self, ways: Mapping[int, set[int]]) -> None:
        self.ways = {number: set(after) for number, after in ways.items()}
        self.searched = 0
        self.order = Order()

    def before(self, number: int) -> set[int]:
        return {other for other, after in self.ways.items() if number in after}

    def behind(self, number: int) -> set[int]:
        self.searched += 1
        return self.ways[number]

    def reachable(self, first: set[int]) -> set[int]:
        found, pending = set(first), list(first)
        while pending:
            more = self.ways[pending.pop()] - found
            found |= more
            pending += more
        return found

    def join(self, a: int, b: int) -> None:
        between, whole = self.order.between(a, b, self.before, self.behind), min(a, b)
        after = (self.ways.pop(a) | self.ways.pop(b)) - {a, b}
        self.ways = {n: {whole if other in (a, b) else other for other in others} for n, others in self.ways.items()}
        self.ways[whole] = after
        self.order.join(a, b, whole, between)

    def may_join(self, a: int, b: int) -> bool:
        """Would no other wait for both, and they for it?"""
        return b not in self.reachable(self.ways[a] - {b}) and a not in self.reachable(self.ways[b] - {a})


def drawn(seed: int, count: int = 24) -> Graph:
    rng = random.Random(seed)
    names = rng.sample(range(count), count)
    return Graph({n: {m for m in names[k + 1 :] if rng.random() < 0.1} for k, n in enumerate(names)})


@pytest.mark.parametrize("seed", range(20))
def test_no_way_is_missed_and_none_made_up(seed: int) -> None:
    graph, rng = drawn(seed), random.Random(seed)
    graph.order.know(graph.ways, graph.before)
    while True:
        for a in graph.ways:
            assert all(graph.order.at[a] < graph.order.at[b] for b in graph.ways[a])
            behind = graph.reachable(graph.ways[a])
            assert {b for b in graph.ways if graph.order.reaches(graph.ways[a], b, graph.behind)} == behind
        pairs = [(a, b) for a in graph.ways for b in graph.ways if a != b and graph.may_join(a, b)]
        if not pairs:
            break
        graph.join(*rng.choice(pairs))
    assert len(graph.ways) < 24


def test_what_lies_behind_is_not_searched() -> None:
    """A chain of which each link leads to the next two."""
    graph = Graph({n: {m for m in (n + 1, n + 2) if m < 1000} for n in range(1000)})
    graph.order.know(graph.ways, graph.before)
    for n in range(990):
        assert graph.order.reaches(graph.ways[n] - {n + 2}, n + 2, graph.behind)
        assert not graph.order.reaches(graph.ways[n + 2], n, graph.behind)
    assert graph.searched < 4 * 990


def test_what_waits_for_itself_ends() -> None:
    graph = Graph({0: {1}, 1: {2}, 2: {0}})
    graph.order.know(graph.ways, graph.before)
    assert sorted(graph.order.at) == [0, 1, 2]


def test_groups_that_are_computed_again_are_ordered_anew() -> None:
    text = """g (float[4,8] x, float[8,8] w) => (float[4,8] y, float[4,8] z) {
        a = Neg(x) b = Abs(a) m = MatMul(b, w) y = Add(a, m) z = Sub(b, m) }"""
    groups = Groups(scope(text))
    whole = groups.join(groups.of[0], groups.of[1])
    assert groups.reaches(whole, groups.of[3], direct=False)
    done = groups.spread(whole, ["a"])
    assert groups.reaches(groups.of[2], groups.of[3])
    assert not groups.reaches(groups.of[3], groups.of[4])
    groups.gather(done)
    assert groups.reaches(groups.of[0], groups.of[3], direct=False)
