"""What a build demands of a model's fusions: expectations such as ``Attention>=12``, and what there used to be."""

from __future__ import annotations

import operator
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from onnxfuse.errors import UsageError
from onnxfuse.reporting.records import Fusion, NearMiss, Report

from .baseline import Sites, by_rule, fewer, natural, sites
from .layers import collapsed

_COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}
_EXPECTATION = re.compile(r"\s*(?P<name>[\w.]+)\s*(?P<comparison>>=|<=|==|>|<)\s*(?P<count>\d+)\s*")


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

    kind: Literal["expectation", "lost", "no baseline", "not given", "error"]
    model: str
    rule: str
    """Empty if the finding is about no rule."""
    scope: str | None
    """Module scope of the lost fusions, layers together: ``/encoder/layer.0-11``; None if the finding is about the
    whole model."""
    message: str
    near_misses: tuple[NearMiss, ...] = ()
    """What the engine saw there instead."""
    scopes: tuple[str, ...] = ()
    """The modules that `scope` stands for."""
    code: str = ""
    """Line of the model's program, ``model.py:436``; empty where the file does not say."""
    calls: tuple[str, ...] = ()
    """The calls that lead there, outermost first, `code` last."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"near_misses": [asdict(miss) for miss in self.near_misses]}


def parse(text: str) -> Expectation:
    """The expectation that `text` says, such as ``Attention>=12``; UsageError if it says none."""
    if not (match := _EXPECTATION.fullmatch(text)):
        raise UsageError(f"--expect {text!r}: write RULE, one of >= <= == > <, and a number, such as 'Attention>=12'")
    return Expectation(match["name"], match["comparison"], int(match["count"]))


def is_expectation(text: str) -> bool:
    """Whether `text` says one."""
    return _EXPECTATION.fullmatch(text) is not None


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
    return fusion.kinds.count(name) or int(name in (fusion.op, fusion.op.rpartition(".")[2]))


def lost(report: Report, before: Sites | None, by: str = "") -> list[Finding]:
    """A finding for fusions that are fewer than `before`: the outermost alone; modules that differ in numbers alone, as
    layers do, together.

    `before` is None if the baseline does not know the model, which is a finding as well: a renamed file would
    otherwise pass unchecked.  `by` says who wrote it, where that matters.
    """
    name = Path(report.model).name
    if before is None:
        message = f"the baseline does not have {name}: add it with --update-baseline"
        return [Finding("no baseline", report.model, "", None, message)]
    now = sites(report)
    then, left = by_rule(before), by_rule(now)
    alike: dict[tuple[object, ...], list[str]] = defaultdict(list)
    for rule, scope in sorted(fewer(before, now), key=lambda place: (place[0], natural(place[1]))):
        new = tuple(sorted(r for r, s in left if s == scope and r != rule and left[r, s] > then[r, s]))
        inside = frozenset(r for kept in before if kept[:2] == (scope, rule) for r in kept.inside)
        alike[rule, tuple(re.split(r"\d+", scope)), then[rule, scope], left[rule, scope], new, inside].append(scope)
    return [_lost(report, key, scopes, by) for key, scopes in alike.items()]


def _lost(report: Report, key: tuple[Any, ...], scopes: Sequence[str], by: str) -> Finding:
    rule, _, then, left, new, inside = key
    ((place, count),) = collapsed(scopes)
    message = f"{rule} at {_place(place)}: {then} before, {left} now"
    if count > 1:
        message += f" in each of {count} modules"
    if new:
        message += f" ({', '.join(new)} is new there: if that is better, --update-baseline)"
    message += by
    return Finding("lost", report.model, rule, place, message, _seen(report, {rule, *inside}, scopes), tuple(scopes))


def _seen(report: Report, rules: Collection[str], scopes: Sequence[str]) -> tuple[NearMiss, ...]:
    """What comes near these rules around the modules; if nothing does, what comes near any rule inside them."""
    misses = report.near_misses
    own = [miss for miss in misses if miss.rule in rules and any(near(miss.scope, scope) for scope in scopes)]
    return tuple(
        own or [miss for miss in misses if any(near(miss.scope, s) and len(miss.scope) >= len(s) for s in scopes)]
    )


def gained(report: Report, before: Sites | None) -> int:
    """How many fusions `report` has that `before` does not: no failure, but worth an update of the baseline."""
    return (by_rule(sites(report)) - by_rule(before or Counter())).total()


def not_given(path: Path, lines: Mapping[str, int], given: Iterable[str]) -> list[Finding]:
    """A finding for each model that the baseline `path` knows, and that was not given: its fusions are unguarded.

    `lines` say where a model stands in the file."""
    message = f"is in {path}, and was not checked: {ADVICE}"
    missing = sorted(set(lines) - set(given))
    return [Finding("not given", name, "", None, message, calls=(f"{path}:{lines[name]}",)) for name in missing]


ADVICE = (
    "check all models of the baseline, or say --partial if that is meant; --update-baseline --prune drops what is gone"
)
"""What to do about a model that is not given."""


def refuse_namesakes(models: Sequence[Path]) -> None:
    """UsageError if two of `models` have one file name, which is what a baseline knows a model by."""
    for name, count in Counter(path.name for path in models).items():
        if count > 1:
            raise UsageError(
                f"{count} models are named {name}, and a baseline tells models by name: check one at a time"
            )


def _place(scope: str) -> str:
    return scope or "the top of the graph"


def near(one: str, other: str) -> bool:
    """Whether one scope is the other or lies inside it; the top of the graph is near to nothing but itself."""
    shorter, longer = sorted((one, other), key=len)
    return one == other or (shorter != "" and longer.startswith(f"{shorter}/"))
