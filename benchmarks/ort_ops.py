"""Which spelling of a fused op is fastest in onnxruntime: each candidate as a model of its own, side by side.

One thread, the CPU provider, all of onnxruntime's own optimizations on.  Candidates of a group compute the same and
take turns, so that a slow moment hits them all.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from .ort_spellings import GROUPS, Group

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"

SIZES = {
    "S16 D32 H2": {"S": 16, "D": 32, "H": 2},
    "S64 D128 H4": {"S": 64, "D": 128, "H": 4},
    "S128 D384 H6": {"S": 128, "D": 384, "H": 6},
    "S512 D768 H12": {"S": 512, "D": 768, "H": 12},
    "S1024 D768 H12": {"S": 1024, "D": 768, "H": 12},
}
"""Sequence length, hidden size, heads."""

EXAMPLE = """example:
  python -m benchmarks.ort_ops --only Attention
"""


def dims(text: str, size: Mapping[str, int]) -> list[int]:
    return [int(part) for part in fill(text, size).split(",")]


def fill(text: str, size: Mapping[str, int]) -> str:
    values = {**size, "F": size["D"] // size["H"], "D4": 4 * size["D"]}
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


def model(group: Group, candidate: str, size: Mapping[str, int], kind: str = "float") -> onnx.ModelProto:
    """One candidate as a model; weights are random and the same for all."""
    opset, nodes = group.candidates[candidate]
    inputs = ", ".join(f"{kind}[{fill(shape, size)}] {name}" for name, shape in group.inputs.items())
    text = f"g ({inputs}) => ({kind}[{fill(group.output, size)}] Y) {{\n{fill(nodes, size)}}}"
    graph = onnx.parser.parse_graph(text)
    random = np.random.default_rng(0)
    for name, shape in group.weights.items():
        values = random.normal(0, 0.05, dims(shape, size)).astype(np.float32)
        graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    imports = [onnx.helper.make_opsetid("", opset), onnx.helper.make_opsetid("com.microsoft", 1)]
    return onnx.helper.make_model(graph, opset_imports=imports, ir_version=10)


def session(proto: onnx.ModelProto) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])


def measure(sessions: Sequence[Any], feeds: Mapping[str, Any], seconds: float) -> list[float]:
    """Median time of each session's run, in microseconds; they take turns."""
    for one in sessions:
        one.run(None, feeds)
        one.run(None, feeds)
    times: list[list[float]] = [[] for _ in sessions]
    started = time.perf_counter()
    while time.perf_counter() - started < seconds or len(times[0]) < 9:
        for one, own in zip(sessions, times, strict=True):
            before = time.perf_counter()
            one.run(None, feeds)
            own.append(time.perf_counter() - before)
    return [round(statistics.median(own) * 1e6, 1) for own in times]


def compare(name: str, size: Mapping[str, int], seconds: float) -> dict[str, float | str]:
    """Candidate → microseconds, or why onnxruntime does not run it.

    Raises ValueError if two compute something else."""
    group = GROUPS[name]
    random = np.random.default_rng(1)
    feeds = {n: random.normal(0, 1, dims(s, size)).astype(np.float32) for n, s in group.inputs.items()}
    found: dict[str, float | str] = {}
    sessions = {}
    reference = None
    for candidate in group.candidates:
        try:
            sessions[candidate] = session(model(group, candidate, size))
        except Exception as error:  # onnxruntime's own classes, all derived from Exception
            found[candidate] = str(error).strip().splitlines()[0][:120]
            continue
        result = sessions[candidate].run(None, feeds)[0]
        reference = result if reference is None else reference
        if not np.allclose(result, reference, rtol=1e-3, atol=1e-3):
            raise ValueError(f"{name}: {candidate} differs by {np.abs(result - reference).max()}")
    if sessions:
        found |= dict(zip(sessions, measure(list(sessions.values()), feeds, seconds), strict=True))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, epilog=EXAMPLE, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", metavar="TEXT", default="", help="groups whose name has this in it")
    parser.add_argument("--seconds", type=float, default=0.5, help="per group and size (default 0.5)")
    parser.add_argument("--output", type=Path, help="a JSON file (default: benchmarks/results/ort_ops.DATE.json)")
    given = parser.parse_args()
    table: dict[str, Any] = {}
    for name in (n for n in GROUPS if given.only in n):
        print(name)
        for label, size in SIZES.items():
            row = table.setdefault(name, {})[label] = compare(name, size, given.seconds)
            best = min(v for v in row.values() if isinstance(v, float))
            print(f"  {label:14}", "  ".join(f"{c} {v}{'*' if v == best else ''}" for c, v in row.items()))
    if given.only and given.output is None:
        return
    day = datetime.now(UTC).date().isoformat()
    record = {
        "date": day,
        "onnxruntime": onnxruntime.__version__,
        "provider": "CPUExecutionProvider, one thread",
        "processor": processor(),
        "python": platform.python_version(),
        "unit": "microseconds, median",
        "groups": table,
    }
    output = given.output or RESULTS / f"ort_ops.{day}.json"
    output.write_text(json.dumps(record, indent=1) + "\n")


def processor() -> str:
    """What the kernel calls the CPU."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
