"""How much reports say of models: places in the program, modules, and sizes.

    python -m benchmarks.told models
    python -m benchmarks.told FOLDER --jobs 2

For each model of a folder: question marks in its text report; fused nodes of a dynamo export (NAME.dynamo.onnx) that
point at a line of Python; and, where NAME.ts.onnx is there as well, whether both lead to the same fusions in the same
modules.  The last lines add them up.
"""

from __future__ import annotations

import argparse
import io
import re
from collections import Counter
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from onnx import ModelProto
from rich.console import Console

from onnxfuse import pipeline
from onnxfuse.cli import report_text
from onnxfuse.cli.commands.many import Workers, outcomes
from onnxfuse.errors import OnnxfuseError
from onnxfuse.fusing.build import Build
from onnxfuse.model import files
from onnxfuse.reporting.records import REGION
from onnxfuse.rewriting.module_paths import ModulePaths
from onnxfuse.system.isolation import Tell

KINDS = ("dynamo", "ts")


@dataclass(frozen=True)
class Told:
    """What the report of one model says."""

    unknown: int
    """Figures that are a question mark, or are larger than what is said of them."""
    fused: int
    with_code: int
    """Fused nodes that point at a line of the program."""
    places: Counter[tuple[str, str]]
    """Rule and module of each fusion; regions take in what each exporter writes around them."""
    modules: frozenset[str]
    """Paths of all modules that its nodes stand in."""


def told(path: Path, _: Tell | None = None) -> Told:
    """What is said of the model in a file."""
    model = files.read(path, weights=False)
    found = pipeline.report(model, Build(base_dir=path.parent))
    text = io.StringIO()
    report_text.print_report(Console(file=text, width=10_000, highlight=False, markup=False), found, verbose=False)
    # A name may have one; a figure stands between blanks.
    unknown = len(re.findall(r"(?<=\s)(?:\?|>\d[^\s]*)(?=\s)", text.getvalue()))
    places = Counter((fusion.kind, fusion.scope) for fusion in found.fusions if fusion.kind != REGION)
    return Told(unknown, len(found.fusions), sum(bool(fusion.code) for fusion in found.fusions), places, modules(model))


def modules(model: ModelProto) -> frozenset[str]:
    """The paths of the modules of a model's nodes, and of those around them."""
    paths = ModulePaths(model.graph.node)
    parts = {tuple(paths.of([node]).split("/")) for node in model.graph.node}
    return frozenset("/".join(path[:depth]) for path in parts for depth in range(1, len(path) + 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    paths = sorted(options.folder.glob("*.onnx"))
    found: dict[str, Told] = {}
    for path, made in outcomes(paths, partial(told), Workers(options.jobs)):
        if isinstance(made, OnnxfuseError):
            print(f"{path.name}: {made}")
            continue
        found[path.stem] = made
        code = f", {made.with_code} with a line of Python" if path.stem.endswith(".dynamo") else ""
        print(f"{path.name}: {made.unknown} ?, {made.fused} fused{code}")
    summarize(found)


def summarize(found: dict[str, Told]) -> None:
    """Print what all models have in common."""
    dynamo = [made for name, made in found.items() if name.endswith(".dynamo")]
    pairs = [name.removesuffix(".dynamo") for name in found if name.endswith(".dynamo")]
    pairs = [name for name in pairs if f"{name}.ts" in found]
    same, strange = 0, 0
    for name in pairs:
        one, other = (found[f"{name}.{kind}"].places for kind in KINDS)
        same += one == other
        for place in sorted((one - other) + (other - one)):
            sides = [kind for kind, places in zip(KINDS, (one - other, other - one), strict=True) if place in places]
            print(f"{name}: {place[0]} at {place[1] or '(top)'}: {sides[0]} alone")
            strange += any(place[1] not in found[f"{name}.{kind}"].modules for kind in KINDS)
    print(f"{len(found)} models: {sum(made.unknown for made in found.values())} ? in reports")
    fused, lines = sum(made.fused for made in dynamo), sum(made.with_code for made in dynamo)
    print(f"{len(dynamo)} dynamo exports: {lines} of {fused} fused nodes with a line of Python")
    print(f"{len(pairs)} in both exports: {same} with the same fusions in the same modules")
    print(f"of the others, {strange} fusions in a module that the other export does not have")


if __name__ == "__main__":
    main()
