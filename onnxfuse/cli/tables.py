"""How outputs and measurements look in a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from onnxfuse.performance.benchmark import FUSED, ORIGINAL, Bench, OpTime
from onnxfuse.proof.numerics import is_float

from .quantities import human_seconds

_BAR = 40
_MOST_OPS = 12


def print_outputs(out: Console, outputs: Mapping[str, Any]) -> None:
    """Name, type, shape and range of each output."""
    table = _table("output", "type", "shape")
    for heading in ("min", "mean", "max"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, value in outputs.items():
        if isinstance(value, list):
            table.add_row(name, f"sequence of {len(value)}", "")
        for own, array in _arrays(name, value):
            shape = ", ".join(map(str, array.shape))
            table.add_row(own, str(array.dtype), f"[{shape}]", *_range(array))
    out.print(Padding.indent(table, 2))


def _arrays(name: str, value: Any) -> list[tuple[str, np.ndarray]]:
    """The arrays of an output, which may be a sequence of them, or nothing."""
    if isinstance(value, list):
        return [pair for index, item in enumerate(value) for pair in _arrays(f"{name}.{index}", item)]
    return [(name, value)] if isinstance(value, np.ndarray) else []


def _range(array: np.ndarray) -> tuple[str, ...]:
    numeric = array.dtype.kind in "biuf" or is_float(array.dtype)
    if not array.size or not numeric or array.dtype.kind == "c":
        return "", "", ""
    wide = array.astype(np.float64)
    return tuple(f"{value:.6g}" for value in (wide.min(), wide.mean(), wide.max()))


def print_bench(out: Console, result: Bench) -> None:
    """Times, their ratio, and what the ops take."""
    threads = f", {result.threads} {'thread' if result.threads == 1 else 'threads'}" if result.provider == "cpu" else ""
    out.print(Text.assemble((result.original, "bold"), f" against {result.fused}"))
    out.print(Text(f"  {result.provider}{threads}, {result.inputs}, {result.rounds} rounds in turns", style="dim"))
    out.print()
    table = _table("", "", "")
    longest = max(result.seconds.values())
    for side, seconds in result.seconds.items():
        table.add_row(side, human_seconds(seconds), Text(_bar(seconds, longest), style=_STYLES[side]))
    out.print(Padding.indent(table, 2))
    ratio = result.ratio
    better = f"{ratio.median:.2f} times as fast"
    style = "bold green" if ratio.low > 1 else "bold red" if ratio.high < 1 else "bold yellow"
    out.print(Text.assemble("  ", (better, style), f"  (95 % of medians: {ratio.low:.2f} to {ratio.high:.2f})"))
    if result.kernels:
        out.print(f"  kernels: {', '.join(result.kernels)}")
    if any(result.profile.values()):
        _print_profile(out, result.profile)
    out.print()


_STYLES = {ORIGINAL: "blue", FUSED: "green"}


def _print_profile(out: Console, profile: Mapping[str, Sequence[OpTime]]) -> None:
    longest = max(entry.seconds for entries in profile.values() for entry in entries)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for heading, justify in (("op", "left"), ("nodes", "right"), ("in one run", "right"), ("", "left")):
        table.add_column(heading, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for side, entries in profile.items():
        table.add_row(Text(side, style="dim"))
        for entry in entries[:_MOST_OPS]:
            bar = Text(_bar(entry.seconds, longest), style=_STYLES[side])
            table.add_row(f"  {entry.op}", str(entry.nodes), human_seconds(entry.seconds), bar)
        if rest := entries[_MOST_OPS:]:
            nodes, seconds = sum(entry.nodes for entry in rest), sum(entry.seconds for entry in rest)
            table.add_row(Text(f"  {len(rest)} more", style="dim"), str(nodes), human_seconds(seconds))
    out.print()
    out.print(Padding.indent(table, 2))


def _table(*headings: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False, show_header=any(headings))
    for heading in headings:
        table.add_column(heading, overflow="fold")
    return table


def _bar(value: float, longest: float) -> str:
    """A bar as long as `value` is of `longest`, to an eighth of a character."""
    eighths = round(_BAR * 8 * value / longest) if longest else 0
    return "█" * (eighths // 8) + (chr(0x2590 - eighths % 8) if eighths % 8 else "")
