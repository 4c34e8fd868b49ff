"""onnxfuse check"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onnxfuse.errors import UsageError

from .options import PATH, choose_target, each, format_, models, print_json, selection, shape, warn_of_unread

if TYPE_CHECKING:
    from onnxfuse.reporting.records import Report
    from onnxfuse.reporting.requirements import Finding, Sites


@click.command()
@models
@click.option("--expect", multiple=True, metavar="COUNT", help="Such as 'Attention>=12' (also <= == > <; repeatable).")
@click.option("--baseline", type=PATH, metavar="FILE", help="Fail where a fusion that this file counts is gone.")
@click.option("--update-baseline", is_flag=True, help="Write what is found to the baseline, and do not compare.")
@selection
@shape
@format_
@click.option("-q", "--quiet", is_flag=True, help="Print findings and errors only.")
def check(
    models: tuple[str, ...],
    expect: tuple[str, ...],
    baseline: Path | None,
    update_baseline: bool,
    shapes: dict[str, tuple[int, ...]],
    style: str,
    quiet: bool,
    **options: Any,
) -> int:
    """Fail if a MODEL lacks fusions that it should have: a step for the CI of an export pipeline.

    Loads no external data, runs nothing, needs no GPU.  Exits 1 if there are findings.

    \b
    Example:
      onnxfuse check bert.onnx --expect 'Attention>=12' --expect 'LayerNormalization==25'
      onnxfuse check exports/*.onnx --baseline fusions.json --update-baseline
      onnxfuse check exports/*.onnx --baseline fusions.json
      onnxfuse check exports/*.onnx --baseline fusions.json --runtime onnxruntime==1.23
    """
    from onnxfuse import pipeline
    from onnxfuse.cli import console, paths, report_text
    from onnxfuse.fusing.build import Build
    from onnxfuse.language import lookup
    from onnxfuse.model import files
    from onnxfuse.reporting import requirements
    from onnxfuse.system import atomic_write

    if update_baseline and not baseline:
        raise UsageError("--update-baseline needs --baseline FILE")
    choose_target(options)
    build = Build(**options)
    expectations = [requirements.parse(text) for text in expect]
    lookup.check_rules((*build.select, *build.ignore), build.rules)
    lookup.check_rules([expected.name for expected in expectations], build.rules, or_ops=True)
    sources = paths.expand(models)
    before = _before(baseline, sources, update_baseline) if baseline else {}
    if not baseline and not expectations and not quiet:
        click.echo("onnxfuse: nothing is demanded: give --expect or --baseline", err=True)
    out = console.console()
    new = 0

    def one(path: Path) -> tuple[Report, list[Finding]]:
        nonlocal new
        model = files.read(path, weights=False)
        with console.progress(path.name, quiet=quiet) as progress:
            own = replace(build, base_dir=path.parent)
            found = pipeline.report(model, own, shapes=shapes or None, progress=progress)
        found.model = str(path)
        warn_of_unread(found)
        findings = requirements.disappointed(found, expectations)
        if update_baseline:
            before[path.name] = requirements.sites(found)
        elif baseline:
            findings += requirements.lost(found, before.get(path.name))
            new += requirements.gained(found, before.get(path.name))
        if style == "text":
            if not quiet:
                out.print(f"{path}: {report_text.census(found)}")
            report_text.print_findings(out, findings)
        return found, findings

    results, code = each(sources, one)
    if baseline and update_baseline:
        atomic_write.replace(baseline, [requirements.baseline_text(before).encode()])
    elif baseline and new and not quiet:
        click.echo(f"onnxfuse: {new} new since the baseline: keep with --update-baseline", err=True)
    if style == "json":
        print_json({"schema": 1, "models": [_to_json(found, findings) for found, findings in results]})
    return max(code, int(any(findings for _, findings in results)))


def _before(baseline: Path, sources: Sequence[Path], updating: bool) -> dict[str, Sites]:
    """The sites of each model in the baseline; none in one that is about to be written for the first time."""
    from onnxfuse.reporting import requirements

    requirements.refuse_namesakes(sources)
    return requirements.read_baseline(baseline) if baseline.exists() or not updating else {}


def _to_json(found: Report, findings: Sequence[Finding]) -> dict[str, Any]:
    return {
        "model": found.model,
        "census": dict(found.census),
        "findings": [finding.to_json() for finding in findings],
    }
