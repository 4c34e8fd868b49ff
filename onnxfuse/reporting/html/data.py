"""What the page shows, as JSON-ready data: nodes in columns, since there may be many."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from onnxfuse.reporting import phrases
from onnxfuse.reporting.layers import alike, collapsed, short
from onnxfuse.reporting.near_miss_groups import gain, grouped
from onnxfuse.reporting.records import NearMiss, Node, Nodes, Report

from .modules import tree

DIGITS = 4
"""Of times: more would not be seen."""
MARKS = {"bytes": "m", "flops": "c", "launches": "l", None: "-"}
"""What bounds a node, in one character."""


@dataclass
class Table:
    """Values that stand once, however often they are used."""

    values: list[Any] = field(default_factory=list)
    places: dict[Any, int] = field(default_factory=dict)

    def of(self, value: Any) -> int:
        """Where a value stands."""
        if value not in self.places:
            self.places[value] = len(self.values)
            self.values.append(value)
        return self.places[value]


def page_data(report: Report, nodes: Nodes, rules: Mapping[str, str]) -> dict[str, Any]:
    """Everything on the page of a report; `rules` are the texts of rules, by file."""
    words, estimates = Table(), Table()
    launch = max(
        (n.seconds - max(n.memory_seconds, n.compute_seconds) for n in (*nodes.before, *nodes.after)), default=0
    )
    before = _columns(nodes.before, words) | {"becomes": [-1 if n.becomes is None else n.becomes for n in nodes.before]}
    same = _same(nodes)
    after = _columns([n for n, i in zip(nodes.after, same, strict=True) if i < 0], words) | {
        "same": same,
        "fusion": [-1 if n.fusion is None else n.fusion for n in nodes.after],
        "reason": [words.of(n.reason) for n in nodes.after],
    }
    fusions = [
        [
            words.of(fusion.rule),
            [words.of(name) for name in fusion.absorbed],
            fusion.launches_saved,
            fusion.bytes_saved,
            words.of(fusion.code),
            [words.of(path) for path in fusion.sources],
            -1 if fusion.estimate is None else estimates.of(fusion.estimate),
        ]
        for fusion in report.fusions
    ]
    shown: dict[str, Any] = _shown(
        {
            "head": _head(report, nodes),
            "launch": _nanoseconds(launch),
            "before": before | {"reads": _reads(nodes.before)},
            "after": after | {"reads": _reads(nodes.after)},
            "fusions": fusions,
            "tree": tree(nodes).to_json(),
            "hot": _hot(nodes, report),
            "misses": _misses(report.near_misses, nodes),
            "remaining": [asdict(each) for each in report.remaining],
            "leftOut": [
                {"rule": left.fusion.rule, "where": left.fusion.scope or left.fusion.node, "reason": left.reason}
                for left in report.left_out
            ],
            "rules": dict(rules),
            "estimates": [asdict(each) for each in estimates.values],
            "words": words.values,
        }
    )
    return shown


def _head(report: Report, nodes: Nodes) -> dict[str, Any]:
    """The answer: what it was, what it is, whether that is proved, and where it runs."""
    validation = report.validation
    lines = [phrases.runs(report.runs)] if report.runs is not None else []
    if report.placement is not None:
        before, after = (sum(found.values()) for found in (report.placement.before, report.placement.after))
        lines.append(
            f"nodes that fall back to the CPU: {before} → {after} (kernels of onnxruntime "
            f"{report.placement.onnxruntime})" + "".join(f"; {n} × {op}" for op, n in report.placement.after.items())
        )
    notes = [validation.note] if validation.verdict == "equal" and validation.note else []
    if told := phrases.against_float64(validation):
        notes.append(told)
    asked = validation.verdict != "not validated" or validation.note
    unproved = "not proved yet: report runs nothing; onnxfuse optimize proves the numbers before it writes a file"
    return {
        "model": report.model,
        "output": report.output,
        "target": f"--target {report.target}" + (" --provider cuda" if report.provider == "cuda" else ""),
        "verdict": validation.verdict,
        "proof": phrases.verdict(validation) if asked else unproved,
        "proofNotes": notes,
        "nodes": [report.nodes_before, report.nodes_after],
        "launches": [report.before.launches, report.after.launches],
        "bytes": [report.before.bytes, report.after.bytes],
        "unsized": [report.before.unsized, report.after.unsized],
        "sizes": phrases.sizes(report),
        "shapes": [f"{name}:{','.join(map(str, dims))}" for name, dims in report.shapes.items()],
        "card": nodes.card,
        "runs": [*lines, phrases.advice(report)],
        "kernels": report.kernels,
        "bodies": report.bodies,
    }


def _columns(nodes: Sequence[Node], words: Table) -> dict[str, Any]:
    """The fields of nodes, one after another.

    `scope` is below zero (`-1 - scope` then) where the name begins with it, and is left out of `name`; `work` is the
    longer of moving and computing, in nanoseconds, and `kind` says which of the two."""
    inside = [bool(n.scope) and n.name.startswith(f"{n.scope}/") for n in nodes]
    return {
        "name": [n.name[len(n.scope) + 1 :] if own else n.name for n, own in zip(nodes, inside, strict=True)],
        "scope": [-1 - words.of(n.scope) if own else words.of(n.scope) for n, own in zip(nodes, inside, strict=True)],
        "op": [words.of(n.op) for n in nodes],
        "launched": "".join(str(n.launches) for n in nodes),
        "bound": "".join(MARKS[n.bound] for n in nodes),
        "kind": "".join("c" if n.compute_seconds > n.memory_seconds else "m" for n in nodes),
        "work": [_nanoseconds(max(n.memory_seconds, n.compute_seconds)) for n in nodes],
        "bytes": [n.bytes for n in nodes],
        "flops": [n.flops for n in nodes],
    }


def _same(nodes: Nodes) -> list[int]:
    """Of each node of the output that of the original which it is still, to the last figure; -1 if there is none."""
    found = [-1] * len(nodes.after)
    for index, node in enumerate(nodes.before):
        if node.becomes is not None and _figures(node) == _figures(nodes.after[node.becomes]):
            found[node.becomes] = index
    return found


def _figures(node: Node) -> tuple[object, ...]:
    return node.name, node.op, node.scope, node.launches, node.seconds, node.bytes, node.flops, node.bound


def _nanoseconds(seconds: float) -> float:
    found = float(f"{seconds * 1e9:.{DIGITS}g}")
    return int(found) if found.is_integer() else found


def _reads(nodes: Sequence[Node]) -> list[list[int]]:
    """How far back what each node reads stands."""
    return [[index - read for read in node.reads] for index, node in enumerate(nodes)]


def _hot(nodes: Nodes, report: Report) -> list[dict[str, Any]]:
    """The launches of the output, those of layers that are alike together, what takes longest first."""
    launched = [index for index, node in enumerate(nodes.after) if node.launches]
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for index in launched:
        node = nodes.after[index]
        groups[node.op, "" if node.fusion is None else report.fusions[node.fusion].rule].append(index)
    found = [
        {"op": op, "rule": rule, "where": text, "nodes": [members[place] for place in places]}
        for (op, rule), members in groups.items()
        for text, places in alike([nodes.after[index].scope for index in members])
    ]
    return sorted(found, key=lambda each: -sum(nodes.after[index].seconds for index in each["nodes"]))


def _misses(misses: Iterable[NearMiss], nodes: Nodes) -> list[dict[str, Any]]:
    """Near misses in groups, each with the nodes of the original that it is about."""
    number = {node.name: index for index, node in enumerate(nodes.before)}
    return [
        {
            "rule": group[0].rule,
            "source": group[0].source,
            "reason": group[0].reason,
            "gain": gain(group),
            "count": len(group),
            "where": [place for place, _ in collapsed(miss.node for miss in group)],
            "code": short(group[0].code),
            "nodes": [number[miss.node] for miss in group if miss.node in number],
        }
        for group in grouped(misses)
    ]


def _shown(value: Any) -> Any:
    """With what no page shows, such as a character that turns the direction of text, written out; lines stay lines."""
    match value:
        case str():
            return value if value.isprintable() else "\n".join(map(phrases.one_line, value.split("\n")))
        case dict():
            return {_shown(key): _shown(item) for key, item in value.items()}
        case list() | tuple():
            return [_shown(item) for item in value]
        case float():
            return value if abs(value) < float("inf") else None
        case _:
            return value
