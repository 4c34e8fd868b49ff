"""Every mistake that is planted in a rule is found at its site: a relative error of 1e-5, an epsilon, an axis."""

from __future__ import annotations

import onnx
import pytest

from benchmarks.plants import TARGETS, Model, Original
from benchmarks.rule_mistakes import plants
from onnxfuse.language.catalogue import load
from tests.exports import MODELS

CATALOGUE = load()
SMALL = (
    "activations",
    "softmax",
    "layernorm_tensorflow",
    "conv_batchnorm",
    "gemm_batchnorm",
    "quick_gelu",
    "batchnorm_first",
    "control_if",
    "function_layernorm",
)
WHOLE = (("bert.ts", "onnxfuse", "attention"), ("bert.ts", "onnx", "attention"), ("bert.ts", "ort", "smooth"))
"""Models, targets, and what the paths of the rules have in them."""
GUARD = "onnxruntime's Attention gives 0 for a row that its mask hides throughout; the guard is for others"
BENEATH = {
    ("bert.ts", "onnx", "fusions/2_ops/attention/attention.rule: nan_to_zero forgotten"): GUARD,
}
"""Plants that move no number of a model by two units of its last place, and why they cannot."""


def check(name: str, target: str, rules: str = "") -> None:
    """Every plant that changes the fused model is found at its site, but for those listed."""
    model = Model(Original.parts(onnx.load(MODELS / f"{name}.onnx")), CATALOGUE.serving(TARGETS[target]))
    assert model.clean()
    outcomes = {str(plant): model.outcome(plant) for plant in model.plants() if rules in plant.rule.path}
    unseen = {
        (name, target, plant): what for plant, what in outcomes.items() if what not in ("site", "refused", "unused")
    }
    listed = {key for key in BENEATH if key[:2] == (name, target) and key[2] in outcomes}
    assert unseen == dict.fromkeys(listed, "beneath")
    assert "site" in outcomes.values()


@pytest.mark.parametrize("name", SMALL)
def test_what_is_planted_is_found_at_its_site(name: str) -> None:
    check(name, "onnxfuse")


@pytest.mark.parametrize(("name", "target", "rules"), WHOLE)
def test_so_it_is_in_whole_models(name: str, target: str, rules: str) -> None:
    check(name, target, rules)


def test_every_rule_has_plants() -> None:
    """Those that emit no equation of their own but views and flags have none."""
    without = [rule.path for rule in CATALOGUE.rules if not any(plants(rule))]
    assert len(without) < len(CATALOGUE.rules) // 3
