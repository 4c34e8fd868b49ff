"""Where to print: in a terminal, and in a pipe; there without colours, and no line is wrapped."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO, cast

from rich.console import Console

_UNWRAPPED = 10_000


def console(*, stderr: bool = False) -> Console:
    """Where to print: a terminal at its own width, or anything else without colours and line breaks of ours."""
    stream = sys.stderr if stderr else sys.stdout
    if stream.isatty():
        return Console(file=stream, highlight=False, markup=False, emoji=False)
    return Console(file=cast(TextIO, _Trimmed(stream)), highlight=False, markup=False, emoji=False, width=_UNWRAPPED)


class _Trimmed:
    """A stream without the blanks that tables put at the ends of lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.encoding = stream.encoding

    def write(self, text: str) -> int:
        return self._stream.write(re.sub(r" +(?=\n)", "", text))

    def flush(self) -> None:
        self._stream.flush()


@contextmanager
def progress(title: str, *, quiet: bool = False) -> Iterator[Callable[[str, int, int], None] | None]:
    """A bar on stderr for the steps that the engine tells; None if stderr is no terminal, or `quiet`."""
    with _bar(title, quiet=quiet) as update:
        yield update and (lambda step, done, total: update(f"{title}: {step}", done, total))


@contextmanager
def progress_of(names: Sequence[str], *, quiet: bool = False) -> Iterator[Callable[[int, int, str], None] | None]:
    """One bar for work on several things at a time, which tells how many are done, which one has come to a step, and
    the step; None if stderr is no terminal, or `quiet`."""
    with _bar("", quiet=quiet) as update:
        yield update and (lambda done, which, step: update(f"{names[which]}: {step}", done, len(names)))


@contextmanager
def _bar(title: str, *, quiet: bool) -> Iterator[Callable[[str, int, int], None] | None]:
    out = console(stderr=True)
    if quiet or not out.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn  # few see a bar

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[of]}"),
    )
    with Progress(*columns, console=out, transient=True) as bar:
        task = bar.add_task(title, total=None, of="")

        def update(text: str, done: int, total: int) -> None:
            # How far a step of unknown length has come says nothing.
            bar.update(
                task, description=text, completed=done, total=total or None, of=f"{done}/{total}" if total else ""
            )

        yield update
