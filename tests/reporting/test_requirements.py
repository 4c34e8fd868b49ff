"""Expectations, baselines, and what is said when they are not met."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from onnxfuse.errors import UsageError
from onnxfuse.reporting import requirements
from onnxfuse.reporting.baseline import Kept, sites
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


def test_nothing_is_lost_if_nothing_changed() -> None:
    assert requirements.lost(BEFORE, sites(BEFORE)) == []
    assert requirements.gained(BEFORE, sites(BEFORE)) == 0


def test_nodes_may_be_renamed() -> None:
    renamed = report(*(fusion(f.rule, f.scope, node="other", replaced=("x", "y")) for f in BEFORE.fusions))
    assert requirements.lost(renamed, sites(BEFORE)) == []


def test_a_lost_fusion_is_named_with_the_near_misses_of_its_scope() -> None:
    inside, elsewhere = near_miss(scope="/enc/3/norm"), near_miss(scope="/enc/30")
    now = report(fusion(scope="/enc/3"), fusion(scope="/enc/10"), fusion("Gelu", scope=""), misses=[inside, elsewhere])
    (finding,) = requirements.lost(now, sites(BEFORE))
    assert finding.kind == "lost"
    assert (finding.rule, finding.scope) == ("LayerNormalization", "/enc/3")
    assert finding.message == "LayerNormalization at /enc/3: 2 before, 1 now"
    assert finding.near_misses == (inside,)


def test_a_fusion_lost_at_the_top_of_the_graph() -> None:
    now = report(
        *(found for found in BEFORE.fusions if found.rule != "Gelu"), misses=[near_miss("Gelu", scope="/enc/3")]
    )
    (finding,) = requirements.lost(now, sites(BEFORE))
    assert finding.message == "Gelu at the top of the graph: 1 before, 0 now"
    assert finding.near_misses == ()


def test_a_larger_fusion_in_its_place_is_mentioned() -> None:
    before = report(fusion(scope="/enc/3"))
    (finding,) = requirements.lost(report(fusion("SkipLayerNormalization", scope="/enc/3")), sites(before))
    assert finding.message.endswith("(SkipLayerNormalization is new there: if that is better, --update-baseline)")


def test_new_fusions_are_counted_and_no_finding() -> None:
    now = report(*BEFORE.fusions, fusion(scope="/enc/3"), fusion("Attention", scope="/enc/3"))
    assert requirements.lost(now, sites(BEFORE)) == []
    assert requirements.gained(now, sites(BEFORE)) == 2


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        (("FusedMatMul", ["Gelu"]), None, ["FusedMatMul"]),
        (("FusedMatMul", ["Gelu"]), ("FusedMatMul", []), ["Gelu"]),
        (("FusedMatMul", ["Gelu"]), ("Gelu", []), ["FusedMatMul"]),
        (("Mlp", ["FusedMatMul", "FusedMatMul", "Gelu"]), ("FusedMatMul", []), ["Mlp"]),
        (("Mlp", ["FusedMatMul", "Gelu"]), ("Mlp", ["Gelu"]), ["FusedMatMul"]),
    ],
)
def test_what_is_gone_is_told_once(
    before: tuple[str, list[str]], now: tuple[str, list[str]] | None, told: list[str]
) -> None:
    then, left = (report(*([fusion(each[0], absorbed=tuple(each[1]))] if each else [])) for each in (before, now))
    assert [finding.rule for finding in requirements.lost(left, sites(then))] == told


def test_an_old_baseline_tells_all_that_is_gone() -> None:
    before = Counter({Kept("/enc", "FusedMatMul"): 1, Kept("/enc", "Gelu"): 1})
    assert [finding.rule for finding in requirements.lost(report(), before)] == ["FusedMatMul", "Gelu"]


def test_layers_are_told_together() -> None:
    layers = [fusion(scope=f"/layers.{i}/norm") for i in range(12)]
    before = sites(report(*layers, layers[11], fusion(scope="/norm")))
    misses = [near_miss(scope=f"/layers.{i}/norm/x") for i in (0, 3)]
    all_layers, alone, last = requirements.lost(report(misses=misses), before)
    assert all_layers.scope == "/layers.0-10/norm"
    assert all_layers.message == "LayerNormalization at /layers.0-10/norm: 1 before, 0 now in each of 11 modules"
    assert all_layers.scopes == tuple(f"/layers.{i}/norm" for i in range(11))
    assert all_layers.near_misses == tuple(misses)
    assert (alone.scope, alone.scopes) == ("/layers.11/norm", ("/layers.11/norm",))
    assert last.message == "LayerNormalization at /norm: 1 before, 0 now"


def test_what_stops_a_part_is_why_the_whole_is_gone() -> None:
    before = sites(report(fusion("SkipLayerNormalization", scope="/norm", absorbed=("LayerNormalization",))))
    inner, other = near_miss(scope="/norm"), near_miss("Gelu", scope="/norm/act")
    (finding,) = requirements.lost(report(misses=[other, inner]), before)
    assert finding.near_misses == (inner,)
    around, beside = near_miss("Gelu", scope=""), near_miss("Gelu", scope="/norm2")
    (finding,) = requirements.lost(report(misses=[around, other, beside]), before)
    assert finding.near_misses == (other,), "nothing else says why"


def test_who_wrote_the_baseline_is_said() -> None:
    (finding,) = requirements.lost(report(), sites(report(fusion())), " (before by A, now by B)")
    assert finding.message.endswith("1 before, 0 now (before by A, now by B)")


def test_models_that_are_not_given() -> None:
    (finding,) = requirements.not_given(Path("b.jsonl"), {"a.onnx": 2, "gone.onnx": 7}, ["a.onnx", "new.onnx"])
    assert (finding.kind, finding.model, finding.calls) == ("not given", "gone.onnx", ("b.jsonl:7",))
    assert "--partial" in finding.message
    assert "--prune" in finding.message


def test_a_model_that_the_baseline_does_not_know() -> None:
    (finding,) = requirements.lost(BEFORE, None)
    assert finding.kind == "no baseline"
    assert finding.message == "the baseline does not have bert.onnx: add it with --update-baseline"


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
        "scopes": [],
        "code": "",
        "calls": [],
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
