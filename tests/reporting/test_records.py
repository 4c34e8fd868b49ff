"""The JSON form of a report is what report.schema.json says, for every report."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import pytest

from onnxfuse.reporting.conversion import Conversion, KeptCast, KeptNodes
from onnxfuse.reporting.records import (
    SCHEMA_VERSION,
    Estimate,
    LeftOut,
    Node,
    Nodes,
    Report,
    Validation,
    known_bytes,
)
from tests.fake_engine import fusion, near_miss

SCHEMA: dict[str, Any] = json.loads(
    files("onnxfuse.reporting").joinpath("report.schema.json").read_text(encoding="utf-8")
)

TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}


def violations(value: Any, schema: dict[str, Any], at: str = "$") -> list[str]:
    """Where `value` breaks `schema`; understands the keywords that report.schema.json uses, and no other."""
    if "$ref" in schema:
        return violations(value, SCHEMA["$defs"][schema["$ref"].removeprefix("#/$defs/")], at)
    understood = {"type", "enum", "const", "minimum", "required", "properties", "additionalProperties", "items"}
    assert schema.keys() <= understood | {"description", "title", "$schema", "$defs"}
    wrong = []
    names = schema.get("type", [])
    allowed = tuple(TYPES[name] for name in ([names] if isinstance(names, str) else names))
    if allowed and (
        not any(isinstance(value, kind) for kind in allowed) or isinstance(value, bool) > (bool in allowed)
    ):
        return [f"{at}: {value!r} is not {names}"]
    if "enum" in schema and value not in schema["enum"]:
        wrong.append(f"{at}: {value!r} is not in {schema['enum']}")
    if "const" in schema and value != schema["const"]:
        wrong.append(f"{at}: {value!r} is not {schema['const']!r}")
    if "minimum" in schema and value < schema["minimum"]:
        wrong.append(f"{at}: {value!r} is less than {schema['minimum']}")
    if isinstance(value, dict):
        known, others = schema.get("properties", {}), schema["additionalProperties"]
        wrong += [f"{at}: {key} is missing" for key in schema.get("required", ()) if key not in value]
        for key, item in value.items():
            if key in known or others:
                wrong += violations(item, known.get(key, others), f"{at}.{key}")
            else:
                wrong.append(f"{at}: {key} is not in the schema")
    if isinstance(value, list):
        for index, item in enumerate(value):
            wrong += violations(item, schema["items"], f"{at}[{index}]")
    return wrong


def full() -> Report:
    return Report(
        "bert.onnx",
        output="bert.fused.onnx",
        nodes_before=100,
        nodes_after=84,
        fusions=[
            fusion(estimate=Estimate("gemm", 1e-5, "bytes", 4096, 128, 1, 2)),
            fusion("Gelu", bytes_saved=None, estimate=Estimate("function body")),
        ],
        card="h200",
        near_misses=[near_miss()],
        nodes=Nodes(
            "h200",
            (Node("a", "Add", "/m", 1, 3e-6, 5e-7, 1e-8, "launches", 8, 2, (), 0),),
            (Node("b", "Gelu", "/m", 1, 3e-6, 5e-7, 1e-8, "bytes", None, None, (), None, 0, "why"),),
        ),
        left_out=[LeftOut(fusion("Attention"), float("nan"), "has NaN")],
        conversion=Conversion(
            "fp16",
            "float16",
            20,
            1,
            [KeptCast("cos", "float16", "/rotary/Cos", "positions")],
            [KeptNodes(1, "positions")],
        ),
        validation=Validation("equal", 1e-7, 1e-4, 1e-5, 2, "", (1e-6, float("inf"))),
        seconds=1.5,
    )


@pytest.mark.parametrize("report", [full(), Report("empty.onnx")], ids=["full", "empty"])
def test_a_report_conforms_to_its_schema(report: Report) -> None:
    text = json.dumps(report.to_json(), allow_nan=False)
    assert violations(json.loads(text), SCHEMA) == []


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        (("nodes_before",), "100", "$.nodes_before: '100' is not integer"),
        (("nodes_after",), -1, "$.nodes_after: -1 is less than 0"),
        (("surprise",), 1, "$: surprise is not in the schema"),
        (("schema",), 2, "$: "),
        (("fusions", 0, "rule"), None, "$.fusions[0].rule: None is not string"),
        (("validation", "verdict"), "fine", "$.validation.verdict: 'fine' is not in"),
        (("fusions", 0, "estimate", "bound"), "luck", "$.fusions[0].estimate.bound: 'luck' is not in"),
        (("fusions", 1, "estimate", "measured"), None, "$.fusions[1].estimate.measured: None is not boolean"),
        (("census", "Gelu"), 0, "$.census.Gelu: 0 is less than 1"),
    ],
)
def test_the_schema_forbids_something(path: tuple[Any, ...], value: object, complaint: str) -> None:
    data = json.loads(json.dumps(full().to_json()))
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    (found,) = violations(data, SCHEMA)
    assert found.startswith(complaint.rstrip(": "))


@pytest.mark.parametrize("key", Report("m").to_json())
def test_the_schema_requires_every_key(key: str) -> None:
    data = full().to_json()
    del data[key]
    assert violations(data, SCHEMA) == [f"$: {key} is missing"]


def test_the_schema_describes_every_key() -> None:
    def undescribed(schema: dict[str, Any], at: str) -> list[str]:
        missing = [] if "description" in schema or not {"$ref", "enum", "properties"}.isdisjoint(schema) else [at]
        for key, inner in schema.get("properties", {}).items():
            missing += undescribed(inner, f"{at}.{key}")
        return missing

    for name, part in ({"$": SCHEMA} | SCHEMA["$defs"]).items():
        assert undescribed(part, name) == []
    assert SCHEMA["properties"]["schema"]["const"] == SCHEMA_VERSION


def test_numbers_that_json_does_not_have_become_null() -> None:
    data = full().to_json()
    assert data["left_out"][0]["error"] is None
    assert data["validation"]["reference_error"] == [1e-6, None]


def test_a_narrowed_report_keeps_the_rest() -> None:
    narrowed = full().narrowed(lambda found: found.rule == "Gelu")
    assert (narrowed.census, narrowed.near_misses, narrowed.left_out) == ({"Gelu": 1}, [], [])
    assert narrowed.nodes_before == 100
    assert len(full().fusions) == 2


def test_bytes_are_summed_as_far_as_known() -> None:
    assert known_bytes(full().fusions) == (1000, False)
    assert known_bytes(full().fusions[:1]) == (1000, True)
    assert known_bytes([]) == (0, True)
    assert full().launches_saved == 16
