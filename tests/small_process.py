"""`isolated` from a process that stays small: what a fork costs grows with the memory of who forks.

A worker of the tests comes to more than a gigabyte, of which each fork copies the page tables, and the proof forks for
each case without elements.  One small process, made before tests are collected, does that for all of them; and a child
of it does one work after another until it crashes, since to fork and to end takes ten times as long as most works.
"""

from __future__ import annotations

import math
import os
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

from onnxfuse.system import processes
from onnxfuse.system.isolation import Tell, isolated

Isolated = Callable[[Callable[[Tell], Any], float], Any]
WORKS = 100
"""So many are done in one child: native code may leave something behind."""


@contextmanager
def small_process() -> Iterator[Isolated]:
    """`isolated` for work that can be pickled, done in a child of a process that is as small as this one is now.

    What crashes there, or takes too long, is done once more in a child of the one that asks, which then knows why."""
    with tempfile.TemporaryDirectory() as folder, Listener(str(Path(folder, "socket")), backlog=64) as listener:
        parent = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which the child has not
            pid = os.fork()
        if not pid:
            try:
                processes.follow(parent)
                _serve(listener)
            finally:
                os._exit(1)

        def ask(work: Callable[[Tell], Any], seconds: float, *, silent: bool = False) -> Any:
            try:
                with Client(listener.address) as connection:
                    connection.send((work, seconds, os.getcwd()))
                    returned, result = connection.recv()
            except (EOFError, ConnectionError):
                return isolated(work, seconds, silent=silent)
            if returned:
                return result
            raise result

        try:
            yield ask
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _serve(listener: Listener) -> None:
    """A child that answers, and another one when it has ended."""
    server = os.getpid()
    while True:
        child = os.fork()
        if not child:
            _answer(listener, server)
        os.waitpid(child, 0)


def _answer(listener: Listener, server: int) -> None:
    """Do what is asked, one after another; send whether it returned, and what it did or raised.  Ends with the first
    that crashes, takes too long or cannot be sent."""
    try:
        processes.follow(server)
        for _ in range(WORKS):
            with listener.accept() as connection:
                work, seconds, folder = connection.recv()
                os.chdir(folder)
                signal.alarm(math.ceil(seconds))
                try:
                    outcome = True, work(lambda step, done, total: None)
                except Exception as error:
                    outcome = False, error
                signal.alarm(0)
                connection.send(outcome)
    finally:
        os._exit(0)
