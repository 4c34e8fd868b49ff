"""onnxfuse diff"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onnxfuse.errors import OnnxfuseError, UsageError

from .many import Workers, jobs, shown
from .options import PATH, choose_target, selection, shape
from .work import complain, one_thread, read_model, settled, sizes, to_json, warn_of_unread, write_text

if TYPE_CHECKING:
    from onnx import ModelProto

    from onnxfuse.reporting.difference import Difference, Side
    from onnxfuse.system.isolation import Tell


@click.command(short_help="Say what one export gains and loses against another.")
@click.argument("before", type=PATH, metavar="BEFORE")
@click.argument("after", type=PATH, metavar="AFTER")
@selection
@shape
@jobs
@click.option("--format", "style", type=click.Choice(["text", "markdown", "json"]), default="text", show_default=True)
@click.option("-o", "--output", type=PATH, metavar="FILE", help="Where to write it.  [default: stdout]")
def diff(
    before: Path,
    after: Path,
    shapes: dict[str, tuple[int, ...]],
    jobs: int | None,
    style: str,
    output: Path | None,
    **options: Any,
) -> int:
    """Say what AFTER gains and loses against BEFORE: two exports of one model, or one before and after.

    Fusions by module and op, near misses, nodes, launches and traffic at sizes that are the same for both.  Loads no
    external data and runs nothing.  Exits 0 if AFTER is as good or better, 1 if it is worse: it lost a fusion that
    nothing stands in for, or fused it launches more, or moves over 1 % more.

    \b
    Example:
      onnxfuse diff old/bert.onnx new/bert.onnx
      onnxfuse diff old/bert.onnx new/bert.onnx --format markdown -o comment.md
    """
    one_thread()
    from onnxfuse import pipeline
    from onnxfuse.fusing.build import Build
    from onnxfuse.language import lookup
    from onnxfuse.reporting.difference import Side, difference
    from onnxfuse.system import atomic_write

    choose_target(options)
    build = Build(**options)
    lookup.check_rules((*build.select, *build.ignore), build.rules)
    if output and str(output) != "-":
        atomic_write.refuse(output, [before, after])
    paths = [before, after]
    models: list[ModelProto] = []
    for path in paths:
        try:
            models.append(read_model(path, weights=False))
        except OnnxfuseError as error:
            return complain(error, path)
    own = [sizes(shapes, settled(), path) for path in paths]
    told, given = _same(models, own)

    def one(path: Path, progress: Tell | None) -> Side:
        which = paths.index(path)
        build_here = replace(build, base_dir=path.parent)
        found = pipeline.report(models[which], build_here, shapes=given[which], progress=progress)
        found.model = str(path)
        return Side(found, models[which])

    def warned(side: Side) -> Side:
        warn_of_unread(side.report)
        return side

    sides, code = shown(paths, one, warned, Workers(jobs))
    if code:
        return code
    found = difference(sides[0], sides[1], told)
    _show(found, style, output)
    return int(found.verdict == "worse")


def _same(
    models: Sequence[ModelProto], own: Sequence[dict[str, tuple[int, ...]] | None]
) -> tuple[str, list[dict[str, tuple[int, ...]] | None]]:
    """Sizes that both models take, in words and for each; where they take no same ones, each its own, and no words.

    One model may fix what the other leaves open: so each is asked with what the other takes."""
    from onnxfuse.performance.sizes import Sizes

    for first in (0, 1):
        shapes = dict(Sizes.of(models[first], own[first]).shapes)
        inputs = [{value.name for value in model.graph.input} for model in models]
        given: list[dict[str, tuple[int, ...]] | None] = [
            {name: shapes[name] for name in shapes if name in known} for known in inputs
        ]
        try:
            found = [dict(Sizes.of(model, asked).shapes) for model, asked in zip(models, given, strict=True)]
        except UsageError:
            continue
        if found[0] == found[1]:
            return " ".join(f"{name}:{','.join(map(str, dims))}" for name, dims in found[0].items()), given
    return "", list(own)


def _show(found: Difference, style: str, output: Path | None) -> None:
    import io

    from rich.console import Console

    from onnxfuse.cli import console, diff_text

    if style == "json":
        write_text(to_json(found.to_json()), output)
    elif style == "markdown":
        write_text(diff_text.markdown(found), output)
    elif output is None or str(output) == "-":
        diff_text.print_difference(console.console(), found)
    else:
        text = io.StringIO()
        diff_text.print_difference(Console(file=text, width=10_000, highlight=False, markup=False, emoji=False), found)
        write_text("".join(f"{line.rstrip()}\n" for line in text.getvalue().splitlines()), output)
