"""How much `onnxfuse optimize` takes, with its proof, for models of the size that users have, beside one run of each.

    python -m pip install -e '.[cpu,models]' torchvision diffusers
    python -m benchmarks.full_size                                      all of `models.full_size`
    python -m benchmarks.full_size --only sam_base unet --target onnxfuse ort
    python -m benchmarks.full_size --folder kept --record full_size.json
    python -m benchmarks.full_size --models my.onnx

Models are exported on the spot (`--python` says which Python has torch) into a temporary folder, or into `--folder`,
where those that are there already are taken as they are; what is missing for one is said in a line, and the others are
measured.  Then `optimize` runs in processes of its own.

    user, system   seconds of CPU time, with those of all processes that it starts
    wall           seconds; other work on the machine disturbs it, and nothing here is judged by it
    memory         the most that all of its processes together hold, mapped files and shared pages included (`memory`)
    one run        seconds of CPU time of one run of the original, at the sizes that the proof begins with, in
                   onnxruntime with all its optimizations; a session and a first run come before
    runs           how many such runs user and system time are

One line a model and a target, as they are done, and what `optimize` said of the proof.  Exits with 1 where one fails.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from models.full_size import SIZES

from .memory import watched

ROOT = Path(__file__).resolve().parent.parent
TARGETS = ("onnxfuse", "onnx", "ort")

ONE_RUN = """
import sys, time
from pathlib import Path
import onnx
from onnxfuse.proof import inputs
from onnxfuse.runtime.quiet import Session, SessionError
path = Path(sys.argv[1])
session = Session(path, optimize=True, spinning=True)
took = []
def runs(case):
    try:
        for _ in range(2):
            start = time.process_time()
            session.run(case.inputs)
            took.append(time.process_time() - start)
    except SessionError as error:
        return str(error)
    return ""
cases, reason = inputs.generate(onnx.load(path, load_external_data=False), runs, one=True)
print(took[-1] if cases else reason)
"""
"""Prints the seconds of CPU time of a model's second run."""


@dataclass(frozen=True, slots=True)
class Row:
    """One model for one target."""

    model: str
    target: str
    bytes: int
    """Of the model and its weights."""
    user: float
    system: float
    wall: float
    memory: int
    one_run: float
    code: int
    proof: str
    """What was said of it."""
    date: str = ""

    @property
    def line(self) -> str:
        """As the table has it."""
        runs = f"{(self.user + self.system) / self.one_run:.0f}" if self.one_run else ""
        cells = (
            self.model,
            self.target,
            f"{self.bytes / 1e9:.2f} GB",
            f"{self.user:.1f}",
            f"{self.system:.1f}",
            f"{self.wall:.0f}",
            f"{self.memory / 1e9:.2f} GB",
            f"{self.one_run:.2f}",
            runs,
            self.proof,
        )
        return f"| {' | '.join(cells)} |"


HEAD = """| model | target | size | user | system | wall | memory | one run | runs | proof |
|---|---|--:|--:|--:|--:|--:|--:|--:|---|"""


def measure(model: Path, target: str, one_run: float) -> Row:
    """`optimize` of one model; what it writes is deleted again."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / model.name
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        run = watched([sys.executable, "-m", "onnxfuse", "optimize", str(model), "-o", str(output), "--target", target])
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Row(
        model.stem,
        target,
        sum(file.stat().st_size for file in model.parent.glob(f"{model.name}*")),
        round(after.ru_utime - before.ru_utime, 1),
        round(after.ru_stime - before.ru_stime, 1),
        round(time.perf_counter() - start, 1),
        run.most.all,
        one_run,
        run.code,
        said_of_proof(run.said, run.code),
        datetime.now(UTC).date().isoformat(),
    )


def said_of_proof(said: str, code: int) -> str:
    """The verdict among all that `optimize` says, or how it ended."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    verdict = next((line for line in lines if "same numbers" in line or "not validated" in line), "")
    return verdict.split(" in onnxruntime: ")[-1] if verdict else f"exit {code}: {lines[-1] if lines else ''}"


def one_run(model: Path) -> float:
    """Seconds of CPU time of one run of a model; 0 where it does not run."""
    told = subprocess.run([sys.executable, "-c", ONE_RUN, str(model)], capture_output=True, text=True, check=False)
    try:
        return round(float(told.stdout), 3)
    except ValueError:
        reason = (told.stdout or told.stderr).strip().splitlines() or [f"exit {told.returncode}"]
        print(f"{model.name} does not run: {reason[-1]}", file=sys.stderr, flush=True)
        return 0.0


def exported(names: list[str], folder: Path, python: str, keep: bool) -> Iterator[Path]:
    """The models of these names, one after another; each is gone before the next, unless they are kept."""
    for name in names:
        path = folder / f"{name}.onnx"
        if not path.exists():
            command = [python, "-m", "models.full_size", str(folder), name]
            told = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
            if told.returncode:
                lines = told.stderr.strip().splitlines() or [f"exit {told.returncode}"]
                print(f"{name} is left out: {lines[-1]}", file=sys.stderr, flush=True)
                continue
        yield path
        for written in [] if keep else list(folder.glob(f"{name}.onnx*")):
            written.unlink()


def main(arguments: list[str] | None = None) -> int:
    """Export, measure, print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.full_size", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=SIZES, default=list(SIZES), metavar="NAME", help="some of them")
    parser.add_argument("--models", nargs="+", type=Path, help="files, in place of these")
    parser.add_argument("--target", nargs="+", choices=TARGETS, default=["ort"], help="default: ort")
    parser.add_argument("--folder", type=Path, help="where exports are kept, and looked for")
    parser.add_argument("--python", default=sys.executable, help="the Python that has torch (default: this one)")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the rows as JSON as well")
    parsed = parser.parse_args(arguments)
    if parsed.folder is not None and not parsed.folder.is_dir():
        parser.error(f"there is no folder {parsed.folder}: make it first")
    if absent := [path for path in parsed.models or () if not path.is_file()]:
        parser.error(f"there is no file {absent[0]}")
    rows: list[Row] = []
    print(HEAD, flush=True)
    with tempfile.TemporaryDirectory() as made:
        folder = (parsed.folder or Path(made)).resolve()
        models = parsed.models or exported(parsed.only, folder, parsed.python, parsed.folder is not None)
        for model in models:
            seconds = one_run(model)
            for target in parsed.target:
                rows.append(measure(model, target, seconds))
                print(rows[-1].line, flush=True)
    if parsed.record is not None:
        told = {"cpus": os.cpu_count(), "rows": [asdict(row) for row in rows]}
        parsed.record.write_text(json.dumps(told, indent=2) + "\n")
    return int(not rows or any(row.code for row in rows))


if __name__ == "__main__":
    sys.exit(main())
