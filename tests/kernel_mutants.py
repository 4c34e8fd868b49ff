"""Kernels with one barrier left out, or another mistake: does a run notice?

survivors(run)                      the barriers that a run can do without: `run(device)` launches kernels on the device
                                    that it is given and checks their outputs
assert_caught(run, before, after)   a run notices that a kernel has other text in one place; it is compiled once with
                                    the other mistakes of its table
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import Argument, Launch, Source
from onnxfuse.kernels.emulator.build import build, lines
from onnxfuse.kernels.emulator.device import Emulated
from tests.planted import Mistake, together

BARRIER = re.compile(
    r"__syncthreads\(\)|__syncthreads_(?:or|and|count)(?=\()|__syncwarp\([^()]*\)|__threadfence\(\)"
    r"|__pipeline_wait_prior\([^()]*\)|\b\w+(?:\(\))?\.sync\(\)"
)


def barriers(source: Source) -> Iterator[str]:
    """The place of each barrier of a source, "file:line"."""
    for file, line, code in lines(source):
        count = len(BARRIER.findall(code.split("//")[0]))
        if count and not code.lstrip().startswith("#define"):
            assert count == 1, f"{file}:{line}: two barriers in a line cannot be left out one at a time"
            yield f"{file}:{line}"


class _Without(Emulated):
    """Leaves out the barrier at `label`, and notes the barriers of the sources that it sees."""

    def __init__(self, label: str = "") -> None:
        super().__init__(checked=True, without=label)
        self.seen: dict[str, None] = {}

    def launch(self, launch: Launch, arguments: Sequence[Argument]) -> None:
        self.seen |= dict.fromkeys(barriers(launch.source))
        super().launch(launch, arguments)


class Mutated(Emulated):
    """A device on which kernels have one of several mistakes, or none (0); `applied` says that one had the place.

    All that can be are compiled together (tests/planted.py), others alone."""

    def __init__(self, mistakes: tuple[Mistake, ...], number: int) -> None:
        super().__init__(checked=True, planted=number)
        self.applied = False
        self._mistakes, self._number = mistakes, number
        self._before, self._after = mistakes[number - 1] if number else ("", "")

    def launch(self, launch: Launch, arguments: Sequence[Argument]) -> None:
        source, numbers = _planted(launch.source, launch.entry, self._mistakes)
        here = bool(self._number) and self._before in launch.source.text
        if here and self._number not in numbers:
            source = replace(launch.source, text=launch.source.text.replace(self._before, self._after))
        self.applied |= here
        super().launch(replace(launch, source=source), arguments)


@cache
def _planted(source: Source, entry: str, mistakes: tuple[Mistake, ...]) -> tuple[Source, frozenset[int]]:
    return together(source, mistakes, lambda planted: build(planted, entry, checked=True))


def survivors(run: Callable[[Emulated], None], apart: tuple[str, ...] = ()) -> list[str]:
    """The barriers, of all kernels that `run` launches but of the files `apart`, that can be left out without `run`
    failing.

    The emulator passes them as if they were not there: each kernel is compiled once for all.  Raises what `run` raises
    with every barrier in place.
    """
    whole = _Without()
    run(whole)
    assert whole.seen, "no kernel of this run has a barrier"
    own = [label for label in whole.seen if not label.startswith(apart)]
    return [label for label in own if not _noticed(run, _Without(label))]


def _noticed(run: Callable[[Emulated], None], device: Emulated) -> bool:
    try:
        run(device)
    except (KernelError, AssertionError):
        return True
    return False


def assert_caught(run: Callable[[Any], None], before: str, after: str, besides: Iterable[Mistake] = ()) -> None:
    """The emulator or the numbers tell that `after` stands in place of `before`, which some kernel of the run has.

    It is compiled with the mistakes `besides`, and nothing is told where none of them is made."""
    mistakes = tuple(dict.fromkeys([*besides, (before, after)]))
    _assert_right(run, mistakes)
    device = Mutated(mistakes, mistakes.index((before, after)) + 1)
    with pytest.raises((KernelError, AssertionError)):
        run(device)
    assert device.applied


@cache
def _assert_right(run: Callable[[Any], None], mistakes: tuple[Mistake, ...]) -> None:
    run(Mutated(mistakes, 0))


def of_run(run: object, mutants: Iterable[tuple[object, str, str]]) -> list[Mistake]:
    """The mistakes that a table has for a run, or for its name."""
    return [(before, after) for of, before, after in mutants if of == run]
