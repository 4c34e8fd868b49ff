"""onnxfuse optimize"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from onnxfuse.errors import NumericsError, UsageError

from .many import choose_workers, shown, workers
from .options import (
    PATH,
    card,
    choose_precision,
    choose_target,
    fold_limit,
    html,
    loudness,
    models,
    precision,
    recompute,
    selection,
    shape,
    timeout,
)
from .work import (
    one_or_many,
    one_thread,
    page_places,
    read_model,
    seconds,
    settled,
    sizes,
    to_json,
    write_model,
    write_page,
)

if TYPE_CHECKING:
    from typing import TypeAlias

    from onnxfuse.cli.settings import Settings
    from onnxfuse.fusing.build import Build
    from onnxfuse.performance.gpus import Card
    from onnxfuse.precision.wanted import Precision
    from onnxfuse.proof.claim import Experiment
    from onnxfuse.reporting.records import Report
    from onnxfuse.system.isolation import Tell

    Judge: TypeAlias = Literal["onnxruntime", "reference", "kernels"]


@click.command(short_help="Fuse each MODEL, prove that it computes the same, and write it.")
@models
@click.option("-o", "--output", metavar="OUT", help="File or folder to write to.  [default: NAME.fused.onnx]")
@selection
@click.option(
    "--opset", type=click.IntRange(min=7), metavar="N", help="Raise the model to this opset.  [default: what pays]"
)
@fold_limit
@recompute
@precision
@click.option("--inputs", type=PATH, metavar="FILE.npz", help="Validate with these inputs.")
@shape
@card(
    "Leave out what is predicted to be slower fused on this GPU: a100, h100, h200, b200, or a .json file with figures."
)
@click.option("--seed", default=0, show_default=True, help="Seed of the generated inputs.")
@click.option("--rtol", type=click.FloatRange(min=0), help="Relative tolerance.  [default: by dtype]")
@click.option("--atol", type=click.FloatRange(min=0), help="Absolute tolerance.  [default: by dtype]")
@click.option(
    "--on-mismatch",
    type=click.Choice(["bisect", "fail"]),
    default="bisect",
    show_default=True,
    help="Leave the guilty fusion out, or exit 3.",
)
@click.option(
    "--validate",
    type=click.Choice(["onnxruntime", "reference", "kernels"]),
    help="Compare in onnxruntime, also with float64, or with kernels run on the CPU.  [default: onnxruntime]",
)
@timeout
@click.option(
    "--rename-dims",
    is_flag=True,
    help="Give dimensions of inputs names of their own that bear one and are not equal, where fusions fail for it.",
)
@click.option("--no-validate", is_flag=True, help="Write without comparing.")
@click.option("--dry-run", is_flag=True, help="Do everything but write the model.")
@click.option("--report", "report_file", type=PATH, metavar="FILE.json", help="Write what was done, as JSON.")
@html
@workers
@loudness
def optimize(
    models: tuple[str, ...],
    output: str | None,
    shapes: dict[str, tuple[int, ...]],
    inputs: Path | None,
    card: str | None,
    validate: Judge | None,
    no_validate: bool,
    timeout: float | None,
    dry_run: bool,
    report_file: Path | None,
    html: str | None,
    quiet: bool,
    verbose: bool,
    **options: Any,
) -> int:
    """Fuse each MODEL, prove that it computes the same, and write it.

    \b
    Example:
      onnxfuse optimize bert.onnx                       write bert.fused.onnx
      onnxfuse optimize exports/*.onnx -o fused/        write fused/NAME.onnx for each
      onnxfuse optimize exports/*.onnx -o fused/ --jobs 4
      onnxfuse optimize - < bert.onnx > fused.onnx      from stdin to stdout
      onnxfuse optimize bert.onnx --shape input_ids:1,128 --ignore Gelu --report fusions.json
      onnxfuse optimize bert.onnx --shape input_ids:1,128 --card h100
      onnxfuse optimize bert.onnx --html bert.html      and a page that shows what was done
      onnxfuse optimize bert.onnx --precision fp16
      onnxfuse optimize bert.onnx --target ort --runtime onnxruntime==1.23
      onnxfuse optimize step.onnx --recompute 2GB       keep no more for backward
      onnxfuse optimize bert.onnx --keep-products       for a quantizer to come
    """
    if no_validate:
        one_thread()
    from onnxfuse.cli import console, paths, report_text
    from onnxfuse.fusing.build import Build
    from onnxfuse.language import lookup
    from onnxfuse.performance import gpus
    from onnxfuse.system import atomic_write

    wanted, crew = choose_precision(options), choose_workers(options)
    choose_target(options)
    experiment = _experiment(options, inputs, _judge(validate, no_validate), timeout)
    build = Build(**options)
    known = gpus.given(card, build.target)
    lookup.check_rules((*build.select, *build.ignore), build.rules)
    sources = paths.expand(models)
    places = _without_own(dict(zip(sources, paths.destinations(sources, output, make_folder=not dry_run), strict=True)))
    out = console.console(stderr=Path(paths.STREAM) in places.values())
    pages = _pages(html, places, report_file, [*sources, *filter(None, [inputs])])

    written_to, weights = None if dry_run else places, not no_validate
    one = _Optimizer(build, experiment, shapes, settled(), known, wanted, written_to, pages, inputs, weights)

    def show(done: tuple[Report, list[Path]]) -> Report:
        report, written = done
        if not quiet:
            page = pages.get(Path(report.model))
            report_text.print_optimized(out, report, written=written, verbose=verbose, page=page)
        return report

    reports, code = shown(list(places), one, show, crew, quiet=quiet)
    if code and written_to is not None:
        _sweep(written_to.values())
    if report_file:
        atomic_write.replace(report_file, [to_json(one_or_many(reports, len(sources))).encode()])
    return code


@dataclass(frozen=True)
class _Optimizer:
    """What optimizes one model, and writes it."""

    build: Build
    experiment: Experiment
    shapes: dict[str, tuple[int, ...]]
    settings: Settings
    card: Card | None
    precision: Precision | None
    places: Mapping[Path, Path] | None
    """Where each model goes; None to write none."""
    pages: Mapping[Path, Path]
    given: Path | None
    """A file that is read besides, and may not be written to."""
    weights: bool

    def __call__(self, path: Path, progress: Tell | None) -> tuple[Report, list[Path]]:
        """The report, and the files written.  Raises NumericsError if the fused model computes something else."""
        from onnxfuse import pipeline
        from onnxfuse.cli import paths
        from onnxfuse.model import spool
        from onnxfuse.system import atomic_write

        start = time.perf_counter()
        place = self.places[path] if self.places is not None else None
        if place is not None and str(place) != paths.STREAM:
            atomic_write.refuse(place, filter(None, [self.given]))
        model = read_model(path, weights=self.weights, in_place=True)
        streamed = place if self.precision is not None and str(place) != paths.STREAM else None
        with spool.beside(streamed, model) as weights:
            done = pipeline.optimize(
                model,
                replace(self.build, base_dir=path.parent),
                replace(self.experiment, shapes=sizes(self.shapes, self.settings, path)),
                card=self.card,
                precision=self.precision,
                nodes=bool(self.pages),
                spool=weights,
                progress=progress,
            )
            report, written, done.report.model = done.report, list[Path](), str(path)
            _refuse_mismatch(report)
            if place is not None:
                written = write_model(done.model, place, path, weights)
                report.output = str(place)
        report.seconds = time.perf_counter() - start
        write_page(report, self.pages.get(path), self.build.rules)
        return report, written


def _sweep(places: Iterable[Path]) -> None:
    """Take away what a process that was killed had begun to write."""
    from onnxfuse.cli.paths import STREAM
    from onnxfuse.system import scratch

    for folder in {os.path.realpath(place.parent) for place in places if str(place) != STREAM}:
        scratch.sweep(Path(folder))


def _pages(
    html: str | None, places: Mapping[Path, Path], report_file: Path | None, read: Sequence[Path]
) -> dict[Path, Path]:
    """Where the page of each model goes.  Raises UsageError or OutputError where it, or the report, would replace
    another file."""
    from onnxfuse.system import atomic_write

    if report_file:
        atomic_write.refuse(report_file, [*read, *places.values()])
    return page_places(html, list(places), filter(None, [*read, *places.values(), report_file]))


def _without_own(places: Mapping[Path, Path]) -> dict[Path, Path]:
    """The files to read, each with the one to write, without those that a former run of the same command wrote, which a
    glob finds."""
    kept = dict(places)
    for path, place in places.items():
        if place != path and place in kept:
            click.echo(f"onnxfuse: {place} is what becomes of {path} here: not itself fused", err=True)
            del kept[place]
    return kept


def _experiment(
    options: dict[str, Any], inputs: Path | None, judge: Judge | Literal["off"], timeout: float | None
) -> Experiment:
    """What is run and compared, at shapes that are the model's; its options are taken out of the others.

    Raises UsageError where they contradict each other."""
    from onnxfuse.model import files
    from onnxfuse.proof.claim import Experiment

    tolerances = {name: options.pop(name) for name in ("seed", "rtol", "atol", "on_mismatch", "rename_dims")}
    if tolerances["rename_dims"] and judge == "off":
        raise UsageError("--rename-dims and --no-validate exclude each other: only the proof finds such dimensions")
    given = files.read_inputs(inputs) if inputs else None
    return Experiment(None, given, validate=judge, timeout=seconds(timeout, emulate=judge == "kernels"), **tolerances)


def _judge(validate: Judge | None, no_validate: bool) -> Judge | Literal["off"]:
    """What compares.  Raises UsageError where something shall, and shall not."""
    if validate and no_validate:
        raise UsageError("--validate and --no-validate exclude each other: give one")
    return "off" if no_validate else validate or "onnxruntime"


def _refuse_mismatch(report: Report) -> None:
    """Raises NumericsError if a fused model computes something else."""
    if report.validation.verdict == "mismatch":
        note = report.validation.note or "the outputs differ"
        raise NumericsError(f"{report.model}: nothing written, the fused model computes something else: {note}")
