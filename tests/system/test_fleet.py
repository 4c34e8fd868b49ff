"""Work spread by Ray: by one that is played, for what becomes of answers, and by a real one some of whose processes are
killed."""

from __future__ import annotations

import importlib.util
import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from onnxfuse.errors import DependencyError, InternalError, ModelError, UsageError
from onnxfuse.system.fleet import spread
from tests import broken, fake_ray
from tests.fake_ray import Ray, RayTaskError


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> Ray:
    return fake_ray.install(monkeypatch)


def square(number: int) -> int:
    if number == 3:
        raise ModelError("three.onnx: cannot be read")
    return number * number


def itself(item: object) -> object:
    return item


@pytest.mark.parametrize(("at_once", "running"), [(None, [5, 4, 3, 2, 1]), (2, [2, 2, 2, 2, 1]), (9, [5, 4, 3, 2, 1])])
def test_answers_come_in_the_order_of_what_was_asked(ray: Ray, at_once: int | None, running: list[int]) -> None:
    told: list[tuple[int, int, str]] = []
    found = list(spread(square, [1, 2, 3, 4, 5], "auto", at_once, lambda *step: told.append(step)))
    assert [str(answer) for answer in found] == ["1", "4", "three.onnx: cannot be read", "16", "25"]
    assert ray.running == running
    assert [done for done, _, _ in told] == [1, 2, 3, 4, 5]
    assert sorted(which for _, which, _ in told) == [0, 1, 2, 3, 4]
    assert ray.calls == ["init auto", "shutdown"]


def test_it_ends_where_no_more_is_asked_for(ray: Ray) -> None:
    answers = spread(square, [1, 2], "auto")
    assert next(answers) == 1
    answers.close()  # type: ignore[attr-defined]
    assert ray.calls == ["init auto", "shutdown"]


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        ("WorkerCrashedError", ModelError, "took its process down 3 times"),
        ("OutOfMemoryError", ModelError, "took its process down 3 times"),
        ("RayError", ModelError, "the fleet lost it: the news: try it once more"),
        (RayTaskError("No module named 'onnxfuse.system'", RuntimeError()), DependencyError, "lacks onnxfuse"),
        (RayTaskError("", TypeError("cannot\npickle")), InternalError, "TypeError of a task: cannot pickle"),
    ],
)
def test_what_has_no_answer_is_an_error_of_its_own(
    ray: Ray, error: str | RayTaskError, kind: type[Exception], message: str
) -> None:
    lost = getattr(ray.exceptions, error)("the\nnews") if isinstance(error, str) else error
    one, two = spread(itself, [lost, "b"], "auto")
    assert type(one) is kind
    assert message in str(one)
    assert two == "b"


def test_a_fleet_that_is_not_there(ray: Ray) -> None:
    ray.refusal = ConnectionError("nobody\nanswers")
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(UsageError, match=r"no Ray at 'auto' \(ConnectionError: nobody answers\): start one with"):
        next(spread(square, [1], "auto"))
    assert signal.getsignal(signal.SIGTERM) == before


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "ray://127.0.0.1:{}"])
def test_an_address_where_nobody_listens(ray: Ray, address: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        given = address.format(server.getsockname()[1])
        assert list(spread(square, [1], given)) == [1]
    with pytest.raises(UsageError, match="Connection refused"):
        next(spread(square, [1], given))
    assert ray.calls == [f"init {given}", "shutdown"]


def test_without_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(DependencyError, match=r"ray is not installed: pip install 'onnxfuse\[fleet\]'"):
        next(spread(square, [1], "local"))


SCRIPT = """
import os, signal, sys
from pathlib import Path
from onnxfuse.cli.commands import many
from onnxfuse.cli.main import main

class Deadly(many._Away):
    def __call__(self, path):
        if path.stem == "always":
            os.kill(os.getpid(), signal.SIGKILL)
        if path.stem == "once" and not (died := Path(self.folder, "died")).exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(path)

many._Away = Deadly
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed: pip install 'onnxfuse[fleet]'"
)
def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    """Real tasks in real processes: one is killed once, one each time, and a file among them cannot be read."""
    for name in ("first", "once", "always", "last"):
        onnx.save(broken.good(), tmp_path / f"{name}.onnx")
    (tmp_path / "unread.onnx").write_bytes(b"")
    paths = [f"{name}.onnx" for name in ("first", "once", "always", "unread", "last")]
    command = ["check", *paths, "--expect", "Gelu>=0", "--fleet", "local", "--jobs", "2", "--format", "json"]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *command], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 2, done.stderr
    assert (tmp_path / "died").exists()
    assert done.stderr.splitlines() == [
        "onnxfuse: error: always.onnx: took its process down 3 times, as a crash does, or a system that has no memory "
        "left: try it by itself, without --fleet",
        "onnxfuse: error: unread.onnx is empty: export it again",
    ]
    found = json.loads(done.stdout)
    assert [model["model"] for model in found["models"]] == ["first.onnx", "once.onnx", "last.onnx"]
    assert [error["model"] for error in found["errors"]] == ["always.onnx", "unread.onnx"]
