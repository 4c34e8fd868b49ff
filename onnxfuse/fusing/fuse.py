"""A model → the model with fused ops, not proved yet: each scope lifted, searched and written."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from onnx import ModelProto

from onnxfuse.errors import UsageError
from onnxfuse.language.catalogue import REGIONS, Catalogue
from onnxfuse.language.functions import Functions
from onnxfuse.lifting.lifted import Lifted
from onnxfuse.lifting.view import View
from onnxfuse.matching.match import Match
from onnxfuse.matching.search import Found, bans, made, search
from onnxfuse.matching.taken_apart import taken_apart
from onnxfuse.matching.written_cost import costly
from onnxfuse.model.graph import DOMAIN, Names
from onnxfuse.model.onnxruntime_ops import added
from onnxfuse.reporting.records import NearMiss
from onnxfuse.reporting.tell import near_misses
from onnxfuse.rewriting.assemble import import_domains
from onnxfuse.rewriting.convert_opset import convert, loadable, raisable
from onnxfuse.rewriting.inline import expand
from onnxfuse.rewriting.inline_control_flow import straightened
from onnxfuse.rewriting.plan import UnrealisableError
from onnxfuse.rewriting.provenance import FusedNode, Vanished, vanished
from onnxfuse.rewriting.quantize_first import quantize_first
from onnxfuse.rewriting.stored import Room
from onnxfuse.rewriting.writer import Writer
from onnxfuse.targets.compatibility import compatibility, runs
from onnxfuse.targets.target import NodeKind, Target
from onnxfuse.terms.term import Term
from onnxfuse.training.recompute import Limit

from .fused import EVERY, SIMPLIFY, Banned, Fused, Progress
from .naming import Naming
from .repeats.once import once as by_blocks
from .settle import settle
from .source import Source

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


class OpsetError(Exception):
    """Something would be fused at a higher opset than the model's."""

    def __init__(self, opset: int) -> None:
        super().__init__(opset)
        self.opset = opset


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
def lower(
    model: ModelProto,
    catalogue: Catalogue,
    *,
    opset: int | None = None,
    base_dir: Path | None = None,
    limit: Limit | None = None,
    why: str | None = None,
    progress: Progress | None = None,
) -> tuple[Source, Fused]:
    """Fuse at `opset`; if none is given, at the model's own, or at the lowest that has the standard ops found.

    Returns the model at that opset, to be fused again with other bans, and what became of it.  Raises UsageError if it
    cannot be converted to `opset`, or to one that the target's runtime loads, and if that runtime does not run it; a
    model that cannot be converted to a higher one that was not asked for stays as it is, and so does one that no
    onnxruntime would run any more (RandomNormalLike has no kernel from opset 22 on)."""
    if not catalogue.target.functions:
        model = expand(model)
    model = straightened(model, base_dir)
    runtime = catalogue.target.runtime
    if runtime is not None:
        model = loadable(model, runtime, opset)
    at, raising = convert(model, opset), opset is None and not catalogue.target.functions and raisable(model)
    while True:
        try:
            source = Source(at, base_dir, catalogue, limit=limit)
            if any(node.op_type == "DynamicQuantizeLinear" for node in at.graph.node):
                moved = quantize_first(source.lifted)
                source = source if moved is at else Source(moved, base_dir, catalogue, limit=limit)
            fused = fuse(source, catalogue, why=why, progress=progress, raising=raising)
            if runtime is not None:
                compatibility(fused.model, runtime)
            return source, fused
        except OpsetError as higher:
            try:
                at = convert(model, higher.opset)
            except UsageError:
                at, raising = model, False
            else:
                raising = runs(at) or not runs(model)
                at = at if raising else model


@uncollected
def fuse(
    source: ModelProto | Source,
    catalogue: Catalogue,
    *,
    base_dir: Path | None = None,
    banned: Banned = frozenset(),
    why: str | None = None,
    progress: Progress | None = None,
    raising: bool = False,
) -> Fused:
    """Apply the catalogue to every scope of a copy of the model, and to what comes of it, until that stays as it is.

    Where one is fused more than once, with other bans, it is given with its folder (`Source`), else with `base_dir`.
    Raises OpsetError if `raising` and the target has what is found only at a higher opset."""
    if not isinstance(source, Source):
        source = Source(straightened(source, base_dir), base_dir, catalogue)

    wanted = catalogue.level >= REGIONS and catalogue.target.functions

    def passes(first: Lifted, look: Callable[[ModelProto], None] | None = None) -> tuple[Fused, list[Room]]:
        """All passes over a model, and the room for constants that each had; a `look` is taken at what the first has
        made."""
        last, rooms = first, list[Room]()

        def once(model: ModelProto) -> Fused:
            nonlocal last
            if look is not None and len(rooms) == 1:
                look(model)
            last = lifted = first if model is first.model else first.again(model)
            return _once(lifted, first, catalogue, rooms, banned, why, progress, raising, source.naming)

        fused = settle(first.model, once, source.naming)
        fused = replace(fused, lifted=last) if last.model is fused.model else fused
        return fused, rooms

    def regions(first: Lifted, made: tuple[Fused, list[Room]]) -> tuple[Fused, list[Room]]:
        """What passes have made, with regions, and the room for constants that all passes had."""
        done, rooms = made
        if not wanted and source.limit is None:
            return made
        # What brings the rooms of regions and kernels, which no other level asks for.
        from .recomputing import recomputing
        from .regional import regional

        def more(model: ModelProto) -> Fused:
            read = first.again(model)
            after, others = passes(read)
            rooms.extend(others)
            return after if after.lifted is not None else replace(after, lifted=read)

        def found(fused: Fused) -> Fused:
            last = (lambda model: replace(fused, model=model, sites=[])) if source.limit is not None else more
            return regional(first, source.naming, fused, banned, last, why)

        whole = recomputing(first, done, source.limit, source.naming, banned, found if wanted else None)
        return whole, rooms

    few = by_blocks(source, banned, passes, regions if wanted else None) if source.limit is None else None
    return few or regions(source.lifted, passes(source.lifted))[0]


def _once(
    lifted: Lifted,
    first: Lifted,
    catalogue: Catalogue,
    rooms: list[Room],
    banned: Banned,
    why: str | None,
    progress: Progress | None,
    raising: bool,
    naming: Naming,
) -> Fused:
    """One pass; only a fused op with several outputs can make nodes wait for each other: where one does, without."""
    try:
        rooms.append(Room.of(lifted.model, first, catalogue.growth))
        return _fuse(lifted, catalogue, banned, why, progress, raising, rooms[-1], naming)
    except UnrealisableError:
        single = replace(catalogue, rules=[r for r in catalogue.rules if not r.labels])
        rooms.append(Room.of(lifted.model, first, catalogue.growth))
        return _fuse(lifted, single, banned, why, progress, raising, rooms[-1], naming)


def _fuse(
    lifted: Lifted,
    catalogue: Catalogue,
    banned: Banned,
    why: str | None,
    progress: Progress | None,
    raising: bool,
    room: Room,
    naming: Naming,
) -> Fused:
    """One pass: every scope of a copy searched, and then written."""
    model, views = lifted.copy()
    results: list[tuple[View, Found]] = []
    for done, view in enumerate(views):
        if progress is not None:
            progress("match", done, len(views))
        forbidden = {(rule, value) for path, rule, value in banned if path == view.graph.path}
        rules = replace(catalogue, rules=[]) if (EVERY, "") in forbidden else catalogue
        found = _search(view, rules, forbidden, raising)
        results.append((view, found))
    present = {f.name: f for f in model.functions if f.domain == DOMAIN}
    functions, names = Functions(catalogue, present), Names.of(view.graph for view in views)
    names.taken |= naming.taken
    sites: list[FusedNode] = []
    near: list[NearMiss] = []
    gone: list[Vanished] = []
    simplified: set[tuple[str, str, str]] = set()
    for view, found in reversed(results):  # inner scopes first: the outer one sees what they still capture
        path = view.graph.path
        kept = {value for scope, rule, value in banned if (scope, rule) == (path, SIMPLIFY)}
        writer = Writer(view, found, names, functions, kept, room)
        own = writer.write()
        simplified |= {(path, SIMPLIFY, value) for value in writer.simplified}
        near = near_misses(view, found, own, why) + near
        sites = own + sites
        gone += vanished(found, path, own)
    if catalogue.target.runtime is not None:
        model.ir_version = min(model.ir_version, catalogue.target.runtime.ir_version)
    import_domains(model, [s.node for s in sites if s.node.domain != DOMAIN])
    functions.attach(model, {s.node.op_type for s in sites if s.node.domain == DOMAIN})
    unread = frozenset(name for view in views for name in view.unread)
    return Fused(model, sites, near, frozenset(simplified), unread, banned, gone)


def _search(view: View, catalogue: Catalogue, banned: set[tuple[str, str]], raising: bool) -> Found:
    """Fusions, then the target's lowerings.  Where an op is left that the target does not have, what made it is banned
    and the search made again.  Raises OpsetError if `raising` and a higher opset has it."""
    target, opset = catalogue.target, view.graph.opset
    mistaken: dict[int, tuple[Match, str]] = {}
    while True:
        found = search(view, catalogue, catalogue.phases, banned, raising=raising)
        missing = []
        for term, dtype in made(view, found):
            node = NodeKind(
                term.op, dict(term.attrs), opset, dtype, term.op in catalogue.definitions, _shapes(term.args)
            )
            if not target.can_say(node):
                missing.append(term)
                mistaken |= _mistaken(found.origins[term.id], target.mistake(node))
        wanted = max((target.wanted_opset(term.op, dict(term.attrs)) for term in missing), default=0)
        if target.standard:
            wanted = max(wanted, _standardized(view, found, target))
        if raising and wanted > opset:
            raise OpsetError(wanted)
        dear = costly(view, found)
        excess = bans(found, missing) | taken_apart(view, found)
        excess |= {(match.rule.name, value) for match in dear for value in match.values}
        excess -= banned
        if not excess:
            found.mistaken = mistaken
            return found
        banned = banned | excess


def _mistaken(matches: Sequence[Match], reason: str) -> dict[int, tuple[Match, str]]:
    """What is to say of the matches behind a term that an onnxruntime would compute wrong: of the first that fuses."""
    fusing = [match for match in matches if not match.rule.lowers]
    return {match.root.id: (match, reason) for match in fusing[:1] if reason}


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
