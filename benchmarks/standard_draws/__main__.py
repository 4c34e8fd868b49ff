"""Random uses of every op that the standard defines by a body, expanded and folded back.

python -m benchmarks.standard_draws --count 2000 --jobs 2 --record benchmarks/results/standard_draws.DATE.json

Prints a line for each op, and each reason for which something does not fold, with one draw that shows it; ends with 1
if anything is wrong.  --ops chooses some, --show SEED prints one draw with its expansion and what became of it.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import onnx

from benchmarks.random_graphs.build import Seeded

from .judge import FOLDED, IMPOSSIBLE, LEFT, REFUSED, TARGETS, WRONG, Verdict, draw, expansion, judged, lowered
from .oracle import NEWEST_OPSETS
from .table import DRAWERS

OUTCOMES = (FOLDED, LEFT, WRONG, IMPOSSIBLE, REFUSED)


def main(argv: Sequence[str] | None = None) -> int:
    """1 if a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="draws (200)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (1)")
    parser.add_argument("--ops", nargs="+", choices=sorted(DRAWERS), default=sorted(DRAWERS), help="these alone")
    parser.add_argument("--record", type=Path, help="write the figures to this JSON file")
    parser.add_argument(
        "--show", type=int, metavar="SEED", help="print one draw, its expansion, and what becomes of it"
    )
    options = parser.parse_args(argv)
    os.environ.update(NEWEST_OPSETS)
    if options.show is not None:
        return _show(options.show, options.ops)
    work = [drawn_as(seed, options.ops) for seed in range(options.first, options.first + options.count)]
    with ProcessPoolExecutor(options.jobs) as pool:
        verdicts = {seed: v for (seed, *_), v in zip(work, pool.map(one, work, chunksize=4), strict=True)}
    _print(verdicts)
    if options.record:
        options.record.write_text(json.dumps(_record(verdicts), indent=1) + "\n")
    return 1 if any(v.outcome == WRONG for v in verdicts.values()) else 0


def drawn_as(seed: int, ops: Sequence[str]) -> tuple[int, str, bool]:
    """(seed, op, whether it is expanded to the last): every op in turn, and two of three of its draws."""
    return seed, ops[seed % len(ops)], bool(seed // len(ops) % 3)


def one(work: tuple[int, str, bool]) -> Verdict:
    """The verdict on the draw of a seed and an op."""
    seed, op, deep = work
    try:
        return judged(draw(Seeded(seed), op), deep=deep)
    except Exception as error:
        return Verdict(op, 0, WRONG, f"{type(error).__name__}: {str(error)[:300]}")


def _show(seed: int, ops: Sequence[str]) -> int:
    _, op, deep = drawn_as(seed, ops)
    drawn = draw(Seeded(seed), op)
    print(onnx.printer.to_text(drawn.model))
    model = expansion(drawn, deep)
    print(onnx.printer.to_text(model))
    for target in TARGETS:
        print(f"{target}:", onnx.printer.to_text(lowered(drawn, model, target).graph))
    verdict = judged(drawn, deep=deep)
    print(verdict.outcome, verdict.reason)
    return int(verdict.outcome == WRONG)


def _print(verdicts: dict[int, Verdict]) -> None:
    print(f"| op | draws | {' | '.join(OUTCOMES)} |\n|---|--:|{'--:|' * len(OUTCOMES)}")
    for op, counts in _counts(verdicts).items():
        print(f"| {op} | {sum(counts.values())} | {' | '.join(str(counts[o] or '') for o in OUTCOMES)} |")
    total = Counter(v.outcome for v in verdicts.values())
    print(f"| all | {len(verdicts)} | {' | '.join(str(total[o]) for o in OUTCOMES)} |\n")
    for outcome in OUTCOMES[1:]:
        for op, reason, seeds in _reasons(verdicts, outcome):
            print(f"{outcome}: {op}: {len(seeds)} (seed {seeds[0]}): {reason}")


def _counts(verdicts: dict[int, Verdict]) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for verdict in sorted(verdicts.values(), key=lambda v: v.op):
        found.setdefault(verdict.op, Counter())[verdict.outcome] += 1
    return found


def _reasons(verdicts: dict[int, Verdict], outcome: str) -> Iterator[tuple[str, str, list[int]]]:
    found: dict[tuple[str, str], list[int]] = {}
    for seed, verdict in verdicts.items():
        if verdict.outcome == outcome:
            found.setdefault((verdict.op, verdict.reason), []).append(seed)
    for (op, reason), seeds in sorted(found.items()):
        yield op, reason, seeds


def _record(verdicts: dict[int, Verdict]) -> dict[str, Any]:
    total = Counter(v.outcome for v in verdicts.values())
    return {
        "onnx": onnx.__version__,
        "draws": len(verdicts),
        "outcomes": {outcome: total[outcome] for outcome in OUTCOMES},
        "ops": {op: {o: counts[o] for o in OUTCOMES if counts[o]} for op, counts in _counts(verdicts).items()},
        "reasons": [
            {"outcome": outcome, "op": op, "reason": reason, "seeds": seeds}
            for outcome in OUTCOMES[1:]
            for op, reason, seeds in _reasons(verdicts, outcome)
        ],
    }


if __name__ == "__main__":
    sys.exit(main())
