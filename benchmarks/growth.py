"""Whether time grows no faster than a model does, where nothing in it repeats.

    python -m benchmarks.growth
    python -m benchmarks.growth --nodes 25000 50000 100000 --weights 250000 500000 1000000

Models are those of `benchmarks.synthetic.unlike`: of more and more nodes, and of a fifth as many nodes as initializers.
What is counted is the user time of `onnxfuse optimize --no-validate`, less that of a model of ten nodes, which is the
time to start, and the most memory that it holds.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from .synthetic import unlike

SHARED = 10
"""Nodes with initializers of their own have so many, where initializers are counted; half of the nodes have some."""


def measured(model: Path, output: Path) -> tuple[float, int]:
    """User seconds and peak bytes of fusing a model without a proof.  Raises RuntimeError where it fails."""
    command = [sys.executable, "-m", "onnxfuse", "optimize", "--no-validate", "-q", str(model), "-o", str(output)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"exit {process.returncode}: {' '.join(command)}")
    return usage.ru_utime, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.growth", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, nargs="*", default=[25_000, 50_000, 100_000])
    parser.add_argument("--weights", type=int, nargs="*", default=[250_000, 500_000, 1_000_000])
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        model, output = Path(folder, "model.onnx"), Path(folder, "fused.onnx")
        unlike(model, 10)
        start = min(measured(model, output)[0] for _ in range(3))
        print(f"start: {start:.2f} s")
        for what, counts in (("nodes", given.nodes), ("initializers", given.weights)):
            for count in counts:
                if what == "nodes":
                    unlike(model, count)
                else:
                    unlike(model, 2 * count // SHARED, SHARED)
                whole, peak = measured(model, output)
                each = 1e3 * (whole - start) / count
                print(
                    f"{count:>9,} {what:<13} {whole - start:7.2f} s {each:8.4f} ms each {peak / 1e9:6.2f} GB",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
