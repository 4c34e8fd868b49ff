"""What the page shows is what the report says."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from onnxfuse.reporting.html.data import page_data
from onnxfuse.reporting.records import LeftOut, Nodes, Placement, Report, Validation

from .made import HOSTILE, hostile, layered, node, report


def data(found: Report, rules: dict[str, str] | None = None) -> dict[str, Any]:
    assert found.nodes is not None
    return json.loads(json.dumps(page_data(found, found.nodes, rules or {}), allow_nan=False))  # type: ignore[no-any-return]


def test_the_head_has_the_numbers_of_the_report() -> None:
    found = replace(layered(2, 20), target="ort", provider="cuda", assumed="x:2", shapes={"x": (2,)})
    head = data(found)["head"]
    assert head["nodes"] == [found.nodes_before, found.nodes_after] == [40, 8]
    assert head["launches"] == [found.before.launches, found.after.launches]
    assert head["bytes"] == [found.before.bytes, found.after.bytes]
    assert head["proof"].startswith("same numbers in onnxruntime: largest error 1.0e-07 in 2 runs")
    assert head["runs"][0] == "runs in onnxruntime 1.20 and later; older ones are not known; needs local functions"
    assert (head["target"], head["sizes"]) == ("--target ort --provider cuda", "at x:2, assumed: --shape x:2")


def test_a_report_that_ran_nothing_says_how_to_prove() -> None:
    assert "onnxfuse optimize proves" in data(report([], []))["head"]["proof"]
    off = data(report([], [], validation=Validation("not validated", note="validation is off")))["head"]
    assert (off["verdict"], off["proof"]) == ("not validated", "not validated: validation is off")
    wrong = data(report([], [], validation=Validation("mismatch", note="y differs")))["head"]
    assert (wrong["verdict"], wrong["proof"]) == ("mismatch", "other numbers in onnxruntime: y differs")
    judged = data(report([], [], validation=Validation("equal", note="y is zero", reference_error=(1e-6, 2e-6))))[
        "head"
    ]
    assert judged["proofNotes"] == [
        "y is zero",
        "largest error against float64: 1.0e-06 of the original, 2.0e-06 of the fused model",
    ]


def test_nodes_stand_in_columns() -> None:
    before = [node("a", "Exp", "/m", becomes=0), node("b", "Neg", "/m", becomes=0, reads=(0,)), node("c", "Cast", "/m")]
    after = [node("F", "onnxfuse.F", "/m", compute_seconds=3e-6, bound="flops", bytes=None)]
    found = data(report(before, after))
    words, columns = found["words"], found["before"]
    assert columns["name"] == ["a", "b", "c"]
    assert [words[-1 - scope] for scope in columns["scope"]] == ["/m"] * 3
    assert (columns["becomes"], columns["reads"]) == ([0, 0, -1], [[], [1], []])
    assert (columns["launched"], columns["bound"], columns["kind"]) == ("111", "lll", "mmm")
    now = found["after"]
    assert (now["work"], now["kind"], now["bound"], now["bytes"]) == ([3000], "c", "c", [None])
    assert found["launch"] == 2500


def test_a_name_outside_its_module_stands_in_full() -> None:
    found = data(report([replace(node("a", "Exp", "/m"), name="node_exp")], []))
    assert found["before"]["name"] == ["node_exp"]
    assert found["words"][found["before"]["scope"][0]] == "/m"


def test_what_stays_as_it_is_is_told_once() -> None:
    kept = node("k", "MatMul", "/m")
    found = data(report([node("x", "Cast"), replace(kept, becomes=0)], [replace(kept, reason="a product by itself")]))
    assert found["after"]["same"] == [1]
    assert found["after"]["name"] == []
    assert found["words"][found["after"]["reason"][0]] == "a product by itself"
    changed = data(report([replace(kept, becomes=0)], [replace(kept, bytes=1)]))
    assert changed["after"]["same"] == [-1]


def test_launches_of_layers_that_are_alike_are_one_line() -> None:
    found = layered(3, 20)
    lines = data(found)["hot"]
    assert found.nodes is not None
    assert [(line["op"], line["rule"], line["where"], len(line["nodes"])) for line in lines] == [
        ("MatMul", "", "/model/layers.0-2/block_a/attention", 3),
        ("MatMul", "", "/model/layers.0-2/block_b/attention", 3),
        ("onnxfuse.LayerNormalization", "LayerNormalization", "/model/layers.0-2/block_a/attention", 3),
        ("onnxfuse.LayerNormalization", "LayerNormalization", "/model/layers.0-2/block_b/attention", 3),
    ]


def test_near_misses_stand_in_groups() -> None:
    (miss,) = data(layered(4, 20))["misses"]
    assert (miss["rule"], miss["gain"], miss["count"], len(miss["nodes"])) == ("Gelu", 24, 8, 8)
    assert miss["where"] == ["/model/layers.0-3/block_a/attention/Pow_9", "/model/layers.0-3/block_b/attention/Pow_19"]


def test_what_was_left_out_and_what_falls_back() -> None:
    base = layered(1, 20)
    left = LeftOut(base.fusions[0], float("nan"), "has NaN")
    fallen = Placement("1.31", {"NonZero: int4": 3}, {"NonZero: int4": 2}, (0, 0))
    found = data(replace(base, left_out=[left], placement=fallen, runs=None))
    assert found["leftOut"] == [{"rule": "LayerNormalization", "where": base.fusions[0].scope, "reason": "has NaN"}]
    assert found["head"]["runs"][0] == (
        "nodes that fall back to the CPU: 3 → 2 (kernels of onnxruntime 1.31); 2 × NonZero: int4"
    )


@pytest.mark.parametrize("name", HOSTILE)
def test_what_no_page_shows_is_written_out(name: str) -> None:
    text = json.dumps(data(hostile()), ensure_ascii=False)
    assert text.replace("\n", "").isprintable()
    shown = name.replace("\x00", "\\x00").replace("\x1b", "\\x1b").replace("\t", "\\t")
    shown = shown.replace("\u202e", "\\u202e").replace("\u2028", "\\u2028")
    assert shown in data(hostile())["words"]


def test_times_are_as_exact_as_they_are_read() -> None:
    nodes = Nodes("h200", (node("a", "Add", memory_seconds=1.23456789e-6, bound="bytes"),), ())
    assert page_data(report([], []), nodes, {})["before"]["work"] == [1235]
