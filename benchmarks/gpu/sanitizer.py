"""A small grid of kernels under compute-sanitizer, which sees every access to memory, in a process of its own."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from onnxfuse.kernels.device.device import Argument, Device, Launch, Vendor

from . import checks
from .machine import CudaMachine, Machine
from .plan import OK, Row, SkippedError, Step, one_line

ROOT = Path(__file__).parent.parent.parent
TOOLS: dict[str, tuple[str, ...]] = {
    # CuPy asks the driver for things to see whether they are there; a launch of ours that fails raises.
    "memcheck": ("--report-api-errors", "no"),
    "racecheck": (),
}
"""Tool → its options."""
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")
HEAD, MORE = re.compile(r"^=+ (\S.*)$"), re.compile(r"^=+ {2,}(\S.*)$")
"""The first line of what a tool found, and those that belong to it."""
API = re.compile(r"Program hit .* on CUDA API call")
KERNEL = re.compile(r"\bat (?:void )?([\w:]+)[^+]*\+0x")
"""Where in which kernel an access was."""
LAUNCHED = "kernels: "
"""What the grid says it launched."""
SECONDS = 60.0
"""For the grid; what is not done by then is left out, and a tool is ended after twice as long."""


def command() -> str:
    """compute-sanitizer.  Raises SkippedError where there is none."""
    found = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if found is None:
        raise SkippedError("compute-sanitizer is not installed")
    return found


def watch(tool: str, machine: Machine) -> Iterator[Row]:
    """Run the grid again under a tool."""
    grid = [sys.executable, "-m", "benchmarks.gpu", "--small-grid", "--budget", str(SECONDS)]
    call = [command(), "--tool", tool, *TOOLS[tool], *grid]
    try:
        done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=2 * SECONDS)
    except subprocess.TimeoutExpired:
        yield {"outcome": f"not done after {2 * SECONDS:.0f} s"}
        return
    yield judged(done.stdout + done.stderr, done.returncode)


def judged(text: str, code: int) -> Row:
    """What a tool and the grid under it say.  What is no access of a kernel of ours is counted apart."""
    cases = re.search(r"^(\d+) cases, (\d+) wrong", text, re.MULTILINE)
    row: Row = {"cases": int(cases[1]) if cases else 0}
    if SUMMARY.search(text) is None or cases is None:
        last = [line for line in text.strip().splitlines() if line.strip()] or ["nothing was said"]
        return row | {"outcome": one_line(RuntimeError(f"exit code {code}: {last[-1]}"))}
    found = list(records(text))
    launched = {name for line in re.findall(f"^{LAUNCHED}(.*)$", text, re.MULTILINE) for name in line.split()}
    ours = [head for head, kernel in found if not API.search(head) and (kernel in launched or not kernel)]
    if len(ours) < len(found):
        row["others"] = len(found) - len(ours)
    if ours:
        return row | {"outcome": f"{len(ours)} found: {ours[0]}"}
    return row | ({"outcome": f"{cases[2]} cases are wrong"} if int(cases[2]) else {})


def records(text: str) -> Iterator[tuple[str, str]]:
    """Each thing that a tool found: its first line, and the kernel that it was in, empty if none is named."""
    head, kernel = "", ""
    for line in text.splitlines():
        first = None if MORE.match(line) else HEAD.match(line)
        if first:
            if head:
                yield head, kernel
            head, kernel = "" if SUMMARY.search(line) or "COMPUTE-SANITIZER" in line else first[1], ""
        if head and not kernel and (inside := KERNEL.search(line)):
            kernel = inside[1]
    if head:
        yield head, kernel


class Watched:
    """A device that remembers which kernels it was asked to launch."""

    def __init__(self, device: Device) -> None:
        self._device, self.entries = device, set[str]()
        self.multiprocessors, self.architecture, self.maps = device.multiprocessors, device.architecture, device.maps
        self.scratch, self.counters = device.scratch, device.counters

    @property
    def vendor(self) -> Vendor | None:
        return self._device.vendor

    def launch(self, launch: Launch, arguments: Sequence[Argument]) -> None:
        self.entries.add(launch.entry)
        self._device.launch(launch, arguments)


def grid(seconds: float) -> int:
    """As much of the small grid as `seconds` allow, in the process that is watched; returns the exit code."""
    machine, wrong, done, end = CudaMachine(pooled=False), 0, 0, time.monotonic() + seconds
    machine.device = watched = Watched(machine.device)
    cases = checks.small()
    # In this order every op comes early.
    for case in sorted(cases, key=lambda case: sum(other.op == case.op for other in cases[: cases.index(case)])):
        if time.monotonic() > end:
            break
        done += 1
        try:
            outcome = checks.check(case, machine).get("outcome", OK)
        except Exception as error:
            outcome = one_line(error)
        if outcome != OK:
            wrong += 1
            print(f"{case.name}: {outcome}", flush=True)
    print(f"{LAUNCHED}{' '.join(sorted(watched.entries))}")
    print(f"{done} cases, {wrong} wrong", flush=True)
    return 1 if wrong else 0


def steps() -> list[Step]:
    """A step for each tool."""
    return [Step("sanitizer", tool, partial(watch, tool), SECONDS, 2 * SECONDS + 20) for tool in TOOLS]
