"""`check` fails where a model no longer has the fusions that it had, or that are asked of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onnxfuse.cli.main import main
from tests.fake_engine import Engine, fusion, near_miss

Capture = pytest.CaptureFixture[str]


def test_check_without_demands_passes_and_says_so(model: Path, engine: Engine, capsys: Capture) -> None:
    engine.fusions = [fusion(), fusion("Gelu"), fusion("Gelu")]
    assert main(["check", str(model)]) == 0
    out, err = capsys.readouterr()
    assert out == "model.onnx: 2 Gelu, 1 LayerNormalization\n"
    assert err == "onnxfuse: nothing is demanded: give --expect or --baseline\n"


def test_check_expectations(model: Path, engine: Engine, capsys: Capture) -> None:
    engine.fusions, engine.near_misses = [fusion()], [near_miss()]
    assert main(["check", str(model), "--expect", "LayerNormalization>=1", "--expect", "Gelu==0"]) == 0
    assert capsys.readouterr().err == ""
    assert main(["check", str(model), "--expect", "LayerNormalization>=2", "-q"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "model.onnx: expectation: expected LayerNormalization >= 2, found 1",
        "  nearly fused",
        "  1 × LayerNormalization at /enc/layer.3/Div: Pow exponent wants 2, saw 3",
    ]


def test_check_against_a_baseline(model: Path, engine: Engine, capsys: Capture) -> None:
    engine.fusions = [fusion(), fusion(scope="/enc/layer.3")]
    baseline = ["check", str(model), "--baseline", "baseline.json"]
    assert main([*baseline, "--update-baseline"]) == 0
    first = Path("baseline.json").read_bytes()
    assert main(baseline) == 0
    capsys.readouterr()

    engine.fusions, engine.near_misses = [fusion()], [near_miss()]
    assert main([*baseline, "-q"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "model.onnx: lost: LayerNormalization at /enc/layer.3: 1 before, 0 now",
        "  nearly fused",
        "  1 × LayerNormalization at /enc/layer.3/Div: Pow exponent wants 2, saw 3",
    ]
    assert Path("baseline.json").read_bytes() == first

    engine.fusions = [fusion(), fusion(scope="/enc/layer.3"), fusion("Gelu")]
    assert main(baseline) == 0
    assert capsys.readouterr().err == "onnxfuse: 1 new since the baseline: keep with --update-baseline\n"


def test_update_keeps_what_the_baseline_says_of_other_models(
    models: list[str], engine: Engine, capsys: Capture
) -> None:
    engine.fusions = [fusion()]
    assert main(["check", models[0], "--baseline", "baseline.json", "--update-baseline"]) == 0
    assert main(["check", models[2], "--baseline", "baseline.json"]) == 1
    assert "no baseline: the baseline does not have third.onnx" in capsys.readouterr().out
    assert main(["check", models[2], "--baseline", "baseline.json", "--update-baseline"]) == 0
    assert main(["check", models[0], models[2], "--baseline", "baseline.json"]) == 0


def test_check_as_json(models: list[str], engine: Engine, capsys: Capture) -> None:
    engine.near_misses = [near_miss()]
    assert main(["check", *models, "--expect", "LayerNormalization>=1", "--format", "json"]) == 2, "unreadable is worse"
    data = json.loads(capsys.readouterr().out)
    assert [found["model"] for found in data["models"]] == ["model.onnx", "third.onnx"]
    (finding,) = data["models"][0]["findings"]
    assert (finding["kind"], finding["near_misses"][0]["node"]) == ("expectation", "/enc/layer.3/Div")
