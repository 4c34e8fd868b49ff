"""Mistakes planted into a kernel together: it is compiled once, and makes one of them when it is told to.

together(source, mistakes, compiles)   the source with every mistake that can be chosen when it runs, and their numbers

A mistake is another text in some place.  The expression around it becomes `emulator::planted(n) ? (wrong) : (right)`, a
statement of its own an `if`.  What is neither, or is wanted by the compiler itself (sizes, template arguments), is left
for a compilation of its own: its line is what the compiler refuses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, takewhile

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import Source
from onnxfuse.kernels.emulator.build import lines

Mistake = tuple[str, str]
"""What a kernel has, and what stands there instead."""
OPEN, CLOSED = "([{", ")]}"
ASSIGNED = re.compile(r"(?<![=!<>])=(?!=)|<<=|>>=")
TOKEN = re.compile(r"\w+|[<>=!&|]+|.", re.DOTALL)
STATEMENT = re.compile(r"(?!(?:const|int|float|auto|unsigned|using|return)\b)[^;{}#]+;")


@dataclass(frozen=True)
class Place:
    """An expression, or a statement of its own, and where the mistakes of what numbers change it."""

    start: int
    end: int
    changes: tuple[tuple[int, int, int, str], ...]
    """Number, from where to where, and what stands there instead."""
    statement: bool = False

    def by(self, text: str, number: int) -> str:
        """What it becomes by one of them, in one line."""
        parts, at = [], self.start
        for of, start, end, wrong in self.changes:
            if of == number:
                parts += [text[at:start], wrong]
                at = end
        return "".join([*parts, text[at : self.end]]).replace("\n", " ")

    def chosen(self, text: str) -> str:
        """A choice among all of them and what is right."""
        numbers, right = dict.fromkeys(of for of, *_ in self.changes), text[self.start : self.end]
        if self.statement:
            wrong = "".join(f"if (emulator::planted({n})) {{ {self.by(text, n)} }} else " for n in numbers)
            return f"{{ {wrong}{{ {right} }} }}"
        return "(" + "".join(f"emulator::planted({n}) ? ({self.by(text, n)}) : " for n in numbers) + f"({right}))"


def together(
    source: Source, mistakes: Sequence[Mistake], compiles: Callable[[Source], object]
) -> tuple[Source, frozenset[int]]:
    """The source with mistakes, and the numbers, from 1 on, of those that are in it."""
    found = {number: list(_places(source.text, number, *mistake)) for number, mistake in enumerate(mistakes, 1)}
    chosen = {number: [p for p in places if p] for number, places in found.items() if places and all(places)}
    while chosen:
        planted = replace(source, text=_with(source.text, [place for places in chosen.values() for place in places]))
        try:
            compiles(planted)
        except KernelError as error:
            refused = {n for n, places in chosen.items() if any(_line(source, p) in str(error) for p in places)}
            if not refused:
                break
            chosen = {number: places for number, places in chosen.items() if number not in refused}
        else:
            return planted, frozenset(chosen)
    return source, frozenset()


def _line(source: Source, place: Place) -> str:
    """Where it is from, as the compiler names it."""
    before = source.text.count("\n", 0, place.changes[0][1])
    file, line, _ = next(islice(lines(source), before, None))
    return f"{file}:{line}:"


def _places(text: str, number: int, before: str, after: str) -> Iterator[Place | None]:
    """What is around each place that has `before`, None where that is no expression or statement."""
    front = _alike(TOKEN.findall(before), TOKEN.findall(after))
    back = _alike(TOKEN.findall(before[front:])[::-1], TOKEN.findall(after[front:])[::-1])
    right, wrong = before[front : len(before) - back], after[front : len(after) - back]
    for found in re.finditer(re.escape(before), text):
        start, end = found.start() + front, found.end() - back
        if STATEMENT.fullmatch(before) and not after and text[: found.start()].rstrip()[-1:] in ";{}":
            yield Place(found.start(), found.end(), ((number, found.start(), found.end(), after),), statement=True)
        elif not (_is_part(right) and _is_part(wrong)):
            yield None
        else:
            first, last = _begin(text, start), _end(text, end)
            around = text[first:last]
            strange = re.search(r"//|#|\\\n|>\s*[({:]|\breturn\b|^\s*$", around) or around.count("?") != _colons(around)
            yield None if strange else Place(first, last, ((number, start, end, wrong),))


def _alike(ones: Sequence[str], others: Sequence[str]) -> int:
    """How many letters the tokens have that both begin with."""
    return sum(len(one) for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(ones, others, strict=False)))


def _colons(text: str) -> int:
    """Those of choices."""
    return text.count(":") - 2 * text.count("::")


def _is_part(text: str) -> bool:
    """Of an expression."""
    return _end(text, 0) == len(text) and _begin(text, len(text)) == 0 and not re.search(r"[;{}#\n]", text)


def _begin(text: str, at: int) -> int:
    """Where the expression begins that has this place in it."""
    depth = 0
    while at:
        depth += (text[at - 1] in CLOSED) - (text[at - 1] in OPEN)
        ends = text[at - 1] in ";,{}" or ASSIGNED.match(text, at - 1) or text.startswith("return ", at - 7)
        if depth < 0 or (not depth and ends):
            break
        at -= 1
    return at


def _end(text: str, at: int) -> int:
    """Where it ends."""
    depth = 0
    while at < len(text):
        depth += (text[at] in OPEN) - (text[at] in CLOSED)
        if depth < 0 or (not depth and (text[at] in ";,{}" or ASSIGNED.match(text, at))):
            break
        at += 1
    return at


def _with(text: str, places: Sequence[Place]) -> str:
    """The text with a choice in each place; of places one in another, in the outer one."""
    parts, at = [], 0
    for place in _apart(places):
        parts += [text[at : place.start], place.chosen(text)]
        at = place.end
    return "".join([*parts, text[at:]])


def _apart(places: Sequence[Place]) -> list[Place]:
    """In order, none in another."""
    found: list[Place] = []
    for place in sorted(places, key=lambda p: (p.start, -p.end)):
        if found and place.start < found[-1].end:
            outer = found[-1]
            changes = tuple(sorted(outer.changes + place.changes, key=lambda change: change[1:3]))
            found[-1] = Place(outer.start, max(outer.end, place.end), changes, outer.statement)
        else:
            found.append(place)
    return found
