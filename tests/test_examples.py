"""Examples run, and say what they promise."""

from __future__ import annotations

import runpy
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from onnxfuse.cli import settings
from onnxfuse.cli.main import main

EXAMPLES = Path(__file__).parents[1] / "examples"
SAID = {
    "guard_export.py": "all fusions are there\n",
    "compare_exports.py": "same\n",
}


def test_every_example_is_run_and_listed() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == SAID.keys()
    listed = (EXAMPLES / "README.md").read_text()
    assert all(f"({path.name})" in listed for path in EXAMPLES.iterdir() if path.name != "README.md")


@pytest.mark.parametrize("name", SAID)
def test_example(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", [name])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert capsys.readouterr().out.startswith(SAID[name])


def test_the_settings_of_the_example_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(EXAMPLES / "ci" / "pyproject.toml", tmp_path)
    monkeypatch.chdir(tmp_path)
    found = settings.nearest()
    assert found.expected_of(Path("exports/bert.onnx")) == ["Attention>=3", "Gelu>=3"]
    assert found.shapes_of(Path("exports/bert.onnx"))["input_ids"] == (1, 128)


def test_the_command_of_the_gitlab_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = yaml.safe_load((EXAMPLES / "ci" / "gitlab-ci.yml").read_text())["fusions"]["script"]
    (command,) = [line.split() for line in script if line.startswith("onnxfuse ")]
    shutil.copy(EXAMPLES / "ci" / "pyproject.toml", tmp_path)
    (tmp_path / "exports").mkdir()
    shutil.copy(EXAMPLES.parent / "models" / "quick_gelu.onnx", tmp_path / "exports")
    monkeypatch.chdir(tmp_path)
    assert main(["check", "--update-baseline"]) == 0
    assert main(command[1:]) == 0
    assert '<testcase name="as in the baseline"' in (tmp_path / "fusions.xml").read_text()
