"""Work spread over the machines of a Ray cluster, or over a Ray of this machine.

Ray queues the tasks, watches the processes that run them, and starts a task again whose process or machine is gone;
here stands only what becomes of the answers.  https://docs.ray.io/en/latest/ray-core/fault-tolerance.html
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from onnxfuse.errors import DependencyError, InternalError, ModelError, UsageError
from onnxfuse.system import processes

LOCAL = "local"
"""The address that starts a Ray of this machine alone, which ends with the command."""
TRIES = 3
"""How often a task is begun whose process dies on it."""

_QUIET = {
    # Nothing is told to the makers of Ray, which would also be slow where there is no network.
    "RAY_USAGE_STATS_ENABLED": "0",
    # It prints to stdout, where a command's own result goes, that a process has died; this drops what matches.
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
}

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def spread(
    work: Callable[[_Item], _Result],
    items: Sequence[_Item],
    address: str,
    at_once: int | None = None,
    tell: Callable[[int, int, str], None] | None = None,
) -> Iterator[_Result | Exception]:
    """What `work` returns for each of `items`, or the exception that it raises, in their order; each is a task of the
    Ray at `address`, `at_once` of them at a time (None: as many as it has CPUs).

    `work`, `items` and what is returned are pickled.  One that takes its process down `TRIES` times is a ModelError,
    and the others go on.  `tell` is called with how many are done, which one it was, and a word.

    Raises:
        DependencyError: ray is not installed, here or there, or onnxfuse is not there.
        UsageError: there is no Ray at `address`.
    """
    with _joined(address, at_once) as ray:
        task = ray.remote(num_cpus=1, max_retries=TRIES - 1)(_tried)
        shared = ray.put(work)
        waiting, running, done = iter(enumerate(items)), dict[Any, int](), dict[int, _Result | Exception]()
        shown = finished = 0
        while shown < len(items):
            while (at_once is None or len(running) < at_once) and (following := next(waiting, None)) is not None:
                running[task.remote(shared, following[1])] = following[0]
            for answer in ray.wait(list(running), num_returns=1)[0]:
                number = running.pop(answer)
                done[number] = _taken(ray, answer)
                finished += 1
                if tell is not None:
                    tell(finished, number, "done")
            while shown in done:
                yield done.pop(shown)
                shown += 1


def _tried(work: Callable[[_Item], _Result], item: _Item) -> _Result | Exception:
    """The task.  A mistake in `work` would be made again: it is an answer, and no reason to try once more."""
    try:
        return work(item)
    except Exception as error:
        return error


def _taken(ray: Any, answer: Any) -> Any:
    """The answer of a task; an exception where it has none."""
    errors = ray.exceptions
    try:
        return ray.get(answer)
    except (errors.WorkerCrashedError, errors.OutOfMemoryError, errors.NodeDiedError, errors.ObjectLostError):
        return ModelError(
            f"took its process down {TRIES} times, as a crash does, or a system that has no memory left: try it by "
            "itself, without --fleet"
        )
    except errors.RayTaskError as error:  # the task could not be begun, or its answer not be sent
        if "No module named 'onnxfuse" in str(error):
            return DependencyError("a machine of the fleet lacks onnxfuse, or has another: install the same there")
        return InternalError(f"{type(error.cause).__name__} of a task: {' '.join(str(error.cause).split())}")
    except errors.RayError as error:
        return ModelError(f"the fleet lost it: {' '.join(str(error).split())}: try it once more")


@contextmanager
def _joined(address: str, processes_here: int | None) -> Iterator[Any]:
    """The module ray, connected to the Ray at `address`."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError:
        raise DependencyError("ray is not installed: pip install 'onnxfuse[fleet]'") from None
    with TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder:
        own: dict[str, Any] = {}
        if address == LOCAL:
            own = {"num_cpus": processes_here, "include_dashboard": False, "_temp_dir": folder}
            # A task whose process is killed for memory is begun again without end, unless it is said how often.
            os.environ.setdefault("RAY_task_oom_retries", str(TRIES - 1))
        _connect(ray, address, own)
        try:
            yield ray
        finally:
            ray.shutdown()


def _connect(ray: Any, address: str, own: dict[str, Any]) -> None:
    handlers = {number: signal.getsignal(number) for number in processes.STOPS}
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, logging_level="error", **own)
    except Exception as error:  # it raises whatever it likes: ConnectionError, ValueError, RuntimeError, ...
        reason = " ".join(str(error).split())
        raise UsageError(
            f"no Ray at {address!r} ({type(error).__name__}: {reason}): start one with `ray start --head` and give "
            "--fleet auto, or give --fleet local"
        ) from None
    finally:
        for number, handler in handlers.items():  # it has taken some of them
            signal.signal(number, handler)


def _knock(address: str) -> None:
    """Raises OSError where nobody listens at an address with a port: Ray would try for half an hour, and print that."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=10).close()
