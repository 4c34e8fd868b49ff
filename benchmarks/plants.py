"""Errors planted in the rules, and whether the proof finds them where they are: every rule on every model of a folder.

    python -m benchmarks.plants models --target ort --only 'bert*'

A plant is one mistake in one rule: what it emits is 1e-5 too large, an epsilon is ten times too large or 1e-5 off, a
constant of its equations is 1e-5 off, a guard against NaN is gone, an operand is dropped, an axis is another.  Those
that change nothing in the fused model are not counted.
"""

from __future__ import annotations

import argparse
import ast
import copy
import datetime
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import onnx

from onnxfuse.errors import OnnxfuseError
from onnxfuse.fusing.fuse import OpsetError, fuse, lower
from onnxfuse.fusing.fused import Fused
from onnxfuse.language.catalogue import Catalogue, define, load
from onnxfuse.language.rule import Rule, op_name, targets
from onnxfuse.model.graph import family
from onnxfuse.proof.cut_proof import compare_found, compare_sites, observe
from onnxfuse.proof.cuts import Cut, find
from onnxfuse.proof.oracle import NOT_RUN, Oracle
from onnxfuse.proof.stand_in import runnable
from onnxfuse.runtime.quiet import onnxruntime
from onnxfuse.targets.target import Target

SMALL = 1 + 1e-5
TARGETS = {
    "onnxfuse": Target("onnxfuse"),
    "onnx": Target("onnx"),
    "ort": Target("ort"),
    "ort-cuda": Target("ort", "cuda"),
}
OUTCOMES = ("site", "refused", "outputs", "missed", "beneath")
NUMBERS = frozenset("epsilon scale alpha beta gamma softcap lambd bias".split())
"""Attributes that are real numbers of an equation."""
EPSILON = 2 * float(np.finfo(np.float32).eps)
FLAGS = frozenset({"nan_to_zero", "is_causal"})
Outcome: TypeAlias = Literal["site", "refused", "outputs", "missed", "beneath", "unused"]
"""Found at its site; by onnxruntime, which does not run the model; by the outputs of the whole model alone; not at all;
nothing that moves any number, on any input of the site, by two units of its last place; nothing changed."""


@dataclass(frozen=True)
class Plant:
    """A rule with a mistake in it."""

    rule: Rule
    what: str
    wrong: Rule

    def __str__(self) -> str:
        return f"{self.rule.path}: {self.what}"

    def catalogue(self, right: Catalogue) -> Catalogue:
        """The rules with the wrong one in the place of the right one."""
        rules = [self.wrong if rule is self.rule else rule for rule in right.rules]
        return replace(right, rules=rules, definitions=right.definitions | define(rules))


def plants(rule: Rule) -> Iterator[Plant]:
    """All the mistakes that are made in a rule."""
    for what, emit in _in_statements(rule.emit, True):
        yield Plant(rule, what, replace(rule, emit=emit))
    for what, meaning in _in_statements(rule.meaning, False):
        yield Plant(rule, what, replace(rule, meaning=meaning))
    for what, blocks in _in_blocks(rule.blocks):
        yield Plant(rule, what, replace(rule, blocks=blocks))


def _in_blocks(blocks: tuple[tuple[ast.Assign, ...], ...]) -> Iterator[tuple[str, tuple[tuple[ast.Assign, ...], ...]]]:
    """In the first block, which is the meaning of an op that has no other."""
    for what, made in _in_statements(blocks[0], False) if blocks else ():
        yield what, (made, *blocks[1:])


def _in_statements(statements: tuple[ast.Assign, ...], emitted: bool) -> Iterator[tuple[str, tuple[ast.Assign, ...]]]:
    if emitted and statements and len(targets(statements[-1])) == 1:
        made = copy.deepcopy(statements)
        made[-1].value = _times(made[-1].value)
        yield "result 1e-5 too large", made
    for index, node in enumerate(n for statement in statements for n in ast.walk(statement.value)):
        for edit in (_literal, *((_attribute, _tenfold, _flag, _axis, _operand) if emitted else ())):
            if what := edit(copy.copy(node)):
                made = copy.deepcopy(statements)
                edit([n for statement in made for n in ast.walk(statement.value)][index])
                yield what, made


def _times(value: ast.expr) -> ast.expr:
    return ast.BinOp(value, ast.Mult(), ast.Constant(SMALL))


def _literal(node: ast.AST) -> str:
    """A real constant of an equation."""
    if isinstance(node, ast.Constant) and isinstance(node.value, float) and abs(node.value) < 1e4 and node.value:
        node.value *= SMALL
        return f"{node.value / SMALL:g} 1e-5 off"
    return ""


def _attribute(node: ast.AST) -> str:
    if isinstance(node, ast.keyword) and node.arg in NUMBERS:
        node.value = _times(node.value)
        return f"{node.arg} 1e-5 off"
    return ""


def _tenfold(node: ast.AST) -> str:
    if isinstance(node, ast.keyword) and node.arg == "epsilon":
        node.value = ast.BinOp(node.value, ast.Mult(), ast.Constant(10.0))
        return "epsilon ten times too large"
    return ""


def _flag(node: ast.AST) -> str:
    if isinstance(node, ast.keyword) and node.arg in FLAGS and not isinstance(node.value, ast.Constant):
        node.value = ast.Constant(0)
        return f"{node.arg} forgotten"
    return ""


def _axis(node: ast.AST) -> str:
    if isinstance(node, ast.keyword) and node.arg in ("axis", "axes") and isinstance(node.value, ast.Name):
        node.value = ast.Constant(-2) if node.arg == "axis" else ast.List([ast.Constant(-2)], ast.Load())
        return f"{node.arg} another"
    return ""


def _operand(node: ast.AST) -> str:
    """An operand that may be left out is."""
    if isinstance(node, ast.Call) and len(node.args) > 2 and isinstance(last := node.args[-1], ast.Name):
        node.args = node.args[:-1]
        return f"{last.id} dropped from {op_name(node)}"
    return ""


def used(fused: Fused, catalogue: Catalogue) -> set[Rule]:
    """The rules behind the fusions of a model, and those whose equations its functions are made of."""
    found = {match.rule for site in fused.sites for outer in site.matches for match in (outer, *outer.inner)}
    ops = {family(f.name) for f in fused.model.functions}
    return found | {catalogue.definitions[op] for op in ops if op in catalogue.definitions}


@dataclass
class Original:
    """A model with what it computes, for many plants to be compared with."""

    proto: onnx.ModelProto

    def __post_init__(self) -> None:
        self.oracle = Oracle(self.proto)
        self._values: list[dict[str, Any]] = [{}, {}]

    def values(self, found: Sequence[Cut]) -> list[dict[str, Any]]:
        """What `site_proof.observe` gives, each value observed once."""
        new = [s for s in found if not {*s.stops, *s.observed} <= self._values[0].keys()]
        for known, seen in zip(self._values, observe(self.proto, new, self.oracle.cases) if new else [], strict=False):
            known |= seen
        return self._values


@dataclass
class Model:
    """A model fused by the right rules, and by such with a mistake."""

    original: Original
    catalogue: Catalogue

    def __post_init__(self) -> None:
        self.source, self.fused = lower(self.original.proto, self.catalogue)
        self.right = self._sites(self.runnable(self.fused))
        self._own = _nodes(self.fused.model)

    def runnable(self, fused: Fused, catalogue: Catalogue | None = None) -> onnx.ModelProto:
        """What the proof runs of a fused model."""
        return runnable(fused.model, catalogue or self.catalogue)

    def _sites(self, fused: onnx.ModelProto) -> dict[tuple[Any, ...], Cut]:
        """The sites of a fused model by all that they compute."""
        given = {tensor.name for tensor in self.original.proto.graph.initializer}
        made = {t.name: t.SerializeToString() for t in fused.graph.initializer if t.name not in given}
        keys = {}
        for site in find(self.original.proto, fused):
            nodes = [fused.graph.node[index] for index in site.fused]
            constants = [made[name] for node in nodes for name in node.input if name in made]
            keys[site.output, site.stops, *map(_computation, nodes), *constants] = site
        return keys

    def plants(self) -> list[Plant]:
        """Those in rules that the model makes use of."""
        rules = used(self.fused, self.catalogue)
        return [plant for rule in self.catalogue.rules if rule in rules for plant in plants(rule)]

    def outcome(self, plant: Plant) -> Outcome:
        """What the proof makes of a plant.  Only sites that are not what they were are compared, until one is wrong."""
        try:
            catalogue = plant.catalogue(self.catalogue)
            made = self._fused(catalogue)
        except (OnnxfuseError, AssertionError, KeyError, ValueError, TypeError, AttributeError):
            return "unused"  # no rule that could be written
        if plant.wrong not in used(made, catalogue) or _nodes(made.model) == self._own:
            return "unused"
        fused = self.runnable(made, catalogue)
        found = [site for key, site in self._sites(fused).items() if key not in self.right]
        values = self.original.values(found)
        for site in sorted(found, key=lambda site: len(site.fused)):
            if compare_found(self.original.proto, fused, [site], values).wrong:
                return "site"
        verdict = self.original.oracle.compare(fused)
        if verdict.verdict == "mismatch":
            return "refused" if verdict.note.startswith(NOT_RUN) else "outputs"
        # Against what is right, the mistake stands alone: an epsilon of 1e-12 beside a variance that is never small.
        alone = compare_sites(self._renamed(), fused, self.original.oracle.cases)
        return "missed" if alone.error > EPSILON or not alone.count else "beneath"

    def _renamed(self) -> onnx.ModelProto:
        """The right model, with names for what the original lacks that stand for nothing else elsewhere."""
        made = onnx.ModelProto()
        made.CopyFrom(self.runnable(self.fused))
        graph = self.original.proto.graph
        kept = {"", *(value.name for value in (*graph.input, *graph.initializer))}
        kept |= {name for node in graph.node for name in node.output}
        for node in made.graph.node:
            node.input[:] = [name if name in kept else f"right/{name}" for name in node.input]
            node.output[:] = [name if name in kept else f"right/{name}" for name in node.output]
        for tensor in made.graph.initializer:
            tensor.name = tensor.name if tensor.name in kept else f"right/{tensor.name}"
        del made.graph.value_info[:]
        return made

    def _fused(self, catalogue: Catalogue) -> Fused:
        """The model fused by other rules, at the opset of the right ones if they want no higher one."""
        try:
            return fuse(self.source, catalogue, raising=not catalogue.target.functions)
        except OpsetError:
            return lower(self.original.proto, catalogue)[1]

    def clean(self) -> bool:
        """Does the proof find nothing where nothing is planted?"""
        found = list(self.right.values())
        values = self.original.values(found)
        return not compare_found(self.original.proto, self.runnable(self.fused), found, values).wrong


def _computation(node: onnx.NodeProto) -> bytes:
    """A node without its name and metadata."""
    made = onnx.NodeProto()
    made.CopyFrom(node)
    made.name = ""
    del made.metadata_props[:]
    return bytes(made.SerializeToString(deterministic=True))


def _nodes(model: onnx.ModelProto) -> list[bytes]:
    """The computation alone: the rules' versions stand in the metadata."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for owner in (made.graph, *made.functions):
        for node in owner.node:
            del node.metadata_props[:]
    functions = sorted(f.SerializeToString(deterministic=True) for f in made.functions)
    return [made.graph.SerializeToString(deterministic=True), *functions]


@dataclass
class Table:
    """What became of the plants: counts by plant and by model, and each plant that was not found at its site."""

    plants: dict[str, Counter[str]] = field(default_factory=dict)
    models: dict[str, Counter[str]] = field(default_factory=dict)
    unseen: list[str] = field(default_factory=list)

    def add(self, name: str, model: Model) -> None:
        """Plant every mistake in the rules that a model makes use of."""
        counts = self.models.setdefault(name, Counter())
        counts["clean"] += model.clean()
        for plant in model.plants():
            outcome = model.outcome(plant)
            counts[outcome] += 1
            self.plants.setdefault(str(plant), Counter())[outcome] += 1
            if outcome not in ("site", "refused", "unused"):
                self.unseen.append(f"{name}: {outcome}: {plant}")
                print(self.unseen[-1], flush=True)

    def text(self) -> str:
        """The table by plant, in Markdown."""
        lines = [
            "| plant | at its site | not run | by outputs | missed | beneath rounding |",
            "|---|--:|--:|--:|--:|--:|",
        ]
        everything = sum(self.plants.values(), Counter[str]())
        for name, counts in [*sorted(self.plants.items()), ("all", everything)]:
            if counts.total() > counts["unused"]:
                lines.append(f"| {name} | {' | '.join(str(counts[outcome]) for outcome in OUTCOMES)} |")
        return "\n".join(lines)

    def record(self) -> dict[str, Any]:
        """The table as plain data."""
        totals = sum(self.plants.values(), Counter[str]())
        return {
            "all": {outcome: totals[outcome] for outcome in OUTCOMES},
            "models": {name: dict(sorted(counts.items())) for name, counts in self.models.items()},
            "plants": {
                name: {outcome: counts[outcome] for outcome in OUTCOMES if counts[outcome]}
                for name, counts in sorted(self.plants.items())
                if counts.total() > counts["unused"]
            },
            "unseen": self.unseen,
        }


def main() -> None:
    """Print what was found, rule by rule, and everything that was not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", nargs="+", default=list(TARGETS), choices=TARGETS, help="default: all")
    parser.add_argument("--only", default="*", help="models whose names match this pattern")
    parser.add_argument("-o", "--output", type=Path, help="write what was found as JSON")
    arguments = parser.parse_args()
    rules = load()
    started = time.perf_counter()
    paths = sorted(arguments.folder.glob(f"{arguments.only}.onnx"))
    tables = {target: Table() for target in arguments.target}
    for done, path in enumerate(paths, 1):
        original = Original(onnx.load(path))
        for target, table in tables.items():
            table.add(path.stem, Model(original, rules.serving(TARGETS[target])))
            counts = ", ".join(f"{count} {key}" for key, count in sorted(table.models[path.stem].items()))
            seconds = time.perf_counter() - started
            print(f"{done}/{len(paths)} {path.stem}, {target}: {counts} ({seconds:.0f} s)", flush=True)
            if arguments.output:
                save(arguments.output, tables, seconds)
    for target, table in tables.items():
        print(f"\n{target}\n\n{table.text()}")


def save(path: Path, tables: Mapping[str, Table], seconds: float) -> None:
    """Write the tables of all targets as JSON."""
    record = {
        "date": datetime.date.today().isoformat(),
        "onnxruntime": onnxruntime().__version__,
        "seconds": round(seconds),
        "targets": {target: table.record() for target, table in tables.items()},
    }
    path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
