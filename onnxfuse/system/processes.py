"""How a process of onnxfuse ends: with the one that made it, when it is asked to, or by a crash.

Imports little: the command line stands on it before anything else is loaded.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

from onnxfuse.errors import CrashedError, ModelError

if TYPE_CHECKING:
    from types import FrameType

STOPS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that ask a process to end."""
CRASHES = frozenset({"SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV"})
_SET_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of Linux's prctl(2)."""


def follow(parent: int) -> None:
    """From now on this process ends when `parent`, which has just made it, ends, however that does."""
    if not (sys.platform == "linux" and _killed_with_parent()):
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)  # it had ended before


def crashed(number: int) -> ModelError:
    """What a signal that took a process down means to a user: a CrashedError where it crashed."""
    name = signal.Signals(number).name
    if name in CRASHES:
        text = f"onnxruntime, or onnx, crashed with {name} on this model and nothing was written"
        return CrashedError(f"{text}: give it --inputs or --shape that it runs on, or --no-validate")
    return ModelError("killed, as a system does that has no memory left")


def _killed_with_parent() -> bool:
    import ctypes

    try:
        return ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, int(signal.SIGKILL), 0, 0, 0) == 0  # type: ignore[no-any-return]
    except (OSError, AttributeError):
        return False


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.1)
    os._exit(128 + signal.SIGKILL)


class Stopped(BaseException):
    """This process was asked to end; `number` is the signal."""

    def __init__(self, number: int) -> None:
        self.number = number


def raise_when_stopped() -> list[int]:
    """From now on a signal that asks this process to end raises Stopped in its main thread, once.

    Returns a list that holds the signal's number from then on: what is raised on the way may hide Stopped.
    """
    asked: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        if not asked:
            asked.append(number)
            sys.unraisablehook = lambda _: None  # where Stopped cannot be raised, it need not be told
            raise Stopped(number)

    for number in STOPS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, stop)
    return asked
