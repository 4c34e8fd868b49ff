"""Models one after another and several at a time: the same is said of them, in the same order."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from onnxfuse import __version__
from onnxfuse.cli.commands.many import Workers, _Away, outcomes
from onnxfuse.cli.main import main
from onnxfuse.errors import ModelError, OnnxfuseError
from onnxfuse.system.isolation import Tell
from tests import fake_ray
from tests.fake_engine import Engine, fusion

PATHS = [Path(f"{name}.onnx") for name in "abc"]


def work(path: Path, tell: Tell | None) -> str:
    if tell is not None:
        tell("reading", 0, 1)
    if path.stem == "b":
        raise ModelError(f"{path}: cannot be read")
    if path.stem == "c":
        time.sleep(0.01)
        raise ZeroDivisionError("no")
    time.sleep(0.1)
    return path.stem


@pytest.mark.parametrize("jobs", [0, 1, 2, 5])
def test_outcomes_come_in_the_order_given(jobs: int) -> None:
    found = list(outcomes([*PATHS, Path("d.onnx")], work, Workers(jobs=jobs)))
    assert [path.stem for path, _ in found] == ["a", "b", "c", "d"]
    (_, a), (_, b), (_, c), (_, d) = found
    assert (a, d) == ("a", "d")
    assert str(b) == "b.onnx: cannot be read"
    assert "ZeroDivisionError: no: a mistake in onnxfuse" in str(c)


def test_nothing_is_nothing() -> None:
    assert list(outcomes([], work, Workers(jobs=3))) == []


def crash(path: Path, tell: Tell | None) -> str:
    if path.stem == "b":
        os.kill(os.getpid(), signal.SIGKILL)
    return path.stem


def test_a_crash_is_an_error_of_one_model() -> None:
    (_, a), (_, b), (_, c) = outcomes(PATHS, crash, Workers(jobs=2))
    assert (a, c) == ("a", "c")
    assert str(b).startswith("killed, ")


def test_there_is_one_bar_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stderr", terminal := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    assert len(list(outcomes(PATHS, work, Workers(jobs=2)))) == 3
    assert "/3" in terminal.getvalue()


@pytest.mark.parametrize("command", ["check", "report"])
def test_several_jobs_print_what_one_prints(
    command: str, models: list[str], engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.fusions = [fusion()]
    assert main([command, *models]) == 2
    one = capsys.readouterr()
    assert main([command, *models, "--jobs", "3"]) == 2
    assert capsys.readouterr() == one
    assert one.err.count("second.onnx") == 1


def untimed(text: str) -> str:
    return re.sub(r"written, .* s", "written", text)


@pytest.mark.parametrize("command", ["check", "report", "optimize"])
def test_a_fleet_prints_what_one_process_prints(
    command: str, models: list[str], engine: Engine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.fusions = [fusion()]
    assert main([command, *models]) == 2
    one = capsys.readouterr()
    ray = fake_ray.install(monkeypatch)
    assert main([command, *models, "--fleet", "auto"]) == 2
    assert [untimed(text) for text in capsys.readouterr()] == [untimed(text) for text in one]
    assert ray.calls == ["init auto", "shutdown"]


def test_a_fleet_has_no_stdin(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_ray.install(monkeypatch)
    assert main(["report", "-", "--fleet", "auto"]) == 2
    assert capsys.readouterr().err == "onnxfuse: error: a fleet has no stdin: name files\n"


@pytest.mark.parametrize(
    ("folder", "version", "message"),
    [
        (".", "0.0", r"has onnxfuse .*: install 0\.0 there"),
        ("/no/such", __version__, "has no /no/such .*: its machines"),
    ],
)
def test_a_machine_that_is_another(folder: str, version: str, message: str) -> None:
    with pytest.raises(OnnxfuseError, match=message):
        _Away(work, folder, version)(PATHS[0])


SCRIPT = """
import os, sys, time
from onnxfuse import pipeline
from onnxfuse.cli.main import guarded_main

def wait(*_, **__):
    os.write(1, b"begun\\n")  # at once, whoever else writes
    time.sleep(60)

pipeline.report = wait
sys.argv[1:] = ["check", "model.onnx", "third.onnx", "-j", "2"]
sys.exit(guarded_main())
"""


def test_an_interrupt_ends_all(models: list[str]) -> None:
    """The children hold the other end of stdout, so that it ends when all are gone."""
    done = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with done:
        assert done.stdout is not None
        assert done.stderr is not None
        assert [done.stdout.readline(), done.stdout.readline()] == ["begun\n", "begun\n"]
        done.send_signal(signal.SIGINT)
        assert done.stdout.read() == ""
        assert done.wait(30) == 130
        assert done.stderr.read().endswith("onnxfuse: interrupted\n")
