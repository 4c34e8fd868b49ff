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
from onnxfuse.kernels.emulator.build import lines
from onnxfuse.kernels.emulator.device import Emulated

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


def assert_caught(run: Callable[[Device], None], before: str, after: str) -> None:
    """The emulator or the numbers tell that `after` stands in place of `before`, which some kernel of the run has."""
    device = Mutated(before, after)
    with pytest.raises((KernelError, AssertionError)):
        run(device)
    assert device.applied
