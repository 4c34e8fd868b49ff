"""A parent process that outlives a crash.

Native code may take its process down where Python sees nothing: onnxruntime dies of an integer that is divided by 0.
Nor does Python see a signal while native code runs.  So a command runs in a child, and its parent says in one line how
it ended if not by itself, and ends it if it does not heed an interrupt.
"""

from __future__ import annotations

import gc
import mmap
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from onnxfuse.system import processes

from .work import complain, stopping, working_on

LONGEST = 4096
"""Bytes of a path."""
GRACE = 5.0
"""Seconds that a child has to end by itself; a second interrupt does not wait for them."""


def guarded(work: Callable[[], int]) -> int:
    """The exit code of `work`, done in a child process where the system can fork.

    A crash is reported as a model that cannot be read.  A child that is killed otherwise leaves the code that a shell
    gives it: 128 and the signal's number.
    """
    if not hasattr(os, "fork"):
        return _uncollected(work)
    place = mmap.mmap(-1, LONGEST)
    parent = os.getpid()
    # A signal that comes now waits until both know what to do with it.
    signal.pthread_sigmask(signal.SIG_BLOCK, processes.STOPS)
    child = os.fork()
    if not child:
        processes.follow(parent)
        stopping.append(processes.raise_when_stopped())
        working_on.append(lambda path: _write(place, path))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, processes.STOPS)
        try:
            return _uncollected(work)
        except processes.Stopped as stopped:
            return 128 + stopped.number
        finally:
            for number in processes.STOPS:  # what is left is to exit, which nothing need be told of
                signal.signal(number, signal.SIG_DFL)
    asked = _passed_on(child)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, processes.STOPS)
    _, status = os.waitpid(child, 0)
    signal.setitimer(signal.ITIMER_REAL, 0)  # nobody is to be killed any more
    return _exit_code(status, asked, Path(os.fsdecode(place[:].rstrip(b"\0"))))


def _uncollected(work: Callable[[], int]) -> int:
    """`work`, without Python's cycle collector until this process ends.

    Modules, rules and terms live as long as the process: to look for cycles among them, again and again and once more
    at exit, takes a third of a short command.  Who goes through many models collects between them."""
    gc.disable()
    try:
        return work()
    finally:
        gc.freeze()  # the last collection, which none can do without, has nothing to look at


def _passed_on(child: int) -> list[int]:
    """Passes signals that ask this process to end on to `child`, and kills it if it does not heed them, or is asked
    twice.  Returns a list that holds the first signal's number from then on."""
    asked: list[int] = []

    def send(number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, number)

    def stop(number: int, _: object) -> None:
        send(signal.SIGKILL if asked else number)
        asked.append(number)
        signal.setitimer(signal.ITIMER_REAL, GRACE)

    signal.signal(signal.SIGALRM, lambda *_: send(signal.SIGKILL))
    for number in processes.STOPS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, stop)
    return asked


def _exit_code(status: int, asked: list[int], model: Path) -> int:
    """The exit code of a child that ended with `status`, after what there is to say about it."""
    killed = os.WIFSIGNALED(status)
    code = 128 + asked[0] if asked and killed else os.waitstatus_to_exitcode(status)
    if code == 128 + signal.SIGINT:
        print("onnxfuse: interrupted", file=sys.stderr)
    if code >= 0:
        return code
    number = os.WTERMSIG(status)
    if signal.Signals(number).name in processes.CRASHES:
        return complain(processes.crashed(number), model)
    if number == signal.SIGKILL:
        print(f"onnxfuse: {model}: {processes.crashed(number)}", file=sys.stderr)
    return 128 + number


def _write(place: mmap.mmap, path: Path) -> None:
    name = os.fsencode(path)[:LONGEST]
    place[:] = name + bytes(LONGEST - len(name))
