"""What a build demands of a model's fusions: expectations such as ``Attention>=12``, and a baseline of what used to be.

A baseline is a JSON file made to be committed.  It counts fusions by model file name, rule and module scope, since
exporters rename nodes but keep the modules that they came from::

    {
      "onnxfuse-baseline": 1,
      "models": {
        "bert.onnx": {
          "LayerNormalization": {
            "/encoder/layer.0/output/LayerNorm": 1
          }
        }
      }
    }
"""

from __future__ import annotations

import json
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from onnxfuse.errors import ModelError, UsageError
from onnxfuse.reporting.records import Fusion, NearMiss, Report

BASELINE_VERSION = 1

_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
_EXPECTATION = re.compile(r"\s*(?P<name>[\w.]+)\s*(?P<comparison>>=|<=|==|>|<)\s*(?P<count>\d+)\s*")

Sites = dict[str, dict[str, int]]
"""Rule → module scope → number of fusions."""


@dataclass(frozen=True, slots=True)
class Expectation:
    """How many fusions of one kind a model must have."""

    name: str
    """A rule, or an op with or without its domain."""
    comparison: str
    count: int

    def __str__(self) -> str:
        return f"{self.name} {self.comparison} {self.count}"


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason to fail the build."""

    kind: Literal["expectation", "lost", "no baseline"]
    model: str
    rule: str
    scope: str | None
    """Module scope of the lost fusions; None if the finding is about the whole model."""
    message: str
    near_misses: tuple[NearMiss, ...] = ()
    """What the engine saw there instead."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"near_misses": [asdict(miss) for miss in self.near_misses]}


def parse(text: str) -> Expectation:
    """The expectation that `text` says, such as ``Attention>=12``; UsageError if it says none."""
    if not (match := _EXPECTATION.fullmatch(text)):
        raise UsageError(f"--expect {text!r}: write RULE, one of >= <= == > <, and a number, such as 'Attention>=12'")
    return Expectation(match["name"], match["comparison"], int(match["count"]))


def disappointed(report: Report, expectations: Iterable[Expectation]) -> list[Finding]:
    """A finding for each of `expectations` that `report` does not meet."""
    findings = []
    for expected in expectations:
        found = sum(_times(expected.name, fusion) for fusion in report.fusions)
        if not _COMPARISONS[expected.comparison](found, expected.count):
            misses = [miss for miss in report.near_misses if miss.rule == expected.name]
            shown = tuple(misses if expected.comparison in (">=", ">", "==") and found <= expected.count else ())
            message = f"expected {expected}, found {found}"
            findings.append(Finding("expectation", report.model, expected.name, None, message, shown))
    return findings


def _times(name: str, fusion: Fusion) -> int:
    """How often a fusion is what a rule or an op is called."""
    return fusion.rules.count(name) or int(name in (fusion.op, fusion.op.rpartition(".")[2]))


def sites(report: Report) -> Sites:
    """Where the fusions of `report` are, as a baseline remembers them."""
    counts = Counter((rule, fusion.scope) for fusion in report.fusions for rule in fusion.rules)
    found: Sites = {}
    for (rule, scope), count in sorted(counts.items()):
        found.setdefault(rule, {})[scope] = count
    return found


def lost(report: Report, before: Sites | None) -> list[Finding]:
    """A finding for each scope that has fewer fusions of a rule than `before`.

    `before` is None if the baseline does not know the model, which is a finding as well: a renamed file would
    otherwise pass unchecked.
    """
    name = Path(report.model).name
    if before is None:
        message = f"the baseline does not have {name}: add it with --update-baseline"
        return [Finding("no baseline", report.model, "", None, message)]
    now = sites(report)
    findings = []
    for rule, scopes in sorted(before.items()):
        for scope, count in sorted(scopes.items()):
            left = now.get(rule, {}).get(scope, 0)
            if left < count:
                message = f"{rule} at {_place(scope)}: {count} before, {left} now"
                if new := [
                    other for other in now if other != rule and _count(now, other, scope) > _count(before, other, scope)
                ]:
                    message += f" ({', '.join(new)} is new there: if that is better, --update-baseline)"
                misses = tuple(miss for miss in report.near_misses if miss.rule == rule and _near(miss.scope, scope))
                findings.append(Finding("lost", report.model, rule, scope, message, misses))
    return findings


def gained(report: Report, before: Sites | None) -> int:
    """How many fusions `report` has that `before` does not: no failure, but worth an update of the baseline."""
    now = sites(report)
    return sum(
        max(0, count - _count(before or {}, rule, scope))
        for rule, scopes in now.items()
        for scope, count in scopes.items()
    )


def read_baseline(path: Path) -> dict[str, Sites]:
    """The baseline in the file `path`: model file name → rule → module scope → number of fusions.

    Raises:
        ModelError: there is no such file, or it is not a baseline.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{path}: no such baseline: make it with --update-baseline") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ModelError(f"{path}: cannot be read ({reason}): give a baseline file") from None
    except ValueError as error:
        where = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise ModelError(f"{path} is not JSON{where}: restore it, or delete it and --update-baseline") from None
    if not isinstance(data, dict) or not _is_sites_by_model(data.get("models")):
        raise ModelError(f"{path} is not an onnxfuse baseline: restore it, or delete it and --update-baseline")
    if data.get("onnxfuse-baseline") != BASELINE_VERSION:
        raise ModelError(
            f"{path} is a baseline of version {data.get('onnxfuse-baseline')}, this onnxfuse writes version "
            f"{BASELINE_VERSION}: use the onnxfuse that wrote it, or --update-baseline into a new file"
        )
    models: dict[str, Sites] = data["models"]
    return models


def baseline_text(models: Mapping[str, Sites]) -> str:
    """The content of a baseline file: sorted, one count a line, so that diffs show what changed."""
    return json.dumps({"onnxfuse-baseline": BASELINE_VERSION, "models": models}, indent=2, sort_keys=True) + "\n"


def refuse_namesakes(models: Sequence[Path]) -> None:
    """UsageError if two of `models` have one file name, which is what a baseline knows a model by."""
    for name, count in Counter(path.name for path in models).items():
        if count > 1:
            raise UsageError(
                f"{count} models are named {name}, and a baseline tells models by name: check one at a time"
            )


def _count(found: Sites, rule: str, scope: str) -> int:
    return found.get(rule, {}).get(scope, 0)


def _place(scope: str) -> str:
    return scope or "the top of the graph"


def _near(one: str, other: str) -> bool:
    """Whether one scope is the other or lies inside it; the top of the graph is near to nothing but itself."""
    shorter, longer = sorted((one, other), key=len)
    return one == other or (shorter != "" and longer.startswith(f"{shorter}/"))


def _is_sites_by_model(data: object) -> bool:
    def maps(value: object, inner: Callable[[object], bool]) -> bool:
        return isinstance(value, dict) and all(map(inner, value.values()))

    return maps(data, lambda rules: maps(rules, lambda scopes: maps(scopes, lambda count: type(count) is int)))
