"""How a report says what lives between forward and backward of a training step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from .quantities import human_bytes

if TYPE_CHECKING:
    from rich.console import Console

    from onnxfuse.reporting.held import Held


def print_held(out: Console, held: Held | None, *, verbose: bool) -> None:
    """The bytes before and after, and how many values backward reads, computes again, or has otherwise; `verbose`,
    each of them."""
    if held is None:
        return
    fates = ", ".join(f"{count} {fate}" for fate, count in held.fates.items())
    change = f" ({held.after / held.before - 1:+.0%})" if held.before else ""
    out.print(
        Padding.indent(
            Text(f"kept for backward: {human_bytes(held.before)} → {human_bytes(held.after)}{change}: {fates}"), 2
        )
    )
    if held.unsized:
        out.print(Text(f"    without {held.unsized} values whose sizes nothing tells before it runs", style="dim"))
    if held.limit is not None and held.after > held.limit:
        told = f"--recompute {human_bytes(held.limit)} cannot be met: nothing that is left can be computed again"
        out.print(Padding.indent(Text(told, style="bold yellow"), 2))
    if verbose:
        out.print(Padding.indent(_values(held), 4))


def _values(held: Held) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("value", overflow="fold")
    table.add_column("bytes", justify="right", no_wrap=True)
    for heading in ("made by", "read by", "backward"):
        table.add_column(heading, overflow="fold")
    for value in held.values:
        size = human_bytes(value.bytes) if value.bytes is not None else "?"
        done = f"{value.fate} from {', '.join(value.of)}" if value.of else value.fate
        made, readers = (
            value.op.removeprefix("onnxfuse."),
            ", ".join(r.removeprefix("onnxfuse.") for r in value.readers),
        )
        table.add_row(value.value, size, made, readers, Text(done, style="" if value.fate == "saved" else "dim"))
    return table
