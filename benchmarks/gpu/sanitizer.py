"""A small grid of kernels under compute-sanitizer, which sees every access to memory, in a process of its own."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from . import checks
from .machine import CudaMachine, Machine
from .plan import OK, Row, SkippedError, Step, one_line

ROOT = Path(__file__).parent.parent.parent
TOOLS = ("memcheck", "racecheck")
SUMMARY = re.compile(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)")
FOUND = re.compile(r"^=+ ((?:Invalid|Error|Warning|Race|Program hit|Misaligned|Out-of|Uninitialized).*)$", re.MULTILINE)
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
    call = [command(), "--tool", tool, sys.executable, "-m", "benchmarks.gpu", "--small-grid", "--budget", str(SECONDS)]
    try:
        done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, timeout=2 * SECONDS)
    except subprocess.TimeoutExpired:
        yield {"outcome": f"not done after {2 * SECONDS:.0f} s"}
        return
    yield judged(done.stdout + done.stderr, done.returncode)


def judged(text: str, code: int) -> Row:
    """What a tool and the grid under it say."""
    cases = re.search(r"^(\d+) cases, (\d+) wrong", text, re.MULTILINE)
    summary, first = SUMMARY.search(text), FOUND.search(text)
    row: Row = {"cases": int(cases[1]) if cases else 0}
    if summary is None or cases is None:
        last = [line for line in text.strip().splitlines() if line.strip()] or ["nothing was said"]
        return row | {"outcome": one_line(RuntimeError(f"exit code {code}: {last[-1]}"))}
    if int(summary[1]):
        return row | {"outcome": f"{summary[1]} found: {first[1] if first else 'see the tool'}"}
    return row | ({"outcome": f"{cases[2]} cases are wrong"} if int(cases[2]) else {})


def grid(seconds: float) -> int:
    """As much of the small grid as `seconds` allow, in the process that is watched; returns the exit code."""
    machine, wrong, done, end = CudaMachine(pooled=False), 0, 0, time.monotonic() + seconds
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
    print(f"{done} cases, {wrong} wrong", flush=True)
    return 1 if wrong else 0


def steps() -> list[Step]:
    """A step for each tool."""
    return [Step("sanitizer", tool, partial(watch, tool), SECONDS, 2 * SECONDS + 20) for tool in TOOLS]
