"""How what kernels cost on a card looks in a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from onnxfuse.kernels.emulator.counts import Accesses, Counts, by_kernel

from .quantities import human_bytes

_FINE = 1.05
"""Sectors or wavefronts for each that is needed: what is not worth a line of its own."""
_WORST = 5
"""Lines of a kernel."""


def print_counts(out: Console, counted: Sequence[Counts]) -> None:
    """Each kernel with its traffic, sectors and wavefronts for each that is needed, and its worst lines."""
    out.print()
    if not counted:
        out.print("  no kernel was launched: nothing is counted")
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    table.add_column("kernel, and where it wastes", overflow="fold")
    for heading in ("launches", "moved", "needed", "sectors", "wavefronts", "lanes", "barriers", "atomics"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in by_kernel(counted):
        sectors, wavefronts = one.total("global"), one.total("shared")
        lanes = f"{sectors.active:.0%}" if sectors.possible else ""
        table.add_row(
            Text(one.kernel, style="bold"),
            str(one.launches),
            human_bytes(one.moved),
            human_bytes(one.compulsory),
            _ratio(sectors),
            _ratio(wavefronts),
            lanes,
            str(one.barriers),
            str(one.atomics),
        )
        worst = sorted((a for a in one.lines if a.excess > _FINE), key=lambda a: a.ideal - a.units)
        for line in worst[:_WORST]:
            ratios = [_ratio(line), ""] if line.space == "global" else ["", _ratio(line)]
            label = Text(f"  {line.where} {line.kind}s {line.space} memory", style="dim")
            table.add_row(label, "", "", "", *ratios, f"{line.active:.0%}")
    out.print(Padding.indent(table, 2))
    out.print()
    note = "moved: what blocks read and write; needed: each byte once; sectors, wavefronts: for each that is needed"
    out.print(Text(f"  {note}", style="dim"))


def _ratio(found: Accesses) -> str:
    return f"{found.excess:.2f}" if found.units else ""
