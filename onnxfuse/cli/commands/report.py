"""onnxfuse report"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .options import (
    card,
    choose_target,
    each,
    format_,
    html,
    models,
    one_or_many,
    page_places,
    print_json,
    selection,
    shape,
    warn_of_unread,
    write_page,
)

if TYPE_CHECKING:
    from onnx import NodeProto
    from rich.console import Console

    from onnxfuse.reporting.records import Report


@click.command()
@models
@selection
@shape
@format_
@html
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
    from onnxfuse.errors import UsageError
    from onnxfuse.fusing.build import Build
    from onnxfuse.language import lookup
    from onnxfuse.model import files
    from onnxfuse.performance import gpus

    if card and not estimate:
        raise UsageError("--card is for --estimate")
    choose_target(options)
    build = Build(**options)
    known = gpus.given(card or gpus.DEFAULT if estimate else None, build.target)
    lookup.check_rules((*build.select, *build.ignore, *filter(None, [why])), build.rules)
    out, sources = console.console(), paths.expand(models)
    places, nodes = page_places(html, sources), html is not None or (verbose and style == "json")

    def one(path: Path) -> Report:
        start = time.perf_counter()
        model = files.read(path, weights=False)
        node = lookup.node_named(explain, model) if explain else None
        with console.progress(path.name) as progress:
            own = replace(build, base_dir=path.parent)
            found = pipeline.report(
                model, own, shapes=shapes or None, why=why, card=known, nodes=nodes, progress=progress
            )
        found.model, found.seconds = str(path), time.perf_counter() - start
        warn_of_unread(found)
        page = write_page(found, places.get(path), build.rules)
        if style == "json":
            found = found.narrowed(lambda fusion: not why or fusion.rule == why)
            return found.narrowed(lambda fusion: not node or report_text.concerns(fusion, _names(node)))
        if node:
            _explain(out, node, found, build.rules)
        elif why:
            report_text.print_why(out, found, why)
        else:
            report_text.print_report(out, found, verbose=verbose)
            report_text.print_estimates(out, found, verbose=verbose)
        report_text.print_page(out, page)
        return found

    reports, code = each(sources, one)
    if style == "json":
        print_json(one_or_many(reports, len(sources)))
    return code


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
