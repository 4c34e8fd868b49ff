"""What fusions models used to have: a file that is made to be committed, and to be merged.

Each line is a JSON object by itself, one for each kind of fusion in a module, so that lines of two branches can stand
together in any order (``*.fusions.jsonl merge=union`` in .gitattributes)::

    {"onnxfuse-baseline": 2, "onnxfuse": "0.1.0", "level": 2}
    {"model": "bert.onnx", "scope": "/encoder/layer.0/output", "rule": "FusedMatMul", "inside": ["Gelu"], "count": 1}

Fusions are known by the model's file name, the module and the rule, since exporters rename nodes but keep the modules
that they came from.  A model without fusions has a line of its name alone.  What another level (-O) fuses is other.
Version 1 was one object, ``{"models": {model: {rule: {scope: count}}}}``, in which what is inside a larger fusion
counts like any other; it is read still.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from onnxfuse.errors import ModelError, UsageError
from onnxfuse.language.catalogue import RULES
from onnxfuse.reporting.records import Report

VERSION = 2
_HEAD, _WRITER, _LEVEL = "onnxfuse-baseline", "onnxfuse", "level"


class Kept(NamedTuple):
    """A kind of fusion in a module."""

    scope: str
    """Module path; empty for the top of the graph."""
    rule: str
    inside: tuple[str, ...] = ()
    """The rules that fused parts of it first, sorted, each as often as it did."""

    @property
    def rules(self) -> tuple[str, ...]:
        return (*self.inside, self.rule)


Sites = Counter[Kept]
"""How often each kind of fusion is where in a model."""


@dataclass(frozen=True)
class Baseline:
    """What models used to have, by file name."""

    models: dict[str, Sites] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    """The line of the file on which a model first stands."""
    writers: tuple[str, ...] = ()
    """Versions of onnxfuse that wrote it; several where files were merged, none where it does not say."""

    levels: tuple[int, ...] = ()
    """At which levels lines were written; those that do not say so are older than a default that makes regions."""

    def refuse(self, path: Path, level: int) -> None:
        """Raises UsageError where the file `path` was written at another level than what is compared with it."""
        others = [f"-O{other}" for other in self.levels if other != level]
        if others:
            raise UsageError(
                f"{path} was written at {' and '.join(others)}, and this is -O{level}, which fuses otherwise: compare "
                f"with {others[0]}, or write it anew: --update-baseline and all of its models"
            )

    def written_by(self, version: str) -> str:
        """What a finding of this `version` says of the others; empty if there are none."""
        others = [writer for writer in self.writers if writer != version]
        return f" (before by onnxfuse {', '.join(others)}, now by {version})" if others else ""


def sites(report: Report) -> Sites:
    """Where the fusions of `report` are, as a baseline remembers them."""
    return Counter(Kept(fusion.scope, fusion.kind, tuple(sorted(fusion.absorbed))) for fusion in report.fusions)


def by_rule(found: Sites) -> Counter[tuple[str, str]]:
    """How often each rule fired in each module, inside other fusions as well: (rule, scope) → count."""
    counts: Counter[tuple[str, str]] = Counter()
    for kept, count in found.items():
        for rule in kept.rules:
            counts[rule, kept.scope] += count
    return counts


def fewer(before: Sites, now: Sites) -> list[tuple[str, str]]:
    """The rules and scopes that have fewer fusions than before, without those that are gone as part of a larger one."""
    deficit = by_rule(before)
    deficit.subtract(by_rule(now))
    for kept, count in sorted(before.items(), key=lambda item: (-len(item[0].inside), item[0])):
        gone = min(deficit[kept.rule, kept.scope], count - now[kept])
        if gone > 0:
            for rule in kept.inside:
                deficit[rule, kept.scope] -= gone
    return [place for place, gone in deficit.items() if gone > 0]


def natural(text: str) -> tuple[object, ...]:
    """What sorts ``layer.2`` before ``layer.10``."""
    parts = re.split(r"(\d+)", text)
    return tuple((int(part), part) if index % 2 else part for index, part in enumerate(parts))


def text(models: Mapping[str, Sites], version: str, level: int) -> str:
    """The content of a baseline that this `version` of onnxfuse writes at a level: sorted, so that diffs show what
    changed."""
    lines: list[dict[str, Any]] = [{_HEAD: VERSION, _WRITER: version, _LEVEL: level}]
    for model, found in sorted(models.items()):
        if not found:
            lines.append({"model": model})
        for kept in sorted(found, key=lambda kept: (natural(kept.scope), kept)):
            inside = {"inside": list(kept.inside)} if kept.inside else {}
            place = {"model": model, "scope": kept.scope, "rule": kept.rule}
            lines.append({**place, **inside, "count": found[kept]})
    return "".join(f"{json.dumps(line)}\n" for line in lines)


def read(path: Path) -> Baseline:
    """The baseline in the file `path`.

    Raises:
        ModelError: there is no such file, or it is not a baseline.
    """
    try:
        content = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ModelError(f"{path}: no such baseline: make it with --update-baseline") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ModelError(f"{path}: cannot be read ({reason}): give a baseline file") from None
    except ValueError:
        raise _not_json(path, "") from None
    first = _first(content)
    if first is not None and _WRITER not in first:
        models = _version_1(path, first)
        return Baseline(models, dict.fromkeys(models, 1), levels=(RULES,))
    return _by_lines(path, content)


def _first(content: str) -> dict[str, Any] | None:
    """The object that `content` is as a whole, if it is one."""
    try:
        data = json.loads(content)
    except ValueError:
        return None
    return data if isinstance(data, dict) else {}


def _version_1(path: Path, data: dict[str, Any]) -> dict[str, Sites]:
    if not _is_sites_by_model(data.get("models")):
        raise _no_baseline(path)
    if data.get(_HEAD) != 1:
        raise _other_version(path, data.get(_HEAD))
    return {
        model: Counter({Kept(scope, rule): n for rule, scopes in rules.items() for scope, n in scopes.items()})
        for model, rules in data["models"].items()
    }


def _by_lines(path: Path, content: str) -> Baseline:
    """A baseline of this version.  Of lines that say different counts of one thing, as merging may leave them, the
    highest counts: whoever has it lower now did not have it then."""
    models: dict[str, Sites] = {}
    writers: dict[str, None] = {}
    levels: dict[int, None] = {}
    places: dict[str, int] = {}
    for number, data in _lines(path, content):
        if isinstance(name := data.get("model"), str):
            places.setdefault(name, number)
        match data:
            case {"onnxfuse-baseline": version, "onnxfuse": str(writer)}:
                if version != VERSION:
                    raise _other_version(path, version)
                writers[writer] = None
                levels[_level(path, data)] = None
            case {"model": str(model), "scope": str(scope), "rule": str(rule), "count": int(count)}:
                inside = data.get("inside", [])
                if not isinstance(inside, list) or not all(isinstance(name, str) for name in inside):
                    raise _no_baseline(path)
                found, kept = models.setdefault(model, Counter()), Kept(scope, rule, tuple(inside))
                found[kept] = max(found[kept], count)
            case {"model": str(model)} if len(data) == 1:
                models.setdefault(model, Counter())
            case _:
                raise _no_baseline(path)
    if not writers:
        raise _no_baseline(path)
    return Baseline(models, places, tuple(writers), tuple(sorted(levels)))


def _level(path: Path, head: Mapping[str, Any]) -> int:
    level = head.get(_LEVEL, RULES)
    if not isinstance(level, int):
        raise _no_baseline(path)
    return level


def _lines(path: Path, content: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip():
            continue
        try:
            data = json.loads(line)
        except ValueError:
            raise _not_json(path, f" (line {number})") from None
        if not isinstance(data, dict):
            raise _no_baseline(path)
        yield number, data


def _not_json(path: Path, where: str) -> ModelError:
    return ModelError(f"{path} is not JSON{where}: restore it, or delete it and --update-baseline")


def _no_baseline(path: Path) -> ModelError:
    return ModelError(f"{path} is not an onnxfuse baseline: restore it, or delete it and --update-baseline")


def _other_version(path: Path, version: object) -> ModelError:
    return ModelError(
        f"{path} is a baseline of version {version}, this onnxfuse writes version {VERSION}: use the onnxfuse that "
        "wrote it, or --update-baseline into a new file"
    )


def _is_sites_by_model(data: object) -> bool:
    def maps(value: object, inner: Callable[[object], bool]) -> bool:
        return isinstance(value, dict) and all(map(inner, value.values()))

    return maps(data, lambda rules: maps(rules, lambda scopes: maps(scopes, lambda count: type(count) is int)))
