"""The timings of benchmarks.gpu by a clock of ours, its sessions on a CPU, and its tables."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gpu import __main__ as command
from benchmarks.gpu import (
    attentions,
    cases,
    expected,
    linear,
    peers,
    report,
    sanitizer,
    sessions,
    sizes,
    stack,
    steps,
    timing,
)
from benchmarks.gpu.machine import copy_rate
from benchmarks.gpu.plan import OK, Journal, SkippedError, Step, run
from models import split_stack
from onnxfuse.kernels import KERNELS
from onnxfuse.runtime.installed import CPU
from tests.host_machine import Clock, HostMachine, Wrong, step


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> HostMachine:
    """On which each round takes exactly as long as any other: the fewest are enough."""
    monkeypatch.setattr(timing, "MOST_ROUNDS", timing.LEAST_ROUNDS)
    return HostMachine()


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "journal.jsonl")


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
    assert set(KERNELS) - {"Attention", "FusedMatMul"} <= {node.op for node in nodes}
    assert {node.op for node in (*attentions.timed(), *linear.timed())} == {"Attention", "FusedMatMul"}
    for node in nodes:
        kernel = expected.kernel(node.op, node.attributes)
        outputs = list(kernel.outputs(node.types))
        work = kernel.work(node.types)
        moved = sizes.moved(node, work.read + work.written, outputs)
        y = math.prod(outputs[0].shape) * outputs[0].dtype.itemsize
        assert 2 * y <= moved <= 7 * y, node.name
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
    assert row["launches"] == {"as written": 4 + 2 * 4 + 4 + 3, "fused": 3}
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


SANITIZED = """========= COMPUTE-SANITIZER
========= Program hit cudaErrorInvalidValue (error 1) due to "invalid argument" on CUDA API call to cudaMemGetInfo.
=========     Saved host backtrace up to driver entry point at error
=========     Host Frame: cudaMemGetInfo in runtime.so [0x1]
=========
========= Invalid __global__ read of size 4 bytes
=========     at void cutlass::Kernel2<cutlass_80_wmma>(T1::Params)+0x290
=========     by thread (0,0,0) in block (0,0,0)
=========
kernels: attention softmax
60 cases, 0 wrong
========= ERROR SUMMARY: 2 errors
"""
OURS = """========= Invalid __global__ write of size 2 bytes
=========     at softmax+0x160 in softmax.cu:6
=========     by thread (0,0,0) in block (0,0,0)
=========
"""
RACE = """========= Error: Race reported between Write access at attention+0x1a0 in attention.cu:9
=========     and Read access at attention+0x2c0 in attention.cu:12 [96 hazards]
=========
kernels: attention
60 cases, 0 wrong
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


def test_what_a_sanitizer_says_is_read() -> None:
    text = "Softmax float32 3x64: output 0: wrong\n60 cases, 0 wrong\n========= ERROR SUMMARY: 0 errors\n"
    assert sanitizer.judged(text, 0) == {"cases": 60}
    assert sanitizer.judged(text.replace(" 0 wrong", " 2 wrong"), 1)["outcome"] == "2 cases are wrong"
    assert "exit code 1: Device not supported" in sanitizer.judged("Device not supported\n", 1)["outcome"]
    race = "60 cases, 0 wrong\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n"
    assert "outcome" not in sanitizer.judged(race, 0)


def test_only_accesses_of_our_kernels_are_errors() -> None:
    """The program asks for what is not there, and so do the vendor's kernels: neither is ours to mend."""
    assert sanitizer.judged(SANITIZED, 0) == {"cases": 60, "others": 2}
    found = sanitizer.judged(OURS + SANITIZED, 0)
    assert found == {"cases": 60, "others": 2, "outcome": "1 found: Invalid __global__ write of size 2 bytes"}
    assert sanitizer.judged(RACE, 0)["outcome"].startswith("1 found: Error: Race reported between Write access")
    unnamed = "========= Out-of-range Shared or Local Address\n=========\n"
    assert sanitizer.judged(unnamed + SANITIZED, 0)["outcome"] == "1 found: Out-of-range Shared or Local Address"


def test_the_small_grid_says_which_kernels_it_launched(
    machine: HostMachine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sanitizer, "CudaMachine", lambda pooled: machine)
    few = [case for case in cases.cases() if case.name in ("Softmax float32 3x64", "Tanh float32 3x64")]
    monkeypatch.setattr(sanitizer.checks, "small", lambda: few[:1])
    assert sanitizer.grid(60.0) == 0
    kernels, done = capsys.readouterr().out.splitlines()
    assert kernels == "kernels: rows"
    assert done == "1 cases, 0 wrong"


def test_a_missing_sanitizer_is_skipped(machine: HostMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitizer.shutil, "which", lambda name, path=None: None)
    with pytest.raises(SkippedError, match="compute-sanitizer is not installed"):
        list(sanitizer.watch("memcheck", machine))


def test_the_table_is_short_whatever_happens(machine: HostMachine, journal: Journal) -> None:
    journal.write("facts", machine.facts())
    chosen = [step("check", case.name, [{"op": case.op, "dtype": "float32", "error": 1e-7}]) for case in cases.cases()]
    chosen += [step("check", f"broken {i}", RuntimeError("no")) for i in range(50)]
    chosen += [step("floor", "copy", [{"bytes_per_second": 4.3e12}])]
    names = ("onnxfuse", "eager", "compile", "max-autotune")
    sides = {name: {"us": 10.0 * (i + 1)} for i, name in enumerate(names)}
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
        if each.section in ("floor", "peers", "torch", "session", "models", "sanitizer"):
            seen.setdefault(each.section, each)
    for name in ("torch", "onnxruntime"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    monkeypatch.setattr(sanitizer.shutil, "which", lambda name, path=None: None)
    monkeypatch.setattr(steps, "plan", lambda journal: list(seen.values()))
    assert command.work(journal, 600.0, []) == 0
    outcomes = {row["section"]: row["outcome"] for row in journal.all("row")}
    assert outcomes["floor"] == OK
    assert outcomes["torch"] == outcomes["models"] == "skipped: torch is not installed"
    assert outcomes["sanitizer"] == "skipped: compute-sanitizer is not installed"
    assert outcomes["session"] == "skipped: onnxruntime-gpu is not installed"
    sections = list(dict.fromkeys(step.section for step in real(journal)))
    assert sections == [*steps.SECTIONS], "in the order that --help has"
    said = {row["name"]: row["outcome"] for row in journal.all("row") if row["section"] == "peers"}
    assert said["PyTorch"] == "skipped: torch is not installed"
    assert said["onnxruntime on CUDA"] == "skipped: onnxruntime-gpu is not installed"
    assert said["compute-sanitizer"] == "skipped: compute-sanitizer is not installed"
    assert journal.all("facts") == [{"card": "a CPU"}]
