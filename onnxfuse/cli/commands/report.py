"""onnxfuse report"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from onnxfuse.errors import UsageError

from .many import jobs, shown
from .options import (
    card,
    choose_precision,
    choose_target,
    format_,
    html,
    models,
    one_or_many,
    page_places,
    precision,
    print_json,
    read_model,
    selection,
    shape,
    sizes,
    warn_of_unread,
    write_page,
)

if TYPE_CHECKING:
    from onnx import NodeProto
    from rich.console import Console

    from onnxfuse.reporting.records import Report
    from onnxfuse.system.isolation import Tell


@click.command()
@models
@selection
@shape
@jobs
@format_
@html
@precision
@click.option("--why", metavar="RULE", help="Every place where this rule fuses or nearly does.")
@click.option("--estimate", is_flag=True, help="Predict the time of each fused node on a GPU, and what bounds it.")
@card("The GPU: a100, h100, h200, or a .json file with figures.  [default: h200]")
@click.option("--explain", metavar="NODE", help="What becomes of this node, and why.")
@click.option("-v", "--verbose", is_flag=True, help="Name every site; in JSON, every node.")
def report(
    models: tuple[str, ...],
    shapes: dict[str, tuple[int, ...]],
    style: str,
    html: str | None,
    why: str | None,
    explain: str | None,
    estimate: bool,
    card: str | None,
    jobs: int,
    verbose: bool,
    **options: Any,
) -> int:
    """Say what can be fused in each MODEL, what that saves, and why the rest cannot.

    Loads no external data and runs nothing.  JSON is one object for one model, an array of them for several.

    \b
    Example:
      onnxfuse report bert.onnx --shape input_ids:1,128
      onnxfuse report bert.onnx --why LayerNormalization
      onnxfuse report bert.onnx --explain /encoder/layer.3/Div
      onnxfuse report bert.onnx --estimate --card a100 --shape input_ids:1,128
      onnxfuse report bert.onnx --html bert.html
      onnxfuse report bert.onnx --format json | jq .census
      onnxfuse report bert.onnx --runtime onnxruntime==1.23 --format json | jq .runs
    """
    from onnxfuse import pipeline
    from onnxfuse.cli import console, paths, report_text
    from onnxfuse.fusing.build import Build
    from onnxfuse.language import lookup
    from onnxfuse.performance import gpus

    if card and not estimate:
        raise UsageError("--card is for --estimate")
    wanted = choose_precision(options)
    choose_target(options)
    build = Build(**options)
    known = gpus.given(card or gpus.DEFAULT if estimate else None, build.target)
    lookup.check_rules((*build.select, *build.ignore, *filter(None, [why])), build.rules)
    out, sources = console.console(), paths.expand(models)
    places, nodes = page_places(html, sources), html is not None or (verbose and style == "json")

    def one(path: Path, progress: Tell | None) -> tuple[Report, NodeProto | None]:
        start = time.perf_counter()
        model = read_model(path, weights=False)
        node = lookup.node_named(explain, model) if explain else None
        own, asked = replace(build, base_dir=path.parent), sizes(shapes, path)
        found = pipeline.report(
            model, own, shapes=asked, why=why, card=known, nodes=nodes, precision=wanted, progress=progress
        )
        found.model, found.seconds = str(path), time.perf_counter() - start
        write_page(found, places.get(path), build.rules)
        return found, node

    def show(told: tuple[Report, NodeProto | None]) -> Report:
        found, node = told
        warn_of_unread(found)
        if style == "json":
            found = found.narrowed(lambda fusion: not why or fusion.rule == why)
            return found.narrowed(lambda fusion: not node or report_text.concerns(fusion, _names(node)))
        if node:
            _explain(out, node, found, build.rules)
        else:
            _print(out, found, why, verbose=verbose)
        report_text.print_page(out, places.get(Path(found.model)))
        return found

    reports, code = shown(sources, one, show, jobs=jobs)
    if style == "json":
        print_json(one_or_many(reports, len(sources)))
    return code


def _print(out: Console, found: Report, why: str | None, *, verbose: bool) -> None:
    from onnxfuse.cli import report_text

    if why:
        report_text.print_why(out, found, why)
    else:
        report_text.print_report(out, found, verbose=verbose)
        report_text.print_estimates(out, found, verbose=verbose)


def _explain(out: Console, node: NodeProto, found: Report, rules: Sequence[Path]) -> None:
    """Print what becomes of a node, or of a fused one what it stands for."""
    from onnxfuse.cli import report_text
    from onnxfuse.language import lookup
    from onnxfuse.model.graph import DOMAIN, family_of
    from onnxfuse.rewriting import provenance

    op = family_of(node)
    out.print(f"{node.name or node.output[0]} ({op}) in {found.model}")
    if node.domain == DOMAIN:
        report_text.print_origin(out, *provenance.origin(node))
    else:
        report_text.print_explanation(out, found, _names(node), op, lookup.rules_with(op, rules))


def _names(node: NodeProto) -> frozenset[str]:
    """What a node is known as."""
    return frozenset((node.name, *node.output)) - {""}
