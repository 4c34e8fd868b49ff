"""How much memory `onnxfuse optimize` takes, with its proof, for a model whose weights are most of its size.

    python -m benchmarks.memory                                 a decoder of 0.5 GB, plain and in float16
    python -m benchmarks.memory --layers 8 --hidden 2048        the same of 2.2 GB
    python -m benchmarks.memory mlp                    matrices of 0.26 GB, 2.1 GB together
    python -m benchmarks.memory inside                          the same in one file
    python -m benchmarks.memory proto                           the same as a ModelProto, given to onnxfuse.optimize

The models (`benchmarks.synthetic`) are written to a temporary folder, `--folder` says in which.  What counts is what
all processes of a run hold together, as Linux tells it in /proc: every page that a process has in memory, those of
files that it has mapped included, and a page that two processes share twice.  One line a run: the most that was held,
how many times the size of the model that is, how much of it was no file, and what `optimize` said.  Exits with 1 where
a run fails or holds more than `--most` times the model's size.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .synthetic import decoder, mlp

_PAUSE = 0.02
"""Seconds between two looks."""


_IN_MEMORY = """import sys, onnx, onnxfuse
done = onnxfuse.optimize(onnx.load(sys.argv[1]), sys.argv[2], precision=(sys.argv[3:] or [None])[0])
print(done.report.validation)"""
"""Optimizes a ModelProto that was loaded, and has the result in memory as well."""


@dataclass(frozen=True)
class Held:
    """Bytes that processes hold in memory."""

    all: int = 0
    anonymous: int = 0
    """What is in no file."""

    def __add__(self, other: Held) -> Held:
        return Held(self.all + other.all, self.anonymous + other.anonymous)


@dataclass(frozen=True)
class Run:
    """What became of one run."""

    most: Held
    """When the most was held."""
    seconds: float
    code: int
    said: str


def held_by_tree(root: int) -> Held:
    """What a process and all that it has made hold now."""
    children = defaultdict(list)
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                stat = (folder / "stat").read_text()
            except OSError:  # it has ended since
                continue
            children[int(stat.rpartition(")")[2].split()[1])].append(int(folder.name))
    total, pending = Held(), [root]
    while pending:
        process = pending.pop()
        total += _held(process)
        pending += children[process]
    return total


def _held(process: int) -> Held:
    try:
        status = Path(f"/proc/{process}/status").read_text()
    except OSError:
        return Held()
    said = {name: int(number) * 1024 for name, number in re.findall(r"(\w+):\s+(\d+) kB", status)}
    return Held(said.get("VmRSS", 0), said.get("RssAnon", 0))


def watched(command: Sequence[str]) -> Run:
    """Run a command and look how much its processes hold."""
    start, most = time.perf_counter(), Held()
    with tempfile.TemporaryFile("w+") as told:
        process = subprocess.Popen(command, stdout=told, stderr=subprocess.STDOUT)
        while process.poll() is None:
            most = max(most, held_by_tree(process.pid), key=lambda held: held.all)
            time.sleep(_PAUSE)
        told.seek(0)
        return Run(most, time.perf_counter() - start, process.returncode, told.read())


def _size(model: Path) -> int:
    return sum(file.stat().st_size for file in model.parent.glob(f"{model.name}*"))


def main() -> int:
    """Make the model, and optimize it in each precision."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", choices=("decoder", "mlp", "inside", "proto"), default="decoder")
    parser.add_argument("--layers", type=int, help="8, of an MLP 4")
    parser.add_argument("--hidden", type=int, help="1024, of an MLP 4064")
    parser.add_argument("--vocabulary", type=int, default=16000)
    parser.add_argument("--precision", nargs="*", default=["fp32", "fp16"], help="fp32 is none")
    parser.add_argument("--most", type=float, default=2.5, help="times the model's size that may be held")
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    usual = (8, 1024) if arguments.model == "decoder" else (4, 4064)
    layers, hidden = arguments.layers or usual[0], arguments.hidden or usual[1]
    good = True
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        model = Path(folder) / f"{arguments.model}.onnx"
        if arguments.model == "decoder":
            decoder(model, layers, hidden, arguments.vocabulary)
        else:
            mlp(model, layers, hidden, inside=arguments.model != "mlp")
        size = _size(model)
        print(f"{size / 1e9:.2f} GB, {arguments.model} of {layers} layers of width {hidden}", flush=True)
        for precision in arguments.precision:
            asked = [] if precision == "fp32" else ["--precision", precision]
            output = Path(folder) / "out" / model.name
            output.parent.mkdir(exist_ok=True)
            command = ["-m", "onnxfuse", "optimize", str(model), "-o", str(output), *asked]
            if arguments.model == "proto":
                command = ["-c", _IN_MEMORY, str(model), str(output), *asked[1:]]
            run = watched([sys.executable, *command])
            for file in output.parent.iterdir():
                file.unlink()
            good = good and not run.code and run.most.all <= arguments.most * size
            print(
                f"{precision}: {run.most.all / 1e9:.2f} GB, {run.most.all / size:.2f} times the model "
                f"({run.most.anonymous / size:.2f} in no file), {run.seconds:.0f} s, exit {run.code}"
            )
            print("".join(f"    {line}\n" for line in run.said.splitlines()), end="", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
