"""Expectations, baselines, and what is said when they are not met."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from onnxfuse.errors import ModelError, UsageError
from onnxfuse.reporting import requirements
from onnxfuse.reporting.records import Fusion, NearMiss, Report
from tests.fake_engine import fusion, near_miss


def report(*fusions: Fusion, misses: Sequence[NearMiss] = ()) -> Report:
    return Report("exports/bert.onnx", fusions=list(fusions), near_misses=list(misses))


@pytest.mark.parametrize(
    ("text", "name", "comparison", "count"),
    [
        ("Attention>=12", "Attention", ">=", 12),
        (" Attention <= 0 ", "Attention", "<=", 0),
        ("onnxfuse.Attention==3", "onnxfuse.Attention", "==", 3),
        ("Gelu>1", "Gelu", ">", 1),
        ("Gelu<2", "Gelu", "<", 2),
    ],
)
def test_expectations(text: str, name: str, comparison: str, count: int) -> None:
    assert requirements.parse(text) == requirements.Expectation(name, comparison, count)


@pytest.mark.parametrize(
    "text", ["", "Attention", "Attention=12", "Attention>=", ">=3", "Attention>=-1", "A>=1.5", "A!=1"]
)
def test_texts_that_are_no_expectation(text: str) -> None:
    with pytest.raises(UsageError, match=r"write RULE, one of >= <= == > <, and a number"):
        requirements.parse(text)


@pytest.mark.parametrize(
    ("text", "met"),
    [
        ("LayerNormalization>=2", True),
        ("LayerNormalization>=3", False),
        ("LayerNormalization<=2", True),
        ("LayerNormalization<=1", False),
        ("LayerNormalization==2", True),
        ("LayerNormalization==1", False),
        ("LayerNormalization>1", True),
        ("LayerNormalization>2", False),
        ("LayerNormalization<3", True),
        ("LayerNormalization<2", False),
        ("onnxfuse.LayerNormalization==2", True),
        ("Gelu==0", True),
        ("Gelu>=1", False),
    ],
)
def test_whether_an_expectation_is_met(text: str, met: bool) -> None:
    found = report(fusion(scope="/a"), fusion(scope="/b"))
    assert (requirements.disappointed(found, [requirements.parse(text)]) == []) is met


def test_a_rule_counts_under_the_op_that_it_makes() -> None:
    found = report(fusion("MaskedAttention", op="onnxfuse.Attention"), fusion("Attention"))
    assert (
        requirements.disappointed(found, [requirements.parse("Attention==2"), requirements.parse("MaskedAttention==1")])
        == []
    )


def test_a_rule_counts_inside_a_larger_fusion_as_well() -> None:
    found = report(fusion("FusedMatMul", absorbed=("Gelu",)), fusion("Gelu"))
    assert found.census == {"FusedMatMul": 1, "Gelu": 2}
    assert requirements.disappointed(found, [requirements.parse("Gelu==2"), requirements.parse("FusedMatMul==1")]) == []
    assert requirements.sites(found) == {"FusedMatMul": {"/enc/layer.0": 1}, "Gelu": {"/enc/layer.0": 2}}


def test_a_disappointment_comes_with_the_near_misses() -> None:
    misses = [near_miss(), near_miss("Gelu")]
    (finding,) = requirements.disappointed(
        report(fusion(), misses=misses), [requirements.parse("LayerNormalization>=2")]
    )
    assert finding.message == "expected LayerNormalization >= 2, found 1"
    assert finding.near_misses == (near_miss(),)


def test_near_misses_do_not_explain_why_there_are_too_many() -> None:
    (finding,) = requirements.disappointed(
        report(fusion(), misses=[near_miss()]), [requirements.parse("LayerNormalization<=0")]
    )
    assert finding.near_misses == ()


BEFORE = report(fusion(scope="/enc/3"), fusion(scope="/enc/3"), fusion(scope="/enc/10"), fusion("Gelu", scope=""))


def test_sites_are_counted_by_rule_and_scope() -> None:
    assert requirements.sites(BEFORE) == {"Gelu": {"": 1}, "LayerNormalization": {"/enc/10": 1, "/enc/3": 2}}


def test_nothing_is_lost_if_nothing_changed() -> None:
    assert requirements.lost(BEFORE, requirements.sites(BEFORE)) == []
    assert requirements.gained(BEFORE, requirements.sites(BEFORE)) == 0


def test_nodes_may_be_renamed() -> None:
    renamed = report(*(fusion(f.rule, f.scope, node="other", replaced=("x", "y")) for f in BEFORE.fusions))
    assert requirements.lost(renamed, requirements.sites(BEFORE)) == []


def test_a_lost_fusion_is_named_with_the_near_misses_of_its_scope() -> None:
    inside, elsewhere = near_miss(scope="/enc/3/norm"), near_miss(scope="/enc/30")
    now = report(fusion(scope="/enc/3"), fusion(scope="/enc/10"), fusion("Gelu", scope=""), misses=[inside, elsewhere])
    (finding,) = requirements.lost(now, requirements.sites(BEFORE))
    assert finding.kind == "lost"
    assert (finding.rule, finding.scope) == ("LayerNormalization", "/enc/3")
    assert finding.message == "LayerNormalization at /enc/3: 2 before, 1 now"
    assert finding.near_misses == (inside,)


def test_a_fusion_lost_at_the_top_of_the_graph() -> None:
    now = report(
        *(found for found in BEFORE.fusions if found.rule != "Gelu"), misses=[near_miss("Gelu", scope="/enc/3")]
    )
    (finding,) = requirements.lost(now, requirements.sites(BEFORE))
    assert finding.message == "Gelu at the top of the graph: 1 before, 0 now"
    assert finding.near_misses == ()


def test_a_larger_fusion_in_its_place_is_mentioned() -> None:
    before = report(fusion(scope="/enc/3"))
    (finding,) = requirements.lost(report(fusion("SkipLayerNormalization", scope="/enc/3")), requirements.sites(before))
    assert finding.message.endswith("(SkipLayerNormalization is new there: if that is better, --update-baseline)")


def test_new_fusions_are_counted_and_no_finding() -> None:
    now = report(*BEFORE.fusions, fusion(scope="/enc/3"), fusion("Attention", scope="/enc/3"))
    assert requirements.lost(now, requirements.sites(BEFORE)) == []
    assert requirements.gained(now, requirements.sites(BEFORE)) == 2


def test_a_model_that_the_baseline_does_not_know() -> None:
    (finding,) = requirements.lost(BEFORE, None)
    assert finding.kind == "no baseline"
    assert finding.message == "the baseline does not have bert.onnx: add it with --update-baseline"


def test_a_baseline_is_sorted_and_stable(tmp_path: Path) -> None:
    turned = Report(BEFORE.model, fusions=BEFORE.fusions[::-1])
    text = requirements.baseline_text({"b.onnx": {}, "a.onnx": requirements.sites(turned)})
    assert text == requirements.baseline_text({"a.onnx": requirements.sites(BEFORE), "b.onnx": {}})
    assert text == (
        "{\n"
        '  "models": {\n'
        '    "a.onnx": {\n'
        '      "Gelu": {\n'
        '        "": 1\n'
        "      },\n"
        '      "LayerNormalization": {\n'
        '        "/enc/10": 1,\n'
        '        "/enc/3": 2\n'
        "      }\n"
        "    },\n"
        '    "b.onnx": {}\n'
        "  },\n"
        '  "onnxfuse-baseline": 1\n'
        "}\n"
    )
    (tmp_path / "baseline.json").write_text(text)
    assert requirements.read_baseline(tmp_path / "baseline.json") == {
        "a.onnx": requirements.sites(BEFORE),
        "b.onnx": {},
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", r"is not JSON \(line 1\): restore it, or delete it and --update-baseline"),
        ("{\n<<<<<<< HEAD\n", r"is not JSON \(line 2\)"),
        ("\xff\xfe", "is not JSON"),
        ("[]", "is not an onnxfuse baseline"),
        ("{}", "is not an onnxfuse baseline"),
        ('{"onnxfuse-baseline": 1, "models": {"a": {"b": {"c": "1"}}}}', "is not an onnxfuse baseline"),
        ('{"onnxfuse-baseline": 2, "models": {}}', "is a baseline of version 2, this onnxfuse writes version 1"),
    ],
)
def test_files_that_are_no_baseline(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    path.write_text(content, encoding="latin-1")
    with pytest.raises(ModelError, match=message):
        requirements.read_baseline(path)


def test_no_baseline_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such baseline: make it with --update-baseline"):
        requirements.read_baseline(tmp_path / "gone.json")
    with pytest.raises(ModelError, match="cannot be read"):
        requirements.read_baseline(tmp_path)


def test_two_models_of_one_name() -> None:
    with pytest.raises(UsageError, match=r"2 models are named m\.onnx"):
        requirements.refuse_namesakes([Path("a/m.onnx"), Path("b/m.onnx"), Path("n.onnx")])


def test_findings_are_json() -> None:
    (finding,) = requirements.disappointed(report(misses=[near_miss()]), [requirements.parse("LayerNormalization>=1")])
    assert json.loads(json.dumps(finding.to_json())) == {
        "kind": "expectation",
        "model": "exports/bert.onnx",
        "rule": "LayerNormalization",
        "scope": None,
        "message": "expected LayerNormalization >= 1, found 0",
        "near_misses": [
            {
                "rule": "LayerNormalization",
                "source": "2_norm/layer_normalization.rule:6",
                "scope": "/enc/layer.3",
                "node": "/enc/layer.3/Div",
                "reason": "Pow exponent wants 2, saw 3",
                "launches_saved": 0,
                "code": "",
            }
        ],
    }
