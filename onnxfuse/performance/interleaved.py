"""Which of several functions is faster, on a machine that others use too: run in turns, judged by ratios of one round.

A machine's speed changes over seconds; what runs within milliseconds of each other suffers alike.  So every round runs
each side once, in random order, and yields one ratio per side; the median of those ratios moves little where a round is
disturbed, and its interval needs no assumption on how times are distributed.
"""

from __future__ import annotations

import gc
import itertools
import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Samples = dict[str, list[float]]
"""Side → seconds of one call, one figure per round."""

_SAMPLE = 2e-3
"""A sample takes about this many seconds at least: faster sides are called several times, and the median is taken."""
_WARM_UP = 3
_LEAST_ROUNDS = 9
_ERROR = 0.05


@dataclass(frozen=True, slots=True)
class Ratio:
    """A median of ratios with its 95 % confidence interval."""

    median: float
    low: float
    high: float

    @property
    def narrow(self) -> float:
        """How far the interval reaches from its middle, relative to the median."""
        return (self.high - self.low) / 2 / self.median


def measure(
    sides: Mapping[str, Callable[[], object]],
    baseline: str,
    *,
    precision: float = 0.01,
    seconds: float = 10.0,
    rounds: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> Samples:
    """Run `sides` in rounds, each round in another random order; `progress` is told the share that is surely done.

    It ends when every side's interval against `baseline` reaches no farther than `precision` to either side, after
    `seconds` by `clock`, whichever comes first, but not before nine rounds; with `rounds`, after exactly that many.
    """
    for side in sides.values():
        for _ in range(_WARM_UP):
            side()
    start = clock()
    for side in sides.values():
        side()
    calls = math.ceil(_SAMPLE * len(sides) / max(clock() - start, 1e-6))
    samples: Samples = {name: [] for name in sides}
    order, shuffled = list(sides), random.Random(seed)
    next_look, start = _LEAST_ROUNDS, clock()
    collecting = gc.isenabled()
    gc.disable()
    try:
        for done in itertools.count(1):
            shuffled.shuffle(order)
            for name in order:
                samples[name].append(_time(sides[name], calls, clock))
            if progress is not None:
                progress(done / rounds if rounds else min((clock() - start) / seconds, 1.0))
            if rounds is not None:
                if done >= rounds:
                    break
            elif done >= _LEAST_ROUNDS and clock() - start > seconds:
                break
            elif done >= next_look:
                # Looked at after every round, an interval would be caught in its narrowest moment.
                next_look = math.ceil(1.3 * done)
                if all(ratio(samples[baseline], samples[name]).narrow <= precision for name in sides):
                    break
    finally:
        if collecting:
            gc.enable()
    return samples


def _time(side: Callable[[], object], calls: int, clock: Callable[[], float]) -> float:
    times = []
    for _ in range(calls):
        start = clock()
        side()
        times.append(clock() - start)
    return statistics.median(times)


def ratio(baseline: Sequence[float], side: Sequence[float]) -> Ratio:
    """How many times as fast `side` is as `baseline`: the median over rounds, and the interval of that median.

    The interval's ends are order statistics: a median lies outside the k-th smallest and largest of n values with
    probability 2 · P(Binomial(n, 1/2) < k).  Fewer than six rounds cannot reach 95 %; their interval is their range.
    """
    ratios = sorted(a / b for a, b in zip(baseline, side, strict=True))
    count, below, outside = len(ratios), 0, 0.0
    while below < count // 2:
        # In logarithms: 2**n overflows a float where there are many rounds.
        outside += 2 * math.exp(_log_choose(count, below) - count * math.log(2))
        if outside > _ERROR:
            break
        below += 1
    end = max(below - 1, 0)
    return Ratio(statistics.median(ratios), ratios[end], ratios[count - 1 - end])


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
