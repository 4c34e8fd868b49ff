"""benchmarks.gpu without a GPU: what is wrong is found, and what fails, hangs or dies is a row."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import cases, checks, expected, report
from benchmarks.gpu.case import Case
from benchmarks.gpu.machine import GUARD, Memory
from benchmarks.gpu.plan import OK, Journal, LostError, Row, SkippedError, Step, run
from onnxfuse.errors import KernelError
from onnxfuse.kernels import KERNELS
from onnxfuse.kernels.device.device import Launch, Source, TensorType
from tests.host_machine import Clock, HostMachine, Wrong, step

ROOT = Path(__file__).parents[2]


@pytest.fixture
def machine() -> HostMachine:
    return HostMachine()


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.jsonl")


# ---------------------------------------------------------------------------------------------------------- the checks


def some_cases() -> list[Case]:
    """Every op and element type once, small."""
    seen: dict[tuple[str, str], Case] = {}
    for case in cases.cases():
        if 16 <= case.size <= 4096:
            seen.setdefault((case.op, case.label.split()[0]), case)
    return [case for number, case in enumerate(seen.values()) if number % 3 == 0]


def test_every_kernel_is_in_the_grid_and_every_case_is_named_once() -> None:
    every = list(cases.cases())
    assert len({case.name for case in every}) == len(every) > 900
    ops = {case.op for case in every}
    assert set(KERNELS) <= ops
    assert set(expected.ELEMENTWISE) <= ops
    small = checks.small()
    assert len(small) < 220
    assert {case.op for case in small} == ops
    assert any(case.by for case in small)


@pytest.mark.parametrize("case", some_cases(), ids=lambda case: case.name)
def test_a_case_is_right_on_a_device_that_is_right(case: Case, machine: HostMachine) -> None:
    row = checks.check(case, machine)
    assert row.get("outcome", OK) == OK
    assert 0 <= row["error"] < 1e-2


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda m, a: m.view(a).__setitem__((0, 0), m.view(a)[0, 0] + 1), "output 0: 1 of 192, first 0"),
        (lambda m, a: m.view(a).__setitem__((-1, -1), np.nan), "output 0: 1 of 192, first 191"),
        (lambda m, a: a.owner.__setitem__(-GUARD, 0), "output 0: written out of bounds"),
    ],
    ids=["wrong", "unwritten", "out of bounds"],
)
def test_a_wrong_kernel_is_found(spoil: Callable[[HostMachine, Memory], None], reason: str) -> None:
    machine = HostMachine()
    device = machine.device
    machine.device = Wrong(machine, lambda array: spoil(machine, array))  # type: ignore[assignment]
    case = next(case for case in cases.cases() if case.name == "Softmax float32 3x64")
    assert checks.check(case, machine)["outcome"].startswith(reason)
    machine.device = device
    assert "outcome" not in checks.check(case, machine)


def test_everything_is_compiled_once_and_failures_are_rows(machine: HostMachine) -> None:
    class Broken:
        signature = KERNELS["Softmax"].signature

        def outputs(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
            return (inputs[0],)

        def launch(self, device: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
            device.launch(Launch(Source("broken.cu", ""), "broken", (1,), (1,)), [])

    x = [TensorType(np.dtype(np.float32), (3, 64))]
    softmax = expected.kernel("Softmax", {})
    planned = [checks.Planned("a", softmax, x, ()), checks.Planned("again", softmax, x, ())]
    broken: Any = Broken()
    rows = list(checks.compile_all([*planned, checks.Planned("b", broken, x, ())], machine, threads=2))
    assert (rows[0]["sources"], rows[0]["failed"]) == (2, 1)
    assert rows[1:] == [{"name": "b", "outcome": "KernelError: broken.cu:1: expected an expression"}]


# --------------------------------------------------------------------------------------------------- steps and budgets


def test_a_failing_step_is_a_row_and_not_the_end(machine: HostMachine, journal: Journal) -> None:
    everything = [
        step("check", "a", [{"error": 1e-6}]),
        step("check", "b", KernelError("two\nlines " + "x" * 300)),
        step("time", "c", SkippedError("torch is not installed")),
        step("check", "d", [{}]),
    ]
    said: list[str] = []
    run(everything, machine, journal, 100.0, tell=said.append)
    assert [line.split()[-1] for line in said] == ["check", "time", "check"]
    rows = journal.all("row")
    assert [row["name"] for row in rows] == ["a", "b", "c", "d"]
    assert rows[0] == {"section": "check", "name": "a", "outcome": OK, "error": 1e-6}
    assert rows[1]["outcome"].startswith("KernelError: two lines xxx")
    assert len(rows[1]["outcome"]) == 160
    assert report.failures(rows) == [rows[1]]
    assert report.skipped(rows) == ["time: torch is not installed"]
    assert journal.begun() is None


def test_a_budget_is_kept(machine: HostMachine, journal: Journal) -> None:
    clock = Clock()

    def slow(seconds: float) -> Callable[[Any], Iterable[Row]]:
        def go(machine: Any) -> Iterable[Row]:
            clock.now += seconds
            return [{}]

        return go

    everything = [Step("check", str(i), slow(1.0), 0.1) for i in range(5)]
    everything += [Step("torch", "long", slow(50.0), 50.0), Step("floor", "short", slow(1.0), 1.0)]
    everything += [Step("check", str(i), slow(1.0), 0.1) for i in range(5, 9)]
    journal.write("plan", [each.key for each in everything])
    run(everything, machine, journal, 8.0, clock)
    ended = [end["step"] for end in journal.all("end")]
    assert ended == [*(f"check: {i}" for i in range(5)), "floor: short", "check: 5", "check: 6"]
    assert report.left_out(journal) == {"check": 2, "torch": 1}


def test_what_ended_is_not_done_again(machine: HostMachine, journal: Journal) -> None:
    machine.dead = "cudaErrorIllegalAddress"
    everything = [step("check", "a", RuntimeError("illegal")), step("check", "b", [{}])]
    with pytest.raises(LostError, match="cudaErrorIllegalAddress"):
        run(everything, machine, journal, 100.0)
    assert [end["step"] for end in journal.all("end")] == ["check: a"]
    run(everything, HostMachine(), journal, 100.0)
    assert [(row["name"], row["outcome"]) for row in journal.all("row")] == [
        ("a", "RuntimeError: illegal"),
        ("b", OK),
    ]


def test_half_a_line_of_a_process_that_died_is_none(journal: Journal) -> None:
    journal.write("facts", {"card": "x"})
    with journal.path.open("a") as file:
        file.write('{"row": {"sec')
    assert journal.all("facts") == [{"card": "x"}]
    assert journal.all("row") == []


WORKER = """
import json, os, signal, sys, time
path, mode = sys.argv[1:3]
def write(kind, value):
    with open(path, "a") as file:
        file.write(json.dumps({kind: value}) + "\\n")
done = sum('"end"' in line for line in open(path)) if os.path.exists(path) else 0
write("facts", {"card": "x"})
for i in range(done, 3):
    write("begin", {"step": f"check: {i}", "section": "check", "name": str(i), "limit": 0.5})
    if i == 1:
        time.sleep(60) if mode == "hang" else os.kill(os.getpid(), signal.SIGSEGV)
    write("row", {"section": "check", "name": str(i), "outcome": "ok"})
    write("end", {"step": f"check: {i}", "section": "check", "seconds": 0.0})
"""


@pytest.mark.parametrize(
    ("mode", "reason"), [("hang", "hung for 0.5 s, and was ended"), ("die", "the process died, SIGSEGV")]
)
def test_a_worker_that_hangs_or_dies_costs_one_step(journal: Journal, mode: str, reason: str) -> None:
    call = [sys.executable, "-c", WORKER, str(journal.path), mode]
    assert command.supervise(journal, 60.0, call, rest=0.05) == 0
    assert [(row["name"], row["outcome"]) for row in journal.all("row")] == [("0", OK), ("1", reason), ("2", OK)]


def test_a_worker_is_ended_when_time_is_up(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "GRACE", 0.0)
    call = [sys.executable, "-c", WORKER.replace("0.5", "1000"), str(journal.path), "hang"]
    assert command.supervise(journal, 1.0, call, rest=0.05) != 0
    assert [(row["name"], row["outcome"]) for row in journal.all("row")] == [
        ("0", OK),
        ("1", "not done when time was up"),
    ]


def test_who_ends_it_early_gets_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def supervise(journal: Journal, budget: float, call: Sequence[str], keep: Callable[[], None]) -> int:
        assert call[-2:] == ["--only", "check"]
        journal.write("facts", {"card": "x"})
        journal.write("row", {"section": "check", "name": "a", "outcome": OK, "error": 0.0, "op": "Softmax"})
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
        return 0

    monkeypatch.setattr(command, "supervise", supervise)
    monkeypatch.setenv("ONNXFUSE_CACHE", str(tmp_path))
    (tmp_path / "products.json").write_text("measured")
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert command.main(["--results", str(tmp_path / "new"), "--only", "check"]) == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "| Softmax | 1 | 0 |" in capsys.readouterr().out
    record, kept, tables, verdicts = sorted((tmp_path / "new").iterdir())
    assert record.name.endswith(".check.json"), "records of other sections are other files"
    assert json.loads(record.read_text())["rows"][0]["name"] == "a"
    assert kept.suffix == ".jsonl"
    assert "| Softmax | 1 | 0 |" in tables.read_text()
    assert verdicts.read_text() == "measured", "where $ONNXFUSE_CACHE may point"


def test_each_section_is_on_record_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that what is cut off, even by SIGKILL, leaves what was found."""
    records: list[list[str]] = []
    monkeypatch.setenv("ONNXFUSE_CACHE", str(tmp_path))
    real, before = command.supervise, signal.getsignal(signal.SIGTERM)
    code = SECTIONED

    def supervise(journal: Journal, budget: float, call: Sequence[str], keep: Callable[[], None]) -> int:
        def seen() -> None:
            keep()
            (record,) = tmp_path.glob("gpu.*.json")
            records.append([row["section"] for row in json.loads(record.read_text())["rows"]])
            assert record.with_suffix(".md").exists()

        return real(journal, budget, [sys.executable, "-c", code, str(journal.path)], rest=0.05, keep=seen)

    monkeypatch.setattr(command, "supervise", supervise)
    try:
        assert command.main(["--results", str(tmp_path)]) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    assert records == [["floor"], ["floor", "check"]]
    assert capsys.readouterr().out.rstrip().endswith(" s"), "the table is what is printed last"


SECTIONED = """
import json, sys, time
def write(kind, value):
    with open(sys.argv[1], "a") as file:
        file.write(json.dumps({kind: value}) + "\\n")
write("facts", {"card": "x", "compute_capability": "9.0"})
for section in ("floor", "check", "attention"):
    write("begin", {"step": section, "section": section, "name": "a", "limit": 60})
    time.sleep(0.3)
    write("row", {"section": section, "name": "a", "outcome": "ok", "error": 0.0})
    write("end", {"step": section, "section": section, "seconds": 0.0})
"""


def test_a_worker_that_never_begins_is_given_up(journal: Journal, capfd: pytest.CaptureFixture[str]) -> None:
    call = [sys.executable, "-c", "import sys; sys.exit(9)"]
    assert command.supervise(journal, 60.0, call, rest=0.05) == 9
    assert "the worker ends before it has done anything, exit code 9" in capfd.readouterr().err


# ---------------------------------------------------------------------------------------------------- a bare machine

BARE = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
import runpy
sys.argv[1:] = {arguments!r}
runpy.run_module("benchmarks.gpu", run_name="__main__", alter_sys=True)
"""
ABSENT = ["torch", "onnxruntime", "rich", "pytest", "onnx_graphsurgeon", "triton", "scipy"]


def bare(missing: Sequence[str], arguments: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    code = BARE.format(missing=[*missing], arguments=[*arguments])
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60, env=environment
    )


def test_without_a_gpu_it_says_so_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = bare([*ABSENT, "cupy"], ["--worker", str(tmp_path / "j")], ROOT)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "CuPy, which is not installed" in done.stderr
    assert not (tmp_path / "j").exists()


def test_it_imports_from_a_bare_source_tree(tmp_path: Path) -> None:
    for name in ("onnxfuse", "rules", "models", "benchmarks", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    done = bare(ABSENT, ["--help"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "--budget SECONDS" in done.stdout


def test_a_budget_is_a_number_of_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        command.main(["--budget", "0"])
    assert left.value.code == 2
    assert "--budget is a number of seconds above 0" in capsys.readouterr().err
