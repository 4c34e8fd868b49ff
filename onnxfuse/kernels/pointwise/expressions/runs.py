"""Neighbours of an index that begin anywhere: which lanes read them, and when.

    (8·j + v) % n                      elements of a row that repeats, where (8·j) % n + 7 < n
    w·((8·j + v) / n) + (8·j + v) % n  those of rows n apart from w, under the same condition

Where no quotient and no remainder passes the end of a row within a vector, each lane is one further than the last.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from onnxfuse.kernels.device.types import TYPES

from .index import LANE, Bound, Index, Quotient, Remainder, Variable, divide, number, total

if TYPE_CHECKING:
    from .source import Writer


@dataclass(frozen=True, slots=True)
class Run:
    """Elements from `start` on, one for each lane, where all conditions hold."""

    start: Index
    conditions: tuple[Bound, ...]


def run(offset: Index, width: int) -> Run | None:
    """The run that an index goes along in a vector of `width` lanes; None where it does not."""
    step, parts, conditions = 0, [(number(offset.const), 1)], dict[Bound, None]()
    for atom, c in offset.terms.items():
        if not atom.depends & LANE:
            parts.append((Index(0, {atom: 1}), c))
        elif isinstance(atom, Variable) and atom.high == width - 1:
            step += c
        elif isinstance(atom, Quotient | Remainder) and (first := _first(atom.index, width)) is not None:
            quotient, rest = divide(first, atom.divisor)
            parts.append((quotient if isinstance(atom, Quotient) else rest, c))
            step += c if isinstance(atom, Remainder) else 0
            conditions[Bound(rest, atom.divisor - width + 1, True)] = None
        else:
            return None
    if step != 1 or any(condition.limit < 1 for condition in conditions):
        return None
    return Run(total(parts), tuple(conditions))


def _first(index: Index, width: int) -> Index | None:
    """That of the first lane, where each other is one further than the one before."""
    lanes = [(atom, c) for atom, c in index.terms.items() if atom.depends & LANE]
    if [(isinstance(atom, Variable), atom.high, c) for atom, c in lanes] != [(True, width - 1, 1)]:
        return None
    return Index(index.const, {atom: c for atom, c in index.terms.items() if atom is not lanes[0][0]})


def anywhere(writer: Writer, source: int, offset: Index, size: int) -> str:
    """The name of a vector that holds such neighbours of an input of so many elements, read one by one where they are
    none; empty if they never are."""
    found = run(offset, writer.width) if writer.width > 1 else None
    if found is None:
        return ""
    key = ("run", source, offset)
    if key not in writer.names:
        name, kind, width = writer.name(key, "x"), TYPES[writer.dtypes[source]], writer.width
        own = replace(writer, inner=[], names=_outside(writer), positions=False, across=None)
        each = own.index(offset)
        writer.names |= _outside(own)
        single = [f"for (int v = 0; v < {width}; ++v) {{", *own.inner, f"{name}[v] = in{source}[{each}];", "}"]
        start = f"{writer.index(found.start, within=False)}, {writer.number(size)}"
        lines = [f"load_anywhere<{kind}, {width}, Index>({name}, in{source}, {start});"]
        if found.conditions:
            lines = [f"if ({writer.guard(found.conditions)}) {{", *lines, "} else {", "#pragma unroll", *single, "}"]
        writer.before_lanes(found.start.depends).extend([f"{kind} {name}[{width}];", *lines])
    return writer.names[key]


def _outside(writer: Writer) -> dict[Any, str]:
    """The names of what no lane changes."""
    return {key: name for key, name in writer.names.items() if isinstance(key, tuple) or not key.depends & LANE}
