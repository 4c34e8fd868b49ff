"""What is printed in a pipe is what rich would print there, and a terminal gets it from rich."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence

import pytest
from rich.console import Console

from onnxfuse.cli.layout import UNBROKEN, Below, Indented, Plain, Shown, Table, Text, width


def plain(*shown: Shown) -> str:
    stream = io.StringIO()
    Plain(stream).print(*shown)
    return stream.getvalue()


def rich(*shown: Shown, columns: int = UNBROKEN) -> str:
    stream = io.StringIO()
    Console(file=stream, width=columns, highlight=False, markup=False, emoji=False).print(*shown)
    return re.sub(" +(?=\n)", "", stream.getvalue())


def table(rows: Sequence[Sequence[Shown]], *, gap: int = 2, headed: bool = True) -> Table:
    made = Table(gap=gap, headed=headed)
    made.add_column("name", folded=True)
    made.add_column("two\nlines", justify="right")
    made.add_column("why", folded=True, style="dim")
    for row in rows:
        made.add_row(*row)
    return made


ROWS: list[list[Shown]] = [
    ["a", "1,000", "because"],
    [Text("bold", style="bold"), "2"],
    [Indented(Text("deeper\nand below"), 2), Text(""), Below("one", Indented("two", 4), Text("three"))],
    ["名前", "é", "×"],
    [""],
]


@pytest.mark.parametrize(
    "shown",
    [
        "words [bold]as they are[/bold] :x:",
        "two\nlines\n",
        "a\tb\rc\x07",
        "",
        Text("  blanks at the end   "),
        Text.assemble(("✗ ", "bold red"), "left out: ", Text.assemble(("x", "dim"), "y")),
        Indented(Text("a\n\nb"), 4),
        Below("a", Text("b"), Indented("c", 2)),
        table(ROWS),
        table([]),
        table(ROWS, gap=1, headed=False),
        Indented(table(ROWS), 2),
    ],
)
def test_both_ways_give_the_same_text(shown: Shown) -> None:
    assert plain(shown) == rich(shown)


def test_nothing_is_an_empty_line() -> None:
    assert plain() == rich() == "\n"


def test_no_line_is_broken_in_a_pipe_and_none_is_cut_in_a_terminal() -> None:
    long = "/".join(map(str, range(UNBROKEN)))
    shown = Indented(table([[long, "7", long]]), 2)
    assert max(map(len, plain(shown).splitlines())) > 2 * len(long)
    lines = rich(table([["x" * 100, "7", "y" * 100]]), columns=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert ("".join(lines).count("x"), "".join(lines).count("y")) == (100, 101)


def test_styles_are_for_terminals() -> None:
    stream = io.StringIO()
    Console(file=stream, width=80, force_terminal=True, color_system="standard").print(Text("name", style="bold cyan"))
    assert stream.getvalue() == "\x1b[1;36mname\x1b[0m\n"
    assert plain(Text("name", style="bold cyan")) == "name\n"


@pytest.mark.parametrize(("text", "columns"), [("", 0), ("abc", 3), ("名前", 4), ("e\u0301", 1), ("× → █", 5)])
def test_columns_that_a_text_takes(text: str, columns: int) -> None:
    assert width(text) == columns
