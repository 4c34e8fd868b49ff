"""Random models through the engine alone, for every target, on every kind of feed; nothing is proved or left out.

python -m benchmarks.random_graphs --count 5000 --jobs 2

Failures are printed with their seed, and written to --folder as small as they could be made: SEED.TARGET.onnx, with
SEED.TARGET.fused.onnx and the inputs SEED.TARGET.npz beside it.  Where the engine raises an error there is no fused
model, and one whose process died is as large as it was.  What is done is remembered in the folder, too: the same
command goes on where it was stopped, with other seeds if --first says so; --again begins anew.  For other targets than
all three take another folder: --target onnxfuse-O1 --folder rules.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import onnx
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from .build import Seeded
from .feeds import Feed, feeds
from .graphs import random_model
from .judge import Original
from .shrink import Fails, fused, raises, shrunken, wrongly_fused

TARGETS = ("onnxfuse", "onnx", "ort")
RULES = "onnxfuse-O1"
"""The default target without regions: a target of its own here, asked for by --target."""
SLOW = 300
"""Seconds of a processor that one stage of a model may take before it counts as one that never ends."""
STUCK = 4.0
"""How many times as long one may take that waits for others."""


def main() -> int:
    """Run what is not done yet; 1 if anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.random_graphs", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="models (1000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (1)")
    parser.add_argument("--folder", type=Path, default=Path("random_graphs"), help="for failures (random_graphs)")
    parser.add_argument("--again", action="store_true", help="do again what is done")
    parser.add_argument("--optimizer", action="store_true", help="count what onnxruntime's own optimizer changes, too")
    parser.add_argument("--target", nargs="+", choices=(*TARGETS, RULES), default=TARGETS, help="default: all but -O1")
    options = parser.parse_args()
    targets = tuple(options.target)
    options.folder.mkdir(parents=True, exist_ok=True)
    log = options.folder / "done.jsonl"
    if options.again:
        log.unlink(missing_ok=True)
    wanted = range(options.first, options.first + options.count)
    known = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    records = {record["seed"]: record for record in known if record["seed"] in wanted}
    todo = [seed for seed in wanted if seed not in records]
    with log.open("a") as file, Progress(*_columns(), console=Console(stderr=True)) as progress:
        task = progress.add_task("models", total=len(wanted), completed=len(records), wrong=_wrong(records))
        for record in _results(todo, options.jobs, Work(targets, options.folder, options.optimizer)):
            records[record["seed"]] = record
            _remember(file, record)
            progress.update(task, advance=1, wrong=_wrong(records))
            for line in record["wrong"]:
                progress.console.print(line, markup=False, highlight=False)
    return _summary(records, targets)


def _columns() -> tuple[Any, ...]:
    wrong = TextColumn("{task.fields[wrong]} wrong")
    return TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), wrong, TimeRemainingColumn()


def _wrong(records: dict[int, dict[str, Any]]) -> int:
    return sum(bool(record["wrong"]) for record in records.values())


def _remember(file: TextIO, record: dict[str, Any]) -> None:
    file.write(json.dumps(record) + "\n")
    file.flush()


def _summary(records: dict[int, dict[str, Any]], targets: Sequence[str]) -> int:
    """Print what there was; the exit status."""
    made, kinds = Counter[str](), Counter[str]()
    for record in records.values():
        made.update(record["fused"])
        kinds.update(record["optimizer"])
    for record in sorted(records.values(), key=lambda r: r["seed"]):
        for line in record["wrong"]:
            print(line)
    crashed = sum(record["crashed"] for record in records.values())
    feeds_run = sum(record["feeds"] for record in records.values())
    print(f"{len(records)} models times {len(targets)} targets, {feeds_run} feeds: {_wrong(records)} models wrong")
    print(f"fused for the default target: {', '.join(f'{op} {n}' for op, n in made.most_common())}")
    if crashed:
        print(f"onnxruntime crashes on {crashed} of the originals, which say nothing")
    for text, n in kinds.most_common():
        print(f"onnxruntime's own optimizer: {n} {text}")
    return 1 if _wrong(records) else 0


# ------------------------------------------------------------------------------------------------ processes


@dataclass(frozen=True)
class Work:
    """What is done with each model."""

    targets: tuple[str, ...]
    folder: Path
    """For failures."""
    optimizer: bool
    """Count what onnxruntime's own optimizer changes?"""


def _results(seeds: list[int], jobs: int, work: Work) -> Iterator[dict[str, Any]]:
    """The records of the models of these seeds; a process that dies takes one model with it."""
    waiting = list(reversed(seeds))
    running: dict[Connection, tuple[multiprocessing.Process, int, str]] = {}

    def start() -> None:
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.Process(target=_work, args=(theirs, work), daemon=True)
        process.start()
        theirs.close()
        give(ours, process)

    def give(pipe: Connection, process: multiprocessing.Process) -> None:
        if waiting:
            seed = waiting.pop()
            running[pipe] = (process, seed, "generator")
            pipe.send(seed)
        else:
            running.pop(pipe, None)
            pipe.send(None)

    for _ in range(min(jobs, len(seeds))):
        start()
    while running:
        ready = wait(list(running), timeout=STUCK * SLOW)
        for pipe in [p for p in ready if isinstance(p, Connection)] or list(running):
            process, seed, stage = running[pipe]
            try:
                message = pipe.recv() if pipe.poll() else None
            except EOFError:
                message = None
            if isinstance(message, str):
                running[pipe] = (process, seed, message)
                continue
            if message is not None:
                give(pipe, process)
                yield message
                continue
            del running[pipe]
            process.kill()
            yield _died(seed, stage, work.folder)
            if waiting:
                start()


def _died(seed: int, stage: str, folder: Path) -> dict[str, Any]:
    """The record of a model whose process is gone: that one wrote nothing, unless it was making the model smaller."""
    wrong = []
    if not (crashed := stage == "original"):
        path = folder / f"{seed}.{stage.partition(',')[0]}.onnx"
        if stage != "generator" and not path.exists():
            model = random_model(Seeded(seed))
            _kept(model, feeds(model, seed)[0], path)
        wrong = [f"seed {seed}: {stage}: the process died, or took longer than {SLOW} s: {path}"]
    return {"seed": seed, "wrong": wrong, "fused": {}, "optimizer": [], "crashed": crashed, "feeds": 0}


def _work(pipe: Connection, work: Work) -> None:
    """Models until there are no more."""
    while (seed := pipe.recv()) is not None:
        pipe.send(_examined(seed, pipe, work))


def _begin(stage: str, pipe: Connection) -> None:
    """Tell the stage, at the end of whose time the system ends this process."""
    used, (_, most) = resource.getrusage(resource.RUSAGE_SELF), resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + SLOW, most))
    pipe.send(stage)


def _examined(seed: int, pipe: Connection, work: Work) -> dict[str, Any]:
    """All targets of one model."""
    model = random_model(Seeded(seed))
    _begin("original", pipe)
    original = Original(model, feeds(model, seed))
    record: dict[str, Any] = {
        "seed": seed,
        "wrong": [],
        "fused": {},
        "optimizer": [],
        "crashed": False,
        "feeds": len(original.expected),
    }
    for target in work.targets:
        _begin(target, pipe)
        try:
            result = fused(model, target)
            found = original.wrong(result)
        except Exception as error:
            path = work.folder / f"{seed}.{target}.onnx"
            _made_smaller(model, feeds(model, seed)[0], raises(target, error), path, pipe)
            record["wrong"].append(f"seed {seed}: {target}: {type(error).__name__}: {error}: {path}")
            continue
        if target in ("onnxfuse", RULES):
            record["fused"] = Counter(
                node.op_type.partition("_")[0] for node in result.graph.node if node.domain == "onnxfuse"
            )
        if found is not None:
            path = work.folder / f"{seed}.{target}.onnx"
            small = _made_smaller(model, found.feed, wrongly_fused(target), path, pipe)
            onnx.save(fused(small, target), path.with_suffix(".fused.onnx"))
            record["wrong"].append(f"seed {seed}: {target}: {found}: {path}")
        elif work.optimizer and original.wrong(result, optimize=True) is not None:
            own = original.wrong(model, optimize=True)
            record["optimizer"].append("results are wrong, and fused ones too" if own else "fused results are wrong")
    return record


def _made_smaller(model: onnx.ModelProto, feed: Feed, fails: Fails, path: Path, pipe: Connection) -> onnx.ModelProto:
    """The smallest model that still fails, written with its inputs; the whole one is there while that is looked for."""
    _kept(model, feed, path)
    _begin(f"{path.stem.partition('.')[2]}, made smaller", pipe)
    small, feed = shrunken(model, feed, fails)
    _kept(small, feed, path)
    return small


def _kept(model: onnx.ModelProto, feed: Feed, path: Path) -> None:
    """Write a model, and what it is fed beside it."""
    onnx.save(model, path)
    np.savez(path.with_suffix(".npz"), allow_pickle=False, **feed.inputs)


if __name__ == "__main__":
    sys.exit(main())
