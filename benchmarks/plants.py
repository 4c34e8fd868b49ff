"""Errors planted in the rules, and whether the proof finds them where they are: every rule on every model of a folder.

    python -m benchmarks.plants models --target ort --only bert

A plant is one mistake in one rule: what it emits is 1e-5 too large, an epsilon is ten times too large or 1e-5 off, a
constant of its equations is 1e-5 off, a guard against NaN is gone, an operand is dropped, an axis is another.  Those
that change nothing in the fused model are not counted.
"""

from __future__ import annotations

import argparse
import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import onnx

from onnxfuse.errors import OnnxfuseError
from onnxfuse.fusing.fuse import lower
from onnxfuse.fusing.fused import Fused
from onnxfuse.language.catalogue import Catalogue, define, load
from onnxfuse.language.rule import Rule, op_name, targets
from onnxfuse.model.graph import family
from onnxfuse.proof.cut_proof import compare_sites
from onnxfuse.proof.oracle import Oracle
from onnxfuse.targets.target import Target

SMALL = 1 + 1e-5
EPSILON = 2 * float(np.finfo(np.float32).eps)
OUTCOMES = ("site", "outputs", "missed", "beneath")
NUMBERS = frozenset("epsilon scale alpha beta gamma softcap lambd bias".split())
"""Attributes that are real numbers of an equation."""
FLAGS = frozenset({"nan_to_zero", "is_causal"})
Outcome: TypeAlias = Literal["site", "outputs", "missed", "beneath", "unused"]
"""Found at its site; by the outputs of the whole model alone; not at all; nothing that shows beside the last digit, on
any input of the site; nothing changed."""


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
    count = sum(1 for statement in statements for _ in ast.walk(statement.value))
    for index in range(count):
        for edit in (_literal, *((_attribute, _tenfold, _flag, _axis, _operand) if emitted else ())):
            made = copy.deepcopy(statements)
            node = [n for statement in made for n in ast.walk(statement.value)][index]
            if what := edit(node):
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
    if isinstance(node, ast.Call) and len(node.args) > 2 and isinstance(node.args[-1], ast.Name):
        return f"{ast.unparse(node.args.pop())} dropped from {op_name(node)}"
    return ""


def used(fused: Fused, catalogue: Catalogue) -> set[Rule]:
    """The rules behind the fusions of a model, and those whose equations its functions are made of."""
    found = {match.rule for site in fused.sites for outer in site.matches for match in (outer, *outer.inner)}
    ops = {family(f.name) for f in fused.model.functions}
    return found | {catalogue.definitions[op] for op in ops if op in catalogue.definitions}


@dataclass
class Model:
    """A model with what the original computes, for many plants to be compared with."""

    original: onnx.ModelProto
    catalogue: Catalogue

    def __post_init__(self) -> None:
        self.oracle = Oracle(self.original)
        self.fused = lower(self.original, self.catalogue)[1]

    def plants(self) -> list[Plant]:
        """Those in rules that the model makes use of."""
        rules = used(self.fused, self.catalogue)
        return [plant for rule in self.catalogue.rules if rule in rules for plant in plants(rule)]

    def outcome(self, plant: Plant) -> Outcome:
        """What the proof makes of a plant."""
        try:
            catalogue = plant.catalogue(self.catalogue)
            made = lower(self.original, catalogue)[1]
        except (OnnxfuseError, AssertionError, KeyError, ValueError, TypeError, AttributeError):
            return "unused"  # no rule that could be written
        fused = made.model
        if plant.wrong not in used(made, catalogue) or _nodes(fused) == _nodes(self.fused.model):
            return "unused"
        if compare_sites(self.original, fused, self.oracle.cases).wrong:
            return "site"
        if self.oracle.compare(fused).verdict == "mismatch":
            return "outputs"
        # Against what is right, the mistake stands alone: an epsilon of 1e-12 beside a variance that is never small.
        alone = compare_sites(self.fused.model, fused, self.oracle.cases)
        return "beneath" if alone.error < EPSILON else "missed"

    def clean(self) -> bool:
        """Does the proof find nothing where nothing is planted?"""
        return not compare_sites(self.original, self.fused.model, self.oracle.cases).wrong


def _nodes(model: onnx.ModelProto) -> list[bytes]:
    """The computation alone: the rules' versions stand in the metadata."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for owner in (made.graph, *made.functions):
        for node in owner.node:
            del node.metadata_props[:]
    functions = sorted(f.SerializeToString(deterministic=True) for f in made.functions)
    return [made.graph.SerializeToString(deterministic=True), *functions]


def main() -> None:
    """Print what was found, rule by rule, and everything that was not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default="onnxfuse", choices=["onnxfuse", "onnx", "ort"])
    parser.add_argument("--only", default="*", help="models whose names match this pattern")
    arguments = parser.parse_args()
    catalogue = load().serving(Target(arguments.target))
    total: dict[str, Counter[str]] = {}
    for path in sorted(arguments.folder.glob(f"{arguments.only}.onnx")):
        model = Model(onnx.load(path), catalogue)
        counts: Counter[str] = Counter()
        for plant in model.plants():
            outcome = model.outcome(plant)
            counts[outcome] += 1
            total.setdefault(str(plant), Counter())[outcome] += 1
            if outcome in ("missed", "outputs"):
                print(f"{path.stem}: {outcome}: {plant}", flush=True)
        counts["clean"] = model.clean()
        print(f"{path.stem}: " + ", ".join(f"{counts[key]} {key}" for key in sorted(counts)), flush=True)
    print("\n| plant | at its site | by outputs | missed | beneath rounding |\n|---|--:|--:|--:|--:|")
    for name, counts in sorted(total.items()):
        if counts.total() > counts["unused"]:
            print(f"| {name} | {' | '.join(str(counts[outcome]) for outcome in OUTCOMES)} |")
    everything = sum(total.values(), Counter[str]())
    print(f"| all | {' | '.join(str(everything[outcome]) for outcome in OUTCOMES)} |")


if __name__ == "__main__":
    main()
