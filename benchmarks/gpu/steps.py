"""The whole plan, in order of importance."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from onnxfuse.errors import KernelError
from onnxfuse.runtime.installed import onnxruntime

from . import (
    attentions,
    cases,
    checks,
    contest,
    expected,
    exported,
    floors,
    linear,
    peers,
    sanitizer,
    sdpa,
    sessions,
    sizes,
    stack,
    timing,
)
from .floors import Floors, Measured
from .machine import Machine
from .plan import Journal, Row, SkippedError, Step

SECTIONS = (
    "floor",
    "peers",
    "compile",
    "check",
    "attention",
    "products",
    "split_stack",
    "session",
    "sanitizer",
    "time",
    "models",
    "torch",
    "tuned",
)
ALWAYS = frozenset({"floor", "peers"})
"""Sections that others divide by, and what a record went without: they take seconds, and are never left out."""
FIRST_MODELS = 3
"""Models that tell most, before what takes long."""
FIRST = 10
"""Nodes that tell most: PyTorch runs beside these before all others."""


def plan(journal: Journal) -> list[Step]:
    """Correctness, floors, our times; then what others take, the most telling of each kind first.

    What one step needs of another it finds in the journal.
    """

    def measured() -> Floors:
        return Floors.of(journal.all("row"))

    def rate() -> float | None:
        return measured().copy

    nodes = list(sizes.timed())
    first, rest = nodes[:FIRST], nodes[FIRST:]
    memcheck, racecheck = sanitizer.steps()
    plain, tuned = (peers.FULL,), tuple(peers.MODES)
    attended, attended_after = _attention(measured)
    products, products_after = _products(measured)
    kernels = [Step("compile", "kernels", compile_all, 60.0, 300.0), *checks.steps()]
    models = exported.steps()
    return [
        Step("floor", "copy", floors.copy, 2.0),
        Step("floor", "launch", floors.launch, 2.0),
        *(Step("floor", f"{dtype} products", partial(floors.products, dtype), 2.0) for dtype in floors.RATED),
        Step("peers", "installed", peers_installed, 10.0, 180.0),
        *kernels,
        *attended,
        *products,
        Step("split_stack", "op by op", partial(stack.compare, modes=()), 15.0, 180.0),
        *sessions.steps(),
        memcheck,
        *(Step("time", node.name, partial(timing.time_node, node, rate), 1.5) for node in nodes),
        *models[:FIRST_MODELS],
        Step("split_stack", "compiled", partial(stack.compare, modes=plain), 20.0, 180.0),
        *(beside(node, plain, rate) for node in first),
        racecheck,
        *attended_after,
        *products_after,
        *models[FIRST_MODELS:],
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


def _attention(measured: Measured) -> tuple[list[Step], list[Step]]:
    """Attention beside PyTorch's: what tells most, with its kernels compiled before; and the rest, likewise."""
    first = attentions.telling()
    told = {node.name for node in first}
    rest = [node for node in attentions.timed() if node.name not in told]

    def steps(nodes: list[sizes.Timed], title: str) -> list[Step]:
        ahead = Step("attention", title, partial(compile_nodes, nodes), 20.0, 240.0)
        each = [
            Step("attention", node.name, partial(contest.run, sdpa.contest(node), measured), 4.0, 120.0)
            for node in nodes
        ]
        return [ahead, *each]

    return steps(first, "first kernels"), steps(rest, "kernels")


def _products(measured: Measured) -> tuple[list[Step], list[Step]]:
    """Linear layers likewise; those that tell most by themselves before PyTorch compiles any."""
    first = linear.telling()
    told = {node.name for node in first}
    rest = [node for node in linear.timed() if node.name not in told]

    def step(node: sizes.Timed, compiled: bool) -> Step:
        made = linear.contest(node, ({},) if compiled else ())
        name = f"{node.name}, compiled" if compiled else node.name
        return Step("products", name, partial(contest.run, made, measured), 6.0 if compiled else 3.0, 120.0)

    return (
        [
            Step("products", "first kernels", partial(compile_nodes, first), 20.0, 240.0),
            *(step(node, False) for node in first),
        ],
        [
            Step("products", "kernels", partial(compile_nodes, rest), 20.0, 240.0),
            *(step(node, False) for node in rest),
            *(step(node, True) for node in [*first, *rest]),
        ],
    )


def compile_all(machine: Machine) -> Iterator[Row]:
    """Every source that checks and timings of rows launch."""

    def every() -> Iterator[checks.Planned]:
        for case in cases.cases():
            kernel = expected.kernel(case.op, case.attributes)
            yield checks.Planned(case.name, kernel, checks.types_of(case.make()), case.outputs, case.by)
        yield from planned(sizes.timed())

    return checks.compile_all(every(), machine, checks.processors())


def compile_nodes(nodes: Iterable[sizes.Timed], machine: Machine) -> Iterator[Row]:
    """Every source that these nodes launch."""
    return checks.compile_all(planned(nodes), machine, checks.processors())


def planned(nodes: Iterable[sizes.Timed]) -> Iterator[checks.Planned]:
    """Those that have a kernel; the others say so themselves when their turn comes."""
    for node in nodes:
        try:
            kernel = expected.kernel(node.op, node.attributes)
        except KernelError:
            continue
        yield checks.Planned(node.name, kernel, node.types, node.outputs)


def peers_installed(machine: Machine) -> Iterator[Row]:
    """What runs beside ours here, and why what does not is not there: a row for each."""
    there: dict[str, Callable[[], str]] = {
        "PyTorch": lambda: str(peers.torch().__version__),
        "Triton": lambda: _version("triton"),
        "transformers": lambda: _version("transformers"),
        "onnxruntime on CUDA": _onnxruntime,
        "nvmath-python": lambda: _version("nvmath-python"),
        "compute-sanitizer": sanitizer.command,
    }
    for name, ask in there.items():
        try:
            yield {"name": name, "version": ask()}
        except SkippedError as reason:
            yield {"name": name, "outcome": f"skipped: {reason}"}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise SkippedError(f"{package} is not installed") from None


def _onnxruntime() -> str:
    sessions.available()
    return str(onnxruntime().__version__)
