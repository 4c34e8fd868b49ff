"""Where to print: in a terminal, and in a pipe; there without colours, and no line is wrapped."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO, cast

from rich.console import Console

_UNWRAPPED = 10_000


def console(*, stderr: bool = False) -> Console:
    """Where to print: a terminal at its own width, or anything else without colours and line breaks of ours."""
    stream = sys.stderr if stderr else sys.stdout
    if stream.isatty():
        return Console(file=stream, highlight=False, markup=False)
    return Console(file=cast(TextIO, _Trimmed(stream)), highlight=False, markup=False, width=_UNWRAPPED)


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
    out = console(stderr=True)
    if quiet or not out.is_terminal:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn  # few see a bar

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn())
    with Progress(*columns, console=out, transient=True) as bar:
        task = bar.add_task(title, total=None)

        def told(step: str, done: int, total: int) -> None:
            bar.update(task, description=f"{title}: {step}", completed=done, total=total or None)

        yield told
