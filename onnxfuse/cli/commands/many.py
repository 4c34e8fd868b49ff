"""Many models, one after another or several at a time; what is said of them comes in the order in which they were
given."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from onnxfuse.errors import OnnxfuseError

from .options import begin, complain, mistake, uncollected

if TYPE_CHECKING:
    from onnxfuse.system.isolation import Tell

_Result = TypeVar("_Result")
_Shown = TypeVar("_Shown")

jobs = click.option(
    "-j",
    "--jobs",
    type=click.IntRange(min=0),
    default=1,
    metavar="N",
    show_default=True,
    help="Models at a time, each in a process of its own; 0 is one for each CPU.",
)


def outcomes(
    paths: Sequence[Path], work: Callable[[Path, Tell | None], _Result], *, jobs: int, quiet: bool = False
) -> Iterator[tuple[Path, _Result | OnnxfuseError]]:
    """Each path with what `work` makes of it, or with the error that it ends in, in their order.

    With several `jobs` a crash is an error like any other."""
    several = min(jobs or os.cpu_count() or 1, len(paths)) > 1
    made = _at_once(paths, work, jobs or os.cpu_count() or 1, quiet) if several else _in_turn(paths, work, quiet)
    for path, result in zip(paths, made, strict=True):
        if not isinstance(result, Exception):
            yield path, result
        else:
            yield path, result if isinstance(result, OnnxfuseError) else mistake(result)


def shown(
    paths: Sequence[Path], work: Callable[[Path, Tell | None], _Result], show: Callable[[_Result], _Shown], *, jobs: int
) -> tuple[list[_Shown], int]:
    """What `show` makes of each outcome, and the worst exit code of those that are errors, which are told."""
    results, code = [], 0
    for path, made in outcomes(paths, work, jobs=jobs):
        if isinstance(made, OnnxfuseError):
            code = max(code, complain(made, path))
        else:
            results.append(show(made))
    return results, code


def _in_turn(
    paths: Sequence[Path], work: Callable[[Path, Tell | None], _Result], quiet: bool
) -> Iterator[_Result | Exception]:
    from onnxfuse.cli import console

    with uncollected():
        for number, path in enumerate(paths):
            if number:
                gc.collect()
            begin(path)
            made: _Result | Exception
            try:
                with console.progress(path.name, quiet=quiet) as progress:
                    made = work(path, progress)
            except Exception as error:
                made = error
            yield made


def _at_once(
    paths: Sequence[Path], work: Callable[[Path, Tell | None], _Result], jobs: int, quiet: bool
) -> Iterator[_Result | Exception]:
    from onnxfuse.cli import console
    from onnxfuse.system.isolation import together

    def alone(path: Path, tell: Tell) -> _Result:
        gc.disable()  # the process ends with this model
        return work(path, tell)

    with console.progress_of([path.name for path in paths], quiet=quiet) as progress:
        yield from together([partial(alone, path) for path in paths], jobs, progress)
