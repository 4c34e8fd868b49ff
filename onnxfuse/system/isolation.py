"""Work in a child process that has only so much time for each of its steps, and whose crash is told.

What onnxruntime does cannot be stopped from inside: a Loop that never ends, functions that double at each level, one
kernel that takes an hour.  A process can.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import struct
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from onnxfuse.errors import InternalError, OnnxfuseError
from onnxfuse.system import processes

Tell: TypeAlias = Callable[[str, int, int], None]
"""Called with (step, done, total)."""

_LENGTH = struct.Struct("<Q")
_Result = TypeVar("_Result")


class TookTooLongError(Exception):
    """A step took longer than it may; `steps` are those begun, in order, the last of them unfinished."""

    def __init__(self, steps: list[str], seconds: float) -> None:
        self.steps = steps
        super().__init__(f"took longer than {seconds:g} s" + (f" to {steps[-1]}" if steps else ""))


def isolated(work: Callable[[Tell], _Result], seconds: float, tell: Tell | None = None) -> _Result:
    """What `work` returns, done in a child process, in which each step may take `seconds`; 0 is no limit.

    `work` tells its steps; they are told here as well, to `tell`.  What it returns or raises is pickled.  A system that
    cannot fork has it done here, without a limit.

    Raises:
        TookTooLongError: a step took longer; the process is gone.
        ModelError: the process crashed, or was killed.
    """
    if not hasattr(os, "fork"):
        return work(tell or (lambda step, done, total: None))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # or the child would print it once more
    parent, (reader, writer) = os.getpid(), os.pipe()
    with warnings.catch_warnings():
        # Python 3.12 warns of threads, which do not exist in the child: it waits for none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        os.close(reader)
        _work(work, writer, parent)
    os.close(writer)
    try:
        result = _listen(reader, child, seconds, tell)
    finally:
        os.close(reader)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(child, 0)
    if isinstance(result, BaseException):
        raise result
    answer: _Result = result
    return answer


def _work(work: Callable[[Tell], Any], writer: int, parent: int) -> None:
    """The child's part, from which nothing returns."""
    code = 1
    try:
        for number in processes.STOPS:  # who made it has the word, and ends it
            if signal.getsignal(number) != signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        processes.follow(parent)
        result: Any
        try:
            result = work(lambda *step: _send(writer, step))
        except OnnxfuseError as error:
            result = error
        except BaseException as error:
            if os.environ.get("ONNXFUSE_TRACEBACK"):
                traceback.print_exc()
            result = error
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        try:
            _send(writer, [result])
        except Exception as error:  # what cannot be pickled raises whatever it likes
            _send(writer, [InternalError(f"{type(result).__name__} of a child process: {error}")])
        code = 0
    finally:
        os._exit(code)


def _send(writer: int, message: object) -> None:
    data = pickle.dumps(message)
    data = _LENGTH.pack(len(data)) + data
    while data:
        data = data[os.write(writer, data) :]


def _listen(reader: int, child: int, seconds: float, tell: Tell | None) -> Any:
    """The child's result; its steps are told on the way."""
    steps: list[str] = []
    waiting = select.poll()
    waiting.register(reader)
    while True:
        if not waiting.poll(seconds * 1000 if seconds else None):
            raise TookTooLongError(steps, seconds)
        head = _read(reader, _LENGTH.size)
        message = pickle.loads(_read(reader, *_LENGTH.unpack(head))) if head else None
        match message:
            case (str() as step, done, total):
                steps.append(step)
                if tell is not None:
                    tell(step, done, total)
            case [result]:
                return result
            case _:
                _, status = os.waitpid(child, 0)
                raise processes.crashed(os.WTERMSIG(status) if os.WIFSIGNALED(status) else signal.SIGKILL)


def _read(reader: int, size: int) -> bytes:
    """So many bytes; fewer if the other end is gone."""
    data = bytearray()
    while len(data) < size and (more := os.read(reader, min(size - len(data), 1 << 20))):
        data += more
    return bytes(data)
