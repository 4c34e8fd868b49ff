"""The way through, as one straight line: lift → search → write → validate → report."""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeAlias, TypeVar

from onnx import ModelProto

from .cards import Card
from .compatibility import compatibility
from .cost import launches, traffic
from .effects import Effects
from .errors import ModelError, NumericsError, UsageError
from .estimate import predict
from .expand import expand
from .functions import Functions
from .graph import DOMAIN, STANDARD, Names, attribute_graphs, family_of, roots
from .inputs import assumed
from .kernels.emulator.build import compiler
from .language import Catalogue, load
from .lift import View, lift
from .match import Failure
from .onnxruntime_ops import added
from .opset import convert, loadable, raisable
from .placement import placement
from .provenance import Site, Vanished, module, vanished
from .records import Fusion, LeftOut, NearMiss, Report, Runs, Validation
from .rewrite import Writer, import_domains
from .runtime.served import examine
from .search import Found, bans, made, search
from .spell import UnrealisableError
from .stand_in import runnable
from .targets import DEFAULT, Target
from .terms import Term

if TYPE_CHECKING:
    import numpy as np

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with (step, done, total)."""

NEAR = 0.6
"""A failed match is worth telling from this share of its pattern on."""
SMALL = 4
"""A pattern of fewer ops says something only where all of them are there and a condition fails."""
COMMON = frozenset("Add And Cast Div Expand MatMul Mul Neg Not Or Pow Reshape Sub Sum Transpose Where".split())
"""Ops that every model has: a small pattern with such a root is nearly everywhere, which says nothing."""

Banned: TypeAlias = frozenset[tuple[str, str, str]]
"""(scope, rule, value) of fusions that must not be made, and of values that must not be simplified."""
SIMPLIFY = "simplify"
"""Stands for a rule where a value is computed anew without one."""


@dataclass
class Optimized:
    """A fused model and all there is to say about it."""

    model: ModelProto
    report: Report


class OpsetError(Exception):
    """Something would be fused at a higher opset than the model's."""

    def __init__(self, opset: int) -> None:
        super().__init__(opset)
        self.opset = opset


@dataclass
class Fused:
    """A model with fusions, before it is proved."""

    model: ModelProto
    sites: list[Site]
    near_misses: list[NearMiss]
    simplified: Banned
    """What to ban for nothing to be simplified."""
    unread: frozenset[str] = frozenset()
    """Tensors whose values were wanted while their external data is missing: the model is good for a report alone."""
    banned: Banned = frozenset()
    """What was banned when it was made."""
    vanished: list[Vanished] = field(default_factory=list)
    """Matches that left no node of their own, and may change numbers all the same."""


def uncollected(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """The function, run without Python's cycle collector: terms are many, live long and have no cycles, and it would
    look at them all again and again."""

    @wraps(function)
    def run(*args: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        collecting = gc.isenabled()
        gc.disable()
        try:
            return function(*args, **options)
        finally:
            if collecting:
                gc.enable()

    return run


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
        return fuse(source, catalogue, base_dir=base_dir, banned=banned | losing)

    if card is not None:
        from .pays import paying

        weighed = assumed(model, shapes)
        told = partial(fusion, known=known)
        fused, losing, left_out = paying(
            fused, rebuild, card, weighed[0], told=told, rules=rules, base_dir=base_dir, progress=progress
        )
    validation = Validation("not validated", note="validation is off")
    if validate != "off":
        from .limited import proved  # onnxruntime is needed only here

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


@uncollected
def lower(
    model: ModelProto,
    catalogue: Catalogue,
    *,
    opset: int | None = None,
    base_dir: Path | None = None,
    why: str | None = None,
    progress: Progress | None = None,
) -> tuple[ModelProto, Fused]:
    """Fuse at `opset`; if none is given, at the model's own, or at the lowest that has the standard ops found.

    Returns the model at that opset, and what became of it.  Raises UsageError if it cannot be converted to `opset`, or
    to one that the target's runtime loads, and if that runtime does not run it; a model that cannot be converted to a
    higher one that was not asked for stays as it is."""
    if not catalogue.target.functions:
        model = expand(model)
    runtime = catalogue.target.runtime
    if runtime is not None:
        model = loadable(model, runtime, opset)
    source, raising = convert(model, opset), opset is None and not catalogue.target.functions and raisable(model)
    while True:
        try:
            fused = fuse(source, catalogue, base_dir=base_dir, why=why, progress=progress, raising=raising)
            if runtime is not None:
                compatibility(fused.model, runtime)
            return source, fused
        except OpsetError as higher:
            try:
                source = convert(model, higher.opset)
            except UsageError:
                source, raising = model, False


@uncollected
def fuse(
    model: ModelProto,
    catalogue: Catalogue,
    *,
    base_dir: Path | None = None,
    banned: Banned = frozenset(),
    why: str | None = None,
    progress: Progress | None = None,
    raising: bool = False,
) -> Fused:
    """Apply the catalogue to every scope of a copy of the model.

    Raises OpsetError if `raising` and the target has what is found only at a higher opset."""
    try:
        return _fuse(model, catalogue, base_dir, banned, why, progress, raising)
    except UnrealisableError:
        # Only a fused op with several outputs can make nodes wait for each other: do without those.
        single = replace(catalogue, rules=[r for r in catalogue.rules if not r.labels])
        return _fuse(model, single, base_dir, banned, why, progress, raising)


def _fuse(
    model: ModelProto,
    catalogue: Catalogue,
    base_dir: Path | None,
    banned: Banned,
    why: str | None,
    progress: Progress | None,
    raising: bool,
) -> Fused:
    copy = ModelProto()
    copy.CopyFrom(model)
    present = {f.name: f for f in copy.functions if f.domain == DOMAIN}
    scopes = [graph for root in roots(copy) for graph in root.scopes()]
    functions, names, effects = Functions(catalogue, present), Names.of(scopes), Effects.of(copy)
    views: dict[int, View] = {}
    results: list[tuple[View, Found]] = []
    for done, graph in enumerate(scopes):
        if progress is not None:
            progress("match", done, len(scopes))
        parent = views.get(id(graph.parent)) if graph.parent is not None else None
        view = views[id(graph)] = lift(graph, base_dir, parent, effects)
        forbidden = {(rule, value) for path, rule, value in banned if path == graph.path}
        results.append((view, _search(view, catalogue, forbidden, raising)))
    sites: list[Site] = []
    near: list[NearMiss] = []
    gone: list[Vanished] = []
    simplified: set[tuple[str, str, str]] = set()
    for view, found in reversed(results):  # inner scopes first: the outer one sees what they still capture
        path = view.graph.path
        kept = {value for scope, rule, value in banned if (scope, rule) == (path, SIMPLIFY)}
        writer = Writer(view, found, names, functions, kept)
        own = writer.write()
        simplified |= {(path, SIMPLIFY, value) for value in writer.simplified}
        near = near_misses(view, found, own, why) + near
        sites = own + sites
        gone += vanished(found, path, own)
    if catalogue.target.runtime is not None:
        copy.ir_version = min(copy.ir_version, catalogue.target.runtime.ir_version)
    import_domains(copy, [s.node for s in sites if s.node.domain != DOMAIN])
    functions.attach(copy, {s.node.op_type for s in sites if s.node.domain == DOMAIN})
    unread = frozenset(name for view, _ in results for name in view.unread)
    return Fused(copy, sites, near, frozenset(simplified), unread, banned, gone)


def _search(view: View, catalogue: Catalogue, banned: set[tuple[str, str]], raising: bool) -> Found:
    """Fusions, then the target's lowerings.  Where an op is left that the target does not have, what made it is banned
    and the search made again.  Raises OpsetError if `raising` and a higher opset has it."""
    target, opset, view.terms.raisable = catalogue.target, view.graph.opset, raising
    view.terms.local = view.graph.is_function
    strata = [*catalogue.strata(), *catalogue.lowerings()]
    while True:
        found = search(view, catalogue, strata, banned)
        missing = [
            term
            for term, dtype in made(view, found)
            if not target.can_say(
                term.op, dict(term.attrs), opset, dtype, term.op in catalogue.definitions, _shapes(term.args)
            )
        ]
        wanted = max((target.wanted_opset(term.op, dict(term.attrs)) for term in missing), default=0)
        if target.standard:
            wanted = max(wanted, _standardized(view, found, target))
        if raising and wanted > opset:
            raise OpsetError(wanted)
        excess = bans(found, missing) - banned
        if not excess:
            return found
        banned = banned | excess


def _standardized(view: View, found: Found, target: Target) -> int:
    """See to it that what only onnxruntime has in ai.onnx is written as the op of the standard that it is.

    Returns the opset that is needed for all; what needs a higher one than the scope's stays."""
    graph, opset = view.graph, 0
    for node in graph.nodes:
        name = node.output[0] if node.output else ""
        if added(node, graph.opset) and name not in found.touched | found.stale:
            term = found.current[name]
            wanted = target.wanted_opset(term.op, dict(term.attrs))
            if wanted and wanted <= graph.opset:
                found.touched.add(name)
            opset = max(opset, wanted)
    return opset


def _shapes(terms: Sequence[Term]) -> list[Sequence[Any] | None]:
    """The shapes of operands as `runtimes.features` wants them."""
    return [None if term.op == "Absent" else term.shape or () for term in terms]


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


# ------------------------------------------------------------------------------------------------ what to say


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
        fusions=[fusion(site, known) for site in fused.sites if _worth_telling(site)],
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
        for fusion, site in zip(told.fusions, filter(_worth_telling, fused.sites), strict=True)
    ]


def _worth_telling(site: Site) -> bool:
    """A node that a target merely writes in another way is no fusion."""
    return len(site.replaced) > 1 or any(not match.rule.lowers for match in site.matches)


def count_nodes(model: ModelProto) -> int:
    """Nodes of all scopes; a Constant is no node to run."""
    total = 0
    stack: list[Any] = [model.graph, *(f for f in model.functions if f.domain != DOMAIN)]
    while stack:
        graph = stack.pop()
        for node in graph.node:
            total += node.op_type != "Constant"
            if node.attribute:
                stack.extend(body for _, body in attribute_graphs(node))
    return total


def fusion(site: Site, known: Mapping[str, int] | None = None) -> Fusion:
    """A site as plain data; `known` are sizes of symbolic dimensions."""
    domain = "" if site.node.domain in STANDARD else f"{site.node.domain}."
    fused = [match.rule.name for match in site.matches if not match.rule.lowers]
    inner = dict.fromkeys((match.rule.name, i) for match in site.matches for i in match.inner)
    often = Counter(i.rule.name for outer, i in inner if i.rule.name != outer)
    rule = (fused or [match.rule.name for match in site.matches])[-1]
    return Fusion(
        rule=rule,
        op=f"{domain}{family_of(site.node)}",
        scope=f"{site.scope}{site.module}",
        node=site.node.name,
        replaced=site.replaced,
        absorbed=tuple(name for name in dict.fromkeys(fused) if name != rule for _ in range(often[name] or 1)),
        # A node is one launch, however many steps its term has.
        launches_saved=max(sum(min(launches(term), 1) for term in site.dead) - 1, 0),
        bytes_saved=traffic(site.gone, known),
    )


def near_misses(view: View, found: Found, sites: Sequence[Site], why: str | None) -> list[NearMiss]:
    """Failed matches that got far, at places that no fusion covers: of those that share a place, the furthest.

    Of rules that got equally far, the one that asks for the least besides is the nearest."""
    covered = {t.id for site in sites for t in site.dead} | {site.term.id for site in sites}
    names: dict[int, str] = {}
    for name, term in view.terms_of.items():
        if name in view.graph.producer:
            names.setdefault(term.id, name)
    result: list[NearMiss] = []
    told: set[int] = set()
    open_roots = names.keys() - covered
    order = sorted(
        found.failures(open_roots), key=lambda f: (-f.matched, -f.matched / f.size, len(f.rule.where), f.root.id)
    )
    for failure in order:
        if not _telling(failure, why) or failure.root.id in told or failure.at.id in told:
            continue  # a smaller rule stops at the same step, or inside what a larger one has matched
        told |= failure.covered | {failure.at.id}
        value = names.get(failure.at.id) or names[failure.root.id]
        node = view.graph.nodes[view.graph.producer[value]]
        scope = f"{view.graph.path}{module([node])}"
        source = f"{failure.rule.path}:{failure.line}"
        result.append(NearMiss(failure.rule.name, source, scope, node.name or value, failure.reason()))
    for candidate in found.unprofitable:
        root = candidate.match.root
        if root.id in names and root.id not in covered and candidate.survivors:
            kept = next((names[t.id] for t in candidate.survivors if t.id in names), "an intermediate")
            node = view.graph.nodes[view.graph.producer[names[root.id]]]
            rule = candidate.match.rule
            reason = f"fusing saves nothing: {kept} is needed elsewhere as well"
            source = f"{rule.path}:{rule.emit[0].lineno}"
            result.append(NearMiss(rule.name, source, f"{view.graph.path}{module([node])}", node.name or kept, reason))
    return sorted(set(result), key=lambda m: (m.rule, m.scope, m.node, m.reason))


def _telling(failure: Failure, why: str | None) -> bool:
    """Whether a failed match is worth a user's time."""
    if failure.rule.lowers and failure.rule.name != why:
        return False
    if failure.rule.name == why:
        return failure.size > 1 and failure.matched / failure.size >= NEAR
    if failure.size < SMALL or failure.rule.cost == "fold":
        return failure.matched == failure.size > 1 and failure.root.op not in COMMON
    return failure.matched / failure.size >= NEAR
