"""Kernels with one barrier left out, or another mistake: does a run notice?

survivors(run)                      the barriers that a run can do without: `run(device)` launches kernels on the device
                                    that it is given and checks their outputs
assert_caught(run, before, after)   a run notices that a kernel has other text in one place
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import Argument, Device, Launch, Source
from onnxfuse.kernels.emulator.device import Emulated

BARRIER = re.compile(
    r"__syncthreads\(\)|__syncthreads_(?:or|and|count)(?=\()|__syncwarp\([^()]*\)|__threadfence\(\)"
    r"|__pipeline_wait_prior\([^()]*\)|\b\w+(?:\(\))?\.sync\(\)"
)
LINE = re.compile(r'^#line (\d+) "(.+)"$')


def barriers(source: Source) -> Iterator[tuple[str, int, int]]:
    """Each barrier of a source: "file:line" (and "#n" for a further one in the line), and where it is in the text."""
    file, line, start = source.name, 0, 0
    for text in source.text.splitlines(keepends=True):
        line += 1
        if found := LINE.match(text.rstrip("\n")):
            file, line = found[2], int(found[1]) - 1
        elif not text.lstrip().startswith("#define"):
            code = text.split("//")[0]
            for number, barrier in enumerate(BARRIER.finditer(code)):
                label = f"{file}:{line}" + (f"#{number + 1}" if number else "")
                yield label, start + barrier.start(), start + barrier.end()
        start += len(text)


class _Without(Emulated):
    """Leaves out the barrier at `label` of every source, and notes the barriers that it sees."""

    def __init__(self, label: str = "") -> None:
        super().__init__(checked=True)
        self.seen: dict[str, None] = {}
        self._label = label

    def launch(self, launch: Launch, arguments: Sequence[Argument]) -> None:
        text = launch.source.text
        for label, start, end in barriers(launch.source):
            self.seen[label] = None
            if label == self._label:
                text = text[:start] + " " * (end - start) + text[end:]
        super().launch(replace(launch, source=Source(launch.source.name, text)), arguments)


class Mutated(Emulated):
    """A device on which kernels have other text in one place; `applied` says that one of them had the place."""

    def __init__(self, before: str, after: str) -> None:
        super().__init__(checked=True)
        self.applied = False
        self._before, self._after = before, after

    def launch(self, launch: Launch, arguments: Sequence[Argument]) -> None:
        self.applied |= self._before in launch.source.text
        text = launch.source.text.replace(self._before, self._after)
        super().launch(replace(launch, source=Source(launch.source.name, text)), arguments)


def survivors(run: Callable[[Emulated], None], apart: tuple[str, ...] = ()) -> list[str]:
    """The barriers, of all kernels that `run` launches but of the files `apart`, that can be left out without `run`
    failing.

    Raises what `run` raises with every barrier in place.
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


def assert_caught(run: Callable[[Device], None], before: str, after: str) -> None:
    """The emulator or the numbers tell that `after` stands in place of `before`, which some kernel of the run has."""
    device = Mutated(before, after)
    with pytest.raises((KernelError, AssertionError)):
        run(device)
    assert device.applied
