"""How what kernels cost on a card looks in a terminal."""

from __future__ import annotations

import io

from rich.console import Console

from onnxfuse.cli.counts_text import print_counts
from onnxfuse.kernels.emulator.counts import Accesses, Counts


def said(*counts: Counts) -> list[str]:
    text = io.StringIO()
    print_counts(Console(file=text, width=150), counts)
    return [" ".join(line.split()) for line in text.getvalue().splitlines() if line.strip()]


def test_the_worst_lines_stand_below_their_kernel() -> None:
    fine = Accesses("a.cu:1", "global", "read", 4, 128, 128, 512, 16, 16)
    bad = Accesses("a.cu:2", "global", "write", 4, 64, 128, 256, 32, 8)
    banks = Accesses("b.cuh:9 (a.cu:3)", "shared", "read", 4, 128, 128, 512, 8, 4)
    lines = said(Counts("a.cu turn", 2, 8, 16, 3000, 2000, (bad, fine, banks)))
    assert lines[1:4] == [
        "a.cu turn 2 3 kB 2 kB 2.00 2.00 75% 16 0",
        "a.cu:2 writes global memory 4.00 50%",
        "b.cuh:9 (a.cu:3) reads shared memory 2.00 100%",
    ]


def test_a_model_without_kernels_is_told_so() -> None:
    assert said() == ["no kernel was launched: nothing is counted"]
