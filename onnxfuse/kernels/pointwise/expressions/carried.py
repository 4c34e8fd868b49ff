"""Expressions as a struct of device code, for kernels that have one element of a matrix in their hands at a time.

The struct carries the arrays that it reads and writes, and the numbers and divisors of its indices, which the kernel
takes as parameters: the text depends on the pattern, never on the sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from onnxfuse.kernels.device.types import TYPES

from .index import LANE, Index
from .scalars import Scalar
from .source import NARROW_LIMIT, Writer, division, table


@dataclass(frozen=True, slots=True)
class Stored:
    """An output: its number, element type and element, and where that goes."""

    number: int
    dtype: str
    element: Scalar
    place: Index


@dataclass(frozen=True, slots=True)
class Carried:
    """What the struct declares and is filled with."""

    head: tuple[str, ...]
    """Type of an index and tables, before the struct."""
    members: tuple[str, ...]
    parameters: tuple[str, ...]
    """Of the kernel: arrays, then numbers."""
    fill: str
    """What the members are initialized with."""
    values: tuple[np.generic, ...]
    """The numbers, in the order of the parameters."""
    divisors: tuple[str, ...] = ()
    """Statements that make them of the parameters, where there is no struct."""


class Functions:
    """Bodies of device functions that share what they carry; `wide` is for indices beyond 32 bits.

    Where the `width` is not 1, elements are those of a vector, and `v` counts them.  `given` are the texts of elements
    that are at hand, and `taken` what is done with results instead of storing them, `{}`, by the numbers of outputs."""

    def __init__(
        self,
        inputs: Mapping[int, str],
        wide: bool = False,
        width: int = 1,
        given: Mapping[Scalar, str] | None = None,
        taken: Mapping[int, str] | None = None,
    ) -> None:
        self.inputs, self.wide, self.width = inputs, wide, width
        self.given, self.taken = given or {}, taken or {}
        self._first = Writer(inputs, wide=wide)
        self._writers: list[Writer] = []
        self._outputs: list[Stored] = []

    def _writer(self, width: int) -> Writer:
        first = self._first
        made = Writer(
            self.inputs,
            width,
            self.wide,
            tables=first.tables,
            numbers=first.numbers,
            divisors=first.divisors,
            positions=False,
        )
        self._writers.append(made)
        return made

    def value(self, element: Scalar, name: str) -> list[str]:
        """Statements that assign an element."""
        return self.statements([(element, f"{name} = {{}};")])

    def stores(self, stores: Sequence[Stored]) -> list[str]:
        """Statements that store elements at their places."""
        return self.statements((), stores)

    def stores_apart(self, stores: Sequence[Stored]) -> tuple[list[str], list[str]]:
        """The same in two parts: what depends on no row (DOWN), and what is done for each."""
        return self._statements((), stores, {}, False, apart=True)

    def statements(
        self,
        uses: Sequence[tuple[Scalar, str]],
        stores: Sequence[Stored] = (),
        known: Mapping[Scalar, str] | None = None,
        *,
        once: bool = False,
    ) -> list[str]:
        """Statements that compute elements, then what is done with each, its `{}` the element, and stores; `known` are
        the names of what need not be computed.  What is done `once` is done for all elements of a vector together."""
        before, lines = self._statements(uses, stores, known or {}, once)
        return [*before, *lines]

    def _statements(
        self,
        uses: Sequence[tuple[Scalar, str]],
        stores: Sequence[Stored],
        known: Mapping[Scalar, str],
        once: bool,
        apart: bool = False,
    ) -> tuple[list[str], list[str]]:
        width = 1 if once else self.width
        writer = self._writer(width)
        writer.across = [] if apart else None
        writer.names.update({**self.given, **known})
        each = [use.format(writer.scalar(element)) for element, use in uses]
        before, behind = list[str](), list[str]()
        for one in stores:
            type, text = TYPES[one.dtype], f"Rounded<{TYPES[one.dtype]}>::of({writer.scalar(one.element)})"
            if one.number in self.taken:
                each.append(self.taken[one.number].format(text))
                continue
            start = stored_at(one.place, width)
            if start is None:
                each.append(f"out{one.number}[{writer.index(one.place)}] = {text};")
                continue
            before.append(f"{type} y{one.number}[{width}];")
            each.append(f"y{one.number}[v] = {text};")
            behind.append(f"store(out{one.number} + {width} * ({writer.index(start)}), y{one.number});")
        self._outputs += stores
        if width == 1 or not each:
            return writer.outer, [*writer.middle, *writer.inner, *each]
        ahead = _over_lanes(width, writer.across) if writer.across else []
        lines = [*writer.middle, *before, *_over_lanes(width, [*writer.inner, *each]), *behind]
        return [*writer.outer, *ahead], lines

    def place(self, place: Index) -> tuple[list[str], str]:
        """Statements before it, and where an element stands."""
        writer = self._writer(1)
        text = writer.index(place)
        return [*writer.outer, *writer.inner], text

    def number(self, value: int) -> str:
        """The name of a number that is carried."""
        return self._first.number(value)

    @property
    def narrow(self) -> bool:
        """Do 32 bits count all that is read and written?"""
        return max((writer.largest for writer in self._writers), default=0) < NARROW_LIMIT

    def carried(self) -> Carried:
        """What all of them carry, once they are written."""
        first, index, integer = self._first, "long long" if self.wide else "int", np.int64 if self.wide else np.int32
        arrays = [f"const {TYPES[kind]}* __restrict__ in{k}" for k, kind in self.inputs.items()]
        arrays += [f"{TYPES[stored.dtype]}* __restrict__ out{stored.number}" for stored in self._outputs]
        numbers, divisors = [f"{index} {name}" for name in first.numbers.values()], list(first.divisors.values())
        parts = [part for name in divisors for part in (f"int {name}_n", f"unsigned {name}_m", f"int {name}_s")]
        filled = [member.split()[-1] for member in (*arrays, *numbers)]
        filled += [f"{{{name}_n, {name}_m, {name}_s}}" for name in divisors]
        values: list[np.generic] = [integer(n) for n in first.numbers]
        for n in first.divisors:
            values += division(n)
        return Carried(
            (f"\ntypedef {index} Index;", *(table(name, *content) for content, name in first.tables.items())),
            (*arrays, *numbers, *(f"Divisor {name}" for name in divisors)),
            (*arrays, *numbers, *parts),
            f"{{{', '.join(filled)}}}",
            tuple(values),
            tuple(f"const Divisor {name} = {{{name}_n, {name}_m, {name}_s}};" for name in divisors),
        )


def _over_lanes(width: int, lines: Sequence[str]) -> list[str]:
    return ["#pragma unroll", f"for (int v = 0; v < {width}; v++) {{", *lines, "}"]


def stored_at(place: Index, width: int) -> Index | None:
    """n, where the elements of a vector are stored from width · n on; None where they are no neighbours there."""
    lanes = place.part(LANE)
    rest = Index(place.const, {a: c for a, c in place.terms.items() if a not in lanes.terms})
    own = [(a.high, c) for a, c in lanes.terms.items()]
    if width == 1 or own != [(width - 1, 1)] or rest.depends & LANE or any(c % width for c in _numbers(rest)):
        return None
    return Index(rest.const // width, {a: c // width for a, c in rest.terms.items()})


def _numbers(index: Index) -> list[int]:
    return [index.const, *index.terms.values()]
