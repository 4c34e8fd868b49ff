"""Where fused files can be taken: in other runtimes, other versions of onnxruntime, and through other people's tools.

Each opener has an environment of its own, from the package index.  A runtime's outputs are compared with those that the
installed onnxruntime computes from the original; what a tool makes of a file is run in the installed onnxruntime first.
A file is `right` if it is as near to these as the original is, treated in the same way, `wrong` if it is not, and
`refused` if the opener says no, crashes or takes too long.  With --padded, models are fed what they seldom see in a
laboratory: one sample that is all padding, constant rows, large numbers; where the original has NaN, it has no answer.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import onnxfuse
from benchmarks import padded
from benchmarks.environments import Environment, UnavailableError, build
from onnxfuse.errors import OnnxfuseError
from onnxfuse.model import files
from onnxfuse.performance import execution
from onnxfuse.proof import numerics
from onnxfuse.proof.bfloat16 import emulated
from onnxfuse.runtime.quiet import Session

HERE = Path(__file__).resolve().parent
WORKER = HERE / "portability_worker.py"
MODELS = HERE.parent / "models"
ORIGINAL = "original"
TARGETS = ("onnxfuse", "onnx", "ort")
INSTALLED = "onnxruntime"


@dataclass(frozen=True, slots=True)
class Opener:
    """A runtime or a tool."""

    function: str
    """Of portability_worker."""
    packages: Sequence[str] = ()
    """None is what stands beside us."""
    tool: bool = False
    """Does it write a model, which onnxruntime runs then?"""
    rtol: float = 1e-3
    """Of the largest output, what it may differ by in any case."""


OPENERS: Mapping[str, Opener] = {
    INSTALLED: Opener("onnxruntime"),
    "onnxruntime 1.20": Opener("onnxruntime", ("onnxruntime==1.20.*", "numpy<3")),
    "onnxruntime 1.23": Opener("onnxruntime", ("onnxruntime==1.23.*", "numpy<3")),
    "onnxruntime 1.26": Opener("onnxruntime", ("onnxruntime==1.26.*", "numpy<3")),
    "onnxruntime 1.32": Opener("onnxruntime", ("onnxruntime==1.32.*", "numpy<3")),
    "openvino": Opener("openvino", ("openvino", "numpy<3")),
    "graphsurgeon": Opener("graphsurgeon", ("onnx-graphsurgeon", "onnx"), tool=True),
    "onnxslim": Opener("onnxslim", ("onnxslim", "onnx"), tool=True),
    "onnxsim": Opener("onnxsim", ("onnxsim", "onnx"), tool=True),
    "float16, onnxconverter-common": Opener("float16", ("onnxconverter-common", "onnx"), tool=True, rtol=2e-2),
    "float16, onnxruntime": Opener("ort_float16", ("onnxruntime", "onnx", "sympy", "packaging"), tool=True, rtol=2e-2),
    "quantize_dynamic, onnxruntime": Opener("quantize_dynamic", ("onnxruntime", "onnx", "sympy"), tool=True, rtol=0.1),
    "quantize_dynamic, MatMul and Gemm": Opener(
        "quantize_products", ("onnxruntime", "onnx", "sympy"), tool=True, rtol=0.1
    ),
    "onnx.version_converter": Opener("version_converter", ("onnx", "numpy<3"), tool=True),
}
"""What people open files with, by the name that the table has for it."""


@dataclass(slots=True)
class Verdict:
    """What came of one file in one opener."""

    verdict: str
    error: float | None = None
    reason: str = ""


@dataclass(slots=True)
class Case:
    """A model, its fused files, and what is fed to all of them."""

    name: str
    sources: dict[str, Path]
    """Column → file."""
    inputs: Path
    expected: list[Any]
    verdicts: dict[str, dict[str, Verdict]] = field(default_factory=dict)
    """Opener → column → verdict."""
    in_half: list[Any] | None = None
    """What a half precision model gives where each result is rounded to float16 (see `padded`)."""
    padded: bool = False


def prepare(path: Path, folder: Path, pad: bool = False) -> Case:
    """Fuse a model for every target, as users do, and run it.  Raises OnnxfuseError if it cannot be run at all."""
    folder.mkdir()
    case = _padded(path, folder) if pad else None
    if case is None:
        ran = execution.run(files.read(path), path, given=_beside(path))
        case = Case(path.stem, {ORIGINAL: path}, folder / "inputs.npz", list(ran.outputs.values()))
        np.savez(case.inputs, **ran.inputs)
    for target in TARGETS:
        case.sources[target] = folder / f"{target}.onnx"
        onnxfuse.optimize(path, case.sources[target], target=target)  # type: ignore[arg-type]
    return case


def _padded(path: Path, folder: Path) -> Case | None:
    """A model fed with unusual inputs; None if it runs on none of those."""
    model = onnx.load(path)
    session = Session(model, path.parent, optimize=False)
    fed = next((case for case in padded.cases(model, session) if case.unusual), None)
    if fed is None:
        return None
    case = Case(path.stem, {ORIGINAL: path}, folder / "inputs.npz", session.run(fed.inputs), padded=True)
    if padded.is_half(model):
        half = Session(emulated(model, onnx.TensorProto.FLOAT16), path.parent, optimize=False)
        case.in_half = half.run(fed.inputs)
    np.savez(case.inputs, **fed.inputs)
    return case


def _beside(path: Path) -> dict[str, np.ndarray] | None:
    """The inputs in an .npz file beside a model, called `in:NAME`, if there is one."""
    if not (beside := path.with_suffix(".npz")).exists():
        return None
    arrays = files.read_inputs(beside)
    return {name.removeprefix("in:"): array for name, array in arrays.items() if name.startswith("in:")}


def work(
    opener: Opener, environment: Environment | None, inputs: Path, jobs: Sequence[tuple[Path, Path]], timeout: float
) -> list[str]:
    """What became of each job, (file, result): "" or why it was refused.  What crashes or hangs costs one job."""
    said: list[str] = []
    while len(said) < len(jobs):
        rest = jobs[len(said) :]
        if environment is None:
            command, variables = [sys.executable, str(WORKER), opener.function, str(inputs)], None
        else:
            command = environment.command(WORKER, opener.function, str(inputs))
            variables = environment.variables()
        lines = "".join(f"{source}\t{result}\n" for source, result in rest)
        try:
            ended = subprocess.run(
                command, input=lines, env=variables, capture_output=True, text=True, timeout=timeout * len(rest)
            )
            output, failure = ended.stdout, f"the process exits with {ended.returncode}"
            if ended.returncode > 0:
                failure = f"{failure}: {(ended.stderr.splitlines() or [''])[-1]}"
        except subprocess.TimeoutExpired as late:
            output = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
            failure = f"takes longer than {timeout:g} s"
        answers = ["" if line == "ok" else _brief(line, inputs.parent) for line in output.splitlines()][: len(rest)]
        said += answers if len(answers) == len(rest) else [*answers, failure]
    return said


def _brief(reason: str, folder: Path) -> str:
    """A complaint without the folder that files were in, and without what onnxruntime puts before all of its own."""
    reason = re.sub(r"\[ONNXRuntimeError\] : \d+ : \w+ : (Load model from \S+ failed:)?", "", reason)
    return re.sub(rf"{re.escape(str(folder))}\S*/", "", reason)[:300]


def examine(case: Case, name: str, environment: Environment | None, folder: Path, timeout: float) -> None:
    """The verdicts of one opener on one model."""
    opener = OPENERS[name]
    suffix = "onnx" if opener.tool else "npz"
    made = {column: folder / f"{column}.{suffix}" for column in case.sources}
    jobs = [(source, made[column]) for column, source in case.sources.items()]
    refused = dict(zip(case.sources, work(opener, environment, case.inputs, jobs, timeout), strict=True))
    results = dict(made)
    if opener.tool:
        results = {column: path.with_suffix(".npz") for column, path in made.items()}
        opened = [column for column, reason in refused.items() if not reason]
        again = [(made[column], results[column]) for column in opened]
        ran = work(OPENERS[INSTALLED], None, case.inputs, again, timeout)
        refused |= {c: f"onnxruntime, of what it writes: {r}" for c, r in zip(opened, ran, strict=True) if r}
    verdicts: dict[str, Verdict] = {}
    allowed = opener.rtol
    for column in case.sources:
        if refused[column]:
            verdicts[column] = Verdict("refused", reason=refused[column])
            continue
        verdicts[column] = _compared(results[column], case, allowed)
        if column == ORIGINAL and verdicts[column].verdict == "right":
            allowed = max(allowed, 3 * (verdicts[column].error or 0))
    case.verdicts[name] = verdicts


def _compared(result: Path, case: Case, rtol: float) -> Verdict:
    with np.load(result) as arrays:
        outputs = dict(arrays)
    worst = Verdict("right", 0.0)
    for i, want in enumerate(case.expected):
        if not isinstance(want, np.ndarray):
            continue
        if str(i) not in outputs:
            return Verdict("wrong", None, f"output {i} is missing")
        got = outputs[str(i)]
        if case.in_half is not None:
            want = numerics.nearer(got, want, case.in_half[i])
        coarse = max(rtol, numerics.tolerance(want.dtype)[0]) if numerics.is_float(want.dtype) else rtol
        found = numerics.compare(got, want, coarse, known=case.padded)
        if found.reason:
            return Verdict("wrong", found.error, found.reason)
        worst.error = max(worst.error or 0.0, found.error or 0.0)
    return worst


def table(cases: Sequence[Case], missing: Mapping[str, str]) -> Iterator[str]:
    """A line for each opener: right / wrong / refused in each column; then what became worse than the original."""
    columns = (ORIGINAL, *TARGETS)
    yield f"{'opened by':32}{''.join(f'{column:>16}' for column in columns)}"
    for name in OPENERS:
        rows = [case.verdicts[name] for case in cases if name in case.verdicts]
        if name in missing:
            yield f"{name:32}  not built: {missing[name]}"
        elif rows:
            counts = [Counter(row[column].verdict for row in rows) for column in columns]
            shown = [f"{c['right']} / {c['wrong']} / {c['refused']}" for c in counts]
            yield f"{name:32}{''.join(f'{text:>16}' for text in shown)}"
    for case in cases:
        for name, row in case.verdicts.items():
            for column in TARGETS:
                if row[ORIGINAL].verdict == "right" != row[column].verdict:
                    yield f"{name}: {case.name} for {column}: {row[column].verdict}: {row[column].reason}"


def progress(text: str) -> None:
    """One line on a terminal, written over by the next."""
    if sys.stderr.isatty():
        print(f"\r{text:70}\r", end="", file=sys.stderr, flush=True)


def measure(
    paths: Sequence[Path], names: Sequence[str], timeout: float, pad: bool
) -> tuple[list[Case], dict[str, Any]]:
    """All verdicts, and what they were found with: versions, and why an environment is missing."""
    environments: dict[str, Environment | None] = {}
    missing: dict[str, str] = {}
    for name in names:
        progress(f"build {name}")
        try:
            environments[name] = build(OPENERS[name].packages) if OPENERS[name].packages else None
        except UnavailableError as reason:
            missing[name] = str(reason)
    cases = []
    with tempfile.TemporaryDirectory() as folder:
        for number, path in enumerate(paths):
            progress(f"{number + 1}/{len(paths)} {path.stem}")
            place = Path(folder) / str(number)
            try:
                case = prepare(path, place, pad)
            except OnnxfuseError as failure:
                print(f"{path.name}: left out: {failure}", file=sys.stderr)
                continue
            for name, environment in environments.items():
                into = place / OPENERS[name].function / name.replace(" ", "_")
                into.mkdir(parents=True)
                examine(case, name, environment, into, timeout)
            cases.append(case)
    progress("")
    versions = {name: e.versions if e else {"onnxruntime": version("onnxruntime")} for name, e in environments.items()}
    return cases, {"versions": versions, "missing": missing}


def record(cases: Sequence[Case], found: Mapping[str, Any]) -> dict[str, Any]:
    """Everything, as JSON; what is right needs no reason."""
    said = {
        case.name: {
            name: {
                column: {"verdict": v.verdict, "error": v.error} | ({"reason": v.reason} if v.reason else {})
                for column, v in row.items()
            }
            for name, row in case.verdicts.items()
        }
        for case in cases
    }
    return {"date": f"{datetime.now(UTC):%Y-%m-%d}", "onnx": onnx.__version__, **found, "models": said}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", type=Path, nargs="*", default=[MODELS], help="files and folders (default: models/)")
    parser.add_argument("--only", nargs="+", choices=list(OPENERS), default=list(OPENERS), metavar="OPENER")
    parser.add_argument("--timeout", type=float, default=60, metavar="S", help="seconds for one file in one opener")
    parser.add_argument("--padded", action="store_true", help="unusual inputs, a sample that is all padding among them")
    parser.add_argument("--record", type=Path, metavar="FILE.json", help="default: benchmarks/results/, with the date")
    arguments = parser.parse_args()
    paths = [p for given in arguments.models for p in (sorted(given.glob("*.onnx")) if given.is_dir() else [given])]
    cases, found = measure(paths, arguments.only, arguments.timeout, arguments.padded)
    for line in table(cases, found["missing"]):
        print(line)
    told = record(cases, found)
    folder = arguments.models[0].name if arguments.models[0].is_dir() else "files"
    folder += ".padded" * arguments.padded
    place = arguments.record or HERE / "results" / f"portability.{folder}.{told['date']}.json"
    place.write_text(json.dumps(told, indent=1, allow_nan=False) + "\n")
    print(f"written to {place}")
    return int(any(row[c].verdict == "wrong" for case in cases for row in case.verdicts.values() for c in TARGETS))


if __name__ == "__main__":
    sys.exit(main())
