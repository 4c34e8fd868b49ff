"""What a journal says, as a record to keep and as a table short enough for the end of a log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from onnxfuse.kernels import KERNELS

from .plan import OK, Journal, Row

MOST_LINES = 100
MOST_FAILURES = 12
SIDES = ("onnxfuse", "eager", "compile", "max-autotune")
GENERATED = "generated elementwise"


def record(journal: Journal, about: Row) -> Row:
    """Everything: `about`, the machine's facts, every row, and what was left out."""
    facts = journal.all("facts")
    return {
        **about,
        "machine": facts[-1] if facts else {},
        "left_out": left_out(journal),
        "rows": journal.all("row"),
    }


def card(found: Row) -> Row | None:
    """What `onnxfuse report --estimate --card FILE` predicts times from; None where the bandwidth was not measured.

    What is not measured here, a card of the same generation stands for.
    """
    measured = [row["bytes_per_second"] for row in found["rows"] if row["section"] == "floor" and row["outcome"] == OK]
    if not measured:
        return None
    machine = found["machine"]
    generation = "a100" if machine["compute_capability"].startswith("8.") else "h200"
    return {
        "like": generation,
        "name": machine["card"],
        "multiprocessors": machine["multiprocessors"],
        "bandwidth": measured[-1],
    }


def left_out(journal: Journal) -> dict[str, int]:
    """Section → how many of its steps were not done."""
    ended = {end["step"] for end in journal.all("end")}
    planned = {key for plan in journal.all("plan") for key in plan}
    return dict(sorted(Counter(key.partition(":")[0] for key in planned - ended).items()))


def failures(rows: Iterable[Row]) -> list[Row]:
    """Rows that are neither right nor skipped."""
    return [row for row in rows if row["outcome"] != OK and not row["outcome"].startswith("skipped")]


def skipped(rows: Iterable[Row]) -> list[str]:
    """What could not be done here, each reason once."""
    sections: dict[str, dict[str, None]] = {}
    for row in rows:
        if row["outcome"].startswith("skipped"):
            sections.setdefault(row["outcome"].removeprefix("skipped: "), {})[row["section"]] = None
    return [f"{', '.join(found)}: {reason}" for reason, found in sections.items()]


def markdown(found: Row) -> list[str]:
    """The table, MOST_LINES lines at most."""
    rows: list[Row] = found["rows"]
    by_section: dict[str, list[Row]] = {}
    for row in rows:
        by_section.setdefault(row["section"], []).append(row)
    lines = [" · ".join(f"{key} {value}" for key, value in found["machine"].items())]
    lines += _compiled(by_section.get("compile", []))
    lines += _checked(by_section.get("check", []))
    lines += [
        f"{row['name']} under compute-sanitizer: {row['cases']} cases, {row['outcome']}"
        for row in by_section.get("sanitizer", [])
        if "cases" in row
    ]
    lines += [
        f"copy on the card: {row['bytes_per_second'] / 1e9:,.0f} GB/s, read and written"
        for row in by_section.get("floor", [])
        if "bytes_per_second" in row
    ]
    lines += _stack([row for row in by_section.get("split_stack", []) if "sides" in row])
    lines += _sessions(by_section.get("session", []))
    bad = failures(rows)
    tail = [f"FAILED {row['section']}: {row['name']}: {row['outcome']}" for row in bad[:MOST_FAILURES]]
    tail += [f"and {len(bad) - MOST_FAILURES} failures more"] if len(bad) > MOST_FAILURES else []
    tail += [f"skipped {line}" for line in skipped(rows)][:MOST_FAILURES]
    tail += [f"left out for lack of time: {count} of {section}" for section, count in found["left_out"].items()]
    tail += [f"{len(bad)} failed; {found['seconds']:.0f} s"]
    times = _times([*by_section.get("time", []), *by_section.get("torch", []), *by_section.get("tuned", [])])
    return [*lines, *times[: MOST_LINES - len(lines) - len(tail)], *tail]


def _compiled(rows: Sequence[Row]) -> list[str]:
    return [
        f"{row['sources']} sources compiled in {row['compile_seconds']:.0f} s, {row['failed']} failed"
        for row in rows
        if "sources" in row
    ]


def _checked(rows: Sequence[Row]) -> list[str]:
    """One line for each kernel that is a file, one for all that are generated."""
    if not rows:
        return []
    groups: dict[str, list[Row]] = {}
    for row in rows:
        op = row.get("op") or row["name"].split()[0]
        groups.setdefault(op if op in (*KERNELS, "RotaryEmbedding") else GENERATED, []).append(row)
    dtypes = ("float32", "float16", "bfloat16")
    lines = [
        "",
        f"| checked | cases | wrong | {' | '.join(f'{d}, worst' for d in dtypes)} |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for op, members in groups.items():
        errors = [
            max((m["error"] for m in members if m.get("dtype") == d and m["outcome"] == OK), default=None)
            for d in dtypes
        ]
        cells = " | ".join("" if e is None else f"{e:.1e}" for e in errors)
        lines.append(f"| {op} | {len(members)} | {len(failures(members))} | {cells} |")
    return lines


def _times(rows: Sequence[Row]) -> list[str]:
    """A line for each node: the last row that has it counts, for it has more sides."""
    last = {row["name"]: row for row in rows if "sides" in row}
    if not last:
        return []
    lines = [
        "",
        "| node, µs | of copy | onnxfuse | eager | compile | max-autotune | best / ours |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, row in last.items():
        sides = row["sides"]
        share = f"{row['of_copy']:.0%}" if row.get("of_copy") else "in cache" if row["cached"] else ""
        others = [sides[side]["us"] for side in SIDES[1:] if side in sides]
        ours = sides["onnxfuse"]["us"]
        best = f"{min(others) / ours:.2f}" if others and ours else ""
        cells = " | ".join(_us(sides.get(side)) for side in SIDES)
        lines.append(f"| {name} | {share} | {cells} | {best} |")
    return lines


def _us(side: Any) -> str:
    return "" if side is None else f"{side['us']:,.1f}"


def _stack(rows: Sequence[Row]) -> list[str]:
    lines = []
    for row in rows[-1:]:
        lines = ["", f"| split_stack, {row['name']} | µs | launches | error |", "|---|--:|--:|--:|"]
        for side, summary in row["sides"].items():
            lines.append(f"| {side} | {_us(summary)} | {row['launches'].get(side, '')} | {row['error'][side]:.1e} |")
        lines += [f"| {side} | {reason} | | |" for side, reason in row["failed"].items()]
    return lines


def _sessions(rows: Sequence[Row]) -> list[str]:
    measured = [row for row in rows if "sides" in row]
    lines = [
        f"bridge, a node: {', '.join(f'{node} {us:.1f} µs' for node, us in row['microseconds'].items())}"
        for row in rows
        if "microseconds" in row
    ]
    if measured:
        names = ("original", "original, graph", "onnxfuse", "onnxfuse, graph")
        lines += ["", f"| in onnxruntime, µs | {' | '.join(names)} |", "|---|--:|--:|--:|--:|"]
        lines += [f"| {row['name']} | {' | '.join(_us(row['sides'].get(n)) for n in names)} |" for row in measured]
    return lines
