"""The whole plan, in order of importance."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from . import cases, checks, expected, peers, sanitizer, sessions, sizes, stack, timing
from .machine import Machine, copy_rate
from .plan import Journal, Row, Step

SECTIONS = ("compile", "check", "floor", "time", "split_stack", "sanitizer", "torch", "session")
COPIED = 8
"""Times the last cache that a copy moves."""


def plan(journal: Journal) -> list[Step]:
    """Correctness, floors, our times, split_stack, the sanitizer, PyTorch, onnxruntime.

    What one step needs of another it finds in the journal.
    """

    def rate() -> float | None:
        measured = [row["bytes_per_second"] for row in journal.all("row") if row["section"] == "floor"]
        return float(measured[-1]) if measured else None

    nodes = list(sizes.timed())
    return [
        Step("compile", "kernels", compile_all, 60.0, 300.0),
        *checks.steps(),
        Step("floor", "copy", floor, 2.0),
        *(Step("time", node.name, partial(timing.time_node, node, rate), 1.5) for node in nodes),
        Step("split_stack", "op by op", partial(stack.compare, modes=()), 5.0),
        *sanitizer.steps(),
        *(torch_steps(nodes, rate)),
        *sessions.steps(),
    ]


def torch_steps(nodes: list[sizes.Timed], rate: timing.Rate) -> Iterator[Step]:
    """Eager and compiled beside each node; then, of those where it tells, after a search for the best kernel."""
    yield Step("torch", "installed", torch_installed, 15.0, 180.0)
    yield Step("split_stack", "compiled", partial(stack.compare, modes=(peers.FULL,)), 20.0, 180.0)
    for node in nodes:
        yield Step("torch", node.name, partial(peers.beside, node, (peers.FULL,), rate), 8.0, 120.0)
    yield Step("split_stack", "tuned", partial(stack.compare, modes=tuple(peers.MODES)), 40.0, 240.0)
    for node in nodes:
        if node.tuned:
            names = tuple(peers.MODES)
            yield Step("torch", f"{node.name}, tuned", partial(peers.beside, node, names, rate), 25.0, 240.0)


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
