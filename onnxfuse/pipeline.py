"""The way through, as one straight line: lift → search → write → validate → report."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from onnx import ModelProto

from .errors import ModelError, NumericsError
from .fusing.build import Build
from .fusing.fuse import fuse, lower, uncollected
from .fusing.fused import Banned, Fused, Progress
from .lifting.lifted import Lifted
from .model.graph import count_nodes
from .performance.gpus import CARDS, DEFAULT, Card
from .performance.nodes import Side, before_and_after
from .performance.sizes import Sizes
from .performance.totals import alone, asked, remaining, totals
from .proof.claim import Claim, Experiment
from .reporting.placement import placement
from .reporting.records import LeftOut, Report, Runs, Validation
from .reporting.tell import fusion, worth_telling
from .rewriting.inline import expand
from .runtime.served import examine
from .targets.compatibility import compatibility
from .targets.target import Target

# What an estimate, a proof or the emulator needs is imported where one is asked for: most commands ask for less.
ALL, USUAL = Build(), Experiment()
"""All rules for the default target; the proof as it is unless something else is wanted."""


@dataclass
class Optimized:
    """A fused model and all there is to say about it."""

    model: ModelProto
    report: Report


@uncollected
def optimize(
    model: ModelProto,
    build: Build = ALL,
    experiment: Experiment = USUAL,
    *,
    card: Card | None = None,
    nodes: bool = False,
    progress: Progress | None = None,
) -> Optimized:
    """Fuse a model and prove that it computes the same.  The model given is not changed.

    Traffic is measured at the shapes of the experiment; fusions that are predicted to lose on a `card` at these shapes
    are left out.  With `nodes` the report has each node, too.  Raises NumericsError if the fused model differs and
    nothing is to be left out, or nothing is found to blame; what is left out is named in the report.
    """
    started = time.perf_counter()
    progress = progress or (lambda step, done, total: None)
    if experiment.validate == "kernels":
        from .kernels.emulator.build import compiler

        compiler()  # a missing one is no fault of the model
    catalogue = build.catalogue
    at = Sizes.of(model, experiment.shapes)
    source, fused = lower(model, catalogue, opset=build.opset, base_dir=build.base_dir, progress=progress)
    if fused.unread:
        raise ModelError(
            f"the values of {min(fused.unread)!r} are needed, and its external data is missing: put it beside the model"
        )
    left_out: list[LeftOut] = []
    losing: Banned = frozenset()

    def rebuild(banned: Banned) -> Fused:
        return fuse(source, catalogue, banned=banned | losing)

    if card is not None:
        from .performance.profitability import paying

        told, paths = partial(fusion, known=at.known), (build.rules, build.base_dir)
        fused, losing, left_out = paying(fused, rebuild, card, at.shapes, *paths, told=told, progress=progress)
    validation = Validation("not validated", note="validation is off")
    if experiment.validate != "off":
        from .proof.stand_in import runnable
        from .proof.timed import proved  # onnxruntime is needed only here

        claim = Claim(model, fused, rebuild, partial(runnable, catalogue=catalogue), build.rules, build.base_dir)
        fused, validation, wrong = proved(claim, experiment, progress)
        left_out += wrong
        if validation.verdict == "mismatch":
            raise NumericsError(f"the fused model computes something else: {validation.note}")
    report = _report(model, source, fused, build, at, nodes_on=_card(nodes, card))
    report.left_out, report.validation = left_out, validation
    if card is not None:
        _add_estimates(report, fused, card, at, build)
    report.seconds = time.perf_counter() - started
    return Optimized(fused.model, report)


@uncollected
def report(
    model: ModelProto,
    build: Build = ALL,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    why: str | None = None,
    card: Card | None = None,
    nodes: bool = False,
    progress: Progress | None = None,
) -> Report:
    """What can be fused, what it saves, and what almost can; on a `card`, how long it takes.  Nothing is run.

    Near misses of the rule `why` are told even where its pattern is so small that they say little.  Nothing is
    converted to the build's opset.  With `nodes` the report has each node, too.
    """
    started = time.perf_counter()
    at = Sizes.of(model, shapes)
    source, fused = lower(model, build.catalogue, base_dir=build.base_dir, why=why, progress=progress)
    result = _report(model, source, fused, build, at, nodes_on=_card(nodes, card))
    if card is not None:
        _add_estimates(result, fused, card, at, build)
    result.seconds = time.perf_counter() - started
    return result


def _card(nodes: bool, card: Card | None) -> Card | None:
    """The card that nodes are weighed on, where they are asked for."""
    return (card or CARDS[DEFAULT]) if nodes else None


def _report(
    model: ModelProto, source: Lifted, fused: Fused, build: Build, at: Sizes, *, nodes_on: Card | None
) -> Report:
    served, target = examine(fused.model, build.rules), build.target
    before = model if target.functions else expand(model)
    sites = [site for site in fused.sites if worth_telling(site)]
    names = {site.node.name for site in fused.sites}
    terms = {view.graph.path: dict(view.terms_of) for view in source.views}
    for site in fused.sites:
        terms.setdefault(site.scope, {})[site.value] = site.term
    known_ops = build.catalogue.matched_ops
    read = fused.lifted or Lifted.of(fused.model, build.base_dir)
    original, output = Side(source, asked(source, at)), Side(read, asked(read, at, terms))
    nodes = None
    if nodes_on is not None:
        reasons = {id(e.node): reason for e, reason in alone(output.launches, names, fused.near_misses, known_ops)}
        nodes = before_and_after(original, output, fused.sites, reasons, nodes_on)
    return Report(
        model="",
        target=target.name,
        provider=target.provider,
        nodes_before=count_nodes(before),
        runtime=str(target.runtime) if target.runtime else None,
        runs=_runs(fused.model, target),
        nodes_after=count_nodes(fused.model),
        before=totals(original.launches),
        after=totals(output.launches),
        remaining=remaining(output.launches, names, fused.near_misses, known_ops, CARDS[DEFAULT]),
        nodes=nodes,
        fusions=[fusion(site, at.known) for site in sites],
        near_misses=fused.near_misses,
        unread=sorted(fused.unread),
        kernels=served.sources,
        bodies=served.bodies,
        placement=placement(before, fused.model) if target.kind.cuda else None,
        shapes=dict(at.shapes),
        assumed=at.assumed,
    )


def _runs(model: ModelProto, target: Target) -> Runs | None:
    """What runs a model on a CPU; None where it is for another provider."""
    if target.provider != "cpu":
        return None
    found = compatibility(model, target.runtime)
    return Runs(str(found.runtime) if found.runtime else None, found.reason, found.functions, found.domains)


def _add_estimates(told: Report, fused: Fused, card: Card, at: Sizes, build: Build) -> None:
    """What each fusion takes on a card."""
    from .performance.estimate import predict

    found = predict(fused.model, at.shapes, card, build.rules, build.base_dir).fused
    told.card = card.name
    told.fusions = [
        replace(fusion, estimate=found.get((site.scope, site.node.name)))
        for fusion, site in zip(told.fusions, filter(worth_telling, fused.sites), strict=True)
    ]
