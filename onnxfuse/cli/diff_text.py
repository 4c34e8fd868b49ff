"""How a difference looks: in a terminal, and in the comment of a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from onnxfuse.reporting.difference import Change, Difference, Figure, Missed
from onnxfuse.reporting.layers import short

from .quantities import human_bytes

_STYLES = {"same": "bold", "better": "bold green", "worse": "bold red"}
_MARKS = {"same": "➖", "better": "✅", "worse": "❌"}
_TOP = "the top of the graph"
_ONCE_FUSED = ", once both are fused"
"""What a verdict is about: a model and what onnxfuse made of it are the same."""


def print_difference(out: Console, found: Difference) -> None:
    """Figures of both models side by side, then what was gained and lost, and what nearly fuses now or did."""
    verdict = Text.assemble(
        (found.verdict, _STYLES[found.verdict]), f": {', '.join(found.worse)}" if found.worse else _ONCE_FUSED
    )
    out.print(Text.assemble((found.before, "bold"), " → ", (found.after, "bold"), ": ", verdict))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for heading in ("", "before", "after", "change"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    for figure in found.figures:
        table.add_row(*_row(figure))
    out.print(Padding.indent(table, 2))
    if found.sizes:
        out.print(Text(f"  at {found.sizes}", style="dim"))
    for title, style, lines in (
        ("lost", "bold red", map(_change, found.lost)),
        ("gained", "bold green", map(_change, found.gained)),
        ("nearly fused, new", "bold yellow", map(_missed, found.missed)),
        ("nearly fused, no more", "dim", map(_missed, found.gone)),
    ):
        for number, line in enumerate(lines):
            if not number:
                out.print(Text(f"  {title}", style=style))
            out.print(Padding.indent(Text(line), 4))


def markdown(found: Difference) -> str:
    """The same as GitHub's Markdown; long lists are folded."""
    return "\n".join(_markdown(found)) + "\n"


def _markdown(found: Difference) -> Iterator[str]:
    said = f": {', '.join(found.worse)}" if found.worse else ""
    yield f"### {_MARKS[found.verdict]} onnxfuse: {found.verdict}{said}"
    yield ""
    yield f"{_code(found.before)} → {_code(found.after)}" + (f", at {_code(found.sizes)}" if found.sizes else "")
    yield ""
    yield "| | before | after | change |"
    yield "|---|---:|---:|---:|"
    for figure in found.figures:
        yield f"| {' | '.join(_row(figure))} |"
    yield from _section("Lost", found.lost, unfolded=True)
    yield from _section("Gained", found.gained, unfolded=False)
    yield from _section("Nearly fused, new", found.missed, unfolded=False)
    yield from _section("Nearly fused, no more", found.gone, unfolded=False)


def _section(title: str, entries: Sequence[Change] | Sequence[Missed], *, unfolded: bool) -> Iterator[str]:
    if not entries:
        return
    total = sum(entry.count for entry in entries)
    yield ""
    yield f"<details{' open' if unfolded else ''}><summary>{title} ({total})</summary>"
    yield ""
    for entry in entries:
        code = f", {_code(short(entry.code))}" if entry.code else ""
        if isinstance(entry, Change):
            instead = f" (instead: {', '.join(entry.instead)})" if entry.instead else ""
            yield f"- {entry.count} × **{entry.op}** at {_code(entry.scope) if entry.scope else _TOP}{code}{instead}"
        else:
            yield f"- {entry.count} × **{entry.rule}** at {_code(entry.place)}{code}: {_plain(entry.reason)}"
    yield ""
    yield "</details>"


def _row(figure: Figure) -> tuple[str, str, str, str]:
    shown = human_bytes if figure.name.startswith("bytes") else "{:,}".format
    change = f"{figure.after / figure.before - 1:+.0%}" if figure.before else ""
    return figure.name, shown(figure.before), shown(figure.after), change if figure.after != figure.before else "="


def _change(change: Change) -> str:
    instead = f" (instead: {', '.join(change.instead)})" if change.instead else ""
    code = f", {short(change.code)}" if change.code else ""
    return f"{change.count} × {change.op} at {change.scope or _TOP}{code}{instead}"


def _missed(miss: Missed) -> str:
    code = f", {short(miss.code)}" if miss.code else ""
    source = f" ({miss.source})" if miss.source else ""
    return f"{miss.count} × {miss.rule} at {miss.place}{code}: {' '.join(miss.reason.split())}{source}"


def _code(text: str) -> str:
    """`text` between as many backticks as it takes, in one line."""
    text = " ".join(text.split())
    ticks = "`"
    while ticks in text:
        ticks += "`"
    space = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{space}{text}{space}{ticks}"


def _plain(text: str) -> str:
    """`text` without what Markdown or HTML would make something of."""
    for character in "\\`*_[]<>#|":
        text = text.replace(character, f"\\{character}")
    return " ".join(text.split())
