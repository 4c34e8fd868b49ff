"""`rules` lists, shows, tests and begins rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from onnxfuse.cli.main import main
from tests import fake_engine
from tests.fake_engine import Engine

Capture = pytest.CaptureFixture[str]


@pytest.mark.usefixtures("engine")
def test_rules_list(capsys: Capture) -> None:
    assert main(["rules", "list"]) == 0
    assert capsys.readouterr().out == (
        "1_act\n"
        "  Gelu                                      GELU, exact.\n"
        "2_norm\n"
        "  LayerNormalization → onnxfuse.LayerNormalization  Nine nodes become one.\n"
    )


def test_rules_list_has_a_short_line_for_each(capsys: Capture) -> None:
    assert main(["rules", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 100
    assert max(map(len, lines)) <= 120
    assert any(line.startswith("  LayerNormalization ") for line in lines)


def test_only_the_first_sentence_is_listed(tmp_path: Path, engine: Engine, capsys: Capture) -> None:
    doc = "One of e.g. many,\nand so on (Ba et al., 2016). Another.  A third."
    fake_engine.RULES.append(fake_engine.Rule("Own", "Own", "own.rule", doc, "9_user", ""))
    try:
        assert main(["rules", "list"]) == 0
    finally:
        fake_engine.RULES.pop()
    assert capsys.readouterr().out.splitlines()[-1].endswith("  One of e.g. many, and so on (Ba et al., 2016).")


@pytest.mark.usefixtures("engine")
def test_rules_show(capsys: Capture) -> None:
    assert main(["rules", "show", "Gelu"]) == 0
    out, err = capsys.readouterr()
    assert out == "Gelu(x)\nmatch:\n    y = x * Erf(x)\n"
    assert err == "rules/1_act/gelu.rule\n"


@pytest.mark.usefixtures("engine")
def test_rules_test_says_every_claim_of_one_rule(capsys: Capture) -> None:
    assert main(["rules", "test", "LayerNormalization"]) == 0
    where = "LayerNormalization (rules/2_norm/layer_normalization.rule)"
    assert capsys.readouterr().out.splitlines() == [
        f"ok     {where}: matched: plain",
        f"ok     {where}: float16 body: plain: error 0.5",
        "2 of 2 claims hold",
    ]


@pytest.mark.usefixtures("engine")
def test_rules_test_of_all_says_what_does_not_hold(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "Mine.rule").touch()
    assert main(["rules", "test", "--rules", str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "FAILED Gelu (rules/1_act/gelu.rule): float16 body: plain: error 0.5",
        "ok     LayerNormalization (rules/2_norm/layer_normalization.rule): 2 claims",
        f"-      Mine ({tmp_path / 'Mine.rule'}): has no `test:` line",
        "3 of 4 claims hold",
    ]


def test_a_new_rule_makes_its_folder(tmp_path: Path, capsys: Capture) -> None:
    assert main(["rules", "new", "UnitScale", "--rules", str(tmp_path / "my" / "rules")]) == 0
    assert (tmp_path / "my" / "rules" / "unit_scale.rule").exists()
    (tmp_path / "file").touch()
    assert main(["rules", "new", "UnitScale", "--rules", str(tmp_path / "file" / "in")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_new_rule_passes_its_test(tmp_path: Path, capsys: Capture) -> None:
    assert main(["rules", "new", "UnitScale", "--rules", str(tmp_path)]) == 0
    assert main(["rules", "test", "UnitScale", "--rules", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "6 of 6 claims hold"


@pytest.mark.usefixtures("engine", "model")
def test_rules_new(capsys: Capture) -> None:
    assert main(["rules", "new", "MyNorm2D"]) == 0
    assert Path("my_norm2_d.rule").read_text() == "# MyNorm2D to begin with.\nMyNorm2D(x)\n"
    assert "onnxfuse rules test MyNorm2D --rules ." in capsys.readouterr().out
    assert main(["rules", "new", "MyNorm2D"]) == 2
    assert "my_norm2_d.rule exists: give another name, or delete it first" in capsys.readouterr().err
