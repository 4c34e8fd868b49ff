"""Latency on a GPU in onnxruntime: each model as exported, for its CUDA provider, and with the kernels of onnxfuse.

Inputs and outputs stay on the GPU.  All sessions have every optimization of onnxruntime on, live in one process, and
run in turns (onnxfuse.performance.interleaved).  A ratio is original / other: above 1, the other is faster.  The
control is a second session of the original.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from onnx import ModelProto

import onnxfuse
from benchmarks.latency import shape
from onnxfuse import pipeline
from onnxfuse.errors import OnnxfuseError
from onnxfuse.fusing.build import Build
from onnxfuse.model import files
from onnxfuse.performance import interleaved
from onnxfuse.performance.execution import first_case, opened
from onnxfuse.performance.interleaved import Ratio
from onnxfuse.proof.numerics import compare
from onnxfuse.reporting.placement import fallbacks
from onnxfuse.runtime import installed
from onnxfuse.runtime.quiet import Session, SessionError
from onnxfuse.targets.target import Target

ORIGINAL, CONTROL = "original", "control"
TARGETS: Mapping[str, Target] = {"ort cuda": Target("ort", "cuda"), "onnxfuse": Target()}
"""What is compared with the original."""


@dataclass(slots=True)
class Row:
    """What was measured of one model."""

    model: str
    inputs: str = ""
    original_us: float = 0.0
    """Median time of one run of the original, in microseconds."""
    ratios: dict[str, Ratio] = field(default_factory=dict)
    """Side -> original / side."""
    fallbacks: dict[str, int] = field(default_factory=dict)
    """Side -> nodes that the CUDA provider has no kernel for, by its table."""
    failures: dict[str, str] = field(default_factory=dict)
    """Side -> why it was not measured."""


def measure(path: Path, seconds: float, shapes: Mapping[str, Sequence[int]], provider: str = "cuda") -> Row:
    """Every side of one model, where its outputs are those of the original."""
    source = files.read(path)
    made = {ORIGINAL: source} | {side: _made(source, target, path) for side, target in TARGETS.items()}
    row = Row(path.stem, fallbacks={side: sum(fallbacks(model)[0].values()) for side, model in made.items()})
    original = opened(source, str(path), path.parent, provider=provider)
    case, expected = first_case(source, str(path), original, shapes=shapes)
    row.inputs = case.name
    sessions: dict[str, Session] = {ORIGINAL: original}
    for side, model in {CONTROL: source, **{side: made[side] for side in TARGETS}}.items():
        try:
            session = opened(model, f"{path} ({side})", path.parent, provider=provider)
            reason = _difference(session.run(case.inputs), expected)
        except (OnnxfuseError, SessionError) as error:
            reason = str(error)
        if reason:
            row.failures[side] = reason
        else:
            sessions[side] = session
    runners = {side: session.runner(case.inputs) for side, session in sessions.items()}
    samples = interleaved.measure(runners, ORIGINAL, seconds=seconds)
    row.original_us = statistics.median(samples[ORIGINAL]) * 1e6
    row.ratios = {side: interleaved.ratio(samples[ORIGINAL], samples[side]) for side in sessions if side != ORIGINAL}
    return row


def _made(source: ModelProto, target: Target, path: Path) -> ModelProto:
    return pipeline.optimize(source, Build(target, base_dir=path.parent)).model


def _difference(actual: Sequence[Any], expected: Sequence[Any]) -> str:
    """Why outputs are not the same numbers; TF32 and other orders of summation are allowed for."""
    reasons = (compare(a, b, 1e-2, 1e-4).reason for a, b in zip(actual, expected, strict=True))
    return next((reason for reason in reasons if reason), "")


def line(row: Row) -> str:
    """A model's row of the printed table."""
    parts = [f"{row.model:32} {row.original_us:>10,.0f} us"]
    parts += [f"{side} {ratio.median:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]" for side, ratio in row.ratios.items()]
    parts += [f"{side}: {reason}" for side, reason in row.failures.items()]
    return "  ".join(parts)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog="example:\n  python -m benchmarks.cuda models/*.onnx --output cuda.json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--seconds", type=float, default=10.0, help="To measure a model, at most.")
    parser.add_argument(
        "--shape", action="append", default=[], type=shape, metavar="NAME:DIMS", help="Shape of an input."
    )
    parser.add_argument("--output", type=Path, help="Write the figures there, as JSON.")
    given = parser.parse_args(arguments)
    if not installed.has_cuda():
        parser.error("onnxruntime cannot use CUDA here: it needs onnxruntime-gpu, a driver and a GPU")
    rows = []
    for path in given.models:
        try:
            rows.append(measure(path, given.seconds, dict(given.shape)))
        except OnnxfuseError as error:
            rows.append(Row(path.stem, failures={ORIGINAL: str(error)}))
        print(line(rows[-1]), flush=True)
    if given.output:
        found = {"onnxfuse": onnxfuse.__version__, "onnxruntime": installed.onnxruntime().__version__}
        given.output.write_text(json.dumps(found | {"rows": [asdict(row) for row in rows]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
