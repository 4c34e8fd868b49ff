"""The table of half precision says what is wrong, and sums up what is right."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import precision
from tests.exports import MODELS


def test_a_line_a_model(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"\x08")
    given = [str(MODELS / "softmax.onnx"), str(tmp_path), "--precision", "fp16", "--record", str(tmp_path / "r.json")]
    assert precision.main(given) == 1
    found = json.loads((tmp_path / "r.json").read_text())
    assert found["folders"]["models"]["softmax"]["verdict"] == "equal"
    assert list(found["folders"][tmp_path.name]) == ["broken"]
    head, right, wrong, _, _, last = capsys.readouterr().out.splitlines()[:6]
    assert head.split() == ["error", "lost", "half", "float32", "edges", "inside"]
    name, error, *figures = right.split()
    assert name == "softmax"
    assert 0 < float(error) < 3e-3
    assert figures[0] == "0"
    assert figures[4] == "0"
    assert wrong.startswith("broken")
    assert last == "0 fusions lost; 1 with at most two Casts"


def test_a_fusion_that_is_not_there_is_counted() -> None:
    from onnx import helper

    def model(*ops: str) -> object:
        nodes = [helper.make_node(op, ["x"], [str(i)], domain="onnxfuse") for i, op in enumerate(ops)]
        return helper.make_model(helper.make_graph(nodes, "g", [], []))

    plain, half = precision.census(model("Gelu_12", "Gelu_34", "Attention")), precision.census(model("Gelu_12_fp16"))  # type: ignore[arg-type]
    assert plain - half == {"Gelu": 1, "Attention": 1}
