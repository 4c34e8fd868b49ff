"""Two checkouts take turns, and what is printed is the ratio of their least times."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import speed


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, list[str]]]:
    """What was run; this checkout takes 1, 2, 3 ... seconds, the other twice as many."""
    seen: list[tuple[Path, list[str]]] = []

    def run(checkout: Path, python: Path, arguments: list[str]) -> float:
        seen.append((checkout, arguments))
        turn = sum(1 for other, _ in seen if other == checkout)
        return float(turn if checkout == speed.HERE else 2 * turn)

    monkeypatch.setattr(speed, "user_seconds", run)
    return seen


def test_checkouts_take_turns(runs: list[tuple[Path, list[str]]], tmp_path: Path) -> None:
    row = speed.measured(tmp_path / "bert.onnx", "ort", "no-validate", tmp_path, Path("python"), rounds=2)
    assert [checkout == speed.HERE for checkout, _ in runs] == [True, False, False, True, True, False]
    assert (row.model, row.here, row.there, row.ratio, row.typical) == ("bert", [2, 3], [4, 6], 0.5, 0.5)
    _, arguments = runs[0]
    assert arguments[:2] == ["optimize", "--no-validate"]
    assert (arguments[4], "-o" in arguments) == ("ort", True)


def test_figures_are_printed_and_kept(
    runs: list[tuple[Path, list[str]]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    (other / "onnxfuse").mkdir(parents=True)
    (other / "onnxfuse" / "__init__.py").touch()
    kept = tmp_path / "speed.json"
    arguments = ["a.onnx", "--against", str(other), "--target", "onnx", "--rounds", "1", "--json", str(kept)]
    assert speed.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "onnx, report: geometric mean 0.50 of 1 models, 0.50 at most" in printed
    assert [(r["command"], r["ratio"]) for r in json.loads(kept.read_text())["rows"]] == [
        ("report", 0.5),
        ("no-validate", 0.5),
    ]


def test_instructions_are_those_of_the_process_that_does_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "valgrind"
    tool.write_text("#!/bin/sh\necho '==8== I   refs:      2,500,000,000' >&2\necho '==7== I refs: 39,434' >&2\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert speed.instructions(speed.HERE, Path("python"), ["--help"]) == 2.5
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match="apt-get install valgrind"):
        speed.instructions(speed.HERE, Path("python"), ["--help"])


def test_a_checkout_from_before_it_could_be_run_as_a_module_is_run(tmp_path: Path) -> None:
    package = tmp_path / "onnxfuse"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "cli.py").write_text("def guarded_main(): return 7\n")
    with pytest.raises(RuntimeError, match="exit 7"):
        speed.user_seconds(tmp_path, Path(sys.executable), [])
    assert speed.entry(speed.HERE) == ["-m", "onnxfuse"]


def test_what_is_no_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        speed.main(["a.onnx", "--against", str(tmp_path)])


def test_a_command_that_fails_is_told(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="exit 2"):
        speed.user_seconds(speed.HERE, Path(sys.executable), ["report", str(tmp_path / "none.onnx")])
