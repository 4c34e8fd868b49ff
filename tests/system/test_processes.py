"""A signal that ends a process is told as what it means, and asks for the end once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest

from onnxfuse.system.processes import CRASHES, STOPS, Stopped, crashed, raise_when_stopped


@pytest.fixture
def handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in STOPS}
    hook = sys.unraisablehook
    yield
    sys.unraisablehook = hook
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("name", sorted(CRASHES))
def test_a_crash_is_told_as_one_with_the_next_step(name: str) -> None:
    text = str(crashed(signal.Signals[name]))
    assert text.startswith(f"onnxruntime, or onnx, crashed with {name} on this model and nothing was written")
    assert text.endswith("give it --inputs or --shape that it runs on, or --no-validate")


def test_a_kill_is_told_as_a_lack_of_memory() -> None:
    assert str(crashed(signal.SIGKILL)) == "killed, as a system does that has no memory left"


@pytest.mark.usefixtures("handlers")
@pytest.mark.parametrize("number", STOPS)
def test_the_first_signal_stops_and_those_behind_it_are_remembered_by_nobody(number: signal.Signals) -> None:
    signal.signal(number, signal.default_int_handler)
    asked = raise_when_stopped()
    assert asked == []
    with pytest.raises(Stopped) as stopped:
        os.kill(os.getpid(), number)
    assert (stopped.value.number, asked) == (number, [number])
    os.kill(os.getpid(), number)
    assert asked == [number]


@pytest.mark.usefixtures("handlers")
def test_a_signal_that_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    asked = raise_when_stopped()
    os.kill(os.getpid(), signal.SIGHUP)
    assert asked == []
