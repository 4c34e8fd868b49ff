"""Numbers as people read them."""

from __future__ import annotations

from collections.abc import Iterable

from onnxfuse.reporting.records import Fusion, known_bytes


def human_launches(count: int) -> str:
    return f"{count:,} {'launch' if count == 1 else 'launches'}"


def human_nodes(count: int) -> str:
    return f"{count:,} {'node' if count == 1 else 'nodes'}"


def human_traffic(fusions: Iterable[Fusion]) -> str:
    """What `fusions` save in traffic: ``12.3 MB``, with ``>`` in front if some of it is unknown, ``?`` if all is."""
    total, complete = known_bytes(fusions)
    if not total and not complete:
        return "?"
    return ("" if complete else ">") + human_bytes(total)


def human_bytes(count: float) -> str:
    """`count` bytes in decimal units, three digits: ``1.23 kB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def human_flops(count: float) -> str:
    """`count` operations in decimal units, three digits: ``1.23 Gflop``."""
    for unit in ("flop", "kflop", "Mflop", "Gflop"):
        if abs(count) < 999.5:
            return f"{count:.0f} {unit}" if unit == "flop" else f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} Tflop"


def human_seconds(seconds: float) -> str:
    """A time in decimal units, three digits: ``12.3 µs``."""
    for unit, factor in (("µs", 1e6), ("ms", 1e3)):
        if seconds * factor < 999.5:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"
