"""Module paths as people read them: the layers of a model in one line."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence

_NUMBER = re.compile(r"(\d+)")
_MOST = 4
"""Ranges that are written out."""


def short(code: str) -> str:
    """A line of a program by the name of its file alone: ``modeling_bert.py:202``."""
    return re.split(r"[/\\]", code)[-1]


def collapsed(paths: Iterable[str]) -> list[tuple[str, int]]:
    """Paths with how many of them there are, those that differ in numbers alone as one: ``/layers.0-11/attn``.

    Sorted; a path that stands alone keeps its own numbers."""
    return sorted((text, len(members)) for text, members in alike(list(paths)))


def alike(paths: Sequence[str]) -> list[tuple[str, list[int]]]:
    """Paths that differ in numbers alone as one, ``/layers.0-11/attn``, and which of `paths` these are."""
    found: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for index, path in enumerate(paths):
        found[words(path)].append(index)
    return [(together([paths[index] for index in members]), members) for members in found.values()]


def words(path: str) -> tuple[str, ...]:
    """What stands between the numbers of a path."""
    return tuple(_NUMBER.split(path)[::2])


def together(paths: Sequence[str]) -> str:
    """Paths of the same `words` as one."""
    numbers = [tuple(map(int, _NUMBER.split(path)[1::2])) for path in paths]
    ranges = [_ranges(place) for place in zip(*numbers, strict=True)]
    return "".join(word for pair in zip(words(paths[0]), [*ranges, ""], strict=True) for word in pair)


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
