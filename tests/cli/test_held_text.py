"""How a report says what is kept for backward."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

from rich.console import Console

from onnxfuse.cli.held_text import print_held
from onnxfuse.reporting.held import Held, HeldValue

HELD = Held(
    "loss",
    2000,
    500,
    0,
    None,
    (
        HeldValue("h", "onnxfuse.FusedMatMul", ("onnxfuse.GeluGrad",), 500, "saved"),
        HeldValue("a", "Gelu", ("MatMul",), 1500, "recomputed", ("h",)),
    ),
)


def printed(held: Held | None, *, verbose: bool = False) -> list[str]:
    out = StringIO()
    print_held(Console(file=out, width=120), held, verbose=verbose)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_one_line_says_how_much_and_how() -> None:
    assert printed(HELD) == ["  kept for backward: 2 kB → 500 B (-75%): 1 saved, 1 recomputed"]
    assert printed(None, verbose=True) == []


def test_each_value_is_told_where_that_is_wanted() -> None:
    lines = printed(HELD, verbose=True)
    assert [line.split() for line in lines[2:]] == [
        ["h", "500", "B", "FusedMatMul", "GeluGrad", "saved"],
        ["a", "1.5", "kB", "Gelu", "MatMul", "recomputed", "from", "h"],
    ]


def test_a_limit_that_is_not_met_is_said() -> None:
    assert printed(replace(HELD, limit=500))[1:] == []
    (told,) = printed(replace(HELD, limit=100))[1:]
    assert told == "  --recompute 100 B cannot be met: nothing that is left can be computed again"


def test_what_is_not_counted_is_said() -> None:
    assert printed(replace(HELD, unsized=3))[1] == "    without 3 values whose sizes nothing tells before it runs"
