"""Latency in plain onnxruntime on a CPU: each model as exported, and the files that onnxfuse and others make of it.

All sessions have every optimization of onnxruntime on, live in one process, and run in turns
(onnxfuse.performance.interleaved).  A ratio is original / other: above 1, the other is faster.  The
control is a second session of the original.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx
import onnxruntime

import onnxfuse
from benchmarks import floor, scale
from onnxfuse.cli.commands.optimize import optimize
from onnxfuse.errors import OnnxfuseError
from onnxfuse.fusing.build import LEVEL
from onnxfuse.model import files
from onnxfuse.performance import interleaved
from onnxfuse.performance.interleaved import Ratio
from onnxfuse.proof import inputs, numerics

EXAMPLE = """example:
  python -m benchmarks.latency models/*.onnx --floor
  python -m benchmarks.latency bert.onnx --shape input_ids:1,128 --shape attention_mask:1,128 --against onnxslim
"""

ORIGINAL, CONTROL = "original", "control"
SLOWER = 0.97
"""A model below this ratio counts as slower."""
QUIET = 0.02
"""A control that is farther from 1 than this says that the machine is too noisy."""

TARGETS = next(list(kind.choices) for p in optimize.params if isinstance(kind := p.type, click.Choice))
RULES = "onnxfuse-O1"
PEERS = [tool for tool in scale.TOOLS if tool != "onnxfuse"]
Shapes = dict[str, tuple[int, ...]]


@dataclass(slots=True)
class Row:
    """What was measured of one model."""

    model: str
    original_us: float = 0.0
    """Median time of one run of the original, in microseconds."""
    rounds: int = 0
    ratios: dict[str, Ratio] = field(default_factory=dict)
    """Side → how many times as fast it is as the original."""
    failures: dict[str, str] = field(default_factory=dict)
    """Side → why it was not measured; the original's failure is the whole row's."""
    floor: float | None = None
    """Share of the original's time that its matrix products take."""

    @property
    def noisy(self) -> bool:
        """Whether the original differs from itself."""
        return CONTROL in self.ratios and abs(self.ratios[CONTROL].median - 1) > QUIET


class SideError(Exception):
    """A side that cannot be measured; the text is the reason, in one line."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What holds for all models of one call."""

    targets: Sequence[str]
    peers: Sequence[str]
    peers_python: Path
    shapes: Shapes
    threads: int
    precision: float
    seconds: float
    rounds: int | None
    clock: str
    with_floor: bool


def benchmark(path: Path, settings: Settings) -> Row:
    """One model: write the other files, compare their outputs, then measure those that compute the same."""
    row = Row(path.name)
    with tempfile.TemporaryDirectory() as folder:
        try:
            original = session(path, settings.threads)
            feeds = feeds_for(path, original, settings.shapes)
            expected = run(original, feeds)
            sessions = {ORIGINAL: original, CONTROL: session(path, settings.threads)}
        except (SideError, OnnxfuseError) as failure:
            row.failures[ORIGINAL] = str(failure)
            return row
        for side, make in makers(settings).items():
            target = Path(folder) / f"{side}.onnx"
            try:
                make(path, target)
                made = session(target, settings.threads)
                refuse_difference(original, expected, run(made, feeds))
                sessions[side] = made
            except (SideError, OnnxfuseError) as failure:
                row.failures[side] = str(failure)
        samples = interleaved.measure(
            {side: runner(each, feeds) for side, each in sessions.items()},
            ORIGINAL,
            precision=settings.precision,
            seconds=settings.seconds,
            rounds=settings.rounds,
            clock=CLOCKS[settings.clock],
        )
        row.original_us = round(statistics.median(samples[ORIGINAL]) * 1e6, 1)
        row.rounds = len(samples[ORIGINAL])
        row.ratios = {
            side: interleaved.ratio(samples[ORIGINAL], seconds) for side, seconds in samples.items() if side != ORIGINAL
        }
        del sessions, original
        if settings.with_floor:
            row.floor = floor.share(path, options(settings.threads), feeds)
    return row


CLOCKS: dict[str, Callable[[], float]] = {"wall": time.perf_counter, "cpu": time.thread_time}


def makers(settings: Settings) -> dict[str, Callable[[Path, Path], None]]:
    """Side → what writes its file, given the original's and its own; it raises SideError or OnnxfuseError."""

    def by_onnxfuse(target: str) -> Callable[[Path, Path], None]:
        def make(source: Path, output: Path) -> None:
            # The proof runs at sizes of its own: large ones would only take longer.
            name, _, level = target.partition("-O")
            onnxfuse.optimize(source, output, target=name, level=int(level or LEVEL))  # type: ignore[arg-type]

        return make

    def by_peer(tool: str) -> Callable[[Path, Path], None]:
        def make(source: Path, output: Path) -> None:
            command = scale.command_for(tool, settings.peers_python, source.absolute(), output)
            if command is None:
                raise SideError("not installed")
            measured = scale.measure(command, timeout=300)
            if measured.outcome != "done":
                raise SideError(measured.outcome)

        return make

    return {target: by_onnxfuse(target) for target in settings.targets} | {
        tool: by_peer(tool) for tool in settings.peers
    }


def options(threads: int) -> onnxruntime.SessionOptions:
    """Every optimization on, `threads` threads, silent."""
    chosen = onnxruntime.SessionOptions()
    chosen.intra_op_num_threads, chosen.inter_op_num_threads = threads, 1
    chosen.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    chosen.log_severity_level = 4
    return chosen


def session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    """A session of the model in the file.  Raises SideError where onnxruntime refuses it."""
    try:
        return onnxruntime.InferenceSession(path, options(threads), providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions share no base class
        raise SideError(first_line(error)) from error


def run(made: onnxruntime.InferenceSession, feeds: Mapping[str, Any]) -> list[Any]:
    """The session's outputs.  Raises SideError where onnxruntime does."""
    try:
        return list(made.run(None, feeds))
    except Exception as error:  # as above
        raise SideError(first_line(error)) from error


def runner(made: onnxruntime.InferenceSession, feeds: Mapping[str, Any]) -> Callable[[], object]:
    """A function that runs the session once."""
    return lambda: made.run(None, feeds)


def first_line(error: Exception) -> str:
    """The first line of a message, without onnxruntime's prefix."""
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : ", "", (str(error).strip() or type(error).__name__).splitlines()[0])


def feeds_for(path: Path, original: onnxruntime.InferenceSession, shapes: Shapes) -> dict[str, Any]:
    """What to feed the model: the arrays ``in:NAME`` of a .npz file of its name beside it, else generated ones.

    `shapes` of inputs that the model has call for generated ones.  Raises SideError where the model runs on none, and
    UsageError where arrays or shapes do not fit.
    """
    names = {info.name for info in original.get_inputs()}
    own = {name: dims for name, dims in shapes.items() if name in names}
    beside = path.with_suffix(".npz")
    given: dict[str, np.ndarray] | None = None
    if not own and beside.exists():
        given = {
            key.removeprefix("in:"): array for key, array in files.read_inputs(beside).items() if key.startswith("in:")
        }

    def runs(case: inputs.Case) -> str:
        try:
            run(original, case.inputs)
        except SideError as failure:
            return str(failure)
        return ""

    model = onnx.load(path, load_external_data=False)
    cases, reason = inputs.generate(model, runs, shapes=own, given=given)
    if not cases:
        raise SideError(reason)
    return cases[0].inputs


def refuse_difference(original: onnxruntime.InferenceSession, expected: Sequence[Any], actual: Sequence[Any]) -> None:
    """Raises SideError where two models' outputs are not the same numbers."""
    if len(actual) != len(expected):
        raise SideError(f"has {len(actual)} outputs instead of {len(expected)}")
    for info, a, b in zip(original.get_outputs(), actual, expected, strict=True):
        if reason := numerics.compare(a, b).reason:
            raise SideError(f"output {info.name!r} {reason}")


def line(row: Row) -> str:
    """A model's row of the printed table."""
    if ORIGINAL in row.failures:
        return f"{row.model:32} {row.failures[ORIGINAL]}"
    parts = [f"{row.model:32} {row.original_us:>10,.0f} us"]
    for side, ratio in row.ratios.items():
        parts.append(f"{side} {ratio.median:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]")
    parts += [f"{side}: {reason}" for side, reason in row.failures.items()]
    if row.floor is not None:
        parts.append(f"products {row.floor:.0%}, leaves {limit(row.floor)}")
    return "  ".join(parts) + ("  (noisy)" if row.noisy else "")


def limit(share: float) -> str:
    """The ratio that a model would reach if nothing but its matrix products took time."""
    return f"{1 / share:.2f}" if share else "all"


def summary(rows: Iterable[Row]) -> list[str]:
    """One line per side: geometric mean, least, how many are slower; then what the control says."""
    rows = list(rows)
    lines = []
    for side in dict.fromkeys(side for row in rows for side in (*row.ratios, *row.failures)):
        ratios = {row.model: row.ratios[side].median for row in rows if side in row.ratios}
        failed = sum(side in row.failures for row in rows)
        text = f"{side}: {f'{failed} failed' if failed else ''}"
        if ratios:
            least = min(ratios, key=ratios.__getitem__)
            text = (
                f"{side}: geometric mean {geometric_mean(ratios.values()):.3f} of {len(ratios)}, "
                f"least {ratios[least]:.2f} ({least}), {sum(r < SLOWER for r in ratios.values())} under {SLOWER}"
                f"{f', {failed} failed' if failed else ''}"
            )
        lines.append(text)
    noisy = sum(row.noisy for row in rows)
    if noisy:
        lines.append(f"the control is off by more than {QUIET:.0%} on {noisy}: measure again on a quieter machine")
    return lines


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean of positive numbers."""
    return math.exp(statistics.fmean(math.log(value) for value in values))


def results(rows: Sequence[Row], settings: Settings) -> dict[str, Any]:
    """Everything that the figures depend on, and the figures."""
    peers = {tool: scale.version_of(tool, settings.peers_python) for tool in settings.peers}
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "environment": scale.environment(),
        "versions": {name: version(name) for name in ("onnxfuse", "onnx", "onnxruntime", "numpy")} | peers,
        "threads": settings.threads,
        "clock": settings.clock,
        "rows": [asdict(row) for row in rows],
    }


def shape(text: str) -> tuple[str, tuple[int, ...]]:
    """An input's name and dims, from NAME:DIM,DIM,..."""
    name, _, dims = text.rpartition(":")
    if not name or not re.fullmatch(r"\d+(,\d+)*", dims):
        raise argparse.ArgumentTypeError(f"{text!r}: write NAME:DIMS, such as input_ids:1,128")
    return name, tuple(map(int, dims.split(",")))


def unknown_inputs(models: Iterable[Path], shapes: Shapes) -> set[str]:
    """Names in `shapes` that no model has an input of."""
    unknown = set(shapes)
    for path in models if shapes else ():
        unknown -= {info.name for info in files.read(path).graph.input}
    return unknown


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code, which is 1 if a side failed on a model."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.latency",
        description=__doc__,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    parser.add_argument(
        "--target",
        nargs="+",
        choices=(*TARGETS, RULES),
        default=["onnxfuse"],
        help=f"default: onnxfuse; {RULES} is the same without regions",
    )
    parser.add_argument("--against", nargs="+", choices=PEERS, default=[], help="other tools to measure too")
    parser.add_argument("--peers-python", type=Path, default=Path(sys.executable), help="the Python those are in")
    parser.add_argument("--shape", type=shape, action="append", default=[], metavar="NAME:DIMS", help="an input's dims")
    parser.add_argument("--floor", action="store_true", help="the share of matrix products, and what it leaves to gain")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="default: 1")
    parser.add_argument("--precision", type=float, default=0.01, help="half of an interval's width (default: 0.01)")
    parser.add_argument("--seconds", type=float, default=20, help="for each model, at most (default: 20)")
    parser.add_argument("--rounds", type=int, metavar="N", help="exactly so many, whatever the precision")
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu leaves out time given to other processes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parsed = parser.parse_args(arguments)
    if missing := [path for path in parsed.models if not path.is_file()]:
        parser.error(f"no model at {missing[0]}")
    if parsed.clock == "cpu" and parsed.threads != 1:
        parser.error("--clock cpu counts one thread only: leave --threads at 1")
    if parsed.json and not parsed.json.absolute().parent.is_dir():
        parser.error(f"{parsed.json}: there is no folder {parsed.json.parent}: make it first")
    shapes = dict(parsed.shape)
    try:
        if unknown := unknown_inputs(parsed.models, shapes):
            parser.error(f"--shape {min(unknown)}: no model has such an input")
    except OnnxfuseError as error:
        parser.error(str(error))
    settings = Settings(
        targets=parsed.target,
        peers=parsed.against,
        # Not resolved: a virtual environment's Python is a link, and its tools lie beside the link.
        peers_python=parsed.peers_python.absolute(),
        shapes=shapes,
        threads=parsed.threads,
        precision=parsed.precision,
        seconds=parsed.seconds,
        rounds=parsed.rounds,
        clock=parsed.clock,
        with_floor=parsed.floor,
    )
    rows: list[Row] = []
    for path in parsed.models:
        rows.append(benchmark(path, settings))
        print(line(rows[-1]), flush=True)
        if parsed.json:
            # After every model: a long run that is broken off keeps what it has.
            parsed.json.write_text(json.dumps(results(rows, settings), indent=2) + "\n")
    print("\n".join(summary(rows)))
    return int(any(row.failures for row in rows))


if __name__ == "__main__":
    sys.exit(main())
