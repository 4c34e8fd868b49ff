"""Decoders with caches that slip by one, and random mutants of them: what is fused must compute what the mutant does.

    python -m benchmarks.decoders --spellings 170 --mutants 0         each spelling with each of six slips
    python -m benchmarks.decoders --spellings 40 --mutants 25         and so many random mutants of each besides
    python -m benchmarks.decoders --mutants 25 --seed 6               others of them
    python -m benchmarks.decoders --merged ...                        each in a branch beside its first step
    python -m benchmarks.decoders --forms ...                         norms of heads, caps, slopes, paged caches,
                                                                      and decomposed relative positions instead

Prints what computes otherwise, at any of the lengths it runs at, and ends with 1 if something does.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from itertools import islice, product

import numpy as np
import onnx

from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from onnxfuse.model.graph import family_of
from onnxfuse.model.walk import nodes
from tests import exports
from tests.spellings import decoder_forms, relative
from tests.spellings.build import Array, Spelling
from tests.spellings.decoders import SLIPS, Decoder, decoders
from tests.spellings.merged import can_merge, feeds, merged, of
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


def slipped(decoder: Decoder, totals: Counter[str], *, beside: bool) -> None:
    model = of(decoder)[0] if beside else decoder.spelling().model
    fused = fuse(model, CATALOGUE).model
    totals["slipped"] += 1
    totals["fused"] += attends(fused)
    for (past, new), cached in product(decoder.lengths(), (True, False) if beside else (True,)):
        given = feeds(decoder, past, new, cached=cached) if beside else decoder.feeds(past, new)
        try:
            wanted = run(model, given)
        except REFUSALS:
            continue
        if differs(run(fused, given), wanted):
            totals["wrong"] += 1
            print(f"{decoder.name}, slip={decoder.slip}: wrong at {past} and {new}", flush=True)


def mutated(decoder: Decoder, count: int, seed: int, totals: Counter[str], *, beside: bool) -> None:
    """The mutants of a decoder: in the branch with a past, those that give as many values as the first step does."""
    given, first = decoder.feeds(*decoder.lengths()[0]), of(decoder)[1].spelling().model if beside else None
    for description, mutant in islice(mutants(decoder.spelling().model, seed=seed, given=given), count):
        if first is not None:
            if len(mutant.graph.output) != len(first.graph.output):
                continue
            mutant, given = merged(mutant, first), feeds(decoder, *decoder.lengths()[0], cached=True)
        judged(f"{decoder.name}, {description}", mutant, given, totals)


def compared(spelling: Spelling, totals: Counter[str]) -> None:
    """A spelling in which something slips, on its own inputs."""
    fused = fuse(spelling.model, CATALOGUE).model
    totals["slipped"] += 1
    totals["fused"] += attends(fused)
    if differs(run(fused, spelling.inputs), run(spelling.model, spelling.inputs)):
        totals["wrong"] += 1
        print(f"{spelling.name}: wrong", flush=True)


def judged(name: str, mutant: onnx.ModelProto, given: dict[str, Array], totals: Counter[str]) -> None:
    """Whether the fused form of a mutant computes what the mutant does."""
    fused = fuse(mutant, CATALOGUE).model
    totals["mutants"] += 1
    totals["fused"] += attends(fused)
    differing = exports.differing(mutant, fused, given, TOLERANCE)
    if differing:
        totals["wrong"] += 1
        print(f"{name}: {differing}", flush=True)


def attends(model: onnx.ModelProto) -> bool:
    return any(family_of(node) == "Attention" for node in nodes(model.graph))


def _decoders(count: int, mutants_: int, seed: int, totals: Counter[str], *, beside: bool) -> None:
    for slip in SLIPS[1:]:
        for decoder in decoders(17, count, slip):
            if not beside or can_merge(vars(decoder.case)):
                slipped(decoder, totals, beside=beside)
    for decoder in decoders(17, count):
        if not beside or can_merge(vars(decoder.case)):
            mutated(decoder, mutants_, seed, totals, beside=beside)


def _forms(count: int, mutants_: int, seed: int, totals: Counter[str]) -> None:
    for family, slips in ((decoder_forms.forms, decoder_forms.SLIPS), (relative.relative, relative.SLIPS)):
        for slip in slips[1:]:
            for spelling in family(17, count, slip):
                compared(spelling, totals)
        for spelling in family(17, count):
            for description, mutant in islice(mutants(spelling.model, seed=seed, given=spelling.inputs), mutants_):
                judged(f"{spelling.name}, {description}", mutant, spelling.inputs, totals)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decoders", description=__doc__)
    parser.add_argument("--spellings", type=int, default=170)
    parser.add_argument("--mutants", type=int, default=0, help="random mutants of each spelling")
    parser.add_argument("--seed", type=int, default=5, help="of the mutants (5)")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--merged", action="store_true", help="in the branch of an If, as merged decoders have them")
    kind.add_argument("--forms", action="store_true", help="what models add to the attention of a decoder")
    options = parser.parse_args()
    totals: Counter[str] = Counter()
    if options.forms:
        _forms(options.spellings, options.mutants, options.seed, totals)
    else:
        _decoders(options.spellings, options.mutants, options.seed, totals, beside=options.merged)
    print(dict(totals))
    return int(totals["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
