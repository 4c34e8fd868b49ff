"""Reductions of rows that wait for one another, as passes over a row: what each computes, and what stays at hand.

level        of an element: the largest among its operands; a reduction's result is one level above what it reduces
pass         p reduces all of level p, and stores what can be stored then: none waits for more than it has to
held         what one pass computes of an element and a later one needs stays in a register of the element's thread, or,
             if these are fewer, what both read from memory
own          what differs from row to row alone is computed once a row, where it is first needed
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from onnxfuse.kernels.pointwise.expressions.carried import Stored
from onnxfuse.kernels.pointwise.expressions.index import LANE
from onnxfuse.kernels.pointwise.expressions.scalars import Scalar
from onnxfuse.kernels.pointwise.loops import indices, reached

from .vectors import SINGLE, Layout, variables


@dataclass(frozen=True, eq=False)
class Reduction:
    """One of a row, or of a column: its result is an argument called `name`."""

    kind: str
    """SUM, MEAN, MAX or MIN."""
    element: Scalar
    name: str


@dataclass
class Pass:
    """What is done to each element of a row in turn."""

    own: dict[Scalar, str] = field(default_factory=dict)
    """What is computed once for the row before it, and its name."""
    reduced: list[Reduction] = field(default_factory=list)
    summed: list[Reduction] = field(default_factory=list)
    """Those of columns."""
    stores: list[Stored] = field(default_factory=list)
    held: dict[Scalar, str] = field(default_factory=dict)
    """What stays for later passes, and its register for an item and a lane."""
    known: dict[Scalar, str] = field(default_factory=dict)
    """What earlier passes left."""

    @property
    def roots(self) -> list[Scalar]:
        elements = [r.element for r in (*self.reduced, *self.summed)]
        return [*elements, *(stored.element for stored in self.stores)]


@dataclass(frozen=True)
class Schedule:
    """The passes over a row, and what is left for its first thread."""

    passes: Sequence[Pass]
    once: Sequence[Stored]
    last: Mapping[Scalar, str]
    """What that is computed from, and its name."""
    registers: Mapping[str, str]
    """Of each element: name → type."""

    @property
    def own(self) -> dict[str, str]:
        """What there is of each row, or where these are lanes, of each of them: declaration → type."""
        return {name.replace("[v]", "[VECTOR]"): s.type for one in self.passes for s, name in one.own.items()}


class Varies:
    """Which elements differ within a row, where what these loop variables count does."""

    def __init__(self, within: frozenset[str] = SINGLE.within) -> None:
        self.within = within
        self._known: dict[tuple[Scalar, bool], bool] = {}

    def __call__(self, scalar: Scalar) -> bool:
        """From column to column."""
        return self._found(scalar, rows=False)

    def matrix(self, scalar: Scalar) -> bool:
        """From column to column, and from row to row."""
        return self(scalar) and self._found(scalar, rows=True)

    def _found(self, scalar: Scalar, *, rows: bool) -> bool:
        if (scalar, rows) in self._known:
            return self._known[scalar, rows]
        pending = [scalar]
        while pending:
            s = pending[-1]
            missing = [a for a in s.args if (a, rows) not in self._known]
            if missing:
                pending += missing
                continue
            pending.pop()
            names = {name for index in indices(s) for name in variables(index)}
            within = names & self.within
            here = names != within or s.kind == "argument" if rows else bool(within)
            self._known[s, rows] = here or any(self._known[a, rows] for a in s.args)
        return self._known[scalar, rows]


def levels(reductions: Sequence[Reduction], roots: Iterable[Scalar]) -> dict[Scalar, int]:
    """The level of everything that some elements, and those that are reduced, are computed from."""
    of = {reduction.name: reduction for reduction in reductions}
    found: dict[Scalar, int] = {}
    pending = [*roots, *(reduction.element for reduction in reductions)]
    while pending:
        s = pending[-1]
        below = [of[s.payload].element] if s.kind == "argument" else list(s.args)
        missing = [a for a in below if a not in found]
        if missing:
            pending += missing
            continue
        pending.pop()
        found[s] = max((found[a] for a in below), default=0) + (s.kind == "argument")
    return found


def schedule(
    reductions: Sequence[Reduction],
    sums: Sequence[Reduction],
    stores: Sequence[Stored],
    *,
    hold: bool = True,
    layout: Layout = SINGLE,
) -> Schedule:
    """The passes for some reductions of rows, sums of columns and stores; where nothing may be `hold`, every pass
    begins with what is in memory."""
    varies = Varies(layout.within)
    each = [one for one in stores if varies(one.element) or layout.within & variables(one.place)]
    once = [stored for stored in stores if stored not in each]
    at = levels(reductions, [*(r.element for r in sums), *(stored.element for stored in stores)])
    count = 1 + max((at[r.element] for r in (*reductions, *sums)), default=-1)
    count = max([count, *(at[stored.element] + 1 for stored in each)])
    passes = [Pass() for _ in range(count)]
    for reduction in reductions:
        passes[at[reduction.element]].reduced.append(reduction)
    for one in sums:
        passes[at[one.element]].summed.append(one)
    for stored in each:
        passes[at[stored.element]].stores.append(stored)
    registers = _hold(passes, varies) if hold else {}
    last = _own(passes, [stored.element for stored in once], varies)
    return Schedule(passes, once, last, registers)


def _own(passes: Sequence[Pass], once: Sequence[Scalar], varies: Varies) -> dict[Scalar, str]:
    """Name what differs from row to row alone, where it is first needed; returns that for what is stored once."""
    names: dict[Scalar, str] = {}
    for one in passes:
        one.known |= names
        for s in _computed(one.roots, one.known):
            for a in s.args if varies(s) else ():
                if not varies(a) and a.kind not in ("literal", "argument") and a not in one.known:
                    one.own.setdefault(a, f"own{len(names)}{'[v]' if a.depends & LANE else ''}")
                    names |= one.own
        one.known |= one.own
    return names if once else {}


def _computed(roots: Sequence[Scalar], known: Mapping[Scalar, str]) -> list[Scalar]:
    """What is computed for some elements, given what is known; what indices are read from as well."""
    found: dict[Scalar, None] = {}
    pending = [s for s in roots if s not in known]
    while pending:
        s = pending.pop()
        if s not in found:
            found[s] = None
            pending += [a for a in s.args if a not in known]
            pending += [read.value for index in indices(s) for read in index.reads()]
    return list(found)


def _hold(passes: Sequence[Pass], varies: Varies) -> dict[str, str]:
    """Choose what stays in registers; returns these."""
    first: dict[Scalar, int] = {}
    for p, one in enumerate(passes):
        for s in reached(one.roots):
            first.setdefault(s, p)
    matrix = [s for s in first if s.kind not in ("literal", "argument") and varies.matrix(s)]
    choices = [frozenset(matrix), frozenset(s for s in matrix if s.kind == "load")]
    return min((_registers(passes, first, allowed) for allowed in choices), key=lambda found: len(found.types)).apply(
        passes
    )


@dataclass
class _Registers:
    types: dict[str, str]
    of: dict[Scalar, str]
    first: Mapping[Scalar, int]
    last: Mapping[Scalar, int]

    def apply(self, passes: Sequence[Pass]) -> dict[str, str]:
        for s, name in self.of.items():
            own = f"{name}[item][{'v' if s.depends & LANE else 0}]"
            passes[self.first[s]].held[s] = own
            for p in range(self.first[s] + 1, self.last[s] + 1):
                passes[p].known[s] = own
        return self.types


def _registers(passes: Sequence[Pass], first: Mapping[Scalar, int], allowed: frozenset[Scalar]) -> _Registers:
    """Registers for what of the `allowed` is needed behind the pass that computes it, each free again behind the last
    that needs it."""
    last: dict[Scalar, int] = {}
    for p, one in enumerate(passes):
        known = {s: "" for s in allowed if first[s] < p}
        for s in _computed(one.roots, known):
            last |= {a: p for a in s.args if a in known}
        last |= {s: p for s in one.roots if s in known}
    free: dict[str, int] = {}
    types: dict[str, str] = {}
    of: dict[Scalar, str] = {}
    for s in sorted(last, key=lambda s: first[s]):
        name = next((n for n, until in free.items() if until <= first[s] and types[n] == s.type), f"held{len(types)}")
        types[name], free[name], of[s] = s.type, last[s], name
    return _Registers(types, of, first, last)
