"""Folders of rules: found, named, chosen and put in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxfuse.errors import RuleError, UsageError
from onnxfuse.language import catalogue
from onnxfuse.targets.target import Target


def test_a_folder_without_rules_says_how_to_begin(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="rules new"):
        catalogue.load([tmp_path])


def test_an_unknown_rule_name_is_answered_with_the_closest(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean LayerNormalization"):
        catalogue.load().named("LayerNormalisation")


def written(tmp_path: Path, **rules: str) -> catalogue.Catalogue:
    """The shipped rules and these: folder and file → rule."""
    for name, text in rules.items():
        (tmp_path / f"{name}.rule").write_text(text)
    return catalogue.load([tmp_path])


TWICE = "# Twice.\nTwice(x)\n\nmatch:  y = 2 * Cos(x)\nemit:   y = Twice(x)\n"


def test_rules_are_chosen_by_name_and_definitions_stay(tmp_path: Path) -> None:
    whole = written(tmp_path, a=TWICE)
    assert {rule.name for rule in whole.choose(["Twice", "Gelu"])} == {"Twice", "Gelu"}
    assert "Twice" not in {rule.name for rule in whole.choose(ignore=["Twice"])}
    assert len(whole.choose(ignore=["Twice"])) == len(whole) - len(whole.named("Twice"))
    assert "Twice" in whole.choose(ignore=["Twice"]).definitions
    with pytest.raises(UsageError, match="no rule is called Gello; did you mean Gelu"):
        whole.choose(ignore=["Gello"])


def test_a_definition_is_the_meaning_or_the_first_rule_that_emits_its_own_parameters(tmp_path: Path) -> None:
    meaning = "# Meant.\nThrice(x)\n\nmeaning:  y = 3 * Cos(x)\n"
    other = "# Another way.\nThrice(x)\n\nmatch:  y = Cos(x) + 2 * Cos(x)\nemit:   y = Thrice(x)\n"
    turned = "# No definition.\nBoth(x, w)\n\nmatch:  y = Cos(x) * Sin(w)\nemit:   y = Both(w, x)\n"
    found = written(tmp_path, a=TWICE, b=other, c=meaning).definitions
    assert found["Twice"].blocks
    assert found["Thrice"].meaning
    with pytest.raises(RuleError, match="unknown op Both"):
        written(tmp_path, d=turned)


def test_fusions_run_by_the_number_of_their_folder_and_lowerings_after_them() -> None:
    whole = catalogue.load()
    ranks = [{rule.rank for rule in stratum} for stratum in whole.strata()]
    assert all(len(rank) == 1 for rank in ranks)
    assert ranks == sorted(ranks, key=min)
    assert {rule.target for stratum in whole.strata() for rule in stratum} == {""}
    folders = {rule.target for stratum in whole.serving(Target("ort")).lowerings() for rule in stratum}
    assert folders == {"onnx", "contrib", "ort"}


def test_a_target_without_functions_has_only_fusions_that_lead_to_its_ops() -> None:
    whole = catalogue.load()
    ours = {rule.op for stratum in whole.strata() for rule in stratum}
    standard = {rule.op for stratum in whole.serving(Target("onnx")).strata() for rule in stratum}
    assert standard < ours
    assert "Gelu" in standard


def test_the_shipped_rules_are_read_once() -> None:
    assert catalogue.load() is catalogue.load()
    assert catalogue.load().names == sorted(set(catalogue.load().names))


def test_what_is_no_folder_holds_no_rules(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a folder; --rules wants a folder"):
        catalogue.load([tmp_path / "none"])


def test_rules_are_short() -> None:
    """Comments aside; but for the definition of Attention, which has eleven inputs."""
    rules = (*catalogue.load().rules, *catalogue.load().definitions.values())
    said = {
        rule: [line for line in rule.text.splitlines() if line.strip() and line.lstrip()[0] != "#"] for rule in rules
    }
    assert {rule.path for rule, lines in said.items() if len(lines) > 25} == {"ops/attention.rule"}
