"""Compiling everything at once, and each kernel against float64."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import NamedTuple

from onnxfuse.kernels.device.device import Buffer, Source, TensorType
from onnxfuse.kernels.device.kernel import Kernel
from onnxfuse.kernels.device.recorder import Recorder
from onnxfuse.kernels.gemm.autotune import VARIABLE

from . import cases, expected
from .case import SMALL, Case, Inputs
from .machine import Machine
from .plan import Row, Step, one_line

LEAST_SMALL = 100
"""Elements of a case that says something about memory accesses."""
SMALL_TYPES = ("float32", "float16")


class Planned(NamedTuple):
    """A node that will be launched."""

    name: str
    kernel: Kernel
    types: Sequence[TensorType | None]
    outputs: tuple[bool, ...]
    by: int = 0


def collect(device: Recorder, node: Planned) -> None:
    """What a node launches."""

    def place(type: TensorType, number: int) -> Buffer:
        return Buffer((number + 1 << 40) + node.by * type.dtype.itemsize, type.shape, type.dtype)

    given = [None if t is None else place(t, i) for i, t in enumerate(node.types)]
    made = node.kernel.outputs(node.types)
    asked = wanted(node.outputs, made)
    outputs = [place(t, 100 + i) if w else None for i, (t, w) in enumerate(zip(made, asked, strict=True))]
    node.kernel.launch(device, given, outputs)


def wanted(asked: tuple[bool, ...], outputs: Sequence[object]) -> list[bool]:
    """Whether each output is asked for."""
    return [*asked, *(True for _ in outputs[len(asked) :])][: len(outputs)]


def types_of(inputs: Inputs) -> list[TensorType | None]:
    return [None if a is None else TensorType(a.dtype, a.shape) for a in inputs]


def compile_all(every: Iterable[Planned], machine: Machine, threads: int) -> Iterator[Row]:
    """Compile what all nodes launch, side by side; a row for all of it, and one for each source that fails."""
    start, names = time.monotonic(), dict[tuple[Source, str], str]()
    for node in every:
        recorder = Recorder(machine.device.multiprocessors)
        try:
            collect(recorder, node)
        except Exception:
            continue  # it says so itself when its turn comes
        for launch in recorder.launches:
            names.setdefault((launch.source, launch.entry), node.name)
    collected = time.monotonic()

    def compiled(key: tuple[Source, str]) -> str:
        try:
            machine.prepare(*key)
        except Exception as error:
            return one_line(error)
        return ""

    with ThreadPoolExecutor(threads) as pool:
        failures = dict(zip(names, pool.map(compiled, names), strict=True))
    yield {
        "name": "kernels",
        "sources": len(failures),
        "failed": sum(map(bool, failures.values())),
        "collect_seconds": round(collected - start, 1),
        "compile_seconds": round(time.monotonic() - collected, 1),
    }
    yield from ({"name": names[key], "outcome": reason} for key, reason in failures.items() if reason)


@contextmanager
def settled(variable: str, form: str) -> Iterator[None]:
    """Kernels take the form that an environment variable settles, or their own choice if it is empty."""
    before = os.environ.get(variable, "")
    os.environ[variable] = form
    try:
        yield
    finally:
        os.environ[variable] = before


def product_form(form: str) -> AbstractContextManager[None]:
    """Products take this form, or the one that was measured to be faster if it is empty."""
    return settled(VARIABLE, form)


def check(case: Case, machine: Machine) -> Row:
    """Run a case into poisoned outputs, between guards, and compare with float64."""
    inputs = case.make()
    kernel = expected.kernel(case.op, case.attributes)
    placed = []
    for array in inputs:
        memory = None if array is None else machine.allocate(TensorType(array.dtype, array.shape), case.by)
        if memory is not None and array is not None:
            machine.write(memory, array)
        placed.append(memory)
    types = kernel.outputs(types_of(inputs))
    outputs = [
        machine.allocate(t, case.by) if w else None for t, w in zip(types, wanted(case.outputs, types), strict=True)
    ]
    with product_form(case.product):
        kernel.launch(machine.device, placed, outputs)
    machine.wait()
    row: Row = {"op": case.op, "dtype": str(types[0].dtype), "error": 0.0}
    if any(output is not None and not output.nbytes for output in outputs):
        return row
    for number, (output, value) in enumerate(
        zip(outputs, expected.expected(case.op, case.attributes, inputs, case.product), strict=False)
    ):
        if output is None:
            continue
        reason, error = expected.difference(machine.read(output), value)
        row["error"] = max(row["error"], error)
        if machine.spoiled(output):
            reason = "written out of bounds"
        if reason:
            row["outcome"] = f"output {number}: {reason}"
            return row
    for memory, array in zip(placed, inputs, strict=True):
        if memory is not None and array is not None and machine.read(memory).tobytes() != array.tobytes():
            row["outcome"] = "an input was written"
    return row


def small() -> list[Case]:
    """Of every op, for two element types, the smallest and the largest case that a checker of memory accesses can
    afford, and one that is misaligned.  Elementwise ops, which one generator writes, take turns at the types."""
    found: dict[tuple[str, str], list[Case]] = {}
    turns = {op: SMALL_TYPES[k % 2 :][:1] for k, op in enumerate(expected.ELEMENTWISE)}
    for case in sorted(cases.cases(), key=lambda case: case.size):
        dtype = case.label.split()[0]
        if LEAST_SMALL <= case.size <= SMALL and dtype in turns.get(case.op, SMALL_TYPES):
            found.setdefault((case.op, dtype), []).append(case)
    chosen: dict[str, Case] = {}
    for every in found.values():
        for case in (every[0], every[-1], *[case for case in every if case.by][:1]):
            chosen[case.name] = case
    return list(chosen.values())


def steps(every: Iterable[Case] | None = None) -> list[Step]:
    """A step for each case."""

    def one(case: Case, machine: Machine) -> Iterator[Row]:
        yield check(case, machine)

    found = cases.cases() if every is None else every
    return [Step("check", case.name, partial(one, case), seconds=0.1) for case in found]


def processors() -> int:
    return len(os.sched_getaffinity(0))
