"""Options of all commands: mistakes are one line, and shells complete them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from onnxfuse.cli.commands.report import report
from onnxfuse.cli.main import main
from tests.cli.test_main import Capture


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["optimise"], "No such command 'optimise'. Did you mean 'optimize'?"),
        (["optimize"], "Missing argument 'MODEL...' (see onnxfuse optimize --help)"),
        (["report", "m.onnx", "--format", "xml"], "'xml' is not one of 'text', 'json' (see onnxfuse report --help)"),
        (["optimize", "m.onnx", "--shape", "x=1"], "'x=1': write NAME:DIMS, such as input_ids:1,128"),
        (["optimize", "m.onnx", "--shape", "x:1,-2"], "'x:1,-2': write NAME:DIMS"),
        (["optimize", "m.onnx", "--rtol", "-1"], "-1.0 is not in the range x>=0"),
        (["optimize", "m.onnx", "--validate", "reference", "--no-validate"], "exclude each other: give one"),
        (["optimize", "m.onnx", "--rename-dims", "--no-validate"], "exclude each other: only the proof finds"),
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


def test_a_shell_completes_files_options_and_commands() -> None:
    def completed(words: str) -> str:
        known = {
            "_ONNXFUSE_COMPLETE": "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        }
        code = "import sys; from onnxfuse.cli.main import main; sys.exit(main([]))"
        return subprocess.run(
            [sys.executable, "-c", code], env=os.environ | known, capture_output=True, text=True, check=True
        ).stdout

    assert completed("onnxfuse che") == "plain,check\n"
    assert completed("onnxfuse check exp") == "file,exp\n"


def test_a_shell_completes_rules(tmp_path: Path) -> None:
    (tmp_path / "mine.rule").write_text("# x\nGeluOfMine(X)\n\nmatch:  Y = Abs(Abs(X))\nemit:   Y = GeluOfMine(X)\n")
    context = click.Context(report)
    parameter = next(each for each in report.params if each.name == "why")
    assert [item.value for item in parameter.shell_complete(context, "Gelu")] == ["Gelu", "GeluGrad"]
    context.params["rules"] = (tmp_path,)
    assert [item.value for item in parameter.shell_complete(context, "Gelu")] == ["Gelu", "GeluGrad", "GeluOfMine"]
    (tmp_path / "mine.rule").write_text("half a rule")
    assert [item.value for item in parameter.shell_complete(context, "Gelu")] == ["Gelu", "GeluGrad"]
