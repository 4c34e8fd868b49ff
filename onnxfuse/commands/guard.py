"""A parent process that outlives a crash.

Native code may take its process down where Python sees nothing: onnxruntime dies of an integer that is divided by 0.
So a command runs in a child, and its parent says in one line which model it was and what to do.
"""

from __future__ import annotations

import mmap
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from onnxfuse.errors import ModelError

from .options import complain, working_on

CRASHES = frozenset({"SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV"})
LONGEST = 4096
"""Bytes of a path."""


def guarded(work: Callable[[], int]) -> int:
    """The exit code of `work`, done in a child process where the system can fork.

    A crash is reported as a model that cannot be read.  A child that is killed otherwise leaves the code that a shell
    gives it: 128 and the signal's number.
    """
    if not hasattr(os, "fork"):
        return work()
    place = mmap.mmap(-1, LONGEST)
    child = os.fork()
    if not child:
        working_on.append(lambda path: _write(place, path))
        return work()
    # An interrupt reaches both, and the child has the word.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for forwarded in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(forwarded, lambda number, _: os.kill(child, number))
    _, status = os.waitpid(child, 0)
    if not os.WIFSIGNALED(status):
        return os.waitstatus_to_exitcode(status)
    number = os.WTERMSIG(status)
    name = signal.Signals(number).name
    model = Path(os.fsdecode(place[:].rstrip(b"\0")))
    if name in CRASHES:
        text = f"onnxruntime, or onnx, crashed with {name} on this model and nothing was written"
        return complain(ModelError(f"{text}: give it --inputs or --shape that it runs on, or --no-validate"), model)
    if name == "SIGKILL":
        print(f"onnxfuse: {model}: killed, as a system does that has no memory left", file=sys.stderr)
    return 128 + number


def _write(place: mmap.mmap, path: Path) -> None:
    name = os.fsencode(path)[:LONGEST]
    place[:] = name + bytes(LONGEST - len(name))
