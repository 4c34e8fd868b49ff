"""What `check` found as SARIF 2.1.0 (OASIS, https://docs.oasis-open.org/sarif/sarif/v2.1.0/), which code hosts and
editors show beside the source.

A result lies on the line of the model's program where that is in the repository, else on the model's file; the line of
the .rule file that stopped it, and the program's line wherever else it is, are related locations.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from onnxfuse.language.catalogue import CATALOGUE

from .checked import Check
from .code_lines import Line, innermost, place
from .requirements import Finding

if TYPE_CHECKING:
    from onnxfuse.language.rule import Rule

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
FINGERPRINT = "onnxfuseFinding/v1"
_SOURCES, _RULES = "%SRCROOT%", "ONNXFUSE_RULES"
"""What locations are relative to: the repository, and the rules that come with onnxfuse."""
_BASELINE = {
    "no baseline": ("baseline/unknown-model", "UnknownModel", "A model that the baseline does not have is unguarded."),
    "not given": ("baseline/model-not-given", "ModelNotGiven", "A model of the baseline was not checked."),
}
_MOST_NEAR_MISSES = 10
"""Of one result: layers are alike."""


def sarif(check: Check, rules: Iterable[Rule], folders: Sequence[Path], top: Path, version: str) -> dict[str, Any]:
    """The log of one run of this `version`: `rules` are those known, `folders` where further ones lie, `top` is the
    repository's folder."""
    descriptors, index = _descriptors(check, rules)
    prints: Counter[str] = Counter()
    results = []
    for finding in check.all():
        if finding.kind != "error":
            result = _result(finding, folders, top)
            own = result["partialFingerprints"][FINGERPRINT]
            prints[own] += 1
            result["partialFingerprints"][FINGERPRINT] = f"{own}:{prints[own]}"
            results.append(result | {"ruleIndex": index[result["ruleId"]]})
    errors = [
        {"level": "error", "message": {"text": finding.message}, "locations": [_location(place(finding, top))]}
        for finding in check.all()
        if finding.kind == "error"
    ]
    driver = {"name": "onnxfuse", "semanticVersion": version, "rules": descriptors}
    run = {
        "tool": {"driver": driver},
        "invocations": [{"executionSuccessful": not errors, "toolExecutionNotifications": errors}],
        "originalUriBaseIds": {_SOURCES: {"uri": _folder(top)}, _RULES: {"uri": _folder(CATALOGUE)}},
        "results": results,
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _descriptors(check: Check, rules: Iterable[Rule]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """What is said of each rule that a result is about, and its place among them."""
    known: dict[str, Rule] = {}
    fusing = [rule for rule in rules if rule.blocks and not rule.lowers]
    for rule in fusing:
        known.setdefault(rule.name, rule)
    for rule in fusing:
        for op in (rule.op, rule.op.rpartition(".")[2]):  # what an expectation may call it
            known.setdefault(op, rule)
    described: dict[str, dict[str, Any]] = {}
    for finding in check.all():
        if finding.kind != "error" and _rule_id(finding) not in described:
            described[_rule_id(finding)] = _descriptor(finding, known.get(finding.rule))
    ids = sorted(described)
    return [described[one] for one in ids], {one: number for number, one in enumerate(ids)}


def _descriptor(finding: Finding, rule: Rule | None) -> dict[str, Any]:
    if finding.kind in _BASELINE:
        own, name, said = _BASELINE[finding.kind]
        return {"id": own, "name": name, "shortDescription": {"text": said}, "defaultConfiguration": {"level": "error"}}
    found: dict[str, Any] = {
        "id": _rule_id(finding),
        "name": finding.rule,
        "shortDescription": {"text": f"{finding.rule} is not fused as often as it should be."},
        "defaultConfiguration": {"level": "error"},
        "properties": {"tags": ["performance", "operator-fusion"]},
    }
    if rule is not None:
        said = " ".join(rule.doc.split()) or found["shortDescription"]["text"]
        found["fullDescription"] = {"text": said}
        found["help"] = {
            "text": f"{said}\n\n{rule.path}:\n\n{rule.text.rstrip()}",
            "markdown": f"{said}\n\n`{rule.path}`:\n\n```\n{rule.text.rstrip()}\n```",
        }
        found["properties"]["rule"] = rule.path
    return found


def _rule_id(finding: Finding) -> str:
    return _BASELINE[finding.kind][0] if finding.kind in _BASELINE else finding.rule


def _result(finding: Finding, folders: Sequence[Path], top: Path) -> dict[str, Any]:
    at = place(finding, top)
    near = finding.near_misses[:_MOST_NEAR_MISSES]
    reasons = list(dict.fromkeys(f"{miss.rule}: {miss.reason}" for miss in near))
    logical = [{"fullyQualifiedName": scope, "kind": "module"} for scope in finding.scopes if scope]
    found: dict[str, Any] = {
        "ruleId": _rule_id(finding),
        "level": "error",
        "message": {"text": "\n".join([f"{finding.model}: {finding.message}", *reasons])},
        "locations": [_location(at) | ({"logicalLocations": logical} if logical else {})],
        "partialFingerprints": {FINGERPRINT: fingerprint(finding)},
    }
    told = dict.fromkeys((miss.source, f"{miss.rule} stopped here: {miss.reason}") for miss in near if miss.source)
    related = [_related(_rule_place(source, folders, top), text) for source, text in told]
    inner = innermost(finding.calls)
    if inner is not None and inner != at:
        where = PurePath(inner.file)
        uri = where.as_uri() if where.is_absolute() else _quoted(where)
        related.append(_related(_physical({"uri": uri}, inner.line), "where the model's program computes it"))
    if related:
        found["relatedLocations"] = [each | {"id": number} for number, each in enumerate(related, 1)]
    return found


def fingerprint(finding: Finding) -> str:
    """The same for what is the same finding in another run: numbers of layers and counts may differ."""
    scope = re.sub(r"\d+([-,.\d]*\d)?", "*", finding.scope or "")
    parts: tuple[str, ...] = (finding.kind, PurePath(finding.model).name, finding.rule, scope)
    if finding.kind == "expectation":
        parts = (*parts, finding.message.partition(", found")[0])
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _rule_place(source: str, folders: Sequence[Path], top: Path) -> dict[str, Any]:
    """Where a line of a .rule file is: in the repository if the rule is the user's own."""
    path, _, number = source.rpartition(":")
    line = int(number)
    for folder in folders:
        file = (folder / path).absolute()
        if file.is_file():
            inside = file.is_relative_to(top)
            artifact = (
                {"uri": _quoted(file.relative_to(top)), "uriBaseId": _SOURCES} if inside else {"uri": file.as_uri()}
            )
            return _physical(artifact, line)
    return _physical({"uri": _quoted(PurePath(path)), "uriBaseId": _RULES}, line)


def _location(at: Line) -> dict[str, Any]:
    path = PurePath(at.file)
    artifact = {"uri": path.as_uri()} if path.is_absolute() else {"uri": _quoted(path), "uriBaseId": _SOURCES}
    return _physical(artifact, at.line)


def _physical(artifact: dict[str, str], line: int | None) -> dict[str, Any]:
    region = {"region": {"startLine": line}} if line else {}
    return {"physicalLocation": {"artifactLocation": artifact, **region}}


def _related(location: dict[str, Any], text: str) -> dict[str, Any]:
    return location | {"message": {"text": text}}


def _quoted(path: PurePath) -> str:
    """A relative path as a URI reference."""
    from urllib.parse import quote_from_bytes

    return quote_from_bytes(path.as_posix().encode("utf-8", "surrogateescape"), safe="/-._~()+,;=@!$&'*")


def _folder(path: Path) -> str:
    return f"{path.resolve().as_uri()}/"
