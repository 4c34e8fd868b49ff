"""What a journal says, as a record to keep and as a table short enough for the end of a log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from onnxfuse.kernels import KERNELS
from onnxfuse.kernels.attention.proof import WARPS
from onnxfuse.kernels.gemm.autotune import FORMS

from .contest import OURS
from .floors import Floors
from .goals import UNMEASURED, judged
from .plan import OK, Journal, Row
from .sdpa import BACKENDS, EAGER, FLEX

MOST_LINES = 100
MOST_FAILURES = 12
HEAD = 3
"""Lines of a table before the first of its rows."""
GENERATED = "generated elementwise"


def record(journal: Journal, about: Row) -> Row:
    """Everything: `about`, the machine's facts, every row, and what was left out."""
    facts, rows = journal.all("facts"), journal.all("row")
    return {
        **about,
        "machine": facts[-1] if facts else {},
        "left_out": left_out(journal),
        "goals": judged(rows),
        "rows": rows,
    }


def card(found: Row) -> Row | None:
    """What `onnxfuse report --estimate --card FILE` predicts times from; None where the bandwidth was not measured.

    What is not measured here, a card of the same generation stands for.
    """
    floors, machine = Floors.of(found["rows"]), found["machine"]
    if floors.copy is None:
        return None
    generation = "a100" if machine["compute_capability"].startswith("8.") else "h200"
    rates = {
        "float32": floors.products.get("float32"),
        "tensor": floors.products.get("float16"),
        "launch": floors.launch,
    }
    return {
        "like": generation,
        "name": machine["card"],
        "multiprocessors": machine["multiprocessors"],
        "bandwidth": floors.copy,
        **{key: rate for key, rate in rates.items() if rate},
    }


def left_out(journal: Journal) -> dict[str, int]:
    """Section → how many of its steps were not done."""
    ended = {end["step"] for end in journal.all("end")}
    planned = {key for plan in journal.all("plan") for key in plan}
    return dict(sorted(Counter(key.partition(":")[0] for key in planned - ended).items()))


def failures(rows: Iterable[Row]) -> list[Row]:
    """Rows that are neither right nor skipped; the same failure of the same step once."""
    bad = [row for row in rows if row["outcome"] != OK and not row["outcome"].startswith("skipped")]
    return list({(row["section"], row["name"], row["outcome"]): row for row in bad}.values())


def skipped(rows: Iterable[Row]) -> list[str]:
    """What could not be done here, each reason once."""
    sections: dict[str, dict[str, None]] = {}
    for row in rows:
        if row["outcome"].startswith("skipped"):
            sections.setdefault(row["outcome"].removeprefix("skipped: "), {})[row["section"]] = None
    return [f"{', '.join(found)}: {reason}" for reason, found in sections.items()]


def markdown(found: Row, most: int | None = MOST_LINES) -> list[str]:
    """The tables, in `most` lines; whole if that is None."""
    rows: list[Row] = found["rows"]
    by_section: dict[str, list[Row]] = {}
    for row in rows:
        by_section.setdefault(row["section"], []).append(row)

    def of(*sections: str) -> list[Row]:
        return [row for section in sections for row in by_section.get(section, [])]

    lines = [" · ".join(f"{key} {value}" for key, value in found["machine"].items())]
    lines += _compiled(rows)
    lines += _checked(of("check"))
    lines += [
        f"{row['name']} under compute-sanitizer: {row['cases']} cases, {row['outcome']}"
        for row in of("sanitizer")
        if "cases" in row
    ]
    lines += _floor(of("floor"))
    lines += _goals(found["goals"])
    tables = [
        _stack([row for row in of("split_stack") if "sides" in row]),
        _sessions(of("session")),
        _models(of("models")),
        _sides("attention", of("attention"), (OURS, WARPS, *BACKENDS, EAGER, FLEX)),
        _sides("product", of("products"), (OURS, *FORMS, "eager", "compile")),
        _sides("node", of("time", "torch", "tuned"), (OURS, "eager", "compile", "max-autotune")),
    ]
    bad = failures(rows)
    shown = len(bad) if most is None else MOST_FAILURES
    tail = [f"FAILED {row['section']}: {row['name']}: {row['outcome']}" for row in bad[:shown]]
    tail += [f"and {len(bad) - shown} failures more"] if len(bad) > shown else []
    tail += [f"skipped {line}" for line in skipped(rows)][: None if most is None else MOST_FAILURES]
    tail += [f"left out for lack of time: {count} of {section}" for section, count in found["left_out"].items()]
    tail += [f"{len(bad)} failed; {found['seconds']:.0f} s"]
    if most is None:
        refused = _refused(of("attention", "products", "models"))
        return [*lines, *(line for table in tables for line in table), *refused, *tail]
    return [*lines, *fitted(tables, most - len(lines) - len(tail)), *tail]


def fitted(tables: Sequence[Sequence[str]], room: int) -> list[str]:
    """All lines of the tables, if there is room; the longest are cut first."""
    kept, left = [len(table) for table in tables], room
    for done, place in enumerate(sorted(range(len(tables)), key=kept.__getitem__)):
        kept[place] = min(kept[place], max(0, left) // (len(tables) - done))
        left -= kept[place]
    # A head without a line says nothing.
    return [line for table, count in zip(tables, kept, strict=True) if count > HEAD for line in table[:count]]


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


def _floor(rows: Sequence[Row]) -> list[str]:
    lines = [
        f"copy on the card: {row['bytes_per_second'] / 1e9:,.0f} GB/s, read and written"
        for row in rows
        if "bytes_per_second" in row
    ]
    lines += [f"a launch in a graph: {row['launch_seconds'] * 1e6:.2f} µs" for row in rows if "launch_seconds" in row]
    products = [f"{row['dtype']} {row['flops_per_second'] / 1e12:,.0f}" for row in rows if "flops_per_second" in row]
    return [*lines, *([f"the vendor's products, TFLOP/s: {', '.join(products)}"] if products else [])]


def _goals(rows: Sequence[Row]) -> list[str]:
    """Nothing, where nothing was measured."""
    if all(row["outcome"] == UNMEASURED for row in rows):
        return []
    lines = ["", "| goal | at least | least measured | median | nodes | |", "|---|--:|--:|--:|--:|---|"]
    for row in rows:
        cells = "| |" if "measured" not in row else f"{row['measured']:.2f} | {row['median']:.2f} |"
        where = f", by {row['worst']}" if "worst" in row else ""
        lines.append(f"| {row['goal']} | {row['least']:.2f} | {cells} {row['nodes']} | {row['outcome']}{where} |")
    return lines


def _sides(title: str, rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """A line for each node: the last row that has it counts, for it has more sides."""
    last = {row["name"]: row for row in rows if "sides" in row}
    if not last:
        return []
    lines = [
        "",
        f"| {title}, µs | {'of floor' if any('of_floor' in row for row in last.values()) else 'of copy'} | "
        f"{' | '.join(names)} | best / ours |",
        f"|---|{'--:|' * (len(names) + 2)}",
    ]
    for name, row in last.items():
        sides, failed = row["sides"], row.get("failed", {})
        share, fits = row.get("of_floor", row.get("of_copy")), row["cached"] and row.get("bound") != "flops"
        part = "in cache" if fits else f"{share:.0%}" if share else ""
        others = [summary["us"] for side, summary in sides.items() if side not in (OURS, WARPS, *FORMS)]
        ours = sides[OURS]["us"]
        best = f"{min(others) / ours:.2f}" if others and ours else ""
        cells = " | ".join("no" if side in failed else _us(sides.get(side)) for side in names)
        lines.append(f"| {name} | {part} | {cells} | {best} |")
    return lines


def _refused(rows: Sequence[Row]) -> list[str]:
    """Why sides are not there, each reason once."""
    last = {(row["section"], row["name"]): row for row in rows if "sides" in row}
    reasons = Counter(
        (section, side, said) for (section, _), row in last.items() for side, said in row.get("failed", {}).items()
    )
    lines = [f"{section}: no {side} for {count}: {said}" for (section, side, said), count in reasons.items()]
    return ["", *lines] if lines else []


def _models(rows: Sequence[Row]) -> list[str]:
    measured = {row["name"]: row for row in rows if row.get("sides")}.values()
    if not measured:
        return []
    names = list(dict.fromkeys(name for row in measured for name in row["sides"]))
    lines = ["", f"| model, µs | {' | '.join(names)} |", f"|---|{'--:|' * len(names)}"]
    for row in measured:
        cells = " | ".join(_us(row["sides"].get(name)) for name in names)
        lines.append(f"| {row['name']} | {cells} |")
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
