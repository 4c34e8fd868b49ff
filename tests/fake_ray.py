"""A stand-in for Ray: what is handed to it is pickled, and done in this process."""

from __future__ import annotations

import pickle
import signal
import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest


class RayError(Exception):
    pass


class RayTaskError(RayError):
    def __init__(self, text: str, cause: Exception) -> None:
        super().__init__(text)
        self.cause = cause


class Answer:
    """What a task will have returned."""

    def __init__(self, function: Callable[..., Any], *given: Any) -> None:
        self.function, self.given = function, given


class Ray(SimpleNamespace):
    """Of ray what is used: tasks are done when they are asked about, the last one first."""

    def __init__(self) -> None:
        kinds = "WorkerCrashedError OutOfMemoryError NodeDiedError ObjectLostError".split()
        errors = {name: type(name, (RayError,), {}) for name in kinds}
        self.exceptions = SimpleNamespace(RayError=RayError, RayTaskError=RayTaskError, **errors)
        self.calls: list[str] = []
        self.running: list[int] = []
        """How many were under way at each time that it was waited."""
        self.refusal: Exception | None = None

    def init(self, **options: Any) -> None:
        signal.signal(signal.SIGTERM, lambda *_: None)
        self.calls.append(f"init {options['address']}")
        if self.refusal:
            raise self.refusal

    def shutdown(self) -> None:
        self.calls.append("shutdown")

    def remote(self, **options: Any) -> Any:
        assert options == {"num_cpus": 1, "max_retries": 2}
        return lambda function: SimpleNamespace(remote=partial(Answer, function))

    def put(self, value: Any) -> Any:
        return pickle.loads(pickle.dumps(value))

    def wait(self, answers: list[Answer], num_returns: int) -> tuple[list[Answer], list[Answer]]:
        self.running.append(len(answers))
        return answers[-num_returns:], answers[:-num_returns]

    def get(self, answer: Answer) -> Any:
        made = answer.function(*answer.given)
        if isinstance(made, RayError):
            raise made
        return pickle.loads(pickle.dumps(made))


def install(monkeypatch: pytest.MonkeyPatch) -> Ray:
    """Puts it where ray is imported from."""
    monkeypatch.setitem(sys.modules, "ray", played := Ray())  # type: ignore[arg-type]
    return played
