"""What the kernels are to reach on a GPU, and whether they do, by the node that is farthest from it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from typing import NamedTuple

from onnxfuse.kernels.gemm.autotune import MARGIN

from .contest import OURS
from .plan import OK, Row
from .sdpa import BACKENDS

REACHED, MISSED, UNMEASURED = "reached", "missed", "not measured"


class Goal(NamedTuple):
    """A figure of a row, and how large it is to be at least; a row that has none does not count."""

    name: str
    least: float
    figure: Callable[[Row], float | None]


def ratio(row: Row, kind: str, names: Iterable[str]) -> float | None:
    """How many times as long as we the fastest of these sides takes; None if it is another kind of row, or has none."""
    if row.get("kind") != kind:
        return None
    others = [row["sides"][name]["us"] for name in names if name in row["sides"]]
    ours = row["sides"][OURS]["us"]
    return min(others) / ours if others and ours else None


def of_copy(row: Row, kind: str) -> float | None:
    """The share of a copy's bandwidth, for rows that are not in the cache."""
    share = row.get("of_copy") if row.get("kind") == kind else None
    return None if share is None else float(share)


GOALS = (
    Goal("attention without a mask, of the rate of flash", 0.7, lambda row: ratio(row, "unmasked", ["flash"])),
    Goal("attention with a bias, of the fastest backend's rate", 1.0, lambda row: ratio(row, "bias", BACKENDS)),
    Goal("decode over a cache, of a copy's bandwidth", 0.8, lambda row: of_copy(row, "decode")),
    Goal("decode with past and present, of a copy's bandwidth", 0.8, lambda row: of_copy(row, "present")),
    # Times that differ by less are noise.
    Goal(
        "products, of the rate of the vendor's and separate ops", 1 - MARGIN, lambda r: ratio(r, "product", ["eager"])
    ),
)


def judged(rows: Iterable[Row]) -> list[Row]:
    """Each goal with the least and the median of its figures, and the node that has the least."""
    timed = [row for row in rows if row["outcome"] == OK and OURS in row.get("sides", {})]
    found = []
    for goal in GOALS:
        figures = {row["name"]: figure for row in timed if (figure := goal.figure(row)) is not None}
        row: Row = {"goal": goal.name, "least": goal.least, "nodes": len(figures), "outcome": UNMEASURED}
        if figures:
            worst = min(figures, key=lambda name: figures[name])
            row["outcome"] = REACHED if figures[worst] >= goal.least else MISSED
            row |= {"measured": round(figures[worst], 4), "worst": worst}
            row["median"] = round(statistics.median(figures.values()), 4)
        found.append(row)
    return found
