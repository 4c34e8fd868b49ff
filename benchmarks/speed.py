"""How much processor time commands take in this checkout beside another one, on the same models.

    git worktree add ../before COMMIT
    python -m benchmarks.speed --against ../before models/*.onnx
    python -m benchmarks.speed --against ../before bert.onnx --target ort --commands report optimize --rounds 9

What is counted is the user time of a command and of the processes that it starts, from start to exit: what other
processes of a machine do disturbs it less than wall time.  The two checkouts take turns, and which comes first turns
too.  A first run of each, which compiles modules and fills caches, is not counted.  A ratio is this checkout / the
other: below 1, this one is faster.  It is that of the least times, since what disturbs a run only ever adds to it;
behind it stands the median over the pairs of runs.

On a machine that others use, `--instructions` counts those of user code in valgrind instead, in thousands of millions:
one run says the same as the next, and takes thirty times as long.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent.parent
COMMANDS = {
    "report": ["report"],
    "check": ["check"],
    "no-validate": ["optimize", "--no-validate"],
    "optimize": ["optimize"],
}
"""What a command is called here, and how it begins."""


@dataclass(frozen=True)
class Row:
    """A command on a model: user seconds of each run in both checkouts, in pairs."""

    model: str
    target: str
    command: str
    here: list[float]
    there: list[float]

    @property
    def ratio(self) -> float:
        """Of the least times."""
        return min(self.here) / min(self.there)

    @property
    def typical(self) -> float:
        """The median ratio of a pair."""
        return median(a / b for a, b in zip(self.here, self.there, strict=True))

    def __str__(self) -> str:
        name = f"{self.model}, {self.target}, {self.command}"
        return f"{name:52} {min(self.there):6.2f} {min(self.here):6.2f}  {self.ratio:.2f}  ({self.typical:.2f})"


def arguments_of(command: str, model: Path, target: str, folder: Path) -> list[str]:
    """What stands behind `onnxfuse`; what is written lies in `folder`."""
    output = ["-o", str(folder / "fused.onnx")] if COMMANDS[command][0] == "optimize" else []
    demand = ["--expect", "Attention>=0"] if command == "check" else []
    return [*COMMANDS[command], str(model.resolve()), "--target", target, *output, *demand]


def entry(checkout: Path) -> list[str]:
    """What starts the command line of a checkout, also of one that cannot be run as a module yet."""
    if (checkout / "onnxfuse" / "__main__.py").is_file():
        return ["-m", "onnxfuse"]
    return ["-c", "from onnxfuse.cli import guarded_main; raise SystemExit(guarded_main())"]


def environment(checkout: Path) -> dict[str, str]:
    """As where a package is installed, modules are compiled once; sets are in the same order in each run."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPATH": str(checkout), "PYTHONHASHSEED": "0"}


def instructions(checkout: Path, python: Path, arguments: Sequence[str]) -> float:
    """Thousands of millions of instructions that one run of a command takes.  Raises RuntimeError where it fails, or
    where there is no valgrind."""
    counter = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    try:
        done = subprocess.run(
            [*counter, str(python), *entry(checkout), *arguments],
            cwd=checkout,
            env=environment(checkout),
            capture_output=True,
            text=True,
        )
    except FileNotFoundError:
        raise RuntimeError("--instructions needs valgrind: apt-get install valgrind") from None
    if done.returncode:
        raise RuntimeError(f"exit {done.returncode} in {checkout}")
    # A child counts on from where its parent was when it made it.
    return max(int(found.replace(",", "")) for found in re.findall(r"I\s+refs:\s+([\d,]+)", done.stderr)) / 1e9


def user_seconds(checkout: Path, python: Path, arguments: Sequence[str]) -> float:
    """The user time of one run of a command, and of its children.  Raises RuntimeError where it fails."""
    process = subprocess.Popen(
        [str(python), *entry(checkout), *arguments],
        cwd=checkout,
        env=environment(checkout),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"exit {process.returncode} in {checkout}")
    return usage.ru_utime


def measured(
    model: Path,
    target: str,
    command: str,
    there: Path,
    python: Path,
    rounds: int,
    count: Callable[[Path, Path, Sequence[str]], float] | None = None,
) -> Row:
    """A command in both checkouts, in turns; what is counted is user time unless something else is to be."""
    count = count or user_seconds
    times: dict[Path, list[float]] = {HERE: [], there: []}
    with tempfile.TemporaryDirectory() as folder:
        arguments = arguments_of(command, model, target, Path(folder))
        for turn in range(-1, rounds):
            for checkout in (HERE, there) if turn % 2 else (there, HERE):
                seconds = count(checkout, python, arguments)
                if turn >= 0:
                    times[checkout].append(round(seconds, 3))
    return Row(model.name.removesuffix(".onnx"), target, command, times[HERE], times[there])


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each target and command: the geometric mean of the ratios, and the largest."""
    kinds = dict.fromkeys((row.target, row.command) for row in rows)
    for target, command in kinds:
        ratios = [row.ratio for row in rows if (row.target, row.command) == (target, command)]
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        yield f"{target}, {command}: geometric mean {mean:.2f} of {len(ratios)} models, {max(ratios):.2f} at most"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.speed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--against", type=Path, required=True, metavar="CHECKOUT", help="the other checkout")
    parser.add_argument("--target", nargs="+", default=["onnxfuse", "ort"], choices=["onnxfuse", "onnx", "ort"])
    parser.add_argument("--commands", nargs="+", choices=COMMANDS, default=["report", "no-validate"])
    parser.add_argument("--rounds", type=int, default=5, help="counted runs of each (default: 5)")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="what both run in")
    parser.add_argument("--instructions", action="store_true", help="count them in valgrind, not seconds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the figures")
    given = parser.parse_args(argv)
    there, rows = given.against.resolve(), list[Row]()
    if not (there / "onnxfuse" / "__init__.py").is_file():
        parser.error(f"{given.against} is no checkout of onnxfuse")
    count, unit = (instructions, "instructions / 1e9") if given.instructions else (user_seconds, "user seconds")
    print(f"{unit:52} {'there':>6} {'here':>6}  ratio (pairs)")
    for model in given.models:
        for target in given.target:
            for command in given.commands:
                python = given.python.absolute()
                rows.append(measured(model, target, command, there, python, given.rounds, count))
                print(rows[-1], flush=True)
    print(*summary(rows), sep="\n")
    if given.json:
        facts = {
            "date": datetime.now(UTC).date().isoformat(),
            "python": platform.python_version(),
            "cpus": os.cpu_count(),
            "unit": unit,
            "rows": [{**asdict(row), "ratio": round(row.ratio, 3)} for row in rows],
        }
        given.json.write_text(json.dumps(facts, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
