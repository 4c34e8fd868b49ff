"""Work in a child process: results, errors, crashes and steps that take too long."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnxfuse.errors import InternalError, ModelError, NumericsError
from onnxfuse.system.isolation import Tell, TookTooLongError, isolated, together

LONG = 60.0
"""Seconds that nothing here takes unless it hangs."""


def children() -> set[str]:
    return set(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def test_what_the_work_returns_comes_back_and_its_steps_are_told() -> None:
    told: list[tuple[str, int, int]] = []

    def work(tell: Tell) -> tuple[int, np.ndarray]:
        tell("first", 0, 2)
        tell("second", 1, 2)
        return os.getpid(), np.arange(1 << 20)

    process, array = isolated(work, LONG, lambda *step: told.append(step))
    assert process != os.getpid()
    assert (array == np.arange(1 << 20)).all()
    assert told == [("first", 0, 2), ("second", 1, 2)]


def test_what_it_prints_is_printed_once(capfd: pytest.CaptureFixture[str]) -> None:
    print("before")
    isolated(lambda tell: print("inside"), LONG)
    print("behind")
    assert capfd.readouterr().out.split() == ["before", "inside", "behind"]


@pytest.mark.parametrize("error", [NumericsError("wrong"), ValueError("negative")])
def test_what_it_raises_is_raised(error: Exception) -> None:
    def work(tell: Tell) -> None:
        raise error

    with pytest.raises(type(error), match=str(error)):
        isolated(work, LONG)


def test_what_callers_hold_is_gone_with_an_error_without_collecting_cycles() -> None:
    """As of a proof, which collects none, and holds gigabytes."""

    class Weights:
        """Something that can be looked for."""

    def failing(weights: Weights) -> None:
        def work(tell: Tell) -> None:
            raise ModelError(f"not with {weights}")

        isolated(work, 60)

    weights = Weights()
    held = weakref.ref(weights)
    gc.disable()
    try:
        with suppress(ModelError):
            failing(weights)
        del weights
        assert held() is None
    finally:
        gc.enable()


def test_what_cannot_be_sent_is_a_mistake_of_ours() -> None:
    with pytest.raises(InternalError, match="function of a child process"):
        isolated(lambda tell: lambda: None, LONG)


@pytest.mark.parametrize(
    ("number", "message"),
    [(signal.SIGFPE, "crashed with SIGFPE on this model"), (signal.SIGKILL, "killed, as a system does that has no")],
)
def test_a_crash_is_told(number: int, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        isolated(lambda tell: os.kill(os.getpid(), number), LONG)


def test_an_end_without_a_word_is_told_as_well() -> None:
    with pytest.raises(ModelError, match="killed"):
        isolated(lambda tell: os._exit(0), LONG)


@pytest.mark.skipif(not Path("/proc").exists(), reason="only Linux lists the children of a process")
def test_a_step_that_takes_too_long_is_ended() -> None:
    def work(tell: Tell) -> None:
        tell("walk", 0, 2)
        tell("wait", 1, 2)
        time.sleep(LONG)

    before = children()
    with pytest.raises(TookTooLongError, match=r"took longer than 0.2 s to wait") as raised:
        isolated(work, 0.2)
    assert raised.value.steps == ["walk", "wait"]
    assert children() == before


def test_each_step_has_its_own_time() -> None:
    def work(tell: Tell) -> str:
        for step in range(6):
            time.sleep(0.2)
            tell("step", step, 6)
        return "done"

    assert isolated(work, 1.0) == "done"


@pytest.mark.skipif(not Path("/proc").exists(), reason="only Linux lists the children of a process")
def test_nothing_is_left_of_it_where_telling_fails() -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    before = children()
    with pytest.raises(ZeroDivisionError):
        isolated(lambda tell: (tell("step", 0, 1), time.sleep(LONG)), LONG, fail)
    assert children() == before


FOLLOWING = """
import os, sys, time
from onnxfuse.system import processes
{}
parent, (reader, writer) = os.getpid(), os.pipe()
if not os.fork():
    processes.follow(parent)
    os.write(writer, b".")
    time.sleep(60)
os.read(reader, 1)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("prepare", ["", "processes._killed_with_parent = lambda: False"], ids=["kernel", "watch"])
def test_a_child_ends_with_its_parent_even_if_that_is_killed(prepare: str) -> None:
    command = [sys.executable, "-c", FOLLOWING.format(prepare)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "ready\n"
        parent.kill()
        # The child holds the other end, so that this returns when both are gone.
        assert parent.stdout.read() == ""


def test_without_fork_it_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    work: Callable[[Tell], int] = lambda tell: (tell("step", 0, 1), os.getpid())[1]  # noqa: E731
    assert isolated(work, LONG) == os.getpid()


def slow(tell: Tell) -> int:
    tell("sleep", 0, 1)
    time.sleep(0.3)
    return os.getpid()


def test_together_they_are_done_at_once_and_come_in_order() -> None:
    told: list[tuple[int, int, str]] = []
    works = [slow, lambda tell: 2, lambda tell: 3]
    first, *others = together(works, 2, lambda *step: told.append(step))
    assert first != os.getpid()
    assert others == [2, 3]
    assert told == [(0, 0, "sleep")]


def test_one_that_crashes_or_raises_leaves_the_others() -> None:
    works: list[Callable[[Tell], Any]] = [
        lambda tell: os.kill(os.getpid(), signal.SIGABRT),
        lambda tell: 1 / 0,
        lambda tell: os.kill(os.getpid(), signal.SIGKILL),
        lambda tell: "done",
    ]
    crashed, raised, killed, done = together(works, 3)
    assert isinstance(crashed, ModelError)
    assert "crashed with SIGABRT" in str(crashed)
    assert isinstance(raised, ZeroDivisionError)
    assert isinstance(killed, ModelError)
    assert "no memory left" in str(killed)
    assert done == "done"


@pytest.mark.skipif(not Path("/proc").exists(), reason="only Linux lists the children of a process")
def test_none_is_left_where_nobody_asks_for_more() -> None:
    before = children()
    made = together([lambda tell: 1, *[lambda tell: time.sleep(LONG)] * 3], 2)
    assert next(made) == 1
    assert len(children()) == len(before) + 1
    made.close()  # type: ignore[attr-defined]
    assert children() == before


def test_together_without_fork_they_are_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    pid, error = together([lambda tell: (tell("step", 0, 1), os.getpid())[1], lambda tell: 1 / 0], 2)
    assert pid == os.getpid()
    assert isinstance(error, ZeroDivisionError)


@pytest.mark.parametrize(("silent", "seen"), [(False, "last words"), (True, "")])
def test_what_a_silent_child_says_is_not_seen(silent: bool, seen: str, capfd: pytest.CaptureFixture[str]) -> None:
    def work(tell: Tell) -> None:
        os.write(2, b"last words")
        os.kill(os.getpid(), signal.SIGABRT)

    with pytest.raises(ModelError, match="crashed with SIGABRT"):
        isolated(work, LONG, silent=silent)
    assert capfd.readouterr().err == seen
