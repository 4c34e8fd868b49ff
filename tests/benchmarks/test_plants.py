"""Every mistake that is planted in a rule is found at its site: a relative error of 1e-5, an epsilon, an axis."""

from __future__ import annotations

import onnx
import pytest

from benchmarks.plants import TARGETS, Model, Original
from benchmarks.rule_mistakes import plants
from onnxfuse.language.catalogue import load
from tests.exports import MODELS, until

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
LAYER = (("onnxfuse", "attention"), ("onnx", "attention"), ("ort", "smooth"))
"""Targets, and what the paths of the rules have in them."""
FIRST_LAYER = "/bert/encoder/layer.0/output/LayerNorm/LayerNormalization_output_0"
GUARD = "onnxruntime's Attention gives 0 for a row that its mask hides throughout; the guard is for others"
BENEATH = {
    ("bert.ts", "onnx", "fusions/2_ops/attention/attention.rule: nan_to_zero forgotten"): GUARD,
}
"""Plants that move no number of a model by two units of its last place, and why they cannot."""


def check(name: str, proto: onnx.ModelProto, target: str, rules: str = "") -> None:
    """Every plant that changes the fused model is found at its site, but for those listed."""
    model = Model(Original.parts(proto), CATALOGUE.serving(TARGETS[target]))
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
    check(name, onnx.load(MODELS / f"{name}.onnx"), "onnxfuse")


@pytest.mark.parametrize(("target", "rules"), LAYER)
def test_so_it_is_in_a_layer_of_a_model(target: str, rules: str) -> None:
    check("bert.ts", until(onnx.load(MODELS / "bert.ts.onnx"), FIRST_LAYER), target, rules)


def test_every_rule_has_plants() -> None:
    """Those that emit no equation of their own but views and flags have none."""
    without = [rule.path for rule in CATALOGUE.rules if not any(plants(rule))]
    assert len(without) < len(CATALOGUE.rules) // 3
