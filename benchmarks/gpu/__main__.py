"""The command line, and the process that watches over the one that works."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from onnxfuse.errors import DependencyError
from onnxfuse.system.cache_folder import cache_folder

from . import report, sanitizer, steps
from .machine import CudaMachine, Machine
from .plan import Journal, LostError, Row, run

ROOT = Path(__file__).parent.parent.parent
RESULTS = ROOT / "benchmarks" / "results"
CARD = "card.json"
"""In the folder of results: the card as `onnxfuse report --estimate --card` takes it, the last that was measured."""
VERDICTS = "products.json"
"""Likewise: how long each form of the products took, as `report --estimate` finds it in $ONNXFUSE_CACHE."""
EXAMPLE = """example:
  python -m benchmarks.gpu --budget 480
"""
NO_GPU, LOST, INTERRUPTED = 2, 75, 130
MOST_WORKERS = 25
GRACE = 20.0
"""Seconds beyond the budget that a step may take, once begun."""
PACKAGES = ("onnxfuse", "cupy-cuda13x", "numpy", "onnx", "torch", "triton", "onnxruntime-gpu", "onnxruntime")
MAKE_MACHINE: Callable[[], Machine] = CudaMachine


def work(journal: Journal, budget: float, sections: Sequence[str]) -> int:
    """Do what the journal does not have yet; returns the exit code."""
    try:
        machine = MAKE_MACHINE()
    except DependencyError as missing:
        print(f"benchmarks.gpu: {missing}", file=sys.stderr)
        return NO_GPU
    chosen = [step for step in steps.plan(journal) if not sections or step.section in {*sections, *steps.ALWAYS}]
    if not journal.all("facts"):
        journal.write("facts", machine.facts())
        journal.write("plan", [step.key for step in chosen])
    try:
        run(chosen, machine, journal, budget, tell=lambda line: print(line, file=sys.stderr, flush=True))
    except LostError:
        return LOST
    return 0


def supervise(
    journal: Journal,
    budget: float,
    command: Sequence[str],
    clock: Callable[[], float] = time.monotonic,
    rest: float = 0.3,
    keep: Callable[[], object] = lambda: None,
) -> int:
    """Start workers by `command` until one has done all that the budget allows; returns the last exit code.

    A worker that dies, or hangs in a step, costs that step; the next one goes on behind it.  `keep` is called whenever
    a section begins behind another.
    """
    start, code, fruitless = clock(), 0, 0
    for _ in range(MOST_WORKERS):
        left = budget - (clock() - start)
        if left <= 0:
            break
        ended = len(journal.all("end"))
        worker = subprocess.Popen([*command, "--budget", str(round(left, 1))], cwd=ROOT)
        try:
            hung = _wait(worker, journal, start + budget + GRACE, clock, rest, keep)
        finally:
            if worker.poll() is None:
                worker.kill()
            code = worker.wait()
        if code in (0, NO_GPU):
            break
        if step := journal.begun():
            journal.died(step, hung or f"the process died, {_death(code)}", step["limit"] if hung else 1.0)
        fruitless = fruitless + 1 if len(journal.all("end")) == ended else 0
        if fruitless > 1:
            print(f"benchmarks.gpu: the worker ends before it has done anything, {_death(code)}", file=sys.stderr)
            break
    return code


def _wait(
    worker: subprocess.Popen[bytes],
    journal: Journal,
    end: float,
    clock: Callable[[], float],
    rest: float,
    keep: Callable[[], object],
) -> str:
    """Until the worker is done; the reason if it has to be ended."""
    size, since, section = -1, clock(), ""
    while worker.poll() is None:
        time.sleep(rest)
        now = journal.path.stat().st_size if journal.path.exists() else 0
        if now != size:
            size, since = now, clock()
            if (step := journal.begun()) and step["section"] != section:
                if section:
                    keep()
                section = step["section"]
            continue
        step = journal.begun()
        limit = step["limit"] if step else 120.0
        if clock() - since > limit:
            return f"hung for {limit:g} s, and was ended"
        if clock() > end:
            return "not done when time was up"
    return ""


def _death(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def about(budget: float, seconds: float) -> Row:
    """What a record begins with."""
    versions: dict[str, Any] = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "python": sys.version.split()[0],
        "cpus": os.cpu_count(),
        "versions": versions,
        "budget": budget,
        "seconds": round(seconds, 1),
    }


def _interrupted(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def write(path: Path, found: Row) -> None:
    """JSON with a line for each row."""
    rows = ",\n".join(json.dumps(row) for row in found["rows"])
    head = json.dumps({**found, "rows": []}, indent=1)
    _replace(path, head.removesuffix("[]\n}") + f"[\n{rows}\n]\n}}\n")


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code: 0, 1 if something failed, 2 without a GPU."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description="Check every kernel on the GPU against float64, and time it against a copy, PyTorch, onnxruntime.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--budget", type=float, default=480.0, metavar="SECONDS", help="default: 480")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER", help="default: benchmarks/results")
    parser.add_argument(
        "--only",
        nargs="+",
        default=[],
        choices=steps.SECTIONS,
        metavar="SECTION",
        help=f"some of {', '.join(steps.SECTIONS)}",
    )
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--small-grid", action="store_true", help=argparse.SUPPRESS)
    parsed = parser.parse_args(arguments)
    if not parsed.budget > 0 or math.isinf(parsed.budget):
        parser.error("--budget is a number of seconds above 0")
    if parsed.small_grid:
        return sanitizer.grid(parsed.budget)
    if parsed.worker:
        return work(Journal(parsed.worker), parsed.budget, parsed.only)
    return whole(parsed.budget, parsed.results, parsed.only)


def whole(budget: float, folder: Path, sections: Sequence[str]) -> int:
    """Everything, in a worker; then the record and the table."""
    start = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{'.'.join(['gpu', datetime.now(UTC).date().isoformat(), *sections])}.json"
    journal = Journal(path.with_suffix(".jsonl"))
    journal.path.unlink(missing_ok=True)
    only = ["--only", *sections] if sections else []
    command = [sys.executable, "-m", "benchmarks.gpu", "--worker", str(journal.path.absolute()), *only]
    # Whoever ends this early still gets the table of what was done.
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        code = supervise(
            journal, budget, command, keep=lambda: kept(journal, path, about(budget, time.monotonic() - start))
        )
    except KeyboardInterrupt:
        code = INTERRUPTED
    if not journal.all("facts"):
        return code or NO_GPU
    found = kept(journal, path, about(budget, time.monotonic() - start))
    print(path)
    print("\n".join(report.markdown(found)), flush=True)
    if code == 0:
        journal.path.unlink()
    if code in (NO_GPU, INTERRUPTED):
        return code
    return int(bool(code or report.failures(found["rows"])))


def kept(journal: Journal, path: Path, head: Row) -> Row:
    """Write the record so far, its tables, and what `report --estimate` reads, beside each other; the record."""
    found = report.record(journal, head)
    write(path, found)
    if measured := report.card(found):
        _replace(path.with_name(CARD), json.dumps(measured, indent=1) + "\n")
    if (verdicts := cache_folder("emulator") / VERDICTS).exists():
        shutil.copyfile(verdicts, path.with_name(VERDICTS))
    _replace(path.with_suffix(".md"), "\n".join(report.markdown(found, most=None)) + "\n")
    return found


def _replace(path: Path, text: str) -> None:
    """Written whole, whatever comes between."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


if __name__ == "__main__":
    sys.exit(main())
