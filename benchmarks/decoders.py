"""Decoders with caches that slip by one, and random mutants of them: what is fused must compute what the mutant does.

    python -m benchmarks.decoders --spellings 170 --mutants 0         each spelling with each of six slips
    python -m benchmarks.decoders --spellings 40 --mutants 25         and so many random mutants of each besides

Prints what computes otherwise, at any of the lengths it runs at, and ends with 1 if something does.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from itertools import islice

import numpy as np
import onnx

from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from onnxfuse.model.graph import family_of
from tests import exports
from tests.spellings.build import Array
from tests.spellings.decoders import SLIPS, Decoder, decoders
from tests.spellings.mutants import REFUSALS, mutants, run

CATALOGUE = catalogue.load()
TOLERANCE = 2e-5
"""Largest |fused - mutant| / max|mutant|."""


def differs(got: list[Array], wanted: list[Array]) -> bool:
    return any(
        a.shape != b.shape
        or (np.isnan(a) != np.isnan(b)).any()
        or np.nanmax(np.abs(a - b), initial=0) > TOLERANCE * np.nanmax(np.abs(b), initial=1e-30)
        for a, b in zip(got, wanted, strict=True)
    )


def slipped(decoder: Decoder, totals: Counter[str]) -> None:
    model = decoder.spelling().model
    fused = fuse(model, CATALOGUE).model
    totals["slipped"] += 1
    totals["fused"] += attends(fused)
    for past, new in decoder.lengths():
        given = decoder.feeds(past, new)
        try:
            wanted = run(model, given)
        except REFUSALS:
            continue
        if differs(run(fused, given), wanted):
            totals["wrong"] += 1
            print(f"{decoder.name}, slip={decoder.slip}: wrong at {past} and {new}", flush=True)


def mutated(decoder: Decoder, count: int, totals: Counter[str]) -> None:
    given = decoder.feeds(*decoder.lengths()[0])
    for description, mutant in islice(mutants(decoder.spelling().model, seed=5, given=given), count):
        fused = fuse(mutant, CATALOGUE).model
        totals["mutants"] += 1
        totals["fused"] += attends(fused)
        differing = exports.differing(mutant, fused, given, TOLERANCE)
        if differing:
            totals["wrong"] += 1
            print(f"{decoder.name}, {description}: {differing}", flush=True)


def attends(model: onnx.ModelProto) -> bool:
    return any(family_of(node) == "Attention" for node in model.graph.node)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decoders", description=__doc__)
    parser.add_argument("--spellings", type=int, default=170)
    parser.add_argument("--mutants", type=int, default=0, help="random mutants of each spelling")
    options = parser.parse_args()
    totals: Counter[str] = Counter()
    for slip in SLIPS[1:]:
        for decoder in decoders(17, options.spellings, slip):
            slipped(decoder, totals)
    for decoder in decoders(17, options.spellings):
        mutated(decoder, options.mutants, totals)
    print(dict(totals))
    return int(totals["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
