"""onnxfuse report"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .many import choose_workers, shown, workers
from .options import (
    card,
    choose_precision,
    choose_target,
    format_,
    html,
    models,
    precision,
    rule_names,
    selection,
    shape,
)
from .work import (
    one_or_many,
    one_thread,
    page_places,
    print_json,
    read_model,
    settled,
    sizes,
    warn_of_unread,
    write_page,
)

if TYPE_CHECKING:
    from onnx import NodeProto
    from rich.console import Console

    from onnxfuse.cli.settings import Settings
    from onnxfuse.fusing.build import Build
    from onnxfuse.performance.gpus import Card
    from onnxfuse.precision.wanted import Precision
    from onnxfuse.reporting.records import Report
    from onnxfuse.system.isolation import Tell


@click.command(short_help="Say what can be fused, what that saves, and why the rest cannot.")
@models
@selection
@shape
@workers
@format_
@html
@precision
@click.option(
    "--why",
    metavar="RULE",
    shell_complete=rule_names,
    help="Every place where this rule fuses or nearly does, or Region.",
)
@click.option("--estimate", is_flag=True, help="Predict the time of each fused node on a GPU, and what bounds it.")
@card("The GPU that times and their shares are of: a100, h100, h200, b200, or a .json file.  [default: h200]")
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
    one_thread()
    from onnxfuse.cli import console, paths, report_text
    from onnxfuse.fusing.build import Build
    from onnxfuse.language import lookup
    from onnxfuse.language.catalogue import REGIONS
    from onnxfuse.performance import gpus

    wanted, crew = choose_precision(options), choose_workers(options)
    choose_target(options)
    build = Build(**options)
    weighed = gpus.card(card or gpus.DEFAULT)
    estimated = gpus.given(card or gpus.DEFAULT if estimate else None, build.target)
    lookup.check_rules((*build.select, *build.ignore), build.rules)
    lookup.check_rules([why] if why else [], build.rules, regions=True)
    out, sources = console.console(), paths.expand(models)
    regions = build.reached < REGIONS and build.target.functions and not build.select and wanted is None
    places, nodes = page_places(html, sources), html is not None or (verbose and style == "json")

    one = _Reporter(build, shapes, settled(), why, explain, weighed, estimated, wanted, nodes, places)

    def show(told: tuple[Report, NodeProto | None]) -> Report:
        found, node = told
        warn_of_unread(found)
        if style == "json":
            found = found.narrowed(lambda fusion: not why or report_text.is_of(fusion, why))
            return found.narrowed(lambda fusion: not node or report_text.concerns(fusion, _names(node)))
        if node:
            _explain(out, node, found, build.rules)
        else:
            _print(out, found, why, verbose=verbose, regions=regions)
        report_text.print_page(out, places.get(Path(found.model)))
        return found

    reports, code = shown(sources, one, show, crew)
    if style == "json":
        print_json(one_or_many(reports, len(sources)))
    return code


@dataclass(frozen=True)
class _Reporter:
    """What reports on one model."""

    build: Build
    shapes: dict[str, tuple[int, ...]]
    settings: Settings
    why: str | None
    explain: str | None
    shares_on: Card
    card: Card | None
    """To estimate on."""
    precision: Precision | None
    nodes: bool
    places: Mapping[Path, Path]
    """Where the page of each model goes, where one is wanted."""

    def __call__(self, path: Path, progress: Tell | None) -> tuple[Report, NodeProto | None]:
        """The report, and the node to explain."""
        from onnxfuse import pipeline
        from onnxfuse.language import lookup

        start = time.perf_counter()
        model = read_model(path, weights=False, in_place=True)
        node = lookup.node_named(self.explain, model) if self.explain else None
        found = pipeline.report(
            model,
            replace(self.build, base_dir=path.parent),
            shapes=sizes(self.shapes, self.settings, path),
            why=self.why,
            card=self.card,
            shares_on=self.shares_on,
            nodes=self.nodes,
            precision=self.precision,
            progress=progress,
        )
        found.model, found.seconds = str(path), time.perf_counter() - start
        write_page(found, self.places.get(path), self.build.rules)
        return found, node


def _print(out: Console, found: Report, why: str | None, *, verbose: bool, regions: bool) -> None:
    from onnxfuse.cli import report_text

    if why:
        report_text.print_why(out, found, why)
    else:
        report_text.print_report(out, found, verbose=verbose, regions=regions)
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
