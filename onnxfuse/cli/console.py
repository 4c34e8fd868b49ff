"""Where to print: in a terminal, and in a pipe; there without colours, and no line is wrapped."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .layout import Plain

if TYPE_CHECKING:
    from rich.console import Console


def console(*, stderr: bool = False) -> Console | Plain:
    """Where to print: a terminal at its own width, or anything else without colours and line breaks of ours."""
    stream = sys.stderr if stderr else sys.stdout
    if not stream.isatty():
        return Plain(stream)
    from rich.console import Console  # most commands run in a pipe

    return Console(file=stream, highlight=False, markup=False, emoji=False)


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
    if quiet or isinstance(out, Plain):
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
