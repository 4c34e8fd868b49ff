"""Many models, one after another, several at a time or spread over a fleet; what is said of them comes in the order in
which they were given."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import click

from onnxfuse.errors import DependencyError, OnnxfuseError, UsageError

from .options import options
from .work import begin, complain, mistake, uncollected

if TYPE_CHECKING:
    from onnxfuse.system.isolation import Tell

_Result = TypeVar("_Result")
_Shown = TypeVar("_Shown")

_FLEET = click.option(
    "--fleet",
    metavar="ADDRESS",
    help="Spread the models over a Ray cluster: its address, auto, or local for a Ray of this machine alone.",
)
jobs = click.option(
    "-j",
    "--jobs",
    type=click.IntRange(min=0),
    metavar="N",
    help="Models at a time, each in a process of its own; 0 is one for each CPU.  [default: 1]",
)
workers = options(jobs, _FLEET)


@dataclass(frozen=True)
class Workers:
    """Who goes through the models."""

    jobs: int | None = None
    """Models at a time; 0 is one for each CPU, None what is usual: 1 here, as many as it has CPUs in a fleet."""
    fleet: str | None = None
    """Address of a Ray; None is here."""


def choose_workers(options: dict[str, Any]) -> Workers:
    """What the options of `workers` say, taken out of them."""
    return Workers(options.pop("jobs"), options.pop("fleet"))


def outcomes(
    paths: Sequence[Path],
    work: Callable[[Path, Tell | None], _Result],
    workers: Workers,
    *,
    quiet: bool = False,
) -> Iterator[tuple[Path, _Result | OnnxfuseError]]:
    """Each path with what `work` makes of it, or with the error that it ends in, in their order.

    With several at a time a crash is an error like any other.  A fleet pickles `work`.

    Raises:
        UsageError, DependencyError: there is no such fleet.
    """
    at_once = (os.cpu_count() or 1) if workers.jobs == 0 else workers.jobs or 1
    if workers.fleet is not None:
        made = _spread(paths, work, workers.fleet, workers.jobs or None, quiet)
    elif min(at_once, len(paths)) > 1:
        made = _at_once(paths, work, at_once, quiet)
    else:
        made = _in_turn(paths, work, quiet)
    for path, result in zip(paths, made, strict=True):
        if not isinstance(result, Exception):
            yield path, result
        else:
            yield path, result if isinstance(result, OnnxfuseError) else mistake(result)


def shown(
    paths: Sequence[Path],
    work: Callable[[Path, Tell | None], _Result],
    show: Callable[[_Result], _Shown],
    workers: Workers,
    *,
    quiet: bool = False,
) -> tuple[list[_Shown], int]:
    """What `show` makes of each outcome, and the worst exit code of those that are errors, which are told."""
    results, code = [], 0
    for path, made in outcomes(paths, work, workers, quiet=quiet):
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


def _spread(
    paths: Sequence[Path], work: Callable[[Path, Tell | None], _Result], address: str, at_once: int | None, quiet: bool
) -> Iterator[_Result | Exception]:
    from onnxfuse import __version__
    from onnxfuse.cli import console
    from onnxfuse.cli.paths import STREAM
    from onnxfuse.system.fleet import spread

    if Path(STREAM) in paths:
        raise UsageError("a fleet has no stdin: name files")
    with console.progress_of([path.name for path in paths], quiet=quiet) as progress:
        yield from spread(_Away(work, os.getcwd(), __version__), paths, address, at_once, progress)


@dataclass(frozen=True)
class _Away(Generic[_Result]):
    """Work that is done in another process, which may be on another machine: as if it were done here."""

    work: Callable[[Path, Tell | None], _Result]
    folder: str
    """The working directory."""
    version: str
    """That of onnxfuse."""

    def __call__(self, path: Path) -> _Result:
        from onnxfuse import __version__

        if __version__ != self.version:
            raise DependencyError(f"a machine of the fleet has onnxfuse {__version__}: install {self.version} there")
        try:
            os.chdir(self.folder)
        except OSError as error:
            raise UsageError(
                f"a machine of the fleet has no {self.folder} ({error.strerror}): its machines share the file system "
                "that the command is given in"
            ) from None
        gc.collect()
        with uncollected():
            return self.work(path, None)
