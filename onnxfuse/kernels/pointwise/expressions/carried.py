"""Expressions as a struct of device code, for kernels that have one element of a matrix in their hands at a time.

The struct carries the arrays that it reads and writes, and the numbers and divisors of its indices, which the kernel
takes as parameters: the text depends on the pattern, never on the sizes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from onnxfuse.kernels.device.types import TYPES

from .index import Index
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
    """Bodies of device functions that share what they carry; `wide` is for indices beyond 32 bits."""

    def __init__(self, inputs: Mapping[int, str], wide: bool = False) -> None:
        self.inputs, self.wide = inputs, wide
        self._first = Writer(inputs, wide=wide)
        self._writers: list[Writer] = []
        self._outputs: list[Stored] = []

    def _writer(self) -> Writer:
        first = self._first
        made = Writer(self.inputs, wide=self.wide, tables=first.tables, numbers=first.numbers, divisors=first.divisors)
        self._writers.append(made)
        return made

    def value(self, element: Scalar, name: str) -> list[str]:
        """Statements that assign an element."""
        return self.statements([(element, f"{name} = {{}};")])

    def stores(self, stores: Sequence[Stored]) -> list[str]:
        """Statements that store elements at their places."""
        return self.statements((), stores)

    def statements(
        self,
        uses: Sequence[tuple[Scalar, str]],
        stores: Sequence[Stored] = (),
        known: Mapping[Scalar, str] | None = None,
    ) -> list[str]:
        """Statements that compute elements, then what is done with each, its `{}` the element, and stores; `known` are
        the names of what need not be computed."""
        writer = self._writer()
        writer.names.update(known or {})
        used = [(use, writer.scalar(element)) for element, use in uses]
        texts = [(s.number, s.dtype, writer.scalar(s.element), writer.index(s.place)) for s in stores]
        self._outputs += stores
        stored = [f"out{k}[{place}] = Rounded<{TYPES[kind]}>::of({text});" for k, kind, text, place in texts]
        return [*writer.outer, *(use.format(text) for use, text in used), *stored]

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
