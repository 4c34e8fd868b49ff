"""The way through, as one straight line: lift → search → write → validate → report."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from onnx import ModelProto

from .errors import ModelError, NumericsError, UsageError
from .fusing.build import Build
from .fusing.fuse import fuse, lower, uncollected
from .fusing.fused import Banned, Fused, Progress
from .kernels.emulator.build import compiler
from .model.graph import count_nodes, roots
from .performance.estimate import predict
from .performance.gpus import Card
from .proof.claim import Claim, Experiment
from .proof.inputs import assumed
from .proof.stand_in import runnable
from .reporting.placement import placement
from .reporting.records import LeftOut, Report, Runs, Validation
from .reporting.tell import fusion, worth_telling
from .rewriting.inline import expand
from .runtime.served import examine
from .targets.compatibility import compatibility
from .targets.target import Target

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
    progress: Progress | None = None,
) -> Optimized:
    """Fuse a model and prove that it computes the same.  The model given is not changed.

    Traffic is measured at the shapes of the experiment; fusions that are predicted to lose on a `card` at these shapes
    are left out.  Raises NumericsError if the fused model differs and nothing is to be left out, or nothing is found to
    blame; what is left out is named in the report.
    """
    started = time.perf_counter()
    progress = progress or (lambda step, done, total: None)
    if experiment.validate == "kernels":
        compiler()  # a missing one is no fault of the model
    catalogue = build.catalogue
    known = sizes(model, experiment.shapes or {})
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

        told, paths = partial(fusion, known=known), (build.rules, build.base_dir)
        weighed = assumed(model, experiment.shapes)
        fused, losing, left_out = paying(fused, rebuild, card, weighed[0], *paths, told=told, progress=progress)
    validation = Validation("not validated", note="validation is off")
    if experiment.validate != "off":
        from .proof.timed import proved  # onnxruntime is needed only here

        claim = Claim(model, fused, rebuild, partial(runnable, catalogue=catalogue), build.rules, build.base_dir)
        fused, validation, wrong = proved(claim, experiment, progress)
        left_out += wrong
        if validation.verdict == "mismatch":
            raise NumericsError(f"the fused model computes something else: {validation.note}")
    report = _report(model, fused, build, known)
    report.left_out, report.validation = left_out, validation
    if card is not None:
        _add_estimates(report, fused, card, weighed, build)
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
    progress: Progress | None = None,
) -> Report:
    """What can be fused, what it saves, and what almost can; on a `card`, how long it takes.  Nothing is run.

    Near misses of the rule `why` are told even where its pattern is so small that they say little.  Nothing is
    converted to the build's opset.
    """
    started = time.perf_counter()
    _, fused = lower(model, build.catalogue, base_dir=build.base_dir, why=why, progress=progress)
    known = sizes(model, shapes or {})
    result = _report(model, fused, build, known)
    if card is not None:
        _add_estimates(result, fused, card, assumed(model, shapes), build)
    result.seconds = time.perf_counter() - started
    return result


def sizes(model: ModelProto, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """What the symbolic dimensions are if inputs have these shapes.

    They measure traffic and never decide what is fused, so that the fused model runs at every shape.  Raises UsageError
    for shapes that the model's inputs cannot have.
    """
    known: dict[str, int] = {}
    if not shapes:
        return known
    graph = next(roots(model))
    for name, dims in shapes.items():
        if name not in graph.inputs:
            raise UsageError(f"--shape {name}: the model has no such input; it has {', '.join(graph.inputs)}")
        shape = graph.type_of(name)[1]
        if shape is None:
            continue
        if len(shape) != len(dims):
            raise UsageError(f"--shape {name}: the input has {len(shape)} dimensions, {len(dims)} are given")
        for dim, size in zip(shape, dims, strict=True):
            wanted = dim if isinstance(dim, int) else known.setdefault(str(dim), size)
            if wanted != size:
                raise UsageError(f"--shape {name}: {dim} is {wanted}, {size} is given")
    return known


def _report(model: ModelProto, fused: Fused, build: Build, known: Mapping[str, int]) -> Report:
    served, target = examine(fused.model, build.rules), build.target
    before = model if target.functions else expand(model)
    return Report(
        model="",
        target=target.name,
        provider=target.provider,
        nodes_before=count_nodes(before),
        runtime=str(target.runtime) if target.runtime else None,
        runs=_runs(fused.model, target),
        nodes_after=count_nodes(fused.model),
        fusions=[fusion(site, known) for site in fused.sites if worth_telling(site)],
        near_misses=fused.near_misses,
        unread=sorted(fused.unread),
        kernels=served.sources,
        bodies=served.bodies,
        placement=placement(before, fused.model) if target.kind.cuda else None,
    )


def _runs(model: ModelProto, target: Target) -> Runs | None:
    """What runs a model on a CPU; None where it is for another provider."""
    if target.provider != "cpu":
        return None
    found = compatibility(model, target.runtime)
    return Runs(str(found.runtime) if found.runtime else None, found.reason, found.functions, found.domains)


def _add_estimates(
    told: Report,
    fused: Fused,
    card: Card,
    sizes: tuple[Mapping[str, Sequence[int]], str],
    build: Build,
) -> None:
    """What each fusion takes on a card; `sizes` are the shapes of the inputs, and what was assumed of them."""
    shapes, told.assumed = sizes
    found = predict(fused.model, shapes, card, build.rules, build.base_dir).fused
    told.card = card.name
    told.fusions = [
        replace(fusion, estimate=found.get((site.scope, site.node.name)))
        for fusion, site in zip(told.fusions, filter(worth_telling, fused.sites), strict=True)
    ]
