"""Every transform over every model of a folder, and random stacks of them: prints what fuses or computes otherwise."""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from pathlib import Path

import onnx

from onnxfuse.fusing.fuse import fuse
from onnxfuse.language import catalogue
from tests import exports
from tests.transforms import OPAQUE, TRANSFORMS, transformed

CATALOGUE = catalogue.load()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.transforms", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--match", default="", help="part of the file names to take")
    parser.add_argument("--only", action="append", help="transforms to try, by default all")
    parser.add_argument("--stacks", type=int, default=2, help="random stacks for each model")
    parser.add_argument("--depth", type=int, default=6, help="transforms in a stack")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    totals: Counter[str] = Counter()
    for path in sorted(options.folder.glob("*.onnx")):
        if options.match not in path.name:
            continue
        started = time.monotonic()
        before = Counter(totals)
        try_all(path, options, totals)
        print(f"{path.name}: {dict(totals - before)} {time.monotonic() - started:.1f} s", flush=True)
    print(dict(totals))


def try_all(path: Path, options: argparse.Namespace, totals: Counter[str]) -> None:
    model = exports.load(path)
    given = exports.feeds(model)
    fusions = exports.fused_ops(fuse(model, CATALOGUE).model)
    rng = random.Random(options.seed)
    singles = [[name] for name in options.only or (*TRANSFORMS, *OPAQUE)]
    depths = [] if options.only else [options.depth] * options.stacks
    stacks = [rng.sample(list(TRANSFORMS), depth) for depth in depths]
    for names in singles + stacks:
        label = f"{path.name} {' '.join(names)}"
        changed, count = transformed(model, names, options.seed)
        if not count:
            continue
        try:
            if "unranked" not in names:  # the checker wants a rank, runtimes do not
                onnx.checker.check_model(changed, full_check=True)
            moved = exports.changed_outputs(model, changed, given)
        except Exception as error:  # what onnxruntime raises has no common base
            totals["invalid"] += 1
            print(f"INVALID {label}: {str(error)[:200]}", flush=True)
            continue
        if moved:
            totals["not the same model"] += 1
            print(f"CHANGED {label}: {moved}", flush=True)
        totals["tried"] += 1
        try:
            fused = fuse(changed, CATALOGUE).model
            if "unranked" not in names:
                onnx.checker.check_model(fused, full_check=True)
            wrong = exports.differing(changed, fused, given)
        except Exception as error:
            totals["failed"] += 1
            print(f"FAILED {label}: {type(error).__name__} {str(error)[:300]}", flush=True)
            continue
        if wrong:
            totals["wrong"] += 1
            print(f"WRONG {label}: {dict(list(wrong.items())[:3])}", flush=True)
        found = exports.fused_ops(fused)
        lost, gained = fusions - found, found - fusions
        if lost or gained:
            kind = "fewer" if lost else "more"
            totals[f"{kind} ({'opaque' if names[0] in OPAQUE else 'plain'})"] += 1
            print(f"{kind.upper()} {label}: lost {dict(lost)} gained {dict(gained)}", flush=True)


if __name__ == "__main__":
    main()
