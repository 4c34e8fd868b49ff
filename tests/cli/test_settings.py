"""Settings of a project: found upward, flags win, and what means nothing is one clear line."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from onnxfuse.cli import settings
from onnxfuse.cli.main import main
from onnxfuse.errors import UsageError
from tests import broken
from tests.fake_engine import Engine, fusion

FILE = """
[project]
name = "other"

[tool.onnxfuse]
models = ["exports/*.onnx", "one.onnx"]
rules = ["my_rules"]
ignore = ["Gelu"]
target = "onnx"
keep_products = "weighted"
baseline = "b.jsonl"
jobs = 0

[tool.onnxfuse.expect]
"*" = ["Gelu==0"]
"bert*.onnx" = ["Attention>=12"]

[tool.onnxfuse.shapes]
ids = [1, 8]
"exports/big.onnx" = { ids = [4, 8], mask = [4] }
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pyproject.toml").write_text(FILE)
    (tmp_path / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_what_is_settled(project: Path) -> None:
    found = settings.nearest()
    assert found.file == project / "pyproject.toml"
    assert found.models == ("exports/*.onnx", "one.onnx")
    assert found.expected_of(Path("x/bert_large.onnx")) == ["Gelu==0", "Attention>=12"]
    assert found.expected_of(Path("gpt.onnx")) == ["Gelu==0"]
    assert found.shapes_of(Path("one.onnx")) == {"ids": (1, 8)}
    assert found.shapes_of(Path("exports/big.onnx")) == {"ids": (4, 8), "mask": (4,)}
    assert found.shapes_of(Path("../exports/big.onnx")) == {"ids": (4, 8), "mask": (4,)}
    defaults = found.defaults()
    assert defaults["check"] == {
        "rules": ("my_rules",),
        "ignore": ("Gelu",),
        "target": "onnx",
        "keep_products": "weighted",
        "jobs": 0,
        "baseline": "b.jsonl",
    }
    assert "baseline" not in defaults["optimize"]
    assert defaults["rules"]["test"] == {"rules": ("my_rules",)}


def test_paths_are_relative_to_the_file(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project / "deep" / "er")
    found = settings.nearest()
    assert found.models == ("../../exports/*.onnx", "../../one.onnx")
    assert found.values["baseline"] == "../../b.jsonl"


def test_a_file_without_the_table_is_passed_over(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "deep" / "pyproject.toml").write_text("[tool.other]\n[broken")
    monkeypatch.chdir(project / "deep" / "er")
    assert settings.nearest().file == project / "pyproject.toml"
    assert settings.nearest(Path("/")) == settings.Settings()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[tool.onnxfuse]\nmodles = ["x"]',
            r"pyproject.toml: \[tool.onnxfuse\] has no key modles: did you mean models\?",
        ),
        ("[tool.onnxfuse]\nqqq = 1", r"has no key qqq: it has models, rules, "),
        ('[tool.onnxfuse]\nmodels = "x"', r"models = 'x': write a list of files and patterns, such as "),
        ("[tool.onnxfuse]\nrules = [1]", r"rules = \[1\]: write a list of folders"),
        ('[tool.onnxfuse]\ntarget = "tpu"', r"target = 'tpu': write one of onnxfuse, onnx, ort"),
        ("[tool.onnxfuse]\njobs = true", r"jobs = True: write a number"),
        ("[tool.onnxfuse]\nbaseline = 3", r"baseline = 3: write a file"),
        ('[tool.onnxfuse]\nexpect = ["Attention"]', r"expect = \['Attention'\]: write a list such as"),
        ('[tool.onnxfuse.expect]\nx = "Gelu>1"', r"expect = .*: write a list such as"),
        ("[tool.onnxfuse]\nshapes = [1]", r"shapes = \[1\]: write a table"),
        ('[tool.onnxfuse.shapes]\nids = "1,2"', r"shapes = .*: write a table"),
        ("[tool.onnxfuse]\nmodels = x", r"pyproject.toml: is no TOML: .*line 2"),
    ],
)
def test_what_means_nothing(text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=message):
        settings.nearest()


def test_check_without_arguments_checks_what_is_settled(
    project: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "pyproject.toml").write_text(
        '[tool.onnxfuse]\nmodels = ["*.onnx"]\nbaseline = "b.jsonl"\nexpect = ["Gelu==0"]\ntarget = "onnx"\n'
        'shapes.ids = [1, 8]\nignore = ["Gelu"]\n'
    )
    for name in ("a.onnx", "b.onnx"):
        onnx.save(broken.good(), project / name)
    monkeypatch.chdir(project / "deep")
    engine.fusions = [fusion()]
    assert main(["check", "--update-baseline"]) == 0
    assert (project / "b.jsonl").exists()
    written = "onnxfuse: ../b.jsonl is written; without --update-baseline it is compared with\n"
    assert capsys.readouterr().err == written
    assert main(["check"]) == 0
    assert capsys.readouterr().err == ""
    assert [(call["target"].name, call["ignore"], call["shapes"]) for call in engine.calls] == [
        ("onnx", ("Gelu",), {"ids": (1, 8)})
    ] * 4

    engine.fusions = [fusion("Gelu")]
    assert main(["check", "../a.onnx"]) == 1, "some of the models that are settled are checked as some of them"
    out = capsys.readouterr().out
    assert "expected Gelu == 0, found 1" in out
    assert "not given" not in out
    assert main(["check"]) == 1


def test_flags_win(project: Path, engine: Engine) -> None:
    (project / "pyproject.toml").write_text(
        '[tool.onnxfuse]\nexpect = ["Gelu==0"]\ntarget = "onnx"\nignore = ["Gelu"]\nshapes.ids = [1, 8]\n'
    )
    onnx.save(broken.good(), project / "a.onnx")
    given = ["--target", "ort", "--ignore", "LayerNormalization", "--shape", "x:2"]
    assert main(["check", "a.onnx", "--expect", "Gelu<9", *given]) == 0
    assert main(["report", "a.onnx", *given]) == 0
    assert main(["optimize", "a.onnx", "--no-validate", *given]) == 0
    for call in engine.calls:
        assert (call["target"].name, call["ignore"], call["shapes"]) == ("ort", ("LayerNormalization",), {"x": (2,)})


def test_wrong_settings_stop_the_commands_that_heed_them(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "pyproject.toml").write_text("[tool.onnxfuse]\nnothing = 1\n")
    assert main(["check", "a.onnx"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"onnxfuse: error: {project / 'pyproject.toml'}: [tool.onnxfuse] has no key nothing: ")
    assert err.count("\n") == 1
    assert main(["run", "--help"]) == 0


def test_every_setting_is_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "ci.md").read_text()
    with pytest.raises(UsageError) as error:
        settings._read(Path(settings.FILE), {"zzz": 0})
    keys = str(error.value).partition("it has ")[2].split(", ")
    assert len(keys) > 10
    assert [key for key in keys if f"`{key}`" not in page] == []
