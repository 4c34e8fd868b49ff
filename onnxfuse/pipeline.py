"""The way through, as one straight line: lift → search → write → validate → report."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from onnx import ModelProto

from .errors import ModelError, NumericsError, UsageError
from .fusing.fuse import fuse, lower, uncollected
from .fusing.fused import Banned, Fused, Progress
from .kernels.emulator.build import compiler
from .language.catalogue import load
from .model.graph import count_nodes, roots
from .performance.estimate import predict
from .performance.gpus import Card
from .proof.inputs import assumed
from .proof.stand_in import runnable
from .reporting.placement import placement
from .reporting.records import LeftOut, Report, Runs, Validation
from .reporting.tell import fusion, worth_telling
from .rewriting.inline import expand
from .runtime.served import examine
from .targets.compatibility import compatibility
from .targets.target import DEFAULT, Target

if TYPE_CHECKING:
    import numpy as np


@dataclass
class Optimized:
    """A fused model and all there is to say about it."""

    model: ModelProto
    report: Report


@uncollected
def optimize(
    model: ModelProto,
    *,
    target: Target = DEFAULT,
    opset: int | None = None,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    rules: Sequence[Path] = (),
    shapes: Mapping[str, Sequence[int]] | None = None,
    inputs: Mapping[str, np.ndarray[Any, Any]] | None = None,
    seed: int = 0,
    rtol: float | None = None,
    atol: float | None = None,
    on_mismatch: Literal["bisect", "fail"] = "bisect",
    validate: Literal["onnxruntime", "reference", "kernels", "off"] = "onnxruntime",
    timeout: float | None = None,
    card: Card | None = None,
    base_dir: Path | None = None,
    progress: Progress | None = None,
) -> Optimized:
    """Fuse a model and prove that it computes the same.  The model given is not changed.

    Without `opset`, a target without function bodies may raise the model's, see `lower`.  `shapes` are those of inputs
    to validate with and to measure traffic at; `base_dir` is where external data lies.  Fusions that are predicted to
    lose on a `card` at these shapes are left out.  Raises NumericsError if the fused model differs and `on_mismatch` is
    "fail"; otherwise the fusions that are guilty are left out, and all that are so are named in the report.  With a
    `timeout` the proof runs in a child process, and each of its steps may take so many seconds (0: any time).
    """
    started = time.perf_counter()
    if validate == "kernels":
        compiler()  # a missing one is no fault of the model
    catalogue = load(rules).choose(select, ignore).serving(target)
    known = sizes(model, shapes or {})
    source, fused = lower(model, catalogue, opset=opset, base_dir=base_dir, progress=progress)
    if fused.unread:
        raise ModelError(
            f"the values of {min(fused.unread)!r} are needed, and its external data is missing: put it beside the model"
        )
    progress = progress or (lambda step, done, total: None)
    left_out: list[LeftOut] = []
    losing: Banned = frozenset()

    def rebuild(banned: Banned) -> Fused:
        return fuse(source, catalogue, banned=banned | losing)

    if card is not None:
        from .performance.profitability import paying

        weighed = assumed(model, shapes)
        told = partial(fusion, known=known)
        fused, losing, left_out = paying(
            fused, rebuild, card, weighed[0], told=told, rules=rules, base_dir=base_dir, progress=progress
        )
    validation = Validation("not validated", note="validation is off")
    if validate != "off":
        from .proof.timed import proved  # onnxruntime is needed only here

        fused, validation, wrong = proved(
            model,
            fused,
            rebuild,
            runs=partial(runnable, catalogue=catalogue),
            timeout=timeout,
            bisecting=on_mismatch == "bisect",
            reference=validate == "reference",
            emulate=validate == "kernels",
            rules=rules,
            options={"seed": seed, "shapes": shapes, "given": inputs, "rtol": rtol, "atol": atol},
            base_dir=base_dir,
            progress=progress,
        )
        left_out += wrong
        if validation.verdict == "mismatch":
            raise NumericsError(f"the fused model computes something else: {validation.note}")
    report = _report(model, fused, target, known, rules)
    report.left_out, report.validation = left_out, validation
    if card is not None:
        _add_estimates(report, fused, card, weighed, rules, base_dir)
    report.seconds = time.perf_counter() - started
    return Optimized(fused.model, report)


@uncollected
def report(
    model: ModelProto,
    *,
    target: Target = DEFAULT,
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    rules: Sequence[Path] = (),
    shapes: Mapping[str, Sequence[int]] | None = None,
    why: str | None = None,
    card: Card | None = None,
    base_dir: Path | None = None,
    progress: Progress | None = None,
) -> Report:
    """What can be fused, what it saves, and what almost can; on a `card`, how long it takes.  Nothing is run.

    Near misses of the rule `why` are told even where its pattern is so small that they say little.
    """
    started = time.perf_counter()
    catalogue = load(rules).choose(select, ignore).serving(target)
    _, fused = lower(model, catalogue, base_dir=base_dir, why=why, progress=progress)
    known = sizes(model, shapes or {})
    result = _report(model, fused, target, known, rules)
    if card is not None:
        _add_estimates(result, fused, card, assumed(model, shapes), rules, base_dir)
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


def _report(model: ModelProto, fused: Fused, target: Target, known: Mapping[str, int], rules: Sequence[Path]) -> Report:
    served = examine(fused.model, rules)
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
    rules: Sequence[Path],
    base_dir: Path | None,
) -> None:
    """What each fusion takes on a card; `sizes` are the shapes of the inputs, and what was assumed of them."""
    shapes, told.assumed = sizes
    found = predict(fused.model, shapes, card, rules, base_dir).fused
    told.card = card.name
    told.fusions = [
        replace(fusion, estimate=found.get((site.scope, site.node.name)))
        for fusion, site in zip(told.fusions, filter(worth_telling, fused.sites), strict=True)
    ]
