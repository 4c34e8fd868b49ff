"""The way through, as one straight line: lift → search → write → validate → report."""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from onnx import ModelProto

from .errors import ModelError, NumericsError, UsageError
from .fusing.build import Build
from .fusing.fuse import fuse, lower, uncollected
from .fusing.fused import UNNAMED, Banned, Fused, Progress
from .fusing.source import Source
from .language.catalogue import MEASURED, RULES
from .lifting.lifted import Lifted
from .model.graph import DOMAIN, REGION, count_nodes, family, opset_of
from .proof.claim import Claim, Experiment
from .reporting.records import LeftOut, Placement, Report, Runs, Validation
from .reporting.tell import fusion, worth_telling
from .rewriting.dims_apart import DimNames
from .rewriting.inline import expand
from .targets import runtimes
from .targets.compatibility import compatibility
from .targets.target import Target

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .model.spool import Spool
    from .performance.gpus import Card
    from .performance.nodes import Side
    from .performance.sizes import Sizes
    from .precision.convert import Converted
    from .precision.wanted import Precision
    from .training.recompute import Limit

# What measures, estimates or proves, and kernels, are imported where they are asked for: most commands ask for less.
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
    precision: Precision | None = None,
    spool: Spool | None = None,
    progress: Progress | None = None,
) -> Optimized:
    """Fuse a model and prove that it computes the same.  The model given is not changed.

    With a `precision`, what was fused and proved is converted to it, and compared with the original once more; external
    data is then in the `spool`, or what is converted of it in memory.  Traffic is measured at the shapes of the
    experiment, or of its inputs; fusions that are predicted to lose on a `card` at these shapes are left out.  With
    `nodes` the report has each node, too.  Raises NumericsError if the fused model differs and nothing is to be left
    out, or nothing is found to blame, or if half precision cannot hold its numbers; what is left out is named in the
    report.
    """
    started = time.perf_counter()
    progress = progress or (lambda step, done, total: None)
    build = _levelled(build, card, precision)
    _refuse_uncompiled(experiment)
    catalogue = build.catalogue
    at = _given(model, experiment.shapes, experiment.inputs)
    limit = _limit(model, build, at, precision)
    given, model = model, _written_out(model, precision)
    source, fused = _lowered(model, build, precision, limit, progress)
    at = at or _assumed(given, source, fused)
    if fused.unread:
        raise ModelError(
            f"the values of {min(fused.unread)!r} are needed, and its external data is missing: put it beside the model"
        )
    left_out: list[LeftOut] = []
    losing: Banned = frozenset()

    def rebuild(banned: Banned, apart: DimNames = UNNAMED) -> Fused:
        gc.collect(1)  # a search for the guilty makes hundreds, and nothing else frees what came before
        return fuse(source.apart(apart), catalogue, banned=banned | losing)

    if card is not None:
        from .performance.profitability import paying

        paths = build.rules, build.base_dir
        fused, losing, left_out = paying(fused, rebuild, card, at.shapes, *paths, progress=progress)
    validation = Validation("not validated", note="validation is off")
    if experiment.validate != "off":
        from .proof.timed import proved  # onnxruntime is needed only here

        claim = Claim(model, fused, rebuild, partial(_runnable, build), build.rules, build.base_dir)
        fused, validation, wrong = proved(claim, experiment, progress)
        left_out, at = left_out + wrong, at.renamed(fused.apart)
        if validation.verdict == "mismatch":
            raise NumericsError(f"the fused model computes something else: {validation.note}")
    converted = None
    if precision is not None:
        claim = Claim(model, fused, rebuild, partial(_runnable, build), build.rules, build.base_dir)
        claim = replace(claim, original=given, spool=spool, target=build.target)
        converted, validation = _converted(claim, precision, experiment, progress)
        fused = replace(fused, model=converted.model, lifted=None)
        build = replace(build, base_dir=spool.path.parent) if spool is not None else build
    report = _report(given, source, fused, build, at, converted, card, nodes=nodes)
    report.left_out, report.validation = left_out, validation
    if card is not None:
        _add_estimates(report, fused, card, at, build)
    report.seconds = time.perf_counter() - started
    return Optimized(fused.model, report)


def _refuse_uncompiled(experiment: Experiment) -> None:
    """Raises DependencyError where kernels are to be run and there is no compiler: that is no fault of the model."""
    if experiment.validate == "kernels":
        from .kernels.emulator.build import compiler

        compiler()


def _limit(model: ModelProto, build: Build, at: Sizes | None, precision: Precision | None) -> Limit | None:
    """How many bytes may live between forward and backward.  Raises UsageError for a model that has neither."""
    if build.recompute is None:
        return None
    if precision is not None:
        raise UsageError("--recompute counts bytes in the precision that the model has: leave --precision away")
    from .performance.held import limited

    return limited(model, build.recompute, at, build.base_dir)


def _levelled(build: Build, card: Card | None, precision: Precision | None) -> Build:
    """The build at the level that it can have: what is to be converted has no regions, whose bodies are written for the
    precision that the model has.

    Raises UsageError for -O3 without a card."""
    if build.level == MEASURED and card is None:
        raise UsageError("-O3 leaves out what is predicted to be slower on a GPU: name one with --card, or take -O2")
    return build if precision is None else replace(build, level=min(build.level, RULES))


def _refuse_unserved(precision: Precision, target: Target) -> None:
    """Raises UsageError if the onnxruntime that is named does not even multiply matrices in this precision."""
    if target.runtime is not None and not target.has_kernel("MatMul", precision.dtype, target.runtime.opset):
        raise UsageError(
            f"--precision {precision.name}: onnxruntime {target.runtime} does not run {precision.type_name} on a CPU, "
            "which is what --runtime holds: leave it away, or take fp16"
        )


def _written_out(model: ModelProto, precision: Precision | None) -> ModelProto:
    """The model whose functions are written out, if it is to be converted, which does that: what stands in them and
    around them is fused together then."""
    if precision is None:
        return model
    from .precision.convert import written_out

    return written_out(model)


def _lowered(
    model: ModelProto, build: Build, precision: Precision | None, limit: Limit | None, progress: Progress
) -> tuple[Source, Fused]:
    """The model fused, at an opset whose ops have the `precision` if that can be had and no other is asked for."""
    if precision is not None:
        _refuse_unserved(precision, build.target)
    catalogue = build.catalogue
    source, fused = lower(model, catalogue, opset=build.opset, base_dir=build.base_dir, limit=limit, progress=progress)
    if precision is None or build.opset is not None or fused.unread:
        return source, fused
    highest = runtimes.proving(build.target.runtime).opset
    opset = max((o for o in _without_weights(fused, precision, build).opsets if o <= highest), default=0)
    if opset_of(fused.model) < opset:
        with suppress(UsageError):
            return lower(model, catalogue, opset=opset, base_dir=build.base_dir, progress=progress)
    return source, fused


def _without_weights(fused: Fused, precision: Precision, build: Build) -> Converted:
    """What a conversion would make of a fused model, as far as that can be told without converting weights."""
    from .precision.convert import convert

    return convert(
        fused.model, precision, weights=False, rules=build.rules, base_dir=build.base_dir, target=build.target
    )


def _runnable(build: Build, model: ModelProto) -> ModelProto:
    """What the proof can run of a fused model."""
    from .proof.stand_in import runnable

    return runnable(model, build.catalogue)


def _converted(
    claim: Claim, precision: Precision, experiment: Experiment, progress: Progress
) -> tuple[Converted, Validation]:
    """The fused model in half precision, and the verdict on it.  Raises NumericsError."""
    from .proof.converted import as_claimed, convert_proved

    if experiment.validate == "off":
        return as_claimed(claim, precision), Validation("not validated", note="validation is off")
    made, validation = convert_proved(claim, precision, experiment, progress)
    if made.overflows and precision.name != "mixed" and not made.few_casts:
        raise NumericsError(precision.refusal(made.overflows))
    if validation.verdict == "mismatch":
        other = "mixed, bf16, or a larger --rtol" if precision.name == "fp16" else "another, or a larger --rtol"
        raise NumericsError(
            f"in {precision.type_name} the model computes something else: {validation.note}: try {other}"
        )
    return made, validation


@uncollected
def report(
    model: ModelProto,
    build: Build = ALL,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    why: str | None = None,
    card: Card | None = None,
    shares_on: Card | None = None,
    nodes: bool = False,
    precision: Precision | None = None,
    measured: bool = True,
    progress: Progress | None = None,
) -> Report:
    """What can be fused, what it saves, and what almost can; on a `card`, how long it takes.  Nothing is run.

    If it is not to be `measured`, fusions and near misses are all there is.

    Shares of time, and times of `nodes`, are those of `shares_on`, else of `card`, else of a usual one.
    Near misses of the rule `why` are told even where its pattern is so small that they say little.  Nothing is
    converted to the build's opset; what a conversion to a `precision` would do is told, as far as constants say.  With
    `nodes` the report has each node, too.
    """
    started = time.perf_counter()
    build = _levelled(build, card, precision)
    at = _given(model, shapes)
    given, model = model, _written_out(model, precision)
    source, fused = lower(model, build.catalogue, base_dir=build.base_dir, why=why, progress=progress)
    if not measured:
        return _found(fused, build, seconds=time.perf_counter() - started)
    at = at or _assumed(given, source, fused)
    converted = None
    if precision is not None:
        converted = _without_weights(fused, precision, build)
        fused = replace(fused, model=converted.model, lifted=None)
    result = _report(given, source, fused, build, at, converted, shares_on or card, nodes=nodes)
    if card is not None:
        _add_estimates(result, fused, card, at, build)
    result.seconds = time.perf_counter() - started
    return result


def _found(fused: Fused, build: Build, *, seconds: float) -> Report:
    """What was fused, and nearly was."""
    sites, target = [site for site in fused.sites if worth_telling(site)], build.target
    result = Report("", target=target.name, provider=target.provider, level=build.reached)
    result.unread, result.seconds = sorted(fused.unread), seconds
    result.fusions, result.near_misses = list(map(fusion, sites)), fused.near_misses
    return result


def _given(
    model: ModelProto,
    shapes: Mapping[str, Sequence[int]] | None,
    fed: Mapping[str, NDArray[Any]] | None = None,
) -> Sizes | None:
    """The sizes to measure at, where shapes are given, or what is fed."""
    if not shapes and fed is None:
        return None
    from .performance.sizes import Sizes

    return Sizes.of(model, shapes, fed)


def _assumed(model: ModelProto, source: Source, fused: Fused) -> Sizes:
    """The sizes to measure at where none are given: of repeated blocks, a few tell what inputs are for."""
    from .performance.sizes import Sizes

    few = model if fused.blocks is None or source.model is not model else fused.blocks.source.model
    return Sizes.of(few if len(few.graph.input) == len(model.graph.input) else model)


def _report(
    model: ModelProto,
    source: Source,
    fused: Fused,
    build: Build,
    at: Sizes,
    converted: Converted | None,
    card: Card | None,
    *,
    nodes: bool,
) -> Report:
    """All there is to say; shares of time are those of a `card`, or of a usual one."""
    from .performance.gpus import CARDS, DEFAULT
    from .performance.held import held
    from .performance.totals import alone, bytes_saved, remaining, totals
    from .runtime.served import examine

    card = card or CARDS[DEFAULT]
    few = fused.model if fused.blocks is None or converted else fused.blocks.fused.model
    served, target = examine(few, build.rules), build.target  # other blocks have no other ops
    before = model if target.functions else expand(model)
    sites = [site for site in fused.sites if worth_telling(site)]
    names = {site.node.name for site in fused.sites}
    known_ops = build.catalogue.matched_ops
    original, output = _sides(source, fused, build, at, nodes=nodes, typed=converted is None)
    each_node = None
    if nodes:
        from .performance.nodes import before_and_after

        reasons = {id(e.node): reason for e, reason in alone(output.launches, names, fused.near_misses, known_ops)}
        each_node = before_and_after(original, output, fused.sites, reasons, card)
    return Report(
        model="",
        target=target.name,
        provider=target.provider,
        nodes_before=count_nodes(before),
        runtime=str(target.runtime) if target.runtime else None,
        level=build.reached,
        runs=_runs(before, fused.model, target),
        nodes_after=count_nodes(fused.model),
        before=totals(original.launches),
        after=totals(output.launches),
        held=held(source.model, lambda: source.lifted, fused, build.base_dir, at, build.recompute),
        remaining=remaining(output.launches, names, fused.near_misses, known_ops, card),
        shares_on=card.name,
        nodes=each_node,
        fusions=list(map(fusion, sites, bytes_saved(sites, original.launches, output.launches))),
        near_misses=fused.near_misses,
        unread=sorted(fused.unread),
        kernels=served.sources,
        bodies=served.bodies,
        generated=sum(f.domain == DOMAIN and family(f.name) == REGION for f in fused.model.functions),
        placement=_placed(before, fused.model) if target.kind.cuda else None,
        shapes=dict(at.shapes),
        assumed=at.assumed,
        conversion=converted.told if converted else None,
    )


def _placed(before: ModelProto, after: ModelProto) -> Placement:
    from .reporting.placement import placement

    return placement(before, after)


def _sides(source: Source, fused: Fused, build: Build, at: Sizes, *, nodes: bool, typed: bool) -> tuple[Side, Side]:
    """The original and what became of it, with what they launch; all of their `nodes` are read if they are wanted.

    The element types of values are those of their terms, if these were `typed` for what is written."""
    from .performance.nodes import Side
    from .performance.totals import asked, spread, terms_of

    blocks = None if nodes or not typed else fused.blocks
    before, made = (source.lifted, fused) if blocks is None else (blocks.source, blocks.fused)
    terms = terms_of(before, made.sites)
    read = made.lifted or Lifted.of(made.model, build.base_dir)
    original, output = asked(before, at), asked(read, at, terms if typed else None)
    if blocks is not None:
        original, output = spread(original, before, blocks.before), spread(output, read, blocks.after)
    return Side(before, original), Side(read, output)


def _runs(before: ModelProto, model: ModelProto, target: Target) -> Runs | None:
    """What runs a model on a CPU; None where it is for another provider."""
    if target.provider != "cpu":
        return None
    found = compatibility(model, target.runtime)
    late = str(found.precise) if found.precise and not compatibility(before).precise else None
    return Runs(str(found.runtime) if found.runtime else None, found.reason, found.functions, found.domains, late)


def _add_estimates(told: Report, fused: Fused, card: Card, at: Sizes, build: Build) -> None:
    """What each fusion takes on a card."""
    from .performance.estimate import predict

    found = predict(fused.model, at.shapes, card, build.rules, build.base_dir).fused
    told.card = card.name
    told.fusions = [
        replace(fusion, estimate=found.get((site.scope, site.node.name)))
        for fusion, site in zip(told.fusions, filter(worth_telling, fused.sites), strict=True)
    ]
