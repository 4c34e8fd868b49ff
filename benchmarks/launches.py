"""Launches and bytes of models as exported and as onnxfuse writes them, beside those of torch.compile.

    python -m benchmarks.launches models/ --jobs 2
    python -m benchmarks.launches FOLDER --level 1 --record before.json

A launch is what a report counts as one (`onnxfuse.performance.roofline.launched`): views, constants and arithmetic of
shapes are none, a fused node is one.  Bytes are those of activations, read and written once by each launch, at the
sizes in NAME.npz beside the model (arrays `in:INPUT`) or else at those that a report assumes.  What torch.compile
launches for an architecture (`torch_compile_launches.py`) stands beside its exports, NAME.EXPORTER.onnx; its bytes
count weights, and are set beside bytes that do.  Nothing is run, and nothing is proved.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import onnx

from onnxfuse.fusing.build import LEVEL, Build
from onnxfuse.fusing.fuse import lower
from onnxfuse.lifting.lifted import Lifted
from onnxfuse.performance.sizes import Sizes
from onnxfuse.performance.totals import Asked, asked, terms_of

from .same_files import models
from .torch_compile_launches import COMPILED, STEPS

KNOWN = {**COMPILED, **STEPS}


@dataclass(frozen=True)
class Count:
    """A model, or several."""

    launches: int
    activations: int
    """Bytes."""
    bytes: int
    """With those of weights."""
    unknown: int
    """Launches whose bytes are not counted, since a size of theirs depends on the data."""

    def __add__(self, other: Count) -> Count:
        return Count(
            self.launches + other.launches,
            self.activations + other.activations,
            self.bytes + other.bytes,
            self.unknown + other.unknown,
        )


@dataclass(frozen=True)
class Row:
    """A model as exported and as fused."""

    name: str
    before: Count
    after: Count


def count(launches: Sequence[Asked]) -> Count:
    """Launches together."""
    demands = [each.demand for each in launches if each.demand is not None]
    moved = sum(demand.bytes for demand in demands)
    weights = sum(demand.weights for demand in demands)
    return Count(sum(each.launches for each in launches), moved - weights, moved, len(launches) - len(demands))


def row(path: Path, level: Literal[0, 1, 2]) -> Row:
    """A model of a file, and what is written of it."""
    model, build = onnx.load(path, load_external_data=False), Build(base_dir=path.parent, level=level)
    source, fused = lower(model, build.catalogue, base_dir=path.parent)
    at = Sizes.of(model, sizes(path))
    read = Lifted.of(fused.model, path.parent)
    before, after = asked(source.lifted, at), asked(read, at, terms_of(source.lifted, fused.sites))
    return Row(path.name.removesuffix(".onnx"), count(before), count(after))


def sizes(path: Path) -> dict[str, tuple[int, ...]] | None:
    """The shapes of the inputs that lie beside a model; None where there are none."""
    beside = path.with_suffix(".npz")
    if not beside.exists():
        return None
    with np.load(beside) as arrays:
        return {name.removeprefix("in:"): arrays[name].shape for name in arrays.files if name.startswith("in:")}


def table(rows: Sequence[Row]) -> list[str]:
    """The rows and their sum, and the sum over those of which torch.compile's counts are known."""
    lines = [
        "| model | launches | fused | torch.compile | activations, kB | fused | all bytes, kB | torch.compile |",
        "|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [_line(each.name, [each]) for each in rows]
    known = [each for each in rows if _architecture(each) in KNOWN]
    if len(rows) > 1:
        lines.append(_line(f"all {len(rows)}", rows))
    if known and len(known) < len(rows):
        lines.append(_line(f"the {len(known)} beside torch.compile", known))
    return lines


def _line(name: str, rows: Sequence[Row]) -> str:
    before, after = _sum(each.before for each in rows), _sum(each.after for each in rows)
    compiled = [KNOWN.get(_architecture(each)) for each in rows]
    told = [each for each in compiled if each is not None]
    whole = len(told) == len(rows)
    kilobytes: Callable[[int], str] = lambda size: f"{size / 1000:,.0f}"  # noqa: E731 - one column's form
    cells = [
        before.launches,
        after.launches,
        sum(each.launches for each in told) if whole else "",
        kilobytes(before.activations),
        kilobytes(after.activations),
        kilobytes(after.bytes),
        kilobytes(sum(each.bytes for each in told)) if whole else "",
    ]
    return f"| {name} | {' | '.join(map(str, cells))} |"


def _sum(counts: Iterable[Count]) -> Count:
    return sum(counts, Count(0, 0, 0, 0))


def _architecture(each: Row) -> str:
    return each.name.partition(".")[0]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.launches", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("places", nargs="+", type=Path, help="models, and folders of models")
    parser.add_argument("--level", type=int, default=LEVEL, choices=range(3), help="-O0 to -O2")
    parser.add_argument("--record", type=Path, help="write the counts to this JSON file")
    parser.add_argument("-j", "--jobs", type=int, default=1, help="processes")
    given = parser.parse_args(argv)
    with ProcessPoolExecutor(given.jobs) as pool:
        rows = list(pool.map(partial(row, level=given.level), models(given.places)))
    print(*table(rows), sep="\n")
    unknown = sum(each.before.unknown + each.after.unknown for each in rows)
    if unknown:
        print(f"{unknown} launches are of sizes that nothing tells before they run: their bytes are not counted")
    if given.record:
        given.record.write_text(json.dumps([asdict(each) for each in rows], indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
