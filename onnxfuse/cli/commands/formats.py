"""What `check` writes, and where: ``--format text --format sarif=fusions.sarif`` in one run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from onnxfuse.errors import UsageError

from .work import to_json, write_text

if TYPE_CHECKING:
    from onnxfuse.reporting.checked import Check

FORMATS = ("text", "json", "github", "sarif", "junit")
TEXT = "text"
_LOG = {TEXT, "github"}
"""Lines for a log: any number of formats may write them to one."""
STDOUT = "-"


@dataclass(frozen=True)
class Format:
    """A format, and the file it goes to; None is stdout."""

    style: str
    file: Path | None = None


def _parsed(_: click.Context, __: click.Parameter, values: Iterable[str]) -> list[Format]:
    """Of ``sarif`` or ``sarif=FILE``, each."""
    formats = []
    for value in values:
        style, equals, file = value.partition("=")
        if style not in FORMATS:
            raise click.BadParameter(f"{style!r} is not one of {', '.join(map(repr, FORMATS))}", param_hint="--format")
        if equals and not file:
            raise click.BadParameter(f"{value!r}: name a file, such as {style}=fusions.{style}", param_hint="--format")
        formats.append(Format(style, Path(file) if file and file != STDOUT else None))
    return formats


def _completed(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    return [CompletionItem(style) for style in FORMATS if style.startswith(begun)]


option = click.option(
    "--format",
    "formats",
    callback=_parsed,
    shell_complete=_completed,
    multiple=True,
    metavar="NAME[=FILE]",
    help=f"{', '.join(FORMATS)}; may be repeated, such as text and sarif=FILE.  [default: text]",
)


def chosen(asked: Sequence[Format], output: Path | None) -> list[Format]:
    """What is written where; `output` is for the one format that names no file.  Where all go to files, the text goes
    to stdout besides.

    Raises:
        UsageError: two would go to one place, or text to a file.
    """
    formats = list(dict.fromkeys(asked)) or [Format(TEXT)]
    if output is not None:
        open_ones = [number for number, each in enumerate(formats) if each.file is None and each.style != TEXT]
        if len(open_ones) != 1:
            wanted = "is for one --format other than text" if not open_ones else "is for one --format"
            raise UsageError(f"--output {wanted}: name it as in --format sarif={output}")
        if str(output) != STDOUT:
            formats[open_ones[0]] = Format(formats[open_ones[0]].style, output)
    for each in formats:
        if each.style == TEXT and each.file is not None:
            raise UsageError(f"--format text={each.file}: text goes to stdout: redirect it, or choose another format")
    files = [each.file.absolute() for each in formats if each.file is not None]
    if twice := [file for file in files if files.count(file) > 1]:
        raise UsageError(f"two formats would go to {twice[0]}: name a file for each")
    shown = list(dict.fromkeys(each.style for each in formats if each.file is None))
    if len(shown) > 1 and (whole := [style for style in shown if style not in _LOG]):
        other = next(style for style in shown if style != whole[0])
        message = f"{other} and {whole[0]} would both go to stdout"
        raise UsageError(f"{message}: name a file, as in --format {whole[0]}=fusions.{whole[0]}")
    return formats if shown else [Format(TEXT), *formats]


def write(formats: Iterable[Format], found: Check, rules: Sequence[Path]) -> None:
    """Write all of them but the text."""
    for each in formats:
        if each.style != TEXT:
            write_text(_formatted(each.style, found, rules), each.file)


def _formatted(style: str, found: Check, rules: Sequence[Path]) -> str:
    from onnxfuse import __version__
    from onnxfuse.language import lookup
    from onnxfuse.reporting import code_lines, github, junit, sarif

    top = code_lines.root()
    match style:
        case "json":
            return to_json(found.to_json())
        case "github":
            return github.commands(found, top)
        case "junit":
            return junit.junit(found, top)
        case _:
            return to_json(sarif.sarif(found, lookup.catalogue(rules), rules, top, __version__))
