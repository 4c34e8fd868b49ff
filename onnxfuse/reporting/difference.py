"""What is different about the fusions of two models: two exports of one program, or a model before and after.

A fusion is known by the op that it makes and the module that it is in; what is inside it does not count, since one
exporter writes out what another has an op for.  An op that one model has as a node already,
since its exporter or onnxfuse wrote it, counts there like one that would be fused.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from onnx import ModelProto, NodeProto

from onnxfuse.model.graph import RULE_KEY, family_of, roots
from onnxfuse.rewriting.module_paths import ModulePaths

from .baseline import Kept, Sites
from .layers import collapsed
from .records import REGION, NearMiss, Report
from .requirements import near

SCHEMA_VERSION = 1
MORE = 0.01
"""Of the traffic: what is moved more must be more than this to be worse."""
Verdict = Literal["same", "better", "worse"]


@dataclass(frozen=True)
class Side:
    """One of the two models."""

    report: Report
    model: ModelProto


@dataclass(frozen=True)
class Change:
    """Fusions of one kind that one model has and the other does not, in modules that differ in numbers alone."""

    op: str
    scope: str
    """Module path, layers together; empty for the top of the graph."""
    count: int
    """How many."""
    instead: tuple[str, ...] = ()
    """Ops that the other model has there, or around it, which this one has not."""
    code: str = ""
    """Line of the program."""


@dataclass(frozen=True)
class Missed:
    """Near misses of one kind that only one model has."""

    rule: str
    place: str
    """Nodes, layers together."""
    count: int
    reason: str
    source: str
    """Line of the .rule file; empty for a Region."""
    code: str = ""


@dataclass(frozen=True)
class Figure:
    """A count of both models."""

    name: str
    before: int
    after: int


@dataclass(frozen=True)
class Difference:
    """All of it; `to_json` is the stable form."""

    before: str
    """The files, as the user named them."""
    after: str
    sizes: str
    """What traffic is for, the same for both: ``input_ids:1,128``; empty where the models take other inputs."""
    figures: tuple[Figure, ...]
    gained: tuple[Change, ...] = ()
    lost: tuple[Change, ...] = ()
    missed: tuple[Missed, ...] = ()
    """Near misses that are new."""
    gone: tuple[Missed, ...] = ()
    """Near misses that are no more."""
    worse: tuple[str, ...] = field(default=())
    """Why the second model is worse; empty if it is not."""

    @property
    def verdict(self) -> Verdict:
        """Worse for any reason; better if it launches less, or gained something."""
        if self.worse:
            return "worse"
        launches = next((f for f in self.figures if f.name == FUSED_LAUNCHES), None)
        fewer_launches = launches is not None and launches.after < launches.before
        return "better" if fewer_launches or _alone(self.gained) else "same"

    def to_json(self) -> dict[str, Any]:
        return {"schema": SCHEMA_VERSION, "verdict": self.verdict} | asdict(self)


FUSED_LAUNCHES, FUSED_BYTES = "launches, fused", "bytes moved, fused"


def difference(before: Side, after: Side, sizes: str) -> Difference:
    """What is different; `sizes` are those that both reports are for, empty if they are not the same."""
    sides = before, after
    wanted = {_bare(fusion.op) for side in sides for fusion in side.report.fusions} | {
        family_of(node) for side in sides for _, node in _nodes(side.model) if _is_fused(node)
    }
    then, now = (_ops(side, wanted, other.report) for side, other in (sides, sides[::-1]))
    lost, gained = _changes(then, now, before.report), _changes(now, then, after.report)
    figures = _figures(before.report, after.report, same_sizes=bool(sizes))
    return Difference(
        before.report.model,
        after.report.model,
        sizes,
        figures,
        gained,
        lost,
        _new(after.report.near_misses, before.report.near_misses),
        _new(before.report.near_misses, after.report.near_misses),
        tuple(_reasons(lost, figures)),
    )


def _bare(op: str) -> str:
    """An op without its domain, which says only who has a kernel for it."""
    return op.rpartition(".")[2]


def _is_fused(node: NodeProto) -> bool:
    return any(entry.key == RULE_KEY for entry in node.metadata_props)


def _nodes(model: ModelProto) -> Iterable[tuple[str, NodeProto]]:
    """Each node, with the module that it is in."""
    for root in roots(model):
        for graph in root.scopes():
            modules = ModulePaths(graph.nodes)
            yield from ((f"{graph.path}{modules.of([node])}", node) for node in graph.nodes)


def _ops(side: Side, wanted: Collection[str], other: Report) -> Sites:
    """What is fused in a model, and the wanted ops that it has as nodes, if they are not fused further.

    What onnxfuse wrote for the other model is in the module that was found there."""
    fused = Counter(Kept(fusion.scope, _bare(fusion.op)) for fusion in side.report.fusions)
    taken = {name for fusion in side.report.fusions for name in fusion.replaced}
    known = {(fusion.node, _bare(fusion.op)): fusion.scope for fusion in other.fusions}
    return fused + Counter(
        Kept(known.get((node.name, family_of(node)), module), family_of(node))
        for module, node in _nodes(side.model)
        if family_of(node) in wanted and (node.name or node.output[0]) not in taken
    )


def _changes(here: Sites, there: Sites, report: Report) -> tuple[Change, ...]:
    """What is here and not there, modules that differ in numbers alone together."""
    more = list(there - here)
    code = {(fusion.scope, _bare(fusion.op)): fusion.code for fusion in reversed(report.fusions)}
    groups: dict[tuple[str, tuple[str, ...], str, int], list[str]] = defaultdict(list)
    for kept, count in (here - there).items():
        instead = tuple(sorted({other.rule for other in more if near(kept.scope, other.scope)}))
        groups[kept.rule, instead, code.get(kept[:2], ""), count].append(kept.scope)
    found = [
        Change(op, place, count * each, instead, line)
        for (op, instead, line, each), scopes in groups.items()
        for place, count in collapsed(scopes)
    ]
    return tuple(sorted(found, key=lambda change: (-change.count, change.op, change.scope)))


def _new(here: Sequence[NearMiss], there: Sequence[NearMiss]) -> tuple[Missed, ...]:
    """The near misses of one model that the other does not have, by rule, line and module."""
    known = Counter((miss.rule, miss.source, miss.scope) for miss in there)
    groups: dict[tuple[str, str, str], list[NearMiss]] = defaultdict(list)
    for miss in here:
        key = miss.rule, miss.source, miss.scope
        known[key] -= 1
        if known[key] < 0:
            groups[miss.rule, miss.source, miss.code].append(miss)
    found = [
        Missed(rule, place, count, group[0].reason, source, code)
        for (rule, source, code), group in groups.items()
        for place, count in collapsed(miss.node for miss in group)
    ]
    return tuple(sorted(found, key=lambda miss: (-miss.count, miss.rule, miss.place)))


def _figures(before: Report, after: Report, *, same_sizes: bool) -> tuple[Figure, ...]:
    rows = [
        Figure("nodes", before.nodes_before, after.nodes_before),
        Figure("nodes, fused", before.nodes_after, after.nodes_after),
        Figure("launches", before.before.launches, after.before.launches),
        Figure(FUSED_LAUNCHES, before.after.launches, after.after.launches),
    ]
    known = not any(totals.unsized for side in (before, after) for totals in (side.before, side.after))
    if same_sizes and known:
        rows.append(Figure("bytes moved", before.before.bytes, after.before.bytes))
        rows.append(Figure(FUSED_BYTES, before.after.bytes, after.after.bytes))
    return tuple(rows)


def _alone(changes: Iterable[Change]) -> int:
    """How many fusions have nothing in their place.  Of regions launches and bytes say what they are worth: one that
    takes another in is one region less."""
    return sum(change.count for change in changes if not change.instead and change.op != REGION)


def _reasons(lost: Sequence[Change], figures: Sequence[Figure]) -> Iterable[str]:
    """Why the second model is worse: it lost a fusion that nothing stands in for, launches more, or moves more."""
    without = _alone(lost)
    if without:
        yield f"{without} {'fusion' if without == 1 else 'fusions'} lost"
    by_name: Mapping[str, Figure] = {figure.name: figure for figure in figures}
    launches, moved = by_name[FUSED_LAUNCHES], by_name.get(FUSED_BYTES)
    if launches.after > launches.before:
        extra = launches.after - launches.before
        yield f"{extra} more {'launch' if extra == 1 else 'launches'}"
    if moved is not None and moved.after > moved.before * (1 + MORE):
        yield f"{moved.after / moved.before - 1:.0%} more traffic" if moved.before else "more traffic"
