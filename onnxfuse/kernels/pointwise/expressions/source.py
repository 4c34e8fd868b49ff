"""Expressions as CUDA C++: one loop over all elements of the result, a vector of them at a time.

The text depends on the pattern, never on the sizes: a number that is neither 0 nor 1 becomes a parameter, named by the
order in which numbers are met.  Only numbers inside a vector are literal, so that the compiler resolves its lanes.
Dividing by a parameter is a multiplication where indices fit into 31 bits (`Divisor`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from onnxfuse.kernels.device.types import TYPES

from .index import (
    DOWN,
    LANE,
    LOOP,
    ROW,
    Atom,
    Bound,
    Clamped,
    Guard,
    Index,
    Quotient,
    Read,
    Remainder,
    Valid,
    Variable,
    neighbours,
)
from .runs import anywhere
from .scalars import FLOAT, Scalar
from .trace import literal, real, zero

OPENING = 'extern "C" __global__ void __launch_bounds__(256) {}('
NARROW_LIMIT = 1 << 30
"""Offsets and counts below it are 32-bit; twice that leaves room for the last step of a loop."""


@dataclass(frozen=True)
class Text:
    """A kernel's source, the numbers that it takes behind the arrays, whether it reads vectors, and its parameters."""

    body: str
    parameters: tuple[np.generic, ...]
    vectors: bool
    head: tuple[str, ...] = ()


@dataclass
class Writer:
    """Writes the expressions of one kernel; `dtypes` are those of the inputs, `width` the elements of a vector."""

    dtypes: Mapping[int, str]
    width: int = 1
    wide: bool = False
    outer: list[str] = field(default_factory=list)
    middle: list[str] = field(default_factory=list)
    inner: list[str] = field(default_factory=list)
    tables: dict[tuple[str, tuple[int | float | bool, ...]], str] = field(default_factory=dict)
    names: dict[Any, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    position: bool = False
    largest: int = 0
    numbers: dict[int, str] = field(default_factory=dict)
    divisors: dict[int, str] = field(default_factory=dict)
    taken: frozenset[str] = frozenset()
    """Names that are somebody else's."""
    positions: bool = True
    """Is there an `i`?"""
    across: list[str] | None = None
    """Statements of lanes that no row changes (DOWN), whose values arrays keep; None where they are not apart."""

    # ------------------------------------------------------------------------------------------------------- names

    def name(self, key: Any, prefix: str) -> str:
        count = self.counts.get(prefix, -1) + 1
        while f"{prefix}{count}" in self.taken:
            count += 1
        self.counts[prefix] = count
        self.names[key] = f"{prefix}{count}"
        return self.names[key]

    def statement(self, key: Any, prefix: str, type: str, text: str, depends: int) -> str:
        """A named value; the statement stands outside the loop over lanes if it can, and outside that over rows."""
        name = self.name(key, prefix)
        if self.across is not None and depends & LANE and not depends & (ROW | DOWN):
            self.outer.append(f"{type} {name}[{self.width}];")
            self.names[key] = f"{name}[v]"
            self.across.append(f"{name}[v] = {text};")
            return self.names[key]
        (self.inner if depends & LANE else self.before_lanes(depends)).append(f"const {type} {name} = {text};")
        return name

    def before_lanes(self, depends: int) -> list[str]:
        """Where statements stand that no lane changes."""
        return self.middle if depends & (ROW | DOWN) else self.outer

    def number(self, value: int, literal: bool = False) -> str:
        if literal or 0 <= value <= 1:
            return str(value)
        if value < 0:
            return f"-{self.number(-value)}" if value < -1 else "-1"
        return self.numbers.setdefault(value, f"n{len(self.numbers)}")

    def divisor(self, value: int) -> str:
        if self.wide:
            return self.number(value)
        return self.divisors.setdefault(value, f"d{len(self.divisors)}")

    # ----------------------------------------------------------------------------------------------------- indices

    def index(self, index: Index, *, within: bool = True) -> str:
        """A sum; `i` is the position of the lane's element, which is known `within` the loop over lanes alone."""
        self.largest = max(self.largest, -index.low, index.high)
        terms = dict(index.terms)
        parts = []
        literal = index.depends == LANE
        loop = next((a for a in terms if isinstance(a, Variable) and a.depends == LOOP), None)
        lane = next((a for a in terms if isinstance(a, Variable) and a.depends == LANE), None)
        if within and self.positions and loop and lane and terms[loop] == self.width * terms[lane]:
            self.position = True
            parts.append(self._term("i", terms[lane], False))
            del terms[loop], terms[lane]
        parts += [self._term(self.atom(a), c, literal) for a, c in terms.items()]
        if index.const or not parts:
            parts.append(self.number(index.const, literal))
        return " + ".join(parts).replace("+ -", "- ")

    def _term(self, atom: str, c: int, literal: bool) -> str:
        if abs(c) == 1:
            return atom if c > 0 else f"-{atom}"
        return f"{self.number(c, literal)} * {atom}"

    def atom(self, atom: Atom) -> str:
        if atom in self.names:
            return self.names[atom]
        if isinstance(atom, Variable):
            return atom.name
        if isinstance(atom, Read):
            text = f"wrapped({self.scalar(atom.value)}, {self.number(atom.extent)})"
            return self.statement(atom, "r", "long long", text, atom.depends)
        if isinstance(atom, Clamped):
            text = self.index(atom.index)
            # Where it is asked for it is not negative; elsewhere nothing that is computed of it may overflow.
            return f"maximum<Index>({text}, 0)" if atom.index.low < 0 else self._grouped(text)
        assert isinstance(atom, Quotient | Remainder)
        text = self.index(atom.index)
        if atom.depends == LANE:
            sign = "/" if isinstance(atom, Quotient) else "%"
            return f"({self._grouped(text)} {sign} {atom.divisor})"
        if isinstance(atom, Quotient):
            return self.statement(atom, "q", "Index", f"quotient({text}, {self.divisor(atom.divisor)})", atom.depends)
        whole = self.atom(Quotient(atom.index, atom.divisor))
        text = f"{text} - {whole} * {self.number(atom.divisor)}"
        return self.statement(atom, "m", "Index", text, atom.depends)

    def _grouped(self, text: str) -> str:
        return f"({text})" if " " in text else text

    def condition(self, condition: Bound | Valid) -> str:
        if isinstance(condition, Valid):
            read = self.atom(condition.read)
            return f"{read} >= 0 && {read} < {self.number(condition.read.extent)}"
        literal = condition.index.depends == LANE
        sign = "<" if condition.below else ">="
        return f"{self.index(condition.index)} {sign} {self.number(condition.limit, literal)}"

    def guard(self, guard: Guard) -> str:
        return " && ".join(self.condition(c) for c in guard)

    # ---------------------------------------------------------------------------------------------------- elements

    def scalar(self, scalar: Scalar) -> str:
        """The name or the literal of an element; statements for what it needs come before.  Not recursive in the
        operands, as chains of ops are long."""
        wanted = [scalar]
        while wanted:
            top = wanted[-1]
            missing = [] if top in self.names else [a for a in top.args if a not in self.names and a.kind != "literal"]
            if missing:
                wanted += missing
                continue
            wanted.pop()
            if top not in self.names:
                self._define(top)
        return self._operand(scalar)

    def _operand(self, scalar: Scalar) -> str:
        return self.names[scalar] if scalar.kind != "literal" else literal(scalar)

    def _define(self, s: Scalar) -> None:
        match s.kind:
            case "literal":
                return
            case "argument":
                self.names[s] = s.payload
                return
            case "position":
                text = f"static_cast<long long>({self.index(s.payload)})"
            case "call":
                text = s.payload[1].format(*map(self._operand, s.args))
            case "select":
                text = f"{self.condition(s.payload)} ? {self._operand(s.args[0])} : {self._operand(s.args[1])}"
            case "table":
                text = self._guarded(f"{self._table(s)}[{self.index(s.payload[1])}]", s.payload[2], s.type)
            case _:
                text = self._load(s)
        self.statement(s, "t", s.type, text, s.depends)

    def _table(self, s: Scalar) -> str:
        return self.tables.setdefault((s.type, s.payload[0]), f"table{len(self.tables)}")

    def _load(self, s: Scalar) -> str:
        """An element of an input, through a vector where the lanes read neighbours under one condition."""
        number, offset, guard, size = s.payload
        self.largest = max(self.largest, size)
        if square := self._square(number, offset, guard):
            return square
        vector = neighbours(offset, size, self.width)
        if vector is None and not guard and (name := anywhere(self, number, offset, size)):
            return f"value({name}[v])"
        if vector is None or any(c.depends & LANE for c in guard):
            element = f"value(in{number}[{self.index(offset)}])"
            return self._guarded(element, guard, s.type)
        count, start, within = vector
        key = ("vector", number, count, start, guard)
        if key not in self.names:
            condition, address = self.guard(guard), f"in{number} + {count} * {self._grouped(self.index(start))}"
            name = self.name(key, "x")
            before = self.before_lanes(start.depends | s.depends)
            before.append(f"{TYPES[self.dtypes[number]]} {name}[{count}];")
            before.append(
                f"if ({condition}) load({name}, {address}); else zero({name});"
                if guard
                else f"load({name}, {address});"
            )
        return f"value({self.names[key]}[{self.index(within)}])"

    def _square(self, number: int, offset: Index, guard: Guard) -> str:
        """An element of a vector of neighbours from one row to the next, one for each lane; empty if it is none."""
        width, rows = self.width, [a for a in offset.terms if isinstance(a, Variable) and a.depends == ROW]
        rest = Index(offset.const, {a: c for a, c in offset.terms.items() if a not in rows})
        lanes = [a for a in rest.terms if a.depends & LANE]
        if (
            not (rows and lanes and offset.terms[rows[0]] == 1)
            or any(c % width for c in (rest.const, *rest.terms.values()))
            or any(not isinstance(a, Variable) for a in lanes)
            or rest.depends & ROW
            or any(c.depends & (LANE | ROW) for c in guard)
        ):
            return ""
        key = ("square", number, rest, guard)
        if key not in self.names:
            start = Index(rest.const // width, {a: c // width for a, c in rest.terms.items()})
            address = f"in{number} + {width} * {self._grouped(self.index(start, within=False))}"
            condition, name = self.guard(guard), self.name(key, "x")
            load = f"load({name}[v], {address});"
            self.outer += [
                f"{TYPES[self.dtypes[number]]} {name}[{width}][{width}];",
                "#pragma unroll",
                f"for (int v = 0; v < {width}; ++v) "
                + (f"if ({condition}) {load} else zero({name}[v]);" if guard else load),
            ]
        return f"value({self.names[key]}[v][u])"

    def _guarded(self, element: str, guard: Guard, type: str) -> str:
        return f"{self.guard(guard)} ? {element} : {zero(type)}" if guard else element


def kernel(
    entry: str,
    inputs: Mapping[int, str],
    elements: Sequence[tuple[str, Scalar]],
    rest: Sequence[tuple[str, Scalar]],
    count: int,
    width: int,
    wide: bool = False,
    square: Index | None = None,
) -> Text:
    """The source of one loop over `count` elements, `width` at a time: `inputs` are numbers and element types of those
    that are read, `elements` the element type and expression of each output.

    Indices are 32-bit, or if `wide`, or where one may pass NARROW_LIMIT, 64-bit.
    Vectors are counted by `j` and their lanes by `v`; single elements by `i`, those of `rest` what the vectors leave.
    Where there is a `square`, `j` counts `width` vectors at a time, `u` counts these, and it is where one is written.
    Arrays come first as parameters, inputs `in0` … and outputs `out0` …; then the count of vectors (and that of
    elements, where some are left), then numbers.
    """
    writer = Writer(inputs, width, wide)
    lines = (
        _squares(writer, elements, square)
        if square is not None
        else _vectors(writer, elements)
        if width > 1
        else _singles(writer, elements)
    )
    vectors = "x" in writer.counts
    left = []
    single = Writer(inputs, 1, wide, tables=writer.tables, numbers=writer.numbers, divisors=writer.divisors)
    if rest:
        left = ["Index elements", f"    for (Index i = {width} * count + first; i < elements; i += step) {{"]
        left += [f"        {line}" for line in _singles(single, rest)] + ["    }"]
    largest = max(count, writer.largest, single.largest)
    if largest >= NARROW_LIMIT and not wide:
        return kernel(entry, inputs, elements, rest, count, width, wide=True, square=square)
    head = [f"const {TYPES[dtype]}* __restrict__ in{k}" for k, dtype in inputs.items()]
    head += [f"{TYPES[dtype]}* __restrict__ out{k}" for k, (dtype, _) in enumerate(elements)]
    head += ["Index count", *left[:1], *(f"Index {name}" for name in writer.numbers.values())]
    counts = [count // (width if square is None else width * width), *([count] if rest else [])]
    parameters: list[np.generic] = [(np.int64 if wide else np.int32)(n) for n in (*counts, *writer.numbers)]
    prepared = []
    for n, name in writer.divisors.items():
        head += [f"int {name}_number, unsigned {name}_multiplier, int {name}_shift"]
        prepared.append(f"const Divisor {name} = {{{name}_number, {name}_multiplier, {name}_shift}};")
        parameters += division(n)
    loop = "j" if width > 1 else "i"
    body = [
        "",
        f"typedef {'long long' if wide else 'int'} Index;",
        "",
        *(table(name, *content) for content, name in writer.tables.items()),
        OPENING.format(entry),
        ",\n".join(f"    {h}" for h in head) + ") {",
        *(f"    {line}" for line in prepared),
        "    const Index step = static_cast<Index>(gridDim.x) * blockDim.x;",
        "    const Index first = static_cast<Index>(blockIdx.x) * blockDim.x + threadIdx.x;",
        f"    for (Index {loop} = first; {loop} < count; {loop} += step) {{",
        *(f"        {line}" for line in lines),
        "    }",
        *left[1:],
        "}",
        "",
    ]
    return Text("\n".join(body), tuple(parameters), vectors, tuple(head))


def table(name: str, type: str, values: tuple[int | float | bool, ...]) -> str:
    """A constant as an array of the device."""
    texts = ", ".join(real(v) if type == FLOAT else str(v).lower() for v in values)
    return f"__device__ const {type} {name}[] = {{{texts}}};"


def _vectors(writer: Writer, elements: Sequence[tuple[str, Scalar]]) -> list[str]:
    """The body of a loop over vectors."""
    lanes = _lanes(writer, elements, None)
    return [*writer.outer, *lanes]


def _squares(writer: Writer, elements: Sequence[tuple[str, Scalar]], square: Index) -> list[str]:
    """The body of a loop over as many vectors as they have lanes; `square` is where the row `u` of them begins."""
    lanes = _lanes(writer, elements, square)
    return [
        *writer.outer,
        "#pragma unroll",
        f"for (int u = 0; u < {writer.width}; ++u) {{",
        *(f"    {line}" for line in [*writer.middle, *lanes]),
        "}",
    ]


def _lanes(writer: Writer, elements: Sequence[tuple[str, Scalar]], place: Index | None) -> list[str]:
    """One vector of each result, to `place` or where they follow each other."""
    width = writer.width
    results = [f"Rounded<{TYPES[dtype]}>::of({writer.scalar(s)})" for dtype, s in elements]
    inner = [*writer.inner, *(f"y{k}[v] = {text};" for k, text in enumerate(results))]
    start = f"{width} * j" if place is None else writer.index(place)
    if writer.position:
        inner.insert(0, f"const Index i = {width} * j + v;")
    return [
        *(f"{TYPES[dtype]} y{k}[{width}];" for k, (dtype, _) in enumerate(elements)),
        "#pragma unroll",
        f"for (int v = 0; v < {width}; ++v) {{",
        *(f"    {line}" for line in inner),
        "}",
        *(f"store(out{k} + {start}, y{k});" for k in range(len(elements))),
    ]


def _singles(writer: Writer, elements: Sequence[tuple[str, Scalar]]) -> list[str]:
    """The body of a loop over single elements."""
    results = [f"Rounded<{TYPES[dtype]}>::of({writer.scalar(s)})" for dtype, s in elements]
    return [*writer.outer, *(f"out{k}[i] = {text};" for k, text in enumerate(results))]


def division(n: int) -> list[np.generic]:
    """The fields of a `Divisor`: x / n is (high half of x · multiplier, plus x) >> shift, for 0 <= x < 2^31."""
    shift = (n - 1).bit_length()
    return [np.int32(n), np.uint32(((1 << 32) * ((1 << shift) - n)) // n + 1), np.int32(shift)]
