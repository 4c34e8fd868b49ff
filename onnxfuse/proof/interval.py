"""The fewest nodes in a row that have to be better than the others, found by trying.

What a node rounds, all nodes behind it pass on, and some make it more: where the outputs are off by too much, it is a
stretch of nodes that is to blame, most often the first ones.  If [0, n) is good for all n from some number on, and then
[a, n) for all a up to another, both are found by bisection.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


def fewest(count: int, good: Callable[[range], bool]) -> range | None:
    """The stretch of nodes, of `count`, that is `good` and no longer than it must be; None if not even all are."""
    if not good(range(count)):
        return None
    end = _first(0, count, lambda number: good(range(number)))
    start = end - _first(0, end, lambda length: good(range(end - length, end)))
    return range(start, end)


def _first(bad: int, known: int, good: Callable[[int], bool]) -> int:
    """The least number above `bad` that is good, if that is so for all above it; `known` is good."""
    while known - bad > 1:
        middle = (bad + known) // 2
        if good(middle):
            known = middle
        else:
            bad = middle
    return known


def wider(stretch: range, costs: Sequence[int], most: int) -> list[range]:
    """Stretches around this one whose two ends together cost no more than that, the shortest first; `costs` are those
    of each place between nodes."""
    found = set()
    for share in range(most + 1):
        start = next((at for at in range(stretch.start, -1, -1) if costs[at] <= share), None)
        end = next((at for at in range(stretch.stop, len(costs)) if costs[at] <= most - share), None)
        if start is not None and end is not None:
            found.add((end - start, start, end))
    return [range(start, end) for _, start, end in sorted(found)]
