"""Near misses as people read them: those of one cause together."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from .records import NearMiss


def grouped(misses: Iterable[NearMiss]) -> list[list[NearMiss]]:
    """Near misses, those of one rule and reason together, what would save most first."""
    groups: dict[tuple[str, str, str], list[NearMiss]] = defaultdict(list)
    for miss in misses:
        groups[miss.rule, miss.source, _reason_pattern(miss.reason)].append(miss)
    order = {key: (-gain(group), -len(group), key) for key, group in groups.items()}
    return [groups[key] for key in sorted(groups, key=lambda key: order[key])]


def gain(misses: Iterable[NearMiss]) -> int:
    """The launches that they would save together."""
    return sum(miss.launches_saved for miss in misses)


def _reason_pattern(reason: str) -> str:
    """`reason` with the numbers in the names of nodes and values left open, but not those that it is about."""
    return re.sub(r"\S*/\S*", lambda name: re.sub(r"\d+", "*", name[0]), reason)
