"""What several commands do: read models and write them, work on each in a process of its own, and say what is wrong."""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from onnxfuse.errors import InternalError, ModelError, OnnxfuseError, OutputError, RuleError, UsageError
from onnxfuse.reporting.phrases import one_line
from onnxfuse.system.processes import Stopped

# onnx and numpy take longer to import than `onnxfuse --help` may take: the commands import what they need.
if TYPE_CHECKING:
    from onnx import ModelProto

    from onnxfuse.cli.settings import Settings
    from onnxfuse.model.spool import Spool
    from onnxfuse.reporting.records import Report
    from onnxfuse.system.isolation import Tell

_Result = TypeVar("_Result")

working_on: list[Callable[[Path], None]] = []
"""Who wants to know which model a command has come to."""
stopping: list[list[int]] = []
"""Filled with a signal's number when this process is asked to end; see `processes.raise_when_stopped`."""


def complain(error: OnnxfuseError, path: Path | None = None) -> int:
    """Prints the error, with the model's `path` in front if it does not name it, and returns its exit code."""
    lead = f"{path}: " if path and str(path) not in str(error) else ""
    text = f"onnxfuse: error: {lead}{error}"
    click.echo(text if isinstance(error, RuleError) else one_line(text), err=True)
    return error.exit_code


@contextmanager
def uncollected() -> Iterator[None]:
    """Without Python's cycle collector, which looks at every term and node again and again: a command is short, and
    once per model will do."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def one_thread() -> None:
    """numpy's OpenBLAS starts a thread for each CPU as it is imported: not for a command that multiplies nothing."""
    if "numpy" not in sys.modules:
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def settled() -> Settings:
    """What pyproject.toml says, in a command that looks there."""
    from onnxfuse.cli.settings import Settings

    found = click.get_current_context().find_object(Settings)
    return found if found is not None else Settings()


def sizes(given: dict[str, tuple[int, ...]], settings: Settings, path: Path) -> dict[str, tuple[int, ...]] | None:
    """The shapes of a model's inputs that flags say, or else the settings."""
    return given or settings.shapes_of(path) or None


def page_places(html: str | None, sources: Sequence[Path], taken: Iterable[Path] = ()) -> dict[Path, Path]:
    """Where the page of each model goes, none where none is wanted; `taken` is where the command writes besides.

    Raises UsageError or OutputError, early, for what writing there would be refused for."""
    from onnxfuse.cli import paths
    from onnxfuse.system import atomic_write

    if html is None:
        return {}
    places = dict(zip(sources, paths.pages(sources, html), strict=True))
    others = {place.absolute() for place in taken}
    for place in places.values():
        if place.absolute() in others:
            raise UsageError(f"--html {place} is where something else is written: name another file")
        atomic_write.refuse(place, sources)
    return places


def write_page(found: Report, place: Path | None, rules: Sequence[Path]) -> Path | None:
    """Write the page of a report that has its nodes, where one is wanted; returns its place."""
    if place is not None:
        from onnxfuse.reporting.html.page import page
        from onnxfuse.system import atomic_write

        atomic_write.replace(place, [page(found, rules)])
    return place


def warn_of_unread(found: Report) -> None:
    """Say of which tensors a rule wanted the values, if their external data is missing."""
    if found.unread:
        first, more = found.unread[0], len(found.unread) - 1
        others = f" and of {more} more" if more else ""
        click.echo(
            f"onnxfuse: {found.model}: its external data is missing, and the values of {first!r}{others} were wanted: "
            "taken for unknown",
            err=True,
        )


def seconds(timeout: float | None, *, emulate: bool = False) -> float:
    """What --timeout says: the emulator takes as long as it takes, everything else has time to load some GB twice."""
    return timeout if timeout is not None else 0 if emulate else 600


def limited(work: Callable[[Tell], _Result], path: Path, seconds: float, tell: Tell | None = None) -> _Result:
    """What `work` returns, done in a process in which each step may take `seconds`.

    Raises ModelError, which names the model `path`, where one takes longer.
    """
    from onnxfuse.system.isolation import TookTooLongError, isolated

    try:
        return isolated(work, seconds, tell)
    except TookTooLongError as error:
        raise ModelError(f"{path}: {error}: give it more with --timeout") from None


def begin(path: Path) -> None:
    """Say that what follows is about this model."""
    for tell in working_on:
        tell(path)


def mistake(error: Exception) -> InternalError:
    """What nobody foresaw, in one line.  Raises `error` itself, traceback and all, if ONNXFUSE_TRACEBACK is set, and
    Stopped if this process was asked to end, of which the error may come."""
    for number in chain(*stopping):
        raise Stopped(number) from error
    if os.environ.get("ONNXFUSE_TRACEBACK"):
        raise error
    said = " ".join(str(error).split())
    return InternalError(
        f"{type(error).__name__}: {said}: a mistake in onnxfuse, not in the model, which is as it was; please report "
        "it with what ONNXFUSE_TRACEBACK=1 prints"
    )


def print_json(data: object) -> None:
    click.echo(to_json(data), nl=False)


def read_model(path: Path, *, weights: bool = True, in_place: bool = False) -> ModelProto:
    """The model in a file, or the one that comes from stdin where that is called ``-``; `in_place` as `files.read` has
    it."""
    from onnxfuse.cli.paths import STREAM
    from onnxfuse.model import files

    content = sys.stdin.buffer.read() if str(path) == STREAM else None
    return files.read(path, weights=weights, content=content, in_place=in_place)


def write_model(model: ModelProto, path: Path, source: Path, spool: Spool | None = None) -> list[Path]:
    """Writes a model to a file, or to stdout where that is called ``-``; returns the files written."""
    from onnxfuse.cli.paths import STREAM
    from onnxfuse.model import files

    if str(path) != STREAM:
        return files.write(model, path, source=source, spool=spool)
    if sys.stdout.isatty():
        raise OutputError("stdout is a terminal, which a model is not for: redirect it, or name a file with -o")
    for piece in files.one_piece(model, source):
        sys.stdout.buffer.write(piece)
    sys.stdout.flush()
    return [path]


def one_or_many(reports: Sequence[Report], asked: int) -> object:
    """An object if one model was asked for, an array if several were."""
    plain = [found.to_json() for found in reports]
    return plain[0] if asked == 1 and plain else plain


def to_json(data: object) -> str:
    return json.dumps(data, indent=2, allow_nan=False) + "\n"


def write_text(text: str, output: Path | None) -> None:
    """To a file at once, or to stdout, which is also called ``-``."""
    from onnxfuse.system import atomic_write

    if output is None or str(output) == "-":
        click.echo(text, nl=False)
    else:
        atomic_write.replace(output, [text.encode("utf-8", "backslashreplace")])
