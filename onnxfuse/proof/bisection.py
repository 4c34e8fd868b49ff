"""The search for a guilty fusion.

guilty = bisect(range(n), lambda kept: oracle.compare(build(kept)).verdict == "equal")
"""

from __future__ import annotations

from collections.abc import Callable, Sequence


def bisect(candidates: Sequence[int], is_good: Callable[[frozenset[int]], bool], most: int = 200) -> frozenset[int]:
    """The candidates to leave out so that `is_good` holds of the rest.

    A binary search finds a bad prefix that is good without its last member.  That one is guilty, the rest of the prefix
    is kept, and the search goes on behind it: about 2 + k (log2 n + 1) calls for k guilty ones among n.  Of two that
    are bad only together, the later is left out.  What is kept has passed `is_good`, unless nothing is kept; after
    `most` calls, all that has not passed is left out.  (The general problem: Zeller and Hildebrandt, Simplifying and
    Isolating Failure-Inducing Input, IEEE TSE 28, 2002.)
    """
    calls = 0

    def good(kept: list[int]) -> bool:
        nonlocal calls
        calls += 1
        return is_good(frozenset(kept))

    kept: list[int] = []
    guilty: list[int] = []
    rest = list(candidates)
    while rest and not good(kept + rest):
        if not kept and not guilty and not good([]):
            return frozenset(candidates)
        low, high = 0, len(rest)  # kept + rest[:low] is good, kept + rest[:high] is not
        while high - low > 1 and calls < most:
            middle = (low + high) // 2
            low, high = (middle, high) if good(kept + rest[:middle]) else (low, middle)
        kept += rest[:low]
        if calls >= most:
            return frozenset(guilty + rest[low:])
        guilty.append(rest[low])
        rest = rest[high:]
    return frozenset(guilty)
