"""A process that forks for another: what is done there returns, raises, crashes and ends in time as it does here."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from onnxfuse.errors import ModelError
from onnxfuse.proof import oracle
from onnxfuse.system.isolation import Tell, TookTooLongError
from tests.small_process import WORKS, Isolated, small_process


@pytest.fixture(scope="module")
def isolated() -> Isolated:
    with small_process() as small:
        yield small


def whereabouts(tell: Tell) -> tuple[int, int, str]:
    return os.getpid(), os.getppid(), os.getcwd()


def end(number: int, tell: Tell) -> None:
    os.kill(os.getpid(), number)


def fail(tell: Tell) -> None:
    raise ValueError("wrong")


def dawdle(tell: Tell) -> None:
    time.sleep(60)


def test_it_is_done_in_another_process_where_the_caller_is(
    isolated: Isolated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = os.getcwd()
    first = isolated(whereabouts, 60)
    monkeypatch.chdir(tmp_path)
    second = isolated(whereabouts, 60)
    assert (first[2], second[2]) == (start, str(tmp_path))
    assert len({os.getpid(), *first[:2]}) == len({os.getpid(), *second[:2]}) == 3
    assert first[1] == second[1]


def test_one_process_does_many_works_and_then_another_one() -> None:
    with small_process() as isolated:
        ids = [isolated(whereabouts, 60)[0] for _ in range(WORKS + 1)]
    assert len(set(ids[:-1])) == 1
    assert ids[-1] != ids[0]


def test_what_it_raises_is_raised_here(isolated: Isolated) -> None:
    with pytest.raises(ValueError, match="wrong"):
        isolated(fail, 60)


def test_a_crash_is_told_and_the_next_is_answered(isolated: Isolated) -> None:
    before = isolated(whereabouts, 60)
    with pytest.raises(ModelError, match="crashed with SIGABRT"):
        isolated(partial(end, signal.SIGABRT), 60)
    after = isolated(whereabouts, 60)
    assert (before[0] != after[0], before[1] == after[1]) == (True, True)


def test_it_has_only_so_much_time(isolated: Isolated) -> None:
    with pytest.raises(TookTooLongError, match="took longer than 1 s"):
        isolated(dawdle, 1)


def test_several_processes_may_ask_at_a_time(isolated: Isolated) -> None:
    def asks() -> None:
        os._exit(0 if isolated(whereabouts, 60)[0] != os.getpid() else 1)

    children = [forked(asks) for _ in range(4)]
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4


def forked(work: Callable[[], None]) -> int:
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(2)
    return child


def test_the_proof_asks_it() -> None:
    """Not a child of this process: that would be `isolated` itself."""
    assert os.getpid() not in oracle.isolated(whereabouts, 60)[:2]
