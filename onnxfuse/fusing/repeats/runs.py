"""Where nodes come again: candidates by their ops alone, which costs next to nothing where there is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

HEAD, TAIL = 3, 2
"""Blocks of a run that are worked on at its start and at its end."""
LEAST = HEAD + TAIL + 1
"""Blocks of the shortest run of which any is left out."""
SHORTEST = 4
"""Nodes of the shortest block."""
WINDOW = 8
"""Ops in a row that tell a place in a block from others."""
CANDIDATES = 16
"""Periods that are looked at."""
MULTIPLES = 8
"""Of a period, so many: layers of the same ops alternate by what these read (one with a window, five without)."""


@dataclass(frozen=True)
class Run:
    """`count` blocks of `period` nodes, the first of which begins at node `start`."""

    start: int
    period: int
    count: int

    @property
    def stop(self) -> int:
        return self.start + self.period * self.count

    @property
    def left_out(self) -> range:
        """The nodes that are not worked on."""
        return range(self.start + HEAD * self.period, self.stop - TAIL * self.period)

    @property
    def gap(self) -> int:
        """How many blocks are not."""
        return self.count - HEAD - TAIL

    def block(self, node: int) -> int:
        """The block of a node, as they are counted without those left out; -1 before the run, and the number of all
        behind it."""
        block = (node - self.start) // self.period if node >= self.start else -1
        return block if block < HEAD else min(block - self.gap, HEAD + TAIL)

    def of_whole(self, block: int) -> int:
        """The block of all that one of those that are worked on is."""
        return block if block < HEAD else block + self.gap

    def __contains__(self, node: int) -> bool:
        return self.start <= node < self.stop


def periods(ops: Sequence[str]) -> list[tuple[int, list[range]]]:
    """Periods of a sequence of ops, each with the places that are the same again one period on."""
    if len(ops) < LEAST * SHORTEST:
        return []
    kinds: dict[str, int] = {}
    numbers = np.array([kinds.setdefault(op, len(kinds)) for op in ops], np.uint64)
    count = len(numbers) - WINDOW + 1
    windows = np.zeros(count, np.uint64)
    for k in range(WINDOW):  # modulo 2**64
        windows = windows * np.uint64(0x9E3779B97F4A7C15) + numbers[k : k + count] + np.uint64(1)
    order = np.argsort(windows, kind="stable")
    same = windows[order[1:]] == windows[order[:-1]]
    often = Counter((order[1:] - order[:-1])[same].tolist())
    found = []
    for period, times in often.most_common(CANDIDATES):
        if period >= SHORTEST and times >= LEAST - 1:
            alike = streaks(numbers[period:] == numbers[:-period], (LEAST - 1) * period)
            if alike:
                found.append((period, alike))
    return found


def streaks(alike: np.ndarray[tuple[int], np.dtype[np.bool_]], least: int) -> list[range]:
    """The stretches that are true, of at least so many places."""
    edges = np.flatnonzero(np.diff(np.concatenate(([0], alike.astype(np.int8), [0]))))
    return [range(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True) if b - a >= least]


def runs(found: Sequence[tuple[int, list[range]]], matches: Callable[[int, int], int | None]) -> list[Run]:
    """The runs that leave out most, none of which overlap, in order.

    `matches(i, period)` says from which node on a run must begin for node i + period to be node i again; None if it is
    not."""
    candidates = [run for period, places in found for place in places for run in _of_place(place, period, matches)]
    chosen: list[Run] = []
    while candidates:
        best = max(candidates, key=lambda run: (run.gap * run.period, -run.period, -run.start))
        chosen.append(best)
        candidates = [rest for run in candidates for rest in _beside(run, best)]
    return sorted(chosen, key=lambda run: run.start)


def _of_place(place: range, period: int, matches: Callable[[int, int], int | None]) -> Iterator[Run]:
    """The runs of a stretch in which the ops are the same one period on: blocks of one, or of the fewest that leave out
    half of it."""
    for times in range(1, MULTIPLES + 1):
        inner = range(place.start, place.stop - (times - 1) * period)
        if len(inner) < (LEAST - 1) * times * period:
            return
        found = list(_within(inner, times * period, matches))
        yield from found
        if 2 * sum(len(run.left_out) for run in found) >= len(place):
            return


def _within(place: range, period: int, matches: Callable[[int, int], int | None]) -> Iterator[Run]:
    start = place.start
    for node in (*place, place.stop):
        first = matches(node, period) if node < place.stop else None
        if first is not None and first <= start:
            continue
        yield from _run(start, node + period, period)
        start = node + 1 if first is None else max(first, start)


def _run(start: int, stop: int, period: int) -> Iterator[Run]:
    count = (stop - start) // period
    if count >= LEAST:
        yield Run(start, period, count)


def _beside(run: Run, taken: Run) -> Iterator[Run]:
    """What is left of a run where another lies."""
    if run.stop <= taken.start or run.start >= taken.stop:
        yield run
        return
    yield from _run(run.start, min(run.stop, taken.start), run.period)
    yield from _run(max(run.start, taken.stop), run.stop, run.period)
