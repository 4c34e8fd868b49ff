"""Module paths as people read them: the layers of a model in one line."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

_MOST = 4
"""Ranges that are written out."""


def short(code: str) -> str:
    """A line of a program by the name of its file alone: ``modeling_bert.py:202``."""
    return re.split(r"[/\\]", code)[-1]


def collapsed(paths: Iterable[str]) -> list[tuple[str, int]]:
    """Paths with how many of them there are, those that differ in numbers alone as one: ``/layers.0-11/attn``.

    Sorted; a path that stands alone keeps its own numbers."""
    alike: dict[tuple[str, ...], list[tuple[int, ...]]] = defaultdict(list)
    for path in paths:
        parts = re.split(r"(\d+)", path)
        alike[tuple(parts[::2])].append(tuple(map(int, parts[1::2])))
    found = []
    for words, numbers in alike.items():
        ranges = [_ranges(place) for place in zip(*numbers, strict=True)]
        text = "".join(word for pair in zip(words, [*ranges, ""], strict=True) for word in pair)
        found.append((text, len(numbers)))
    return sorted(found)


def _ranges(numbers: Sequence[int]) -> str:
    """``0-11``, ``0-2,5``; where there are many gaps ``0..11``."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    if len(runs) > _MOST:
        return f"{runs[0][0]}..{runs[-1][1]}"
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
