"""A finding lies on the innermost line that is in the repository, wherever the model was exported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from onnx import NodeProto, TensorProto, helper

from onnxfuse.reporting import code_lines
from onnxfuse.reporting.code_lines import Line, in_repository, innermost, located, place, relative
from onnxfuse.reporting.requirements import Finding
from tests.fake_engine import near_miss

LOST = Finding("lost", "m.onnx", "LayerNormalization", "/enc/0/norm", "gone", scopes=("/enc/0/norm",))


def node(name: str, *lines: int) -> NodeProto:
    made = helper.make_node("Add", ["x", "x"], [f"{name}_out"], name=name)
    trace = "\n".join(f'File "src/{depth}.py", line {line}, in forward' for depth, line in enumerate(lines))
    made.metadata_props.add(key="pkg.torch.onnx.stack_trace", value=trace)
    return made


def code_of(finding: Finding) -> tuple[str, tuple[str, ...]]:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])
    nodes = [node("/enc/0/norm/Add", 5, 7), node("/enc/0/Add", 5, 9), node("/enc/3/Div", 6), node("/enc/01/Add", 1)]
    model = helper.make_model(helper.make_graph(nodes, "g", [x], []))
    (found,) = located([finding], model)
    return found.code, found.calls


def test_the_line_of_what_is_lost_is_that_of_its_module() -> None:
    assert code_of(LOST) == ("src/1.py:7", ("src/0.py:5", "src/1.py:7"))


def test_a_modules_own_line_says_more_than_what_it_calls() -> None:
    assert code_of(replace(LOST, scopes=("/enc/0",))) == ("src/1.py:9", ("src/0.py:5", "src/1.py:9"))
    assert code_of(replace(LOST, scopes=("/enc",))) == ("src/1.py:9", ("src/0.py:5", "src/1.py:9"))


def test_a_near_miss_says_it_better() -> None:
    finding = Finding("lost", "m.onnx", "X", "/enc/0", "gone", (near_miss(scope="/enc/3"),), ("/enc/0",))
    assert code_of(finding) == ("src/0.py:6", ("src/0.py:6",))


def test_a_finding_about_no_place_has_no_line() -> None:
    assert code_of(Finding("expectation", "m.onnx", "X", None, "few")) == ("", ())
    assert code_of(Finding("lost", "m.onnx", "X", "/nowhere", "gone", scopes=("/nowhere",))) == ("", ())


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for file in ("src/model.py", "model.py", ".venv/lib/site-packages/torch/model.py"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "found"),
    [
        ("src/model.py", "src/model.py"),
        ("model.py", "model.py"),
        ("/app/src/model.py", "src/model.py"),
        (r"C:\work\src\model.py", "src/model.py"),
        ("{top}/src/model.py", "src/model.py"),
        ("{top}/src/gone.py", None),
        ("/elsewhere/model.py", None),
        ("transformers/model.py", None),
        ("{top}/.venv/lib/site-packages/torch/model.py", None),
        ("/x/site-packages/src/model.py", None),
    ],
)
def test_what_is_in_the_repository(file: str, found: str | None, top: Path) -> None:
    assert in_repository(file.format(top=top), top) == found


def test_the_innermost_call_in_the_repository_is_the_place(top: Path) -> None:
    calls = ("train.py:1", "/app/src/model.py:5", "/x/site-packages/torch/model.py:9")
    assert place(Finding("lost", "m.onnx", "X", "", "gone", calls=calls), top) == Line("src/model.py", 5)
    assert place(LOST, top) == Line("m.onnx")
    assert innermost(calls) == Line("/x/site-packages/torch/model.py", 9)
    assert innermost(()) is None


def test_the_repository_begins_at_git_or_where_github_says(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(top / "src")
    assert code_lines.root() == top / "src"
    (top / ".git").mkdir()
    assert code_lines.root() == top
    monkeypatch.setenv("GITHUB_WORKSPACE", str(top / "src"))
    assert code_lines.root() == top / "src"
    monkeypatch.setenv("GITHUB_WORKSPACE", "/elsewhere")
    assert code_lines.root() == top
    assert relative("../m.onnx", top) == "m.onnx"
    assert relative("/m.onnx", top) == "/m.onnx"
