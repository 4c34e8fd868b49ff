"""onnxfuse check"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onnxfuse.errors import OnnxfuseError, UsageError
from onnxfuse.reporting.phrases import one_line

from . import formats
from .many import Workers, choose_workers, outcomes, workers
from .options import PATH, choose_target, selection, shape, some_models
from .work import complain, one_thread, read_model, settled, sizes, warn_of_unread

if TYPE_CHECKING:
    from onnxfuse.cli.settings import Settings
    from onnxfuse.fusing.build import Build
    from onnxfuse.reporting.baseline import Baseline
    from onnxfuse.reporting.checked import Checked
    from onnxfuse.reporting.requirements import Expectation, Finding
    from onnxfuse.system.isolation import Tell


@click.command(short_help="Fail if a MODEL lacks fusions: a step for CI.")
@some_models
@click.option("--expect", multiple=True, metavar="COUNT", help="Such as 'Attention>=12' (also <= == > <; repeatable).")
@click.option("--baseline", type=PATH, metavar="FILE", help="Fail where a fusion that this file counts is gone.")
@click.option("--update-baseline", is_flag=True, help="Write what is found to the baseline, and do not compare.")
@click.option("--prune", is_flag=True, help="With --update-baseline: drop the models that are not given.")
@click.option("--partial", is_flag=True, help="These are not all models of the baseline, and that is meant.")
@selection
@shape
@workers
@formats.option
@click.option("-o", "--output", type=PATH, metavar="FILE", help="Where the format goes; the text still goes to stdout.")
@click.option("-q", "--quiet", is_flag=True, help="Print findings and errors only.")
def check(
    models: tuple[str, ...],
    expect: tuple[str, ...],
    shapes: dict[str, tuple[int, ...]],
    output: Path | None,
    quiet: bool,
    **options: Any,
) -> int:
    """Fail if a MODEL lacks fusions that it should have: a step for the CI of an export pipeline.

    Without MODEL, those that [tool.onnxfuse] in pyproject.toml names.  Loads no external data, runs nothing, needs no
    GPU.  Exits 1 if there are findings.

    \b
    Example:
      onnxfuse check bert.onnx --expect 'Attention>=12' --expect 'LayerNormalization==25'
      onnxfuse check exports/*.onnx --baseline fusions.jsonl --update-baseline
      onnxfuse check exports/*.onnx --format text --format sarif=fusions.sarif
      onnxfuse check exports/*.onnx --baseline fusions.jsonl --runtime onnxruntime==1.23
      onnxfuse check exports/*.onnx --baseline fusions.jsonl --fleet auto
    """
    one_thread()
    from onnxfuse.cli import paths
    from onnxfuse.reporting import requirements
    from onnxfuse.reporting.checked import Check
    from onnxfuse.system import atomic_write

    wanted = formats.chosen(options.pop("formats"), output)
    crew = choose_workers(options)
    kept = _Kept.of(options, partial=bool(models and settled().models))
    sources = paths.expand(models or settled().models)
    if not sources:
        raise UsageError("no MODEL is given, and no pyproject.toml names models in [tool.onnxfuse]: give one")
    if kept.file:
        requirements.refuse_namesakes(sources)
    for file in filter(None, (each.file for each in wanted)):
        atomic_write.refuse(file, [*sources, *filter(None, [kept.file])])
    judge = _Judge.of(options, expect, shapes, kept.before if kept.compares else None)
    kept.refuse(judge.build.reached, sources)
    if not kept.file and not any(judge.expected(path) for path in sources) and not quiet:
        click.echo("onnxfuse: nothing is demanded: give --expect or --baseline", err=True)
    told = any(each.style == formats.TEXT for each in wanted)
    checked, code = _gone_through(sources, judge, crew, loud=told and not quiet, told=told, quiet=quiet)
    missing = () if kept.partial else kept.missing(sources)
    found = Check(checked, tuple(missing))
    if told:
        _print(missing)
    formats.write(wanted, found, judge.build.rules)
    kept.finish(checked, sources, judge.build.reached, quiet=quiet)
    return max(code, int(any(True for _ in found.all())))


def _gone_through(
    sources: Sequence[Path], judge: _Judge, crew: Workers, *, loud: bool, told: bool, quiet: bool
) -> tuple[list[Checked], int]:
    """Each model as it is found, and the worst exit code of those that cannot be read."""
    from onnxfuse.cli import console, report_text
    from onnxfuse.reporting.checked import Checked
    from onnxfuse.reporting.requirements import Finding

    out, checked, code = console.console(), [], 0
    for path, made in outcomes(sources, judge, crew, quiet=quiet):
        if isinstance(made, OnnxfuseError):
            code = max(code, complain(made, path))
            error = Finding("error", str(path), "", None, one_line(str(made)).removeprefix(f"{path}: "))
            checked.append(Checked(str(path), judge.demands(path), (error,)))
            continue
        if made.report is not None:
            warn_of_unread(made.report)
            if loud:
                out.print(f"{path}: {report_text.census(made.report)}")
        if told:
            _print(made.findings)
        checked.append(made)
    return checked, code


def _print(findings: Sequence[Finding]) -> None:
    from onnxfuse.cli import console, report_text

    report_text.print_findings(console.console(), findings)


@dataclass(frozen=True)
class _Judge:
    """What judges one model."""

    build: Build
    given: tuple[Expectation, ...]
    """By flags; without, the settings say."""
    shapes: dict[str, tuple[int, ...]]
    settings: Settings
    before: Baseline | None

    @classmethod
    def of(
        cls, options: dict[str, Any], expect: Sequence[str], shapes: dict[str, tuple[int, ...]], before: Baseline | None
    ) -> _Judge:
        from onnxfuse.fusing.build import Build
        from onnxfuse.language import lookup
        from onnxfuse.reporting import requirements

        choose_target(options)
        build = Build(**options)
        settings = settled()
        given = tuple(requirements.parse(text) for text in expect)
        texts = [text for own in settings.expect.values() for text in own] if not given else []
        lookup.check_rules((*build.select, *build.ignore), build.rules)
        demanded = [expected.name for expected in (*given, *map(requirements.parse, texts))]
        lookup.check_rules(demanded, build.rules, or_ops=True, regions=True)
        return cls(build, given, shapes, settings, before)

    def expected(self, path: Path) -> list[Expectation]:
        from onnxfuse.reporting import requirements

        return list(self.given) or [requirements.parse(text) for text in self.settings.expected_of(path)]

    def demands(self, path: Path) -> tuple[str, ...]:
        from onnxfuse.reporting.checked import AS_BEFORE

        return (*map(str, self.expected(path)), *([AS_BEFORE] if self.before is not None else []))

    def __call__(self, path: Path, progress: Tell | None) -> Checked:
        from onnxfuse import __version__, pipeline
        from onnxfuse.reporting import requirements
        from onnxfuse.reporting.checked import Checked
        from onnxfuse.reporting.code_lines import located

        model = read_model(path, weights=False, in_place=True)
        own, shapes = replace(self.build, base_dir=path.parent), sizes(self.shapes, self.settings, path)
        found = pipeline.report(model, own, shapes=shapes, measured=False, progress=progress)
        found.model = str(path)
        findings = requirements.disappointed(found, self.expected(path))
        if self.before is not None:
            by = self.before.written_by(__version__)
            findings += requirements.lost(found, self.before.models.get(path.name), by)
        return Checked(str(path), self.demands(path), tuple(located(findings, model)), found)


@dataclass
class _Kept:
    """The baseline of a command, and what is done with it."""

    file: Path | None
    update: bool
    prune: bool
    partial: bool
    before: Baseline

    @classmethod
    def of(cls, options: dict[str, Any], *, partial: bool) -> _Kept:
        """What the options say, which are taken out; `partial` is also meant where it is not said."""
        from onnxfuse.reporting import baseline

        file, update, prune = options.pop("baseline"), options.pop("update_baseline"), options.pop("prune")
        partial |= options.pop("partial")
        if update and not file:
            raise UsageError("--update-baseline needs --baseline FILE")
        if prune and not update:
            raise UsageError("--prune is for --update-baseline")
        known = baseline.read(file) if file and (file.exists() or not update) else baseline.Baseline()
        return cls(file, update, prune, partial, known)

    @property
    def compares(self) -> bool:
        return self.file is not None and not self.update

    def refuse(self, level: int, sources: Sequence[Path]) -> None:
        """Raises UsageError where what this `level` fuses would be compared with another's, or stand beside it."""
        stays = self.before.models.keys() - {path.name for path in sources}
        if self.file is not None and (self.compares or (stays and not self.prune)):
            self.before.refuse(self.file, level)

    def missing(self, sources: Sequence[Path]) -> list[Finding]:
        """Findings about models of the baseline that are not given."""
        from onnxfuse.reporting import requirements

        known = self.before.lines if self.compares else {}
        return requirements.not_given(self.file or Path(), known, [path.name for path in sources])

    def finish(self, checked: Sequence[Checked], sources: Sequence[Path], level: int, *, quiet: bool) -> None:
        """Write the baseline, of what this `level` fuses, or say what is new since it was written."""
        from onnxfuse import __version__
        from onnxfuse.reporting import baseline, requirements
        from onnxfuse.system import atomic_write

        reports = {Path(each.model).name: each.report for each in checked if each.report is not None}
        if self.file is None:
            return
        if self.update:
            given = {path.name for path in sources}
            kept = {name: found for name, found in self.before.models.items() if not self.prune or name in given}
            models = kept | {name: baseline.sites(report) for name, report in reports.items()}
            text = baseline.text(models, __version__, level)
            atomic_write.replace(self.file, [text.encode("utf-8", "surrogateescape")])
            if not quiet:
                click.echo(f"onnxfuse: {self.file} is written; without --update-baseline it is compared with", err=True)
            return
        known = self.before.models
        new = sum(requirements.gained(report, known.get(name)) for name, report in reports.items())
        if new and not quiet:
            click.echo(f"onnxfuse: {new} new since the baseline: keep with --update-baseline", err=True)
