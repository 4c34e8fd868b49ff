"""A stand-in for the engine: tests of files, options and exit codes then say themselves what was found."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
import pytest

from onnxfuse import proof
from onnxfuse.errors import OnnxfuseError
from onnxfuse.fusing.build import Build
from onnxfuse.proof.claim import Experiment
from onnxfuse.proof.rule_test import Outcome
from onnxfuse.reporting.records import Fusion, NearMiss, Report, Validation


def fusion(rule: str = "LayerNormalization", scope: str = "/enc/layer.0", **changes: Any) -> Fusion:
    """One site where nine nodes become one."""
    replaced = tuple(f"{scope}/n{index}" for index in range(9))
    values: dict[str, Any] = {
        "rule": rule,
        "op": f"onnxfuse.{rule}",
        "scope": scope,
        "node": f"{scope}/{rule}",
        "replaced": replaced,
        "absorbed": (),
        "launches_saved": 8,
        "bytes_saved": 1000,
    }
    return Fusion(**values | changes)


def near_miss(rule: str = "LayerNormalization", scope: str = "/enc/layer.3", node: str = "Div") -> NearMiss:
    source = "2_norm/layer_normalization.rule:6"
    return NearMiss(rule, source, scope, f"{scope}/{node}", "Pow exponent wants 2, saw 3")


@dataclass
class Rule:
    name: str
    op: str
    path: str
    doc: str
    stratum: str
    text: str
    blocks: tuple[int, ...] = (1,)
    lowers: bool = False


class Catalogue(list[Rule]):
    """What a catalogue is to the command line: an iterable of rules."""


RULES = [
    Rule("Gelu", "Gelu", "rules/1_act/gelu.rule", "GELU, exact.", "1_act", "Gelu(x)\nmatch:\n    y = x * Erf(x)\n"),
    Rule(
        "LayerNormalization",
        "onnxfuse.LayerNormalization",
        "rules/2_norm/layer_normalization.rule",
        "Nine nodes become one.",
        "2_norm",
        "LayerNormalization(x)\nmatch:\n    mean = ReduceMean(x, axes=axes)\n",
    ),
]


@dataclass
class Optimized:
    model: onnx.ModelProto
    report: Report


@dataclass
class Engine:
    """What the next models yield, and with which options they were asked for."""

    fusions: list[Fusion] = field(default_factory=list)
    near_misses: list[NearMiss] = field(default_factory=list)
    validation: Validation = field(default_factory=lambda: Validation("equal", 1e-7, 1e-4, 1e-5, 2))
    error: OnnxfuseError | BaseException | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)
    edit: Callable[[onnx.ModelProto], None] = lambda model: None

    def report(self, model: onnx.ModelProto, *values: Build | Experiment, **options: Any) -> Report:
        self.calls.append(options | {name: given for value in values for name, given in vars(value).items()})
        if self.error:
            raise self.error
        before = len(model.graph.node) + sum(len(found.replaced) for found in self.fusions)
        after = len(model.graph.node) + len(self.fusions)
        return Report(
            "",
            nodes_before=before,
            nodes_after=after,
            fusions=list(self.fusions),
            near_misses=list(self.near_misses),
            validation=self.validation,
        )

    def optimize(self, model: onnx.ModelProto, *values: Build | Experiment, **options: Any) -> Optimized:
        report = self.report(model, *values, **options)
        self.edit(model)
        return Optimized(model, report)


def install(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Puts an Engine and two rules where the command line looks for them."""
    engine = Engine()
    monkeypatch.setattr("onnxfuse.pipeline.optimize", engine.optimize)
    monkeypatch.setattr("onnxfuse.pipeline.report", engine.report)
    monkeypatch.setattr("onnxfuse.language.catalogue.load", _load)
    tester = ModuleType("onnxfuse.proof.rule_test")
    tester.check = _check  # type: ignore[attr-defined]
    tester.template = "# {0} to begin with.\n{0}(x)\n".format  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "onnxfuse.proof.rule_test", tester)
    monkeypatch.setattr(proof, "rule_test", tester, raising=False)
    return engine


def _load(directories: Sequence[Path] = ()) -> Catalogue:
    files = [file for folder in directories for file in sorted(folder.glob("*.rule"))]
    return Catalogue([*RULES, *(Rule(f.stem, f.stem, str(f), "", "9_user", f.read_text()) for f in files)])


def _check(rule: Rule, catalogue: Catalogue) -> Iterator[Outcome]:
    assert rule in catalogue
    if rule.name in ("Gelu", "LayerNormalization"):
        yield Outcome(rule.name, rule.path, "plain", "matched", True)
        yield Outcome(rule.name, rule.path, "plain", "float16 body", rule.name != "Gelu", "error 0.5")
