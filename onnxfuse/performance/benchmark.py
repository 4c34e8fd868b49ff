"""Original against fused model: the time of one run of each, taken in turns, and where it goes."""

from __future__ import annotations

import json
import statistics
import tempfile
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import onnx

from onnxfuse.errors import ModelError, NumericsError
from onnxfuse.proof import numerics
from onnxfuse.runtime.quiet import Session, SessionError

from . import interleaved
from .execution import first_case, opened

ORIGINAL, FUSED = "original", "fused"
_PROFILED_RUNS = 21


@dataclass(frozen=True, slots=True)
class Side:
    """A model to be measured: as a proto whose external data lies in `base_dir`, and how messages call it."""

    model: onnx.ModelProto
    base_dir: Path
    name: str


@dataclass(frozen=True, slots=True)
class OpTime:
    """What the nodes of one op take together in one run."""

    op: str
    nodes: int
    seconds: float


@dataclass(slots=True)
class Bench:
    """What was measured; times are seconds of one run."""

    original: str
    fused: str
    provider: str
    threads: int
    inputs: str
    """The sizes of what was fed, such as ``batch=3 sequence=7``."""
    seconds: dict[str, float]
    """Side → median over rounds."""
    rounds: int
    ratio: interleaved.Ratio
    """How many times as fast the fused model is: the median over rounds, with its 95 % confidence interval."""
    kernels: list[str] = field(default_factory=list)
    """Fused ops that ran kernels; others ran their function bodies."""
    profile: dict[str, list[OpTime]] = field(default_factory=dict)
    """Side → its ops, the longest first, as onnxruntime's own profiler has them; on CUDA it sees launches only."""

    def to_json(self) -> dict[str, Any]:
        """The figures as JSON-ready data."""
        return {"schema": 1, **asdict(self)}


def bench(
    original: Side,
    fused: Side,
    *,
    provider: str = "cpu",
    rules: Sequence[Path] = (),
    threads: int = 1,
    given: Mapping[str, Any] | None = None,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    seed: int = 0,
    seconds: float = 10.0,
    rounds: int | None = None,
    profile: bool = True,
    progress: Callable[[str, int, int], None] | None = None,
) -> Bench:
    """Compare the outputs of two models, then measure them in turns.

    Inputs are `given` or generated from `seed`, of `shapes` where those say.  It takes `seconds`, or less if the ratio
    is known to 1 % before, or exactly so many `rounds`.  Raises ModelError where onnxruntime runs one of them on no
    inputs, and NumericsError where they compute different numbers.
    """
    sessions = {
        side: opened(of.model, of.name, of.base_dir, provider=provider, rules=rules, threads=threads)
        for side, of in ((ORIGINAL, original), (FUSED, fused))
    }
    case, expected = first_case(
        original.model, original.name, sessions[ORIGINAL], given=given, shapes=shapes, seed=seed
    )
    try:
        actual = sessions[FUSED].run(case.inputs)
    except SessionError as error:
        raise ModelError(f"{fused.name}: onnxruntime does not run it on these inputs: {error}") from error
    _refuse_difference(fused, sessions[FUSED], expected, actual)
    samples = interleaved.measure(
        {side: made.runner(case.inputs) for side, made in sessions.items()},
        ORIGINAL,
        seconds=seconds,
        rounds=rounds,
        progress=progress and (lambda share: progress("measure", round(share * 100), 100)),
    )
    return Bench(
        original=original.name,
        fused=fused.name,
        provider=provider,
        threads=threads,
        inputs=case.name,
        seconds={side: statistics.median(times) for side, times in samples.items()},
        rounds=len(samples[ORIGINAL]),
        ratio=interleaved.ratio(samples[ORIGINAL], samples[FUSED]),
        kernels=sorted(sessions[FUSED].served.sources),
        profile={
            side: _profile(of, case.inputs, provider=provider, rules=rules, threads=threads)
            for side, of in ((ORIGINAL, original), (FUSED, fused))
            if profile
        },
    )


def _refuse_difference(fused: Side, session: Session, expected: list[Any], actual: list[Any]) -> None:
    if len(actual) != len(expected):
        raise NumericsError(f"{fused.name} has {len(actual)} outputs instead of {len(expected)}: nothing measured")
    for name, a, b in zip(session.outputs, actual, expected, strict=True):
        if reason := numerics.compare(a, b).reason:
            raise NumericsError(f"{fused.name} computes something else, nothing measured: output {name!r} {reason}")


def _profile(side: Side, feeds: Mapping[str, Any], **options: Any) -> list[OpTime]:
    """What each op takes, in a session of its own: profiling slows a run down."""
    with tempfile.TemporaryDirectory() as folder:
        session = opened(side.model, side.name, side.base_dir, profile=f"{folder}/profile", **options)
        run = session.runner(feeds)
        for _ in range(1 + _PROFILED_RUNS):
            run()
        return op_times(json.loads(session.end_profile().read_text()))


def op_times(events: list[dict[str, Any]]) -> list[OpTime]:
    """The ops in a profile of onnxruntime, the longest first: medians over the runs but the first, which warms up."""
    starts = sorted(event["ts"] for event in events if event["name"] == "model_run")[1:]
    times: dict[str, list[list[float]]] = {}
    for event in events:
        if event["name"].endswith("_kernel_time") and (run := bisect_right(starts, event["ts"])):
            own = times.setdefault(event["args"]["op_name"], [[] for _ in starts])
            own[run - 1].append(event["dur"] * 1e-6)
    found = [
        OpTime(op, statistics.median_low(map(len, own)), statistics.median(map(sum, own))) for op, own in times.items()
    ]
    return sorted(found, key=lambda entry: (-entry.seconds, entry.op))
