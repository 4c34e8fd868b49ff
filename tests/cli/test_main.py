"""Options reach the engine, results reach the right stream, and the exit code says how it went."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from onnxfuse import __version__
from onnxfuse.cli.main import INTERRUPTED, main
from onnxfuse.errors import NumericsError
from tests.fake_engine import Engine, fusion, near_miss

COMMANDS = [
    [],
    ["optimize"],
    ["report"],
    ["check"],
    ["rules"],
    *(["rules", name] for name in ("list", "show", "test", "new")),
]

Capture = pytest.CaptureFixture[str]


# The command itself


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(command: list[str], capsys: Capture) -> None:
    assert main([*command, "--help"]) == 0
    out = capsys.readouterr().out
    assert "Example:\n    onnxfuse " in out
    assert max(map(len, out.splitlines())) <= 100


def test_help_imports_nothing_heavy() -> None:
    """What makes it quick; benchmarks/scale.py measures how quick."""
    heavy = "{'onnx', 'numpy', 'rich', 'onnxruntime', 'onnx_graphsurgeon'}"
    script = "import sys; from onnxfuse.cli.main import main; main(['--help'])"
    script += f"; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)


def test_version(capsys: Capture) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"onnxfuse {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["optimise"], "No such command 'optimise'"),
        (["optimize"], "Missing argument 'MODEL...' (see onnxfuse optimize --help)"),
        (["report", "m.onnx", "--format", "xml"], "'xml' is not one of 'text', 'json' (see onnxfuse report --help)"),
        (["optimize", "m.onnx", "--shape", "x=1"], "'x=1': write NAME:DIMS, such as input_ids:1,128"),
        (["optimize", "m.onnx", "--shape", "x:1,-2"], "'x:1,-2': write NAME:DIMS"),
        (["optimize", "m.onnx", "--rtol", "-1"], "-1.0 is not in the range x>=0"),
        (["optimize", "m.onnx", "--validate", "reference", "--no-validate"], "exclude each other: give one"),
        (["optimize", "m.onnx", "--report", "no/r.json"], "no/r.json: there is no folder no: make it first"),
        (["optimize", "*.nothing"], "no file matches *.nothing"),
        (["optimize", "m.onnx", "--select", "Zzz"], "Zzz: no such rule: see onnxfuse rules list"),
        (["optimize", "m.onnx", "--ignore", "Gelo"], "Gelo: no such rule: did you mean Gelu?"),
        (["report", "m.onnx", "--why", "LayerNormalisation"], "did you mean LayerNormalization?"),
        (["check", "m.onnx", "--expect", "Gelo>=1"], "Gelo: no such rule: did you mean Gelu?"),
        (["check", "m.onnx", "--expect", "Gelu"], "--expect 'Gelu': write RULE, one of"),
        (["check", "m.onnx", "--update-baseline"], "--update-baseline needs --baseline FILE"),
        (["check", "m.onnx", "--baseline", "b.json"], "b.json: no such baseline: make it with --update-baseline"),
        (["rules", "show", "Gelo"], "Gelo: no such rule: did you mean Gelu?"),
        (["rules", "new", "my-norm"], "'my-norm' names no op: begin with a capital"),
    ],
)
@pytest.mark.usefixtures("engine", "model")
def test_bad_usage_is_one_line_and_exit_code_2(arguments: list[str], message: str, capsys: Capture) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("onnxfuse: error: ")
    assert message in err
    assert err.count("\n") == 1


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


def test_one_bad_model_does_not_stop_the_others(models: list[str], engine: Engine, capsys: Capture) -> None:
    assert main(["optimize", *models, "-o", "out", "-q", "--report", "report.json"]) == 2
    assert sorted(os.listdir("out")) == ["model.onnx", "third.onnx"]
    assert "second.onnx is empty" in capsys.readouterr().err
    assert [found["model"] for found in json.loads(Path("report.json").read_text())] == ["model.onnx", "third.onnx"]


def test_the_exit_code_is_the_worst(models: list[str], engine: Engine, capsys: Capture) -> None:
    engine.error = NumericsError("Gelu changes the result")
    assert main(["optimize", *models]) == 3
    assert capsys.readouterr().err.splitlines() == [
        "onnxfuse: error: model.onnx: Gelu changes the result",
        "onnxfuse: error: second.onnx is empty: export it again",
        "onnxfuse: error: third.onnx: Gelu changes the result",
    ]


# report


def test_a_command_leaves_the_cycle_collector_as_it_was(models: list[str], engine: Engine, tmp_path: Path) -> None:
    assert gc.isenabled()
    assert main(["report", models[0]]) == 0
    assert gc.isenabled()
    assert main(["report", str(tmp_path / "none.onnx")]) == 2
    assert gc.isenabled()
