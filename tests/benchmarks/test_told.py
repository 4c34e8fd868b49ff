"""What is counted of reports."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.told import Told, summarize, told

MODELS = Path(__file__).parents[2] / "models"


def test_a_model_of_each_exporter(capsys: pytest.CaptureFixture[str]) -> None:
    found = {name: told(MODELS / f"{name}.onnx") for name in ("bert.dynamo", "bert.ts")}
    assert found["bert.dynamo"].unknown == 0
    assert found["bert.dynamo"].fused >= 18
    assert "/bert/encoder/layer.1/attention" in found["bert.ts"].modules
    summarize(found)
    assert "1 in both exports: 1 with the same fusions in the same modules\n" in capsys.readouterr().out


def test_what_differs_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    one = Told(1, 2, 1, Counter({("Gelu", "/a"): 1, ("Gelu", "/b"): 1}), frozenset({"", "/a", "/b"}))
    other = replace(one, places=Counter({("Gelu", "/a"): 1}), modules=frozenset({"", "/a"}))
    summarize({"m.dynamo": one, "m.ts": other})
    assert capsys.readouterr().out.splitlines() == [
        "m: Gelu at /b: dynamo alone",
        "2 models: 2 ? in reports",
        "1 dynamo exports: 1 of 2 fused nodes with a line of Python",
        "1 in both exports: 0 with the same fusions in the same modules",
        "of the others, 1 fusions in a module that the other export does not have",
    ]
