"""Every mistake that is planted in a rule is found at its site: a relative error of 1e-5, an epsilon, an axis."""

from __future__ import annotations

from collections import Counter

import onnx
import pytest

from benchmarks.plants import Model, Plant, plants
from onnxfuse.language.catalogue import load
from onnxfuse.targets.target import Target
from tests.exports import MODELS

CATALOGUE = load()
SMALL = {
    "activations": 12,
    "softmax": 4,
    "layernorm_tensorflow": 7,
    "conv_batchnorm": 2,
    "gemm_batchnorm": 4,
    "quick_gelu": 15,
    "batchnorm_first": 5,
}
"""Models, and how many plants change something in them, at the least."""
WHOLE = [("bert.ts", "onnxfuse", "attention"), ("bert.ts", "ort", "gelu")]


def found(model: Model, plants: list[Plant]) -> Counter[str]:
    outcomes = {str(plant): model.outcome(plant) for plant in plants}
    assert [plant for plant, outcome in outcomes.items() if outcome in ("missed", "outputs")] == []
    return Counter(outcomes.values())


@pytest.mark.parametrize("name", SMALL)
def test_what_is_planted_is_found_at_its_site(name: str) -> None:
    model = Model(onnx.load(MODELS / f"{name}.onnx"), CATALOGUE.serving(Target("onnxfuse")))
    assert model.clean()
    assert found(model, model.plants())["site"] >= SMALL[name]


@pytest.mark.parametrize(("name", "target", "rules"), WHOLE)
def test_so_it_is_in_whole_models(name: str, target: str, rules: str) -> None:
    model = Model(onnx.load(MODELS / f"{name}.onnx"), CATALOGUE.serving(Target(target)))
    chosen = [plant for plant in model.plants() if rules in plant.rule.path]
    assert model.clean()
    assert found(model, chosen)["site"] >= 1


def test_every_rule_has_plants() -> None:
    """Those that emit no equation of their own but views and flags have none."""
    without = [rule.path for rule in CATALOGUE.rules if not any(plants(rule))]
    assert len(without) < len(CATALOGUE.rules) // 3
