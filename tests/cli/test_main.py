"""Options reach the engine, results reach the right stream, and the exit code says how it went."""

from __future__ import annotations

import gc
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from onnxfuse import __version__
from onnxfuse.cli.main import COMMANDS as NAMES
from onnxfuse.cli.main import INTERRUPTED, main, onnxfuse
from tests.fake_engine import Engine, fusion, near_miss

ROOT = Path(__file__).parents[2]
COMMANDS = [[], *([name] for name in NAMES), *(["rules", name] for name in ("list", "show", "grad", "test", "new"))]

Capture = pytest.CaptureFixture[str]


# The command itself


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(command: list[str], capsys: Capture) -> None:
    assert main([*command, "--help"]) == 0
    out = capsys.readouterr().out
    assert "Example:\n    onnxfuse " in out
    assert max(map(len, out.splitlines())) <= 100
    for line in re.findall(r"^    onnxfuse (.*)$", out, re.MULTILINE):
        for example in re.split(r"\s[<>|]\s|\s{2,}", line)[0].split(" && onnxfuse "):
            parsed(shlex.split(example))


def parsed(words: list[str]) -> None:
    """The command that these words are for takes them."""
    command: click.Command | None = onnxfuse
    while isinstance(command, click.Group):
        name, *words = words
        command = command.get_command(click.Context(command), name)
    assert command is not None
    command.make_context("onnxfuse", words)


@pytest.mark.parametrize("group", [[], ["rules"]], ids=str)
def test_a_list_of_commands_says_of_each_what_it_does_in_full(group: list[str], capsys: Capture) -> None:
    assert main([*group, "--help"]) == 0
    commands = capsys.readouterr().out.partition("Commands:\n")[2]
    assert commands
    assert "..." not in commands


def test_help_imports_nothing_heavy() -> None:
    """What makes it quick; benchmarks/scale.py measures how quick."""
    heavy = "{'onnx', 'numpy', 'rich', 'onnxruntime', 'onnx_graphsurgeon'}"
    script = "import sys; from onnxfuse.cli.main import main; main(['--help'])"
    script += f"; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)


def test_a_report_imports_neither_a_parser_of_rules_nor_what_a_proof_or_a_check_needs() -> None:
    """Rules are kept once they were read."""
    unwanted = "{'language.parse', 'derivatives.reverse', 'reporting.requirements', 'precision.wanted'}"
    script = "import sys; from onnxfuse.cli.main import main; main(['report', 'models/bert.ts.onnx'])"
    script += f"; assert not {{'onnxfuse.' + name for name in {unwanted}}} & set(sys.modules)"
    script += "; assert not {'onnxruntime', 'difflib', 'onnx.reference'} & set(sys.modules)"
    kept = "from onnxfuse.language import catalogue; catalogue.load()"
    for code in (kept, script):
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL, cwd=ROOT)


def test_version(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"onnxfuse {__version__}\n"


def test_an_interrupt_is_exit_code_130_and_leaves_nothing(model: Path, engine: Engine, capsys: Capture) -> None:
    engine.error = KeyboardInterrupt()
    assert main(["optimize", str(model)]) == INTERRUPTED
    assert capsys.readouterr().err.strip() == "onnxfuse: interrupted"
    assert os.listdir() == ["model.onnx"]


# optimize


def test_output_in_a_pipe_has_no_colours_and_no_blanks_at_line_ends(
    model: Path, engine: Engine, capsys: Capture
) -> None:
    engine.fusions, engine.near_misses = [fusion(scope="/" + "long/" * 60)], [near_miss(scope="/" + "long/" * 60)]
    for command in ("optimize", "report"):
        assert main([command, str(model)]) == 0
        out = capsys.readouterr().out
        assert "\x1b" not in out
        assert not [line for line in out.splitlines() if line != line.rstrip()]
    assert near_miss(scope="/" + "long/" * 60).node in out, "no line is wrapped"


# report


def test_a_command_leaves_the_cycle_collector_as_it_was(models: list[str], engine: Engine, tmp_path: Path) -> None:
    assert gc.isenabled()
    assert main(["report", models[0]]) == 0
    assert gc.isenabled()
    assert main(["report", str(tmp_path / "none.onnx")]) == 2
    assert gc.isenabled()
