"""Errors planted in the rules, and whether the proof finds them where they are: every rule on every model of a folder.

    python -m benchmarks.plants models --target ort --only 'bert*'

A plant is one mistake in one rule (`rule_mistakes`).  Those that change nothing in the fused model are not counted.
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import onnx

from onnxfuse.errors import OnnxfuseError
from onnxfuse.fusing.fuse import OpsetError, fuse, lower
from onnxfuse.fusing.fused import Fused
from onnxfuse.language.catalogue import Catalogue, load
from onnxfuse.language.rule import Rule
from onnxfuse.model.graph import family
from onnxfuse.proof.branches import Branch, branches, taken
from onnxfuse.proof.cut_moves import Models
from onnxfuse.proof.cut_proof import behind, compare_found, compare_sites
from onnxfuse.proof.cuts import Cut, find
from onnxfuse.proof.observed import observe, telling
from onnxfuse.proof.oracle import NOT_RUN, Oracle
from onnxfuse.proof.stand_in import runnable
from onnxfuse.runtime.quiet import onnxruntime
from onnxfuse.targets.target import Target

from .rule_mistakes import Plant, plants

TARGETS = {
    "onnxfuse": Target("onnxfuse"),
    "onnx": Target("onnx"),
    "ort": Target("ort"),
    "ort-cuda": Target("ort", "cuda"),
}
Outcome: TypeAlias = Literal["site", "refused", "outputs", "missed", "beneath", "unused"]
"""Found at its site; by onnxruntime, which does not run the model; by the outputs of the whole model alone; not at all;
nothing that moves any number, on any input of the site, by two units of its last place; nothing changed."""
OUTCOMES: tuple[Outcome, ...] = ("site", "refused", "outputs", "missed", "beneath")


def used(fused: Fused, catalogue: Catalogue) -> set[Rule]:
    """The rules behind the fusions of a model, and those whose equations its functions are made of."""
    found = {match.rule for site in fused.sites for outer in site.matches for match in (outer, *outer.inner)}
    ops = {family(f.name) for f in fused.model.functions}
    return found | {catalogue.definitions[op] for op in ops if op in catalogue.definitions}


@dataclass
class Original:
    """A model, or one of its bodies in the place of its node, with what it computes, for many plants to be compared
    with."""

    whole: onnx.ModelProto
    branch: Branch | None = None

    def __post_init__(self) -> None:
        made = self.of(self.whole)
        assert made is not None, "the branch is one of its own"
        self.proto = made
        self.oracle = Oracle(self.proto)
        self._values: list[dict[str, Any]] = [{}, {}]

    def of(self, model: onnx.ModelProto) -> onnx.ModelProto | None:
        """The same part of another model, if it has one."""
        return model if self.branch is None else taken(model, self.branch)

    @staticmethod
    def parts(model: onnx.ModelProto) -> list[Original]:
        """The whole model, and each body that can be run by itself."""
        steps = [step for branch in branches(model).values() for step in branch.each_step()]
        return [part for part in (Original(model), *(Original(model, step) for step in steps)) if part.oracle.cases]

    def values(self, found: Sequence[Cut]) -> list[dict[str, Any]]:
        """What sites are fed, each value observed once."""
        new = [s for s in found if not {*s.stops, *s.observed} <= self._values[0].keys()]
        observed = observe(self.proto, behind(new), telling(self.oracle.cases)) if new else ()
        for known, seen in zip(self._values, observed, strict=False):
            known |= seen
        return self._values


@dataclass
class Part:
    """A part of a model beside the same of what was fused by the right rules."""

    original: Original
    right: onnx.ModelProto

    def __post_init__(self) -> None:
        self.sites = self.new(self.right, {})

    def new(self, fused: onnx.ModelProto, known: Mapping[tuple[Any, ...], Cut]) -> dict[tuple[Any, ...], Cut]:
        """The sites of a fused model, but for those that are known, by all that they compute."""
        given = {tensor.name for tensor in self.original.proto.graph.initializer}
        made = {t.name: t.SerializeToString() for t in fused.graph.initializer if t.name not in given}
        keys = {}
        for site in find(self.original.proto, fused):
            nodes = [fused.graph.node[index] for index in site.fused]
            constants = [made[name] for node in nodes for name in node.input if name in made]
            key = site.output, site.stops, *map(_computation, nodes), *constants
            if key not in known:
                keys[key] = site
        return keys

    def wrong(self, fused: onnx.ModelProto, found: Sequence[Cut]) -> bool:
        """Is one of these sites not what it was?  They are compared until one is."""
        values = self.original.values(found)
        ordered = sorted(found, key=lambda site: len(site.fused))
        models = Models(self.original.proto, fused)
        return any(compare_found(models, [site], values).wrong for site in ordered)

    def outcome(self, fused: onnx.ModelProto) -> Outcome:
        """What the proof makes of a mistake in a fused model."""
        own = self.original.of(fused)
        found = [] if own is None else list(self.new(own, self.sites).values())
        if own is not None and self.wrong(own, found):
            return "site"
        verdict = self.original.oracle.compare(own or fused)
        if verdict.verdict == "mismatch":
            return "refused" if verdict.note.startswith(NOT_RUN) else "outputs"
        if own is None or not found:
            return "unused"  # it is elsewhere
        # Against what is right, the mistake stands alone: an epsilon of 1e-12 beside a variance that is never small.
        alone = compare_sites(self._renamed(), own, self.original.oracle.cases)
        return "missed" if alone.error > 2 * self._unit() or not alone.count else "beneath"

    def _unit(self) -> float:
        """The relative distance of two numbers of the type that weights have: of half, nothing finer is seen."""
        half = any(tensor.data_type == onnx.TensorProto.FLOAT16 for tensor in self.original.proto.graph.initializer)
        return float(np.finfo(np.float16 if half else np.float32).eps)

    def _renamed(self) -> onnx.ModelProto:
        """The right model, with names for what the original lacks that stand for nothing else elsewhere."""
        made = onnx.ModelProto()
        made.CopyFrom(self.right)
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


@dataclass
class Model:
    """A model fused by the right rules, and by such with a mistake."""

    originals: list[Original]
    """The parts of the model."""
    catalogue: Catalogue

    def __post_init__(self) -> None:
        self.whole = self.originals[0].whole
        self.source, self.fused = lower(self.whole, self.catalogue)
        right = self.runnable(self.fused)
        found = [(original, original.of(right)) for original in self.originals]
        self.parts = [Part(original, own) for original, own in found if own is not None]
        self._own = _nodes(self.fused.model)

    def runnable(self, fused: Fused, catalogue: Catalogue | None = None) -> onnx.ModelProto:
        """What the proof runs of a fused model."""
        return runnable(fused.model, catalogue or self.catalogue)

    def plants(self) -> list[Plant]:
        """Those in rules that the model makes use of."""
        rules = used(self.fused, self.catalogue)
        return [plant for rule in self.catalogue.rules if rule in rules for plant in plants(rule)]

    def outcome(self, plant: Plant) -> Outcome:
        """What the proof makes of a plant, in the part where it makes most of it."""
        try:
            catalogue = plant.catalogue(self.catalogue)
            made = self._fused(catalogue)
        except (OnnxfuseError, AssertionError, LookupError, ValueError, TypeError, AttributeError):
            return "unused"  # no rule that could be written
        if plant.wrong not in used(made, catalogue) or _nodes(made.model) == self._own:
            return "unused"
        fused = self.runnable(made, catalogue)
        outcomes: set[Outcome] = set()
        for part in self.parts:
            outcomes.add(part.outcome(fused))
            if "site" in outcomes:
                return "site"
        return next((outcome for outcome in OUTCOMES if outcome in outcomes), "missed")

    def _fused(self, catalogue: Catalogue) -> Fused:
        """The model fused by other rules, at the opset of the right ones if they want no higher one."""
        try:
            return fuse(self.source, catalogue, raising=not catalogue.target.functions)
        except OpsetError:
            return lower(self.whole, catalogue)[1]

    def clean(self) -> bool:
        """Does the proof find nothing where nothing is planted?"""
        return not any(part.wrong(part.right, list(part.sites.values())) for part in self.parts)


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
        parts = Original.parts(onnx.load(path))
        for target, table in tables.items():
            table.add(path.stem, Model(parts, rules.serving(TARGETS[target])))
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
