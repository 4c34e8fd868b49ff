"""What half precision does to a folder of models: does each load, how far off is it, what is fused, how many Casts are
left?

    python -m benchmarks.precision models --precision fp16 --jobs 2 --record found.json

One line a model: its largest error relative to the largest number of the output, the fused ops of the float32 file that
the converted one lacks, nodes in half precision and in float32, Casts of inputs and outputs and inside, and why the
latter.  The last lines sum up.  Exits with 1 where a file is not right.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

from onnx import ModelProto

from onnxfuse import pipeline
from onnxfuse.errors import OnnxfuseError
from onnxfuse.fusing.build import Build
from onnxfuse.language.catalogue import RULES
from onnxfuse.model import files
from onnxfuse.model.graph import DOMAIN, family_of
from onnxfuse.model.walk import nodes
from onnxfuse.precision.wanted import Precision
from onnxfuse.proof.claim import Experiment
from onnxfuse.reporting.records import Report
from onnxfuse.runtime.quiet import onnxruntime
from onnxfuse.targets.contrib import DOMAIN as CONTRIB
from onnxfuse.targets.target import Target

SECONDS = 600.0
"""That a run of a model may take."""


@dataclass(frozen=True)
class Row:
    """What became of one model."""

    name: str
    verdict: str
    """"equal", "not validated", or why there is no file."""
    error: float | None = None
    lacking: int = 0
    """Fused ops of the float32 file that are not in the converted one."""
    half: int = 0
    single: int = 0
    edges: int = 0
    inner: int = 0
    reasons: str = ""

    def __str__(self) -> str:
        error = "" if self.error is None else f"{self.error:.1e}"
        figures = f"{error:>8}{self.lacking:5}{self.half:6}{self.single:8}{self.edges:7}{self.inner:7}"
        return f"{self.name:28}{figures}  {self.verdict if self.verdict != 'equal' else self.reasons}"


HEAD = f"{'':28}{'error':>8}{'lost':>5}{'half':>6}{'float32':>8}{'edges':>7}{'inside':>7}"


def measured(path: Path, precision: Precision, build: Build) -> Row:
    """One model, fused in float32 and converted."""
    name = path.stem
    try:
        model = files.read(path, weights=True)
        own = Build(build.target, build.opset, base_dir=path.parent, level=RULES)  # what is converted has no regions
        plain = pipeline.optimize(model, own, Experiment(timeout=SECONDS))
        done = pipeline.optimize(model, own, Experiment(timeout=SECONDS), precision=precision)
    except OnnxfuseError as error:
        return Row(name, " ".join(str(error).split()))
    return row(name, plain.model, done.model, done.report)


def row(name: str, plain: ModelProto, converted: ModelProto, report: Report) -> Row:
    """What there is to say of a model, fused in float32, and as it was converted."""
    told, lacking = report.conversion, census(plain) - census(converted)
    assert told is not None
    reasons = Counter(cast.reason for cast in told.inner)
    return Row(
        name,
        report.validation.verdict,
        report.validation.max_error,
        lacking.total() + len(report.left_out),
        told.half,
        told.float32,
        len(told.casts) - len(told.inner),
        len(told.inner),
        ", ".join(f"{count} {reason}" for reason, count in reasons.items()),
    )


def census(model: ModelProto) -> Counter[str]:
    """Fused ops by family, wherever they stand; a conversion writes functions of the model's own out."""
    owners = (model.graph, *(function for function in model.functions if function.domain != DOMAIN))
    return Counter(family_of(node) for node in nodes(*owners) if node.domain in (DOMAIN, CONTRIB))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="+", help="folders of .onnx files, or such files")
    parser.add_argument("--precision", choices=("fp16", "bf16", "mixed"), default="fp16")
    parser.add_argument("--target", choices=("onnxfuse", "onnx", "ort"), default="onnxfuse")
    parser.add_argument("--opset", type=int)
    parser.add_argument("--jobs", type=int, default=1, help="models at a time")
    parser.add_argument("--record", type=Path, metavar="FILE.json", help="write what was found")
    given = parser.parse_args(arguments)
    precision, build = Precision(given.precision), Build(Target(given.target), given.opset)
    paths = [path for one in given.folder for path in (sorted(one.glob("*.onnx")) if one.is_dir() else [one])]
    print(HEAD)
    rows = []
    with ProcessPoolExecutor(given.jobs) as pool:
        for found in pool.map(partial(measured, precision=precision, build=build), paths):
            print(found, flush=True)
            rows.append(found)
    right = [one for one in rows if one.verdict == "equal"]
    print(f"\n{len(right)} of {len(rows)} right; largest error {max((one.error or 0 for one in right), default=0):.1e}")
    few = sum(one.inner <= 2 for one in right)
    print(f"{sum(one.lacking for one in right)} fusions lost; {few} with at most two Casts")
    if given.record:
        given.record.write_text(json.dumps(recorded(given.precision, given.target, paths, rows), indent=1) + "\n")
    return 0 if len(right) == len(rows) else 1


def recorded(precision: str, target: str, paths: Sequence[Path], rows: Sequence[Row]) -> dict[str, Any]:
    """What is kept of a run, by folder and model."""
    folders: dict[str, dict[str, Any]] = {}
    for path, row in zip(paths, rows, strict=True):
        found = {key: value for key, value in asdict(row).items() if key != "name"}
        folders.setdefault(path.resolve().parent.name, {})[row.name] = found
    return {
        "date": date.today().isoformat(),
        "onnxruntime": onnxruntime().__version__,
        "precision": precision,
        "target": target,
        "folders": folders,
    }


if __name__ == "__main__":
    sys.exit(main())
