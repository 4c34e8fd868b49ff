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
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from onnxfuse.errors import InternalError, ModelError, OnnxfuseError
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


def isolated(
    work: Callable[[Tell], _Result], seconds: float, tell: Tell | None = None, *, silent: bool = False
) -> _Result:
    """What `work` returns, done in a child process, in which each step may take `seconds`; 0 is no limit.

    `work` tells its steps; they are told here as well, to `tell`.  What it returns or raises is pickled.  A system that
    cannot fork has it done here, without a limit.  What a `silent` one writes to stderr is not seen, such as the last
    words of native code that crashes.

    Raises:
        TookTooLongError: a step took longer; the process is gone.
        ModelError: the process crashed, or was killed.
    """
    if not hasattr(os, "fork"):
        return work(tell or (lambda step, done, total: None))
    child = _Child(work, silent=silent)
    try:
        result = _listen(child, seconds, tell)
    finally:
        child.end()
    if isinstance(result, BaseException):
        try:
            raise result
        finally:
            del result  # it knows this frame: a proof collects no cycles, and what callers hold would stay
    answer: _Result = result
    return answer


def together(
    works: Sequence[Callable[[Tell], _Result]], jobs: int, tell: Callable[[int, int, str], None] | None = None
) -> Iterator[_Result | Exception]:
    """What each of `works` returns, or the exception that it raises, in their order; each is done in a child process of
    its own, `jobs` of them at a time.

    One that crashes or is killed is a ModelError, and the others go on.  `tell` is called with how many are done, which
    one has come to a step, and the step.  All children end where the caller stops asking for more.
    """
    if not hasattr(os, "fork"):
        yield from (_tried(work) for work in works)
        return
    waiting, running, done = deque(enumerate(works)), dict[int, tuple[int, _Child]](), dict[int, Any]()
    ready = select.poll()
    shown = finished = 0
    try:
        while shown < len(works):
            while waiting and len(running) < jobs:
                number, work = waiting.popleft()
                child = _Child(work, [other for _, other in running.values()])
                running[child.reader] = number, child
                ready.register(child.reader, select.POLLIN | select.POLLHUP)
            for reader, _ in ready.poll():
                number, child = running[reader]
                match child.receive():
                    case (str() as step, _, _):
                        if tell is not None:
                            tell(finished, number, step)
                        continue
                    case [result]:
                        done[number] = result
                    case _:
                        done[number] = child.crash()
                ready.unregister(reader)
                del running[reader]
                child.end()
                finished += 1
            while shown in done:
                yield done.pop(shown)
                shown += 1
    finally:
        for _, child in running.values():
            child.end()


def _tried(work: Callable[[Tell], _Result]) -> _Result | Exception:
    try:
        return work(lambda step, done, total: None)
    except Exception as error:
        return error


class _Child:
    """A process that does some work, and tells of it."""

    def __init__(self, work: Callable[[Tell], Any], others: Iterable[_Child] = (), *, silent: bool = False) -> None:
        """Begin; what `others` tell is not for this one to hear."""
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # or the child would print it once more
        parent, (self.reader, writer) = os.getpid(), os.pipe()
        with warnings.catch_warnings():
            # Python 3.12 warns of threads, which do not exist in the child: it waits for none of them.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._pid = os.fork()
        if not self._pid:
            for reader in (self.reader, *(other.reader for other in others)):
                os.close(reader)
            if silent:
                os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            _work(work, writer, parent)
        os.close(writer)

    def receive(self) -> Any:
        """The next that it tells: a step, or a list of its result; None if it is gone."""
        head = _read(self.reader, _LENGTH.size)
        (size,) = _LENGTH.unpack(head) if len(head) == _LENGTH.size else (0,)
        data = _read(self.reader, size)
        return pickle.loads(data) if size and len(data) == size else None

    def crash(self) -> ModelError:
        """What it means that it is gone without a result."""
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        return processes.crashed(os.WTERMSIG(status) if os.WIFSIGNALED(status) else signal.SIGKILL)

    def end(self) -> None:
        os.close(self.reader)
        if self._pid:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(self._pid, 0)


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


def _listen(child: _Child, seconds: float, tell: Tell | None) -> Any:
    """The child's result; its steps are told on the way."""
    steps: list[str] = []
    waiting = select.poll()
    waiting.register(child.reader)
    while True:
        if not waiting.poll(seconds * 1000 if seconds else None):
            raise TookTooLongError(steps, seconds)
        match child.receive():
            case (str() as step, done, total):
                steps.append(step)
                if tell is not None:
                    tell(step, done, total)
            case [result]:
                return result
            case _:
                raise child.crash()


def _read(reader: int, size: int) -> bytes:
    """So many bytes; fewer if the other end is gone."""
    data = bytearray()
    while len(data) < size and (more := os.read(reader, min(size - len(data), 1 << 20))):
        data += more
    return bytes(data)
