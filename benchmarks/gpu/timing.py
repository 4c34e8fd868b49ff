"""How long a node takes: several sides in turns, each a graph of launches replayed between two events."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnxfuse.kernels.device.device import nbytes

from . import checks, expected
from .machine import Machine, Memory, Run
from .plan import Row
from .sizes import Operand, Timed, moved

Rate = Callable[[], float | None]
"""The bandwidth of a copy in bytes a second, where it was measured."""

REPLAY = 1e-3
"""A replay takes about this many seconds at least."""
MOST_LAUNCHES = 200
LEAST_ROUNDS, MOST_ROUNDS = 11, 101
HOST_LAUNCHES = 21
SECONDS = 0.4
"""For all rounds of a node."""
CACHES = 4
"""Arrays that take turns hold this many times what the last cache does."""
MOST_SETS = 8
SAMPLED, MOST_SAMPLED = 3, 1 << 22
"""Places along the first dimension whose results are compared with float64: one, if it has so many elements."""
SEEN = 0.7
"""Share of the keys that a boolean mask shows."""
BLOCK = (1 << 20) + 4093
"""Random elements that an array is filled with, over and over: no row length divides it."""


@dataclass(frozen=True, slots=True)
class Side:
    """One way to compute a node: what launches it `launches` times."""

    run: Run
    launches: int
    how: str
    """ "graph" or "stream"."""


@dataclass(slots=True)
class Set:
    """Inputs and outputs of one launch."""

    inputs: list[Memory | None]
    outputs: list[Memory | None]


def sets(node: Timed, machine: Machine) -> list[Set]:
    """As many as it takes that no launch finds its arrays in the cache; one, where the node fits in it many times."""
    kernel = expected.kernel(node.op, node.attributes)
    types = kernel.outputs(node.types)
    asked = checks.wanted(node.outputs, types)
    size = sum(nbytes(t) for t in [*node.types, *types] if t is not None)
    count = 1 if size * MOST_SETS < machine.cache else min(MOST_SETS, 1 + -(-CACHES * machine.cache // max(size, 1)))
    rng = np.random.default_rng(0)
    blocks = [
        None if operand is None or type is None else block(rng, operand, type.dtype)
        for operand, type in zip(node.operands, node.types, strict=True)
    ]
    made = []
    for _ in range(count):
        inputs = [None if type is None else machine.allocate(type) for type in node.types]
        for memory, values in zip(inputs, blocks, strict=True):
            if memory is not None and values is not None:
                machine.fill(memory, values)
        made.append(Set(inputs, [machine.allocate(t) if w else None for t, w in zip(types, asked, strict=True)]))
    return made


def block(rng: np.random.Generator, operand: Operand, dtype: np.dtype[Any]) -> Any:
    """Random elements for an input."""
    count = min(BLOCK, operand.size)
    if operand.kind == "positions":
        return rng.integers(0, operand.most, count).astype(dtype)
    if operand.kind == "seen":
        return rng.random(count) < SEEN
    return rng.standard_normal(count).astype(np.float32).astype(dtype)


def ours(node: Timed, machine: Machine, every: Sequence[Set]) -> Callable[[int], Run]:
    """What launches our kernel on the i-th set."""
    kernel = expected.kernel(node.op, node.attributes)
    return lambda i: lambda: kernel.launch(machine.device, every[i].inputs, every[i].outputs)


def side(
    machine: Machine, call: Callable[[int], Run], count: int, graph: Callable[[Sequence[Run]], tuple[Run, str]]
) -> Side:
    """A side whose launches go through `count` sets in turn, as often as a replay of REPLAY seconds takes."""
    for i in range(count):
        call(i)()
    machine.wait()

    def once() -> None:
        for i in range(count):
            call(i)()

    took = min(machine.seconds(once) for _ in range(3)) / count
    launches = min(MOST_LAUNCHES, max(count, math.ceil(REPLAY / max(took, 1e-7))))
    launches = -(-launches // count) * count
    run, how = graph([call(i % count) for i in range(launches)])
    return Side(run, launches, how)


def measure(
    machine: Machine,
    sides: Mapping[str, Side],
    clock: Callable[[], float] = time.monotonic,
    seed: int = 0,
    most: float | None = None,
) -> dict[str, list[float]]:
    """Seconds of one launch of each side, one figure a round; every round runs all sides, in another order.

    It takes `most` seconds, SECONDS if that is None, but LEAST_ROUNDS in any case.
    """
    end = clock() + (SECONDS if most is None else most)
    samples: dict[str, list[float]] = {name: [] for name in sides}
    order, shuffled = list(sides), random.Random(seed)
    for name in order:
        sides[name].run()
    machine.wait()
    for done in range(MOST_ROUNDS):
        if done >= LEAST_ROUNDS and clock() > end:
            break
        shuffled.shuffle(order)
        for name in order:
            samples[name].append(machine.seconds(sides[name].run) / sides[name].launches)
    return samples


def summary(samples: Sequence[float]) -> dict[str, float]:
    """Median and quartiles, in microseconds."""
    if len(samples) < 2:
        return {"us": round(samples[0] * 1e6, 3)}
    low, middle, high = statistics.quantiles(samples, n=4)
    return {"us": round(middle * 1e6, 3), "us_low": round(low * 1e6, 3), "us_high": round(high * 1e6, 3)}


def row(
    node: Timed, machine: Machine, every: Sequence[Set], samples: Mapping[str, Sequence[float]], rate: float | None
) -> Row:
    """What a table shows of a node.  `rate` is the bandwidth of a copy in bytes a second."""
    kernel = expected.kernel(node.op, node.attributes)
    work = kernel.work(node.types)
    count = moved(node, work.read + work.written, list(kernel.outputs(node.types)))
    found: Row = {
        "op": node.op,
        "dtype": node.dtype,
        "bytes": count,
        "sets": len(every),
        "cached": len(every) == 1,
        "sides": {name: summary(values) for name, values in samples.items()},
    }
    seconds = found["sides"]["onnxfuse"]["us"] / 1e6
    if seconds:
        found["bytes_per_second"] = round(count / seconds)
        if rate and not found["cached"]:
            found["of_copy"] = round(count / seconds / rate, 4)
    return found


def verify(node: Timed, machine: Machine, made: Set) -> str:
    """Why some places along the first dimension are wrong, empty if they are right."""
    first, each = node.first.shape[0], math.prod(node.first.shape[1:])
    random_places = np.random.default_rng(first).integers(0, first, SAMPLED - 2).tolist()
    places = sorted({0, first - 1, *random_places} if each < MOST_SAMPLED else {first - 1})
    for place in places:
        inputs = [
            None if operand is None or memory is None else machine.read(memory.at(place) if operand.batched else memory)
            for operand, memory in zip(node.operands, made.inputs, strict=True)
        ]
        wanted = expected.expected(node.op, node.attributes, inputs)
        for number, (output, value) in enumerate(zip(made.outputs, wanted, strict=False)):
            if output is not None:
                reason, _ = expected.difference(machine.read(output.at(place)), value)
                if reason:
                    return f"output {number} at {place}: {reason}"
    spoiled = any(output is not None and machine.spoiled(output) for output in made.outputs)
    return "written out of bounds" if spoiled else ""


def time_node(node: Timed, rate: Rate, machine: Machine, clock: Callable[[], float] = time.monotonic) -> Iterator[Row]:
    """Our kernel alone: right first, then timed."""
    every = sets(node, machine)
    call = ours(node, machine, every)
    for i in range(len(every)):
        call(i)()
    machine.wait()
    if reason := verify(node, machine, every[-1]):
        yield {"outcome": reason, "op": node.op, "dtype": node.dtype}
        return
    made = side(machine, call, len(every), machine.graph)
    samples = measure(machine, {"onnxfuse": made}, clock)
    found = row(node, machine, every, samples, rate())
    yield found | {"how": {"onnxfuse": made.how}, "host_us": round(host(machine, call(0)) * 1e6, 2)}


def host(machine: Machine, launch: Run, clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of the host's time that one launch takes, outside a graph: the median."""
    samples = []
    for _ in range(HOST_LAUNCHES):
        machine.wait()
        start = clock()
        launch()
        samples.append(clock() - start)
    machine.wait()
    return statistics.median(samples)
