"""The whole plan, in order of importance."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from . import cases, checks, expected, peers, sanitizer, sessions, sizes, stack, timing
from .machine import Machine, copy_rate
from .plan import Journal, Row, Step

SECTIONS = ("compile", "check", "floor", "time", "split_stack", "sanitizer", "torch", "session", "tuned")
FIRST = 10
"""Nodes that tell most: PyTorch runs beside these before all others."""
COPIED = 8
"""Times the last cache that a copy moves."""


def plan(journal: Journal) -> list[Step]:
    """Correctness, floors, our times, split_stack; then the sanitizer and what others take, the most telling first.

    What one step needs of another it finds in the journal.
    """

    def rate() -> float | None:
        measured = [row["bytes_per_second"] for row in journal.all("row") if row["section"] == "floor"]
        return float(measured[-1]) if measured else None

    nodes = list(sizes.timed())
    first, rest = nodes[:FIRST], nodes[FIRST:]
    memcheck, racecheck = sanitizer.steps()
    plain, tuned = (peers.FULL,), tuple(peers.MODES)
    return [
        Step("compile", "kernels", compile_all, 60.0, 300.0),
        *checks.steps(),
        Step("floor", "copy", floor, 2.0),
        *(Step("time", node.name, partial(timing.time_node, node, rate), 1.5) for node in nodes),
        Step("split_stack", "op by op", partial(stack.compare, modes=()), 15.0, 180.0),
        memcheck,
        Step("torch", "installed", torch_installed, 10.0, 180.0),
        Step("split_stack", "compiled", partial(stack.compare, modes=plain), 20.0, 180.0),
        *(beside(node, plain, rate) for node in first),
        racecheck,
        *sessions.steps(),
        *(beside(node, tuned, rate) for node in first if node.tuned),
        Step("split_stack", "tuned", partial(stack.compare, modes=tuned), 40.0, 240.0),
        *(beside(node, plain, rate) for node in rest),
        *(beside(node, tuned, rate) for node in rest if node.tuned),
    ]


def beside(node: sizes.Timed, modes: tuple[str, ...], rate: timing.Rate) -> Step:
    """PyTorch beside a node; a search for the best kernel takes longer than to compile one."""
    searching = len(modes) > 1
    name = f"{node.name}, tuned" if searching else node.name
    run = partial(peers.beside, node, modes, rate)
    return Step("tuned" if searching else "torch", name, run, 25.0 if searching else 6.0, 240.0 if searching else 120.0)


def compile_all(machine: Machine) -> Iterator[Row]:
    """Every source that checks and timings launch."""

    def every() -> Iterator[checks.Planned]:
        for case in cases.cases():
            kernel = expected.kernel(case.op, case.attributes)
            yield checks.Planned(case.name, kernel, checks.types_of(case.make()), case.outputs, case.by)
        for node in sizes.timed():
            yield checks.Planned(node.name, expected.kernel(node.op, node.attributes), node.types, node.outputs)

    return checks.compile_all(every(), machine, checks.processors())


def floor(machine: Machine) -> Iterator[Row]:
    """What a copy on the card moves in a second."""
    count = max(COPIED * machine.cache, 1 << 20)
    yield {"bytes": 2 * count, "bytes_per_second": round(copy_rate(machine, count))}


def torch_installed(machine: Machine) -> Iterator[Row]:
    """Its version, once, so that its absence is said."""
    yield {"version": peers.torch().__version__}
