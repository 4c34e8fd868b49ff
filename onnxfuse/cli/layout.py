"""What commands show: texts, tables, and what is indented.

In a terminal rich lays it out, in the colours and at the width that there are.  Anything else gets lines as long as
they are, and there rich is not even imported: that takes half as long as to import NumPy, and most commands run in a
pipe.

guarantees   without colours, and where no line has to be broken, both ways give the same text
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol, TextIO, TypeAlias

if TYPE_CHECKING:
    from rich.console import RenderableType

UNBROKEN = 10_000
"""Columns of what is no terminal."""
_UNSHOWN = dict.fromkeys((7, 8, 11, 12, 13))
"""Control characters that rich leaves out, whatever a model calls its nodes."""


class _Laid(Protocol):
    """What knows its lines, and what it is in rich."""

    def lines(self) -> list[str]: ...
    def __rich__(self) -> RenderableType: ...


Shown: TypeAlias = "str | _Laid"


class Out(Protocol):
    """Where to print: `Plain`, or a Console of rich."""

    @property
    def width(self) -> int: ...
    def print(self, *objects: Shown) -> None: ...


class Plain:
    """A stream that is no terminal."""

    width = UNBROKEN

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def print(self, *objects: Shown) -> None:
        """Each object from a new line on, without blanks at the ends of lines; an empty line for none."""
        lines = [line for shown in objects or ("",) for line in lines_of(shown)]
        self._stream.write("".join(f"{line.rstrip(' ')}\n" for line in lines))
        self._stream.flush()


def lines_of(shown: Shown) -> list[str]:
    """The lines of something, none of them broken."""
    return shown.translate(_UNSHOWN).expandtabs().split("\n") if isinstance(shown, str) else shown.lines()


class Text:
    """Words, in one style or in several."""

    def __init__(self, text: str, style: str = "") -> None:
        self.parts: list[tuple[str, str]] = [(text, style)]

    @staticmethod
    def assemble(*parts: str | tuple[str, str] | Text) -> Text:
        """Words with a style each, or with none."""
        made = Text("")
        made.parts = [
            own
            for part in parts
            for own in (part.parts if isinstance(part, Text) else [(part, "") if isinstance(part, str) else part])
        ]
        return made

    def lines(self) -> list[str]:
        return lines_of("".join(text for text, _ in self.parts))

    def __rich__(self) -> RenderableType:
        from rich import text

        return text.Text(*self.parts[0]) if len(self.parts) == 1 else text.Text.assemble(*self.parts)


class Indented:
    """Something behind so many blanks, also where a terminal breaks it."""

    def __init__(self, shown: Shown, by: int) -> None:
        self._shown, self._by = shown, by

    def lines(self) -> list[str]:
        return [" " * self._by + line for line in lines_of(self._shown)]

    def __rich__(self) -> RenderableType:
        from rich.padding import Padding

        return Padding.indent(self._shown, self._by)


class Below:
    """Things one below the other."""

    def __init__(self, *shown: Shown) -> None:
        self._shown = shown

    def lines(self) -> list[str]:
        return [line for each in self._shown for line in lines_of(each)]

    def __rich__(self) -> RenderableType:
        from rich.console import Group

        return Group(*self._shown)


class Table:
    """Columns with `gap` blanks between them; of what is wider than a terminal, those that may be folded are."""

    def __init__(self, *, gap: int = 2, headed: bool = True) -> None:
        self._gap, self._headed = gap, headed
        self._columns: list[tuple[str, Literal["left", "right"], bool, str]] = []
        self._rows: list[Sequence[Shown]] = []

    def add_column(
        self, heading: str = "", *, justify: Literal["left", "right"] = "left", folded: bool = False, style: str = ""
    ) -> None:
        self._columns.append((heading, justify, folded, style))

    def add_row(self, *cells: Shown) -> None:
        """A row; what it leaves out at its end is empty."""
        self._rows.append(cells)

    def lines(self) -> list[str]:
        rows = [[lines_of(cell) for cell in row] for row in self._rows]
        if self._headed:
            headings = [lines_of(heading) for heading, *_ in self._columns]
            height = max(map(len, headings))
            rows.insert(0, [[""] * (height - len(own)) + own for own in headings])
        widths = [
            max((width(line) for row in rows for line in (row[at] if at < len(row) else ())), default=0)
            for at in range(len(self._columns))
        ]
        return [self._line(row, at, widths) for row in rows for at in range(max(map(len, row)))]

    def _line(self, row: Sequence[Sequence[str]], at: int, widths: Sequence[int]) -> str:
        """One line of a row, whose cells may have fewer."""
        parts = []
        for cell, (_, justify, *_), wide in zip(row, self._columns, widths, strict=False):
            line = cell[at] if at < len(cell) else ""
            blanks = " " * (wide - width(line))
            parts.append(blanks + line if justify == "right" else line + blanks)
        return (" " * self._gap).join(parts)

    def __rich__(self) -> RenderableType:
        from rich import table

        made = table.Table(
            box=None, padding=(0, self._gap, 0, 0), header_style="dim", pad_edge=False, show_header=self._headed
        )
        for heading, justify, folded, style in self._columns:
            made.add_column(
                heading, justify=justify, style=style, no_wrap=not folded, overflow="fold" if folded else "ellipsis"
            )
        for row in self._rows:
            made.add_row(*row)
        return made


def width(text: str) -> int:
    """Columns that a text takes: characters of East Asia may take two, accents take none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in ("W", "F")) for char in text
    )
