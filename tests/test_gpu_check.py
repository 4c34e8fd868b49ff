"""benchmarks.gpu without a GPU: kernels run in the emulator by a clock of ours; what fails, hangs or dies is a row."""

from __future__ import annotations

import json
import math
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
from benchmarks.gpu import cases, checks, expected, peers, report, sanitizer, sessions, sizes, stack, steps, timing
from benchmarks.gpu.machine import GUARD, POISON, Memory, Run, Values, copy_rate, in_turn, memory
from benchmarks.gpu.plan import OK, Journal, LostError, Row, SkippedError, Step, run
from models import split_stack
from onnxfuse.errors import KernelError
from onnxfuse.kernels import KERNELS
from onnxfuse.kernels.device import Array, Grid, Source, TensorType
from onnxfuse.kernels.emulated import Emulated
from onnxfuse.runtime.installed import CPU

ROOT = Path(__file__).parent.parent


class HostMachine:
    """The CPU in the place of a GPU.  A launch takes a microsecond for each 1000 bytes of its arguments."""

    def __init__(self) -> None:
        self.device = Recorder(self)
        self.stream, self.cache, self.arrays = 0, 1 << 16, np
        self.now, self.dead = 0.0, ""

    def facts(self) -> dict[str, Any]:
        return {"card": "a CPU"}

    def prepare(self, source: Source, entry: str) -> None:
        if source.name == "broken.cu":
            raise KernelError(f"{source.name}:1: expected an expression")

    def allocate(self, type: TensorType, by: int = 0) -> Memory:
        dtype, shape = type
        before, count = GUARD + by * dtype.itemsize, math.prod(shape) * dtype.itemsize
        owner = np.full(before + count + GUARD + 256, POISON, np.uint8)
        owner = owner[-owner.ctypes.data % 256 :][: before + count + GUARD]
        return memory(owner.ctypes.data + before, tuple(shape), dtype, owner)

    def view(self, array: Memory) -> Values:
        begin = array.pointer - array.owner.ctypes.data
        found = array.owner[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
        return np.asarray(found)

    def write(self, array: Memory, values: Values) -> None:
        self.view(array)[...] = values

    def read(self, array: Memory) -> Values:
        self.wait()
        return self.view(array).copy()

    def fill(self, array: Memory, block: Values) -> None:
        self.view(array)[...] = np.resize(block, array.shape)

    def copy(self, source: Memory, target: Memory) -> None:
        self.now += source.nbytes * 2e-9
        self.view(target)[...] = self.view(source)

    def spoiled(self, array: Memory) -> bool:
        begin = array.pointer - array.owner.ctypes.data
        return bool((np.delete(array.owner, slice(begin, begin + array.nbytes)) != POISON).any())

    def graph(self, calls: Sequence[Run]) -> tuple[Run, str]:
        return in_turn(calls), "graph"

    def seconds(self, run: Run) -> float:
        start = self.now
        run()
        return self.now - start

    def wait(self) -> None:
        if self.dead:
            raise RuntimeError(self.dead)


class Recorder(Emulated):
    """Without checks, and counting."""

    def __init__(self, machine: HostMachine) -> None:
        super().__init__(checked=False)
        self._machine = machine

    def launch(
        self,
        source: Source,
        entry: str,
        grid: Grid,
        block: Grid,
        arguments: Sequence[Array | np.generic | None],
        shared: int = 0,
    ) -> None:
        super().launch(source, entry, grid, block, arguments, shared)
        self._machine.now += 1e-9 * sum(a.nbytes for a in arguments if isinstance(a, Memory))


@pytest.fixture
def machine() -> HostMachine:
    return HostMachine()


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.jsonl")


class Clock:
    """Time that passes only when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


# ---------------------------------------------------------------------------------------------------------- the checks


def some_cases() -> list[cases.Case]:
    """Every op and element type once, small."""
    seen: dict[tuple[str, str], cases.Case] = {}
    for case in cases.cases():
        if 16 <= case.size <= 4096:
            seen.setdefault((case.op, case.label.split()[0]), case)
    return [case for number, case in enumerate(seen.values()) if number % 3 == 0]


def test_every_kernel_is_in_the_grid_and_every_case_is_named_once() -> None:
    every = list(cases.cases())
    assert len({case.name for case in every}) == len(every) > 900
    ops = {case.op for case in every}
    assert set(KERNELS) <= ops
    assert {name for name, rule in expected.CATALOGUE.definitions.items() if rule.kernel == "pointwise"} <= ops
    small = checks.small()
    assert len(small) < 200
    assert {case.op for case in small} == ops
    assert any(case.by for case in small)


@pytest.mark.parametrize("case", some_cases(), ids=lambda case: case.name)
def test_a_case_is_right_on_a_device_that_is_right(case: cases.Case, machine: HostMachine) -> None:
    row = checks.check(case, machine)
    assert row.get("outcome", OK) == OK
    assert 0 <= row["error"] < 1e-2


class Wrong:
    """A device that spoils what a kernel has computed."""

    multiprocessors = 4

    def __init__(self, machine: HostMachine, spoil: Callable[[Memory], None]) -> None:
        self._device, self._spoil = machine.device, spoil

    def launch(self, source: Source, entry: str, grid: Grid, block: Grid, arguments: Any, shared: int = 0) -> None:
        self._device.launch(source, entry, grid, block, arguments, shared)
        self._spoil(next(a for a in reversed(arguments) if isinstance(a, Memory)))


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
            device.launch(Source("broken.cu", ""), "broken", (1,), (1,), [])

    x = [TensorType(np.dtype(np.float32), (3, 64))]
    softmax = expected.kernel("Softmax", {})
    planned = [checks.Planned("a", softmax, x, ()), checks.Planned("again", softmax, x, ())]
    broken: Any = Broken()
    rows = list(checks.compile_all([*planned, checks.Planned("b", broken, x, ())], machine, threads=2))
    assert (rows[0]["sources"], rows[0]["failed"]) == (2, 1)
    assert rows[1:] == [{"name": "b", "outcome": "KernelError: broken.cu:1: expected an expression"}]


# --------------------------------------------------------------------------------------------------- steps and budgets


def step(section: str, name: str, found: Iterable[Row] | Exception = (), seconds: float = 1.0) -> Step:
    def go(machine: Any) -> Iterable[Row]:
        if isinstance(found, Exception):
            raise found
        return found

    return Step(section, name, go, seconds)


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
    def supervise(journal: Journal, budget: float, call: Sequence[str]) -> int:
        assert call[-2:] == ["--only", "check"]
        journal.write("facts", {"card": "x"})
        journal.write("row", {"section": "check", "name": "a", "outcome": OK, "error": 0.0, "op": "Softmax"})
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
        return 0

    monkeypatch.setattr(command, "supervise", supervise)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert command.main(["--results", str(tmp_path / "new"), "--only", "check"]) == 130
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "| Softmax | 1 | 0 |" in capsys.readouterr().out
    record, kept = sorted((tmp_path / "new").iterdir())
    assert json.loads(record.read_text())["rows"][0]["name"] == "a"
    assert kept.suffix == ".jsonl"


def test_a_worker_that_never_begins_is_given_up(journal: Journal, capfd: pytest.CaptureFixture[str]) -> None:
    call = [sys.executable, "-c", "import sys; sys.exit(9)"]
    assert command.supervise(journal, 60.0, call, rest=0.05) == 9
    assert "the worker ends before it has done anything, exit code 9" in capfd.readouterr().err


# ---------------------------------------------------------------------------------------------------------- the timings


def test_a_copy_and_a_node_are_timed_by_the_same_clock(machine: HostMachine) -> None:
    rate = copy_rate(machine, 1 << 18, rounds=3)
    assert rate == pytest.approx(1e9)
    node = sizes.rows("LayerNormalization", "float32", 64, 2, 300)
    (row,) = timing.time_node(node, lambda: rate, machine, Clock())
    assert row.get("outcome", OK) == OK
    assert row["bytes"] == 2 * 300 * 64 * 4 + 2 * 64 * 4, "statistics that nobody asked for do not count"
    assert not row["cached"]
    assert row["sets"] > 2
    assert row["of_copy"] == pytest.approx(1.0, rel=1e-3)
    assert row["sides"]["onnxfuse"]["us"] == pytest.approx(row["bytes"] / 1e3, rel=1e-3)
    assert row["host_us"] > 0


def test_small_nodes_say_that_they_are_in_the_cache(machine: HostMachine) -> None:
    machine.cache = 1 << 26
    node = sizes.Timed("Gelu", "float16", (sizes.Operand((4, 64), batched=True),))
    (row,) = timing.time_node(node, lambda: 1e9, machine, Clock())
    assert row["cached"]
    assert "of_copy" not in row


def test_a_wrong_node_is_not_timed(machine: HostMachine) -> None:
    machine.device = Wrong(machine, lambda array: machine.view(array).fill(0))  # type: ignore[assignment]
    node = sizes.Timed("Softmax", "float16", (sizes.Operand((40, 64), batched=True),))
    (row,) = timing.time_node(node, lambda: None, machine, Clock())
    assert row["outcome"].startswith("output 0 at ")
    assert "sides" not in row


def test_every_timed_node_has_a_kernel_its_work_and_a_spelling_in_torch() -> None:
    class Module:
        tanh = softmax = log_softmax = None

        class nn:  # noqa: N801 - as PyTorch has it
            class functional:  # noqa: N801
                silu = mish = None

    nodes = list(sizes.timed())
    assert len({node.name for node in nodes}) == len(nodes)
    assert set(KERNELS) <= {node.op for node in nodes}
    for node in nodes:
        kernel = expected.kernel(node.op, node.attributes)
        outputs = list(kernel.outputs(node.types))
        work = kernel.work(node.types)
        moved = sizes.moved(node, work.read + work.written, outputs)
        x = math.prod(node.operands[0].shape) * node.types[0].dtype.itemsize  # type: ignore[union-attr]
        assert 2 * x <= moved <= 6 * x, node.name
        peers.function(Module, node)
    with pytest.raises(SkippedError, match="no usual spelling"):
        peers.function(Module, sizes.elementwise("Celu", "float16", 1))


def test_sides_take_turns_until_there_are_enough() -> None:
    machine, clock, order = HostMachine(), Clock(), list[str]()

    def side(name: str, took: float) -> timing.Side:
        def go() -> None:
            order.append(name)
            machine.now += took
            clock.now += took

        return timing.Side(go, 4, "graph")

    samples = timing.measure(machine, {"a": side("a", 0.01), "b": side("b", 0.02)}, clock)
    assert len(samples["a"]) == len(samples["b"]) >= timing.LEAST_ROUNDS
    assert timing.summary(samples["b"])["us"] == pytest.approx(5000)
    rounds = [tuple(order[i : i + 2]) for i in range(2, len(order), 2)]
    assert set(rounds) == {("a", "b"), ("b", "a")}


def test_split_stack_runs_op_by_op_as_written_and_fused(machine: HostMachine) -> None:
    (row,) = stack.compare(machine, modes=(), size=(4, 8, 32))
    assert row.get("outcome", OK) == OK
    assert row["launches"] == {"as written": 4 + 2 * 4 + 4 + 3, "fused": 4}
    assert max(row["error"].values()) < 1e-6
    assert set(row["sides"]) == {"as written", "fused"}


def test_the_model_of_split_stack_has_another_form_of_the_same_numbers() -> None:
    import onnxruntime as ort

    model = split_stack.build(3, 4, 16, outputs=2)
    x = np.random.default_rng(0).standard_normal(3 * 4 * 16).astype(np.float32)
    (y,) = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    assert y.shape == (3, 4, 2)
    assert stack.distance(y, stack.reference(model, x)) < 1e-6


# ------------------------------------------------------------------------------------------------------------ sessions


def test_a_fused_model_runs_beside_the_original() -> None:
    """On the CPU provider, from function bodies; on CUDA the same lines capture graphs, too."""
    place = sessions.Place(CPU, "cpu", captures=False)
    (row,) = sessions.compare(split_stack.build(3, 4, 16), 0.05, place)
    assert row.get("outcome", OK) == OK
    assert row["failed"] == {}
    assert set(row["sides"]) == {"original", "onnxfuse"}


def test_sessions_that_fail_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def opened(model: Any, fused: bool, *rest: Any) -> Any:
        if fused:
            raise RuntimeError("no such provider")
        return real(model, fused, *rest)

    real = sessions.opened
    monkeypatch.setattr(sessions, "opened", opened)
    (row,) = sessions.compare(split_stack.build(3, 4, 16), 0.05, sessions.Place(CPU, "cpu", captures=False))
    assert row["outcome"] == "RuntimeError: no such provider"
    assert set(row["sides"]) == {"original"}


def test_every_model_is_there() -> None:
    assert all((sessions.FOLDER / f"{name}.onnx").exists() for name in sessions.MODELS)


# ------------------------------------------------------------------------------------------------------------- reports


def test_what_a_sanitizer_says_is_read() -> None:
    text = "Softmax float32 3x64: output 0: wrong\n60 cases, 0 wrong\n========= ERROR SUMMARY: 0 errors\n"
    assert sanitizer.judged(text, 0) == {"cases": 60}
    assert sanitizer.judged(text.replace(" 0 wrong", " 2 wrong"), 1)["outcome"] == "2 cases are wrong"
    bad = "========= Invalid __global__ write of size 2 bytes\n" + text.replace("0 errors", "3 errors")
    assert sanitizer.judged(bad, 9)["outcome"] == "3 found: Invalid __global__ write of size 2 bytes"
    assert "exit code 1: Device not supported" in sanitizer.judged("Device not supported\n", 1)["outcome"]
    race = "60 cases, 0 wrong\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"
    assert "outcome" not in sanitizer.judged(race, 0)


def test_a_missing_sanitizer_is_skipped(machine: HostMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitizer.shutil, "which", lambda name, path=None: None)
    with pytest.raises(SkippedError, match="compute-sanitizer is not installed"):
        list(sanitizer.watch("memcheck", machine))


def test_the_table_is_short_whatever_happens(machine: HostMachine, journal: Journal) -> None:
    journal.write("facts", machine.facts())
    chosen = [step("check", case.name, [{"op": case.op, "dtype": "float32", "error": 1e-7}]) for case in cases.cases()]
    chosen += [step("check", f"broken {i}", RuntimeError("no")) for i in range(50)]
    chosen += [step("floor", "copy", [{"bytes_per_second": 4.3e12}])]
    sides = {name: {"us": 10.0 * (i + 1)} for i, name in enumerate(report.SIDES)}
    chosen += [step("time", f"node {i}", [{"sides": sides, "of_copy": 0.912, "cached": False}]) for i in range(60)]
    chosen += [step("torch", f"node {i}", SkippedError(f"reason {i}")) for i in range(60)]
    chosen += [step("session", "bert", [{"sides": {"original": {"us": 1234.5}, "onnxfuse": {"us": 900.0}}}])]
    journal.write("plan", [each.key for each in chosen] + ["session: gpt2"])
    run(chosen, machine, journal, 1e6)
    found = report.record(journal, command.about(480.0, 12.0))
    lines = report.markdown(found)
    assert len(lines) <= report.MOST_LINES
    text = "\n".join(lines)
    assert "card a CPU" in text
    assert "| node 0 | 91% | 10.0 | 20.0 | 30.0 | 40.0 | 2.00 |" in text
    assert "copy on the card: 4,300 GB/s" in text
    assert "| bert | 1,234.5 |  | 900.0 |  |" in text
    assert "FAILED check: broken 0: RuntimeError: no" in text
    assert "and 38 failures more" in text
    assert "left out for lack of time: 1 of session" in text
    assert lines[-1] == "50 failed; 12 s"


def test_a_record_is_json_with_every_row(tmp_path: Path) -> None:
    rows = [{"section": "check", "name": str(i), "outcome": OK} for i in range(3)]
    found = {"date": "2026-11-21", "machine": {"card": "x"}, "rows": rows}
    command.write(tmp_path / "gpu.json", found)
    assert json.loads((tmp_path / "gpu.json").read_text()) == found
    assert sum('"name"' in line for line in (tmp_path / "gpu.json").read_text().splitlines()) == 3


def test_a_worker_goes_through_the_plan(
    machine: HostMachine, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of each section, with what is not here skipped and said."""
    monkeypatch.setattr(command, "MAKE_MACHINE", lambda: machine)
    real, seen = steps.plan, dict[str, Step]()
    for each in real(journal):
        if each.section in ("floor", "torch", "session", "sanitizer"):
            seen.setdefault(each.section, each)
    for name in ("torch", "onnxruntime"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    monkeypatch.setattr(sanitizer.shutil, "which", lambda name, path=None: None)
    monkeypatch.setattr(steps, "plan", lambda journal: list(seen.values()))
    assert command.work(journal, 600.0, []) == 0
    outcomes = {row["section"]: row["outcome"] for row in journal.all("row")}
    assert outcomes["floor"] == OK
    assert outcomes["torch"] == "skipped: torch is not installed"
    assert outcomes["sanitizer"] == "skipped: compute-sanitizer is not installed"
    assert outcomes["session"] == "skipped: onnxruntime-gpu is not installed"
    assert {step.section for step in real(journal)} == set(steps.SECTIONS)
    assert journal.all("facts") == [{"card": "a CPU"}]


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
