"""What products and attention execute, as the page says it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from onnxfuse.kernels.inspect.figures import BEGIN, END, PAGE, Row, Tables, rows, section, tables, written
from onnxfuse.kernels.inspect.nvrtc import ARCHITECTURES

FOUND = tables()


def test_the_page_says_what_the_tables_say() -> None:
    assert section(FOUND) in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("row", list(rows(FOUND)), ids=lambda row: row.what)
def test_what_is_aimed_at_is_reached(row: Row) -> None:
    assert [architecture for architecture in ARCHITECTURES if not row.reached(architecture)] == []


def test_a_figure_that_is_missed_is_named() -> None:
    spilling: Tables = replace(FOUND, spills={**FOUND.spills, "sm_90": 8})
    (line,) = (line for line in section(spilling).splitlines() if line.startswith("| bytes spilled"))
    assert line.endswith("| 0 | 8 | 0 | missed on sm_90 |")


def test_the_rest_of_a_page_stays() -> None:
    once = written("# Kernels\n\nbefore\n", f"{BEGIN}\none\n{END}")
    assert once == f"# Kernels\n\nbefore\n\n{BEGIN}\none\n{END}\n"
    assert written(once + "behind\n", f"{BEGIN}\ntwo\n{END}") == once.replace("one", "two") + "behind\n"
