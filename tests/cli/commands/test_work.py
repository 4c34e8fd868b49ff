"""What commands do alike: one bad model does not stop the others, and `-` is stdin and stdout."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import onnx
import pytest

from onnxfuse.cli.main import main
from onnxfuse.errors import NumericsError
from tests.cli.test_main import Capture
from tests.fake_engine import Engine, fusion


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


def stdin(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_a_model_from_stdin_goes_to_stdout(
    model: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    engine.fusions = [fusion()]
    for arguments in (["optimize", "-"], ["optimize", str(model), "-o", "-"]):
        stdin(model.read_bytes(), monkeypatch)
        assert main(arguments) == 0
        out, err = capsysbinary.readouterr()
        assert onnx.load_from_string(out) == onnx.load(model)
        assert b"LayerNormalization" in err
    assert sorted(path.name for path in Path().iterdir()) == [model.name]


@pytest.mark.parametrize("command", [["report", "-"], ["check", "-", "--expect", "LayerNormalization>=1"]])
def test_a_model_from_stdin_is_read(
    command: list[str], model: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.fusions = [fusion()]
    stdin(model.read_bytes(), monkeypatch)
    assert main(command) == 0
    assert "LayerNormalization" in capsys.readouterr().out
    stdin(b"{}", monkeypatch)
    assert main(command) == 2
    assert capsys.readouterr().err.startswith("onnxfuse: error: - is ")


def test_a_model_is_not_for_a_terminal(
    model: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    assert main(["optimize", str(model), "-o", "-", "-q"]) == 2
    assert "stdout is a terminal" in capsys.readouterr().err


def test_external_data_does_not_go_to_stdout(engine: Engine, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    path = Path(__file__).parents[3] / "models" / "external_data.onnx"
    assert main(["optimize", str(path), "-o", "-", "-q"]) == 2
    out, err = capsysbinary.readouterr()
    assert out == b""
    assert b"a model with external data" in err
