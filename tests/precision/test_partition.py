"""The cut is the cheapest that there is, and has as few nodes in float32 as such a cut can have."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from onnxfuse.precision.partition import CAST, HALF_SIDE, SINGLE_SIDE, Crossing, in_single


def cost(single: set[int], weights: dict[int, int], values: list[Crossing]) -> int:
    """What a choice costs, by the definition."""

    def is_half(number: int) -> bool:
        return number == HALF_SIDE or (number != SINGLE_SIDE and number not in single)

    total = sum(weights[node] for node in single)
    for value in values:
        others = {is_half(reader) for reader in value.readers} - {is_half(value.producer)}
        total += value.cost * len(others)
    return total


@pytest.mark.parametrize("seed", range(40))
def test_no_other_choice_is_cheaper(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nodes = list(range(2, 2 + int(rng.integers(1, 8))))
    weights = {node: int(rng.choice([100, 1000, 5000])) for node in nodes}
    must = {node for node in nodes if rng.random() < 0.3}
    values = []
    for _ in range(int(rng.integers(1, 9))):
        readers = rng.choice([0, 1, *nodes], size=int(rng.integers(1, 4)))
        producer = int(rng.choice([0, 1, *nodes]))
        values.append(Crossing(producer, tuple(map(int, readers)), int(rng.choice([10, CAST]))))
    found = in_single(weights, must, values)
    assert must <= found <= set(nodes)
    choices = [set(extra) | must for n in range(len(nodes) + 1) for extra in itertools.combinations(nodes, n)]
    best = min(cost(choice, weights, values) for choice in choices)
    assert cost(found, weights, values) == best
    assert len(found) == min(len(choice) for choice in choices if cost(choice, weights, values) == best)


def test_a_cheap_node_between_two_islands_joins_them_and_a_product_does_not() -> None:
    chain = [Crossing(2, (3,)), Crossing(3, (4,)), Crossing(4, (HALF_SIDE,))]
    assert in_single({2: 100, 3: 100, 4: 100}, {2, 4}, chain) == {2, 3, 4}
    assert in_single({2: 100, 3: 10**6, 4: 100}, {2, 4}, chain) == {2, 4}


def test_a_value_is_cast_once_for_all_that_read_it() -> None:
    """Three readers are one Cast: it is not worth three nodes in float32."""
    weights = dict.fromkeys(range(3, 6), 400) | {2: 400}
    values = [Crossing(2, (3, 4, 5)), *(Crossing(node, (HALF_SIDE,)) for node in (3, 4, 5))]
    assert in_single(weights, {2}, values) == {2}


def test_without_nodes_nothing_is_cut() -> None:
    assert in_single({}, (), [Crossing(SINGLE_SIDE, (HALF_SIDE,))]) == set()
