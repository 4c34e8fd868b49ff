"""`onnxfuse report`: what, where and why not, as text and as JSON."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import onnx
import pytest

from onnxfuse.cli.main import main
from tests import broken
from tests.cli.test_main import Capture
from tests.fake_engine import Engine, fusion, near_miss
from tests.reporting.test_records import SCHEMA, violations


def test_report_says_what_where_and_why_not(model: Path, engine: Engine, capsys: Capture) -> None:
    engine.fusions = [fusion(scope=f"/enc/layer.{layer}/norm") for layer in range(12)]
    engine.near_misses = [near_miss(scope=f"/enc/{layer}") for layer in range(3, 9)]
    assert main(["report", str(model)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines() == [
        "model.onnx",
        "  110 → 14 nodes (-87%)",
        "",
        "  fusion                  sites  launches saved  traffic saved",
        "  LayerNormalization         12              96          12 kB",
        "    /enc/layer.0-11/norm     12",
        "",
        "  nearly fused",
        "  6 × LayerNormalization at /enc/3-8/Div: Pow exponent wants 2, saw 3",
        "",
    ]
    assert os.listdir() == ["model.onnx"]


def test_report_as_json(models: list[str], engine: Engine, capsys: Capture) -> None:
    engine.fusions, engine.near_misses = [fusion()], [near_miss()]
    assert main(["report", models[0], "--format", "json", "--shape", "x:2,8"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert violations(data, SCHEMA) == []
    assert (data["model"], data["output"]) == ("model.onnx", None)
    assert engine.calls[0]["shapes"] == {"x": (2, 8)}

    assert main(["report", *models, "--format", "json"]) == 2
    out, err = capsys.readouterr()
    assert [found["model"] for found in json.loads(out)] == ["model.onnx", "third.onnx"]
    assert err.count("\n") == 1


def test_why(model: Path, engine: Engine, capsys: Capture) -> None:
    engine.fusions, engine.near_misses = [fusion("Gelu")], [near_miss(), near_miss(scope="/enc/layer.4")]
    assert main(["report", str(model), "--why", "LayerNormalization"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "model.onnx",
        "  nearly fused",
        "  2 × LayerNormalization at /enc/layer.3-4/Div: Pow exponent wants 2, saw 3",
        "      /enc/layer.3/Div",
        "      /enc/layer.4/Div",
        "      2_norm/layer_normalization.rule:6",
        "",
    ]
    assert main(["report", str(model), "--why", "LayerNormalization", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["fusions"], len(data["near_misses"])) == ([], 2)
    engine.near_misses = []
    assert main(["report", str(model), "--why", "LayerNormalization"]) == 0
    assert "nothing in this model comes near LayerNormalization" in capsys.readouterr().out


def test_explain(model: Path, engine: Engine, capsys: Capture) -> None:
    def explained(node: str) -> str:
        assert main(["report", str(model), "--explain", node]) == 0
        return capsys.readouterr().out

    engine.fusions = [fusion(scope="/enc", replaced=("relu", "other"))]
    out = explained("relu")
    assert out.startswith("relu (Relu) in model.onnx\n  is one of 2 nodes that become LayerNormalization at /enc\n")
    assert "saves 8 launches and 1 kB of traffic" in out
    assert "nodes: relu, other" in out
    assert "is one of 2 nodes" in explained("r"), "a value stands for the node that makes it"

    engine.fusions, engine.near_misses = [], [near_miss(scope="", node="x")]
    assert "no rule has MatMul: onnxfuse leaves it as it is" in explained("matmul")
    proto = broken.model(broken.layer_norm("x", "y", ""), initializers=broken.norm_constants())
    onnx.save(proto, model)
    assert "no rule came near it; ReduceMean is part of LayerNormalization" in explained("ReduceMean")
    assert "no rule came near it\n" in explained("Div")
    engine.near_misses = [near_miss(scope="", node="x")]
    engine.near_misses = [type(near_miss())("Gelu", "gelu.rule:3", "", "Div", "divisor wants sqrt(2), saw a tensor")]
    assert "stopped Gelu: divisor wants sqrt(2), saw a tensor\n    gelu.rule:3" in explained("Div")
    assert main(["report", str(model), "--explain", "Dvi"]) == 2
    assert "Dvi: no such node in this model: did you mean Div?" in capsys.readouterr().err


@pytest.fixture
def bert(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A real model, from another folder."""
    monkeypatch.chdir(tmp_path)
    return Path(__file__).parents[3] / "models" / "bert.ts.onnx"


def test_a_page(bert: Path, capsys: Capture) -> None:
    assert main(["report", str(bert), "--html", "page.html", "--format", "json"]) == 0
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert err == ""
    assert violations(told, SCHEMA) == []
    text = Path("page.html").read_text()
    shown = json.loads(text.split('id="data">')[1].split("</script>")[0])
    assert shown["head"]["launches"] == [told["before"]["launches"], told["after"]["launches"]]
    assert shown["head"]["model"] == told["model"] == str(bert)
    assert len(told["nodes"]["before"]) == told["nodes_before"] == len(shown["before"]["name"])
    assert len(shown["fusions"]) == len(told["fusions"])
    assert len(shown["before"]["op"]) == told["nodes_before"]
    assert shown["rules"].keys() >= {path for fusion in told["fusions"] for path in fusion["sources"]}


def test_nodes_are_told_where_they_are_asked_for(bert: Path, capsys: Capture) -> None:
    assert main(["report", str(bert), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["nodes"] is None
    assert main(["report", str(bert), "--format", "json", "-v"]) == 0
    assert json.loads(capsys.readouterr().out)["nodes"]["card"] == "h200"


def test_a_page_for_each_of_several(bert: Path, capsys: Capture) -> None:
    shutil.copy(bert, "other.onnx")
    assert main(["report", str(bert), "other.onnx", "--html", "pages"]) == 0
    assert capsys.readouterr().out.count("  page in pages/") == 2
    assert sorted(os.listdir("pages")) == [f"{bert.stem}.html", "other.html"]


@pytest.mark.parametrize(
    ("place", "complaint"),
    [
        ("gone/page.html", "gone/page.html: there is no folder gone: make it first, or choose another"),
        ("model.onnx", "model.onnx is a file that was given to read: name another to write to"),
        ("/dev/null", "/dev/null is a device, not a file: name a file to write to"),
    ],
)
def test_a_page_that_cannot_be_written(
    place: str, complaint: str, model: Path, engine: Engine, capsys: Capture
) -> None:
    before = model.read_bytes()
    assert main(["report", str(model), "--html", place]) == 2
    assert capsys.readouterr() == ("", f"onnxfuse: error: {complaint}\n")
    assert (engine.calls, os.listdir(), model.read_bytes()) == ([], ["model.onnx"], before)


def test_why_of_regions(model: Path, engine: Engine, capsys: Capture) -> None:
    engine.fusions = [fusion("Mul Add", op="onnxfuse.Region"), fusion("Gelu")]
    engine.near_misses = [near_miss("Region"), near_miss("Gelu")]
    assert main(["report", str(model), "--why", "Region"]) == 0
    out = capsys.readouterr().out
    assert "Mul Add" in out
    assert "1 × Region at" in out
    assert "Gelu" not in out
    assert main(["report", str(model), "--ignore", "Region"]) == 2, "it is no rule"
