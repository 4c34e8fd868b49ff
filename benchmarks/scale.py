"""Time and peak memory of onnxfuse and other optimizers, each in a process of its own, from file to file."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

EXAMPLE = """example:
  python -m venv peers && peers/bin/python -m pip install onnxsim onnxslim onnxscript onnxruntime
  python -m benchmarks.scale --peers-python peers/bin/python
"""

# onnxscript has no command of its own; this is the way its documentation shows.
ONNXSCRIPT = """
import sys
from pathlib import Path
import onnx_ir
import onnxscript.optimizer
model = onnx_ir.load(sys.argv[1])
onnxscript.optimizer.optimize(model)
onnx_ir.save(model, sys.argv[2], external_data=Path(sys.argv[2]).name + ".data")
"""

# What onnxruntime makes of a model before it runs it, without what only this machine's processor has.
ONNXRUNTIME = """
import sys
import onnxruntime
options = onnxruntime.SessionOptions()
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
options.optimized_model_filepath = sys.argv[2]
onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
"""
SCRIPTS = {"onnxscript": ONNXSCRIPT, "onnxruntime": ONNXRUNTIME}

COUNT_NODES = "import sys, onnx; print(len(onnx.load(sys.argv[1], load_external_data=False).graph.node))"
VERSION = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"

MODELS = {
    "blocks": "1,200 transformer blocks, 58,800 nodes",
    "huge": "24 layers, 6.4 GB of external weights",
    "bert": "BERT-base, 109 M parameters in one file",
}
TOOLS = ("onnxfuse", "onnxsim", "onnxslim", "onnxscript", "onnxruntime")
HELP_RUNS = 5


@dataclass(frozen=True, slots=True)
class Measurement:
    """One process, from start to exit."""

    seconds: float
    user_seconds: float
    """Processor time outside of the kernel, of all threads: what other processes do disturbs it less."""
    peak_bytes: int
    """Largest resident set of the process."""
    outcome: str
    """``done``, ``over N s``, ``over N GB``, or ``failed:`` with the last line of its standard error."""


@dataclass(frozen=True, slots=True)
class Row:
    """One tool on one model."""

    model: str
    tool: str
    version: str
    outcome: str
    seconds: float | None = None
    peak_bytes: int | None = None
    nodes_before: int | None = None
    nodes_after: int | None = None
    date: str = ""
    user_seconds: float | None = None


def measure(command: list[str], timeout: float, memory_limit: float = math.inf) -> Measurement:
    """Run `command` and measure it; over `timeout` seconds or `memory_limit` bytes, it and what it started are killed.

    The kernel lets a child begin with its parent's peak memory, so this process must stay small: it imports no onnx,
    and models are made by child processes.
    """
    with tempfile.TemporaryFile() as errors:
        start = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True, cwd=ROOT)
        exited, excess = threading.Event(), ""

        def watch() -> None:
            nonlocal excess
            while not exited.wait(0.05):
                if time.perf_counter() - start > timeout:
                    excess = f"over {timeout:g} s"
                elif resident_bytes(process.pid) > memory_limit:
                    excess = f"over {memory_limit / 1e9:g} GB"
                if excess:
                    os.killpg(process.pid, signal.SIGKILL)
                    return

        watcher = threading.Thread(target=watch)
        watcher.start()
        # Waited for without being reaped: until the watcher is gone, the process id must not become another's.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        seconds = time.perf_counter() - start
        exited.set()
        watcher.join()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        lines = errors.read().decode(errors="replace").split("\n")
    if excess:
        outcome = excess
    elif process.returncode:
        last = next((line.strip() for line in reversed(lines) if line.strip()), f"exit {process.returncode}")
        outcome = f"failed: {last[:160]}"
    else:
        outcome = "done"
    unit = 1 if sys.platform == "darwin" else 1024
    return Measurement(seconds, usage.ru_utime, usage.ru_maxrss * unit, outcome)


def resident_bytes(pid: int) -> int:
    """Memory that a process holds now; 0 where there is no /proc."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def command_for(tool: str, python: Path, source: Path, target: Path) -> list[str] | None:
    """How `tool` optimizes `source` into `target`; None if it is not installed beside `python`."""
    script = python.parent / tool
    match tool:
        case _ if tool in SCRIPTS:
            return [str(python), "-c", SCRIPTS[tool], str(source), str(target)] if version_of(tool, python) else None
        case _ if not script.exists():
            return None
        case "onnxfuse":
            return [str(script), "optimize", "--no-validate", str(source), "-o", str(target)]
        case _:
            external = ["--save-as-external-data"] if source.with_name(source.name + ".data").exists() else []
            return [str(script), str(source), str(target), *external]


def version_of(tool: str, python: Path) -> str:
    """The installed version of `tool`, or an empty string."""
    return _output([str(python), "-c", VERSION, tool])


def benchmark(tool: str, python: Path, model: str, source: Path, timeout: float, memory_limit: float = math.inf) -> Row:
    """`tool` on one model; what it wrote is deleted again."""
    # Beside the source, so that a tool that can leave external data where it is may do so.
    target = source.with_name(f"{source.stem}.{tool}.onnx")
    command = command_for(tool, python, source, target)
    if command is None:
        return Row(model, tool, "", "not installed")
    measured = measure(command, timeout, memory_limit)
    done = measured.outcome == "done"
    row = Row(
        model,
        tool,
        version_of(tool, python),
        measured.outcome,
        round(measured.seconds, 2),
        measured.peak_bytes,
        count_nodes(source),
        count_nodes(target) if done else None,
        _today(),
        round(measured.user_seconds, 2),
    )
    for written in source.parent.glob(f"{target.stem}*"):
        written.unlink()
    return row


def benchmark_help(python: Path) -> Row:
    """The median of a few runs of ``onnxfuse --help``."""
    script = python.parent / "onnxfuse"
    if not script.exists():
        return Row("--help", "onnxfuse", "", "not installed")
    runs = [measure([str(script), "--help"], timeout=60) for _ in range(HELP_RUNS)]
    return Row(
        "--help",
        "onnxfuse",
        version_of("onnxfuse", python),
        runs[-1].outcome,
        round(statistics.median(run.seconds for run in runs), 3),
        max(run.peak_bytes for run in runs),
        date=_today(),
        user_seconds=round(statistics.median(run.user_seconds for run in runs), 3),
    )


def count_nodes(path: Path) -> int | None:
    """Nodes in the main graph, read by a child process; None if there is no such file."""
    text = _output([sys.executable, "-c", COUNT_NODES, str(path)])
    return int(text) if text else None


def table(rows: list[Row]) -> str:
    """`rows` as a Markdown table."""
    lines = [
        "| model | tool | version | date | seconds | user seconds | peak memory | nodes | outcome |",
        "|---|---|---|---|--:|--:|--:|--:|---|",
    ]
    for row in rows:
        seconds, user = ("" if s is None else f"{s:g}" for s in (row.seconds, row.user_seconds))
        memory = "" if row.peak_bytes is None else f"{row.peak_bytes / 1e9:.2f} GB"
        nodes = "" if row.nodes_after is None else f"{row.nodes_before:,} → {row.nodes_after:,}"
        cells = (row.model, row.tool, row.version, row.date, seconds, user, memory, nodes, row.outcome)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def environment() -> dict[str, str | int]:
    """What the figures depend on besides the versions."""
    return {
        "cpus": os.cpu_count() or 0,
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "processor": _processor(),
        "python": platform.python_version(),
    }


def merged(path: Path, rows: list[Row]) -> dict[str, Any]:
    """`rows` and those of the results in `path` that were measured on this machine and not again."""
    fresh = {(row.model, row.tool) for row in rows}
    old = json.loads(path.read_text()) if path.exists() else {}
    kept = old["rows"] if old.get("environment") == environment() else []
    kept = [row for row in kept if (row["model"], row["tool"]) not in fresh]
    every = sorted(kept + [asdict(row) for row in rows], key=lambda row: (row["model"], row["tool"]))
    return {"environment": environment(), "rows": every}


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().split("\n") if info.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def _output(command: list[str]) -> str:
    result = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    return result.stdout.strip() if result.returncode == 0 else ""


def main() -> None:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scale",
        description=__doc__,
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS), help="default: all")
    parser.add_argument("--tools", nargs="+", choices=TOOLS, default=list(TOOLS), help="default: all")
    parser.add_argument("--python", type=Path, default=Path(sys.executable), help="the Python that onnxfuse is in")
    parser.add_argument("--peers-python", type=Path, help="the Python that the other tools are in (default: --python)")
    parser.add_argument("--timeout", type=float, default=120, metavar="SECONDS", help="for each run (default: 120)")
    parser.add_argument("--memory-limit", type=float, default=16, metavar="GB", help="for each run (default: 16)")
    parser.add_argument("--work", type=Path, help="where models are written (default: a temporary folder)")
    parser.add_argument("--output", type=Path, default=ROOT / "benchmarks/results/scale.json", metavar="FILE")
    arguments = parser.parse_args()

    # Not resolved: a virtual environment's Python is a link, and its tools lie beside the link.
    python = arguments.python.absolute()
    peers = (arguments.peers_python or arguments.python).absolute()
    for path in (python, peers):
        if not path.is_file():
            parser.error(f"no Python at {path}")
    rows = [benchmark_help(python)] if "onnxfuse" in arguments.tools else []
    with tempfile.TemporaryDirectory(dir=arguments.work) as folder:
        for model in arguments.models:
            source = Path(folder) / f"{model}.onnx"
            print(f"{model}: {MODELS[model]}", file=sys.stderr)
            subprocess.run([sys.executable, "-m", "benchmarks.synthetic", model, str(source)], cwd=ROOT, check=True)
            for tool in arguments.tools:
                beside = python if tool == "onnxfuse" else peers
                row = benchmark(tool, beside, model, source, arguments.timeout, arguments.memory_limit * 1e9)
                print(f"  {tool}: {row.outcome}", file=sys.stderr)
                rows.append(row)
            for written in Path(folder).iterdir():
                written.unlink()
    results = merged(arguments.output, rows)
    print(table([Row(**row) for row in results["rows"]]))
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
