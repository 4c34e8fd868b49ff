"""SARIF logs are valid, and lead to the user's source, to the rule, and to one alert for one finding."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from onnxfuse.language.catalogue import load
from onnxfuse.reporting.checked import Check, Checked
from onnxfuse.reporting.sarif import FINGERPRINT, fingerprint, sarif

from .checks import EVERYTHING, EXPECTED, GONE, LOST, NOTHING, TOP, UNKNOWN, repository

SCHEMA = json.loads((Path(__file__).parent / "schemas" / "sarif-2.1.0-rtm.5.json").read_text())


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return repository(tmp_path)


def run_of(check: Check, top: Path) -> dict[str, Any]:
    log = json.loads(json.dumps(sarif(check, load(), [top / "my_rules"], top, "1.2.3"), allow_nan=False))
    jsonschema.Draft4Validator(SCHEMA).validate(log)
    run: dict[str, Any] = log["runs"][0]
    return run


def test_the_schema_refuses_what_is_no_log() -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft4Validator(SCHEMA).validate({"version": "2.1.0", "runs": [{"tool": {}}]})


def test_a_log_of_everything_is_valid(top: Path) -> None:
    run = run_of(EVERYTHING, top)
    assert [result["ruleId"] for result in run["results"]] == [
        "LayerNormalization",
        "Gelu",
        "Own",
        "baseline/unknown-model",
        "baseline/model-not-given",
    ]
    ids = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert [ids[result["ruleIndex"]] for result in run["results"]] == [result["ruleId"] for result in run["results"]]
    assert run["tool"]["driver"]["semanticVersion"] == "1.2.3"


def test_a_log_of_nothing_is_valid(top: Path) -> None:
    run = run_of(NOTHING, top)
    assert (run["results"], run["invocations"][0]["executionSuccessful"]) == ([], True)


def test_a_result_lies_on_the_line_of_the_users_program(top: Path) -> None:
    lost, at_top, *_, gone = run_of(EVERYTHING, top)["results"]
    assert lost["locations"][0]["physicalLocation"] == {
        "artifactLocation": {"uri": "src/model.py", "uriBaseId": "%SRCROOT%"},
        "region": {"startLine": 436},
    }
    assert [place["fullyQualifiedName"] for place in lost["locations"][0]["logicalLocations"]] == list(LOST.scopes)
    assert at_top["locations"][0] == {
        "physicalLocation": {"artifactLocation": {"uri": "exports/bert.onnx", "uriBaseId": "%SRCROOT%"}}
    }
    assert gone["locations"][0]["physicalLocation"]["region"] == {"startLine": 4}


def test_a_result_names_the_line_of_the_rule(top: Path) -> None:
    lost, _, expected, *_ = run_of(EVERYTHING, top)["results"]
    rule, code = (related["physicalLocation"] for related in lost["relatedLocations"])
    assert rule["artifactLocation"]["uriBaseId"] == "ONNXFUSE_RULES"
    assert (rule["artifactLocation"]["uri"], rule["region"]) == (
        "fusions/2_ops/norm/layer_normalization.rule",
        {"startLine": 6},
    )
    assert code["artifactLocation"] == {"uri": "file:///lib/site-packages/layers/norm.py"}
    (own,) = (related["physicalLocation"]["artifactLocation"] for related in expected["relatedLocations"])
    assert own == {"uri": "my_rules/own.rule", "uriBaseId": "%SRCROOT%"}


def test_names_in_uris_are_escaped(top: Path) -> None:
    *_, unknown, _ = run_of(EVERYTHING, top)["results"]
    artifact = unknown["locations"][0]["physicalLocation"]["artifactLocation"]
    assert artifact["uri"] == "exports/new,%2050%25%3A%20x.onnx"


def test_a_rule_is_described_by_its_file(top: Path) -> None:
    rules = {rule["id"]: rule for rule in run_of(EVERYTHING, top)["tool"]["driver"]["rules"]}
    assert rules["LayerNormalization"]["properties"]["rule"].startswith("fusions/2_ops/norm/")
    assert "match:" in rules["LayerNormalization"]["help"]["markdown"]
    assert "help" not in rules["Own"], "nothing is known of it"


def test_what_cannot_be_read_is_a_notification(top: Path) -> None:
    (invocation,) = run_of(EVERYTHING, top)["invocations"]
    assert not invocation["executionSuccessful"]
    (told,) = invocation["toolExecutionNotifications"]
    assert told["message"]["text"] == "line one\r\nline two\x00"


def test_fingerprints_tell_findings_apart_and_stay(top: Path) -> None:
    own = {fingerprint(finding) for finding in (LOST, TOP, EXPECTED, UNKNOWN, GONE)}
    assert len(own) == 5
    assert fingerprint(replace(LOST, scope="/enc/layer.0,3-7/norm", message="other", calls=())) == fingerprint(LOST)
    assert fingerprint(replace(LOST, model="elsewhere/bert.onnx")) == fingerprint(LOST)
    assert fingerprint(replace(LOST, scope="/dec/layer.0-1/norm")) != fingerprint(LOST)
    assert fingerprint(replace(EXPECTED, message="expected Own >= 2, found 1")) == fingerprint(EXPECTED)
    assert fingerprint(replace(EXPECTED, message="expected Own >= 3, found 0")) != fingerprint(EXPECTED)


def test_findings_that_look_alike_are_numbered(top: Path) -> None:
    twice = Check((Checked("exports/bert.onnx", (), (LOST, replace(LOST, message="more")), None),))
    first, second = (result["partialFingerprints"][FINGERPRINT] for result in run_of(twice, top)["results"])
    assert (first[-2:], second[-2:]) == (":1", ":2")
    assert first[:-2] == second[:-2]
