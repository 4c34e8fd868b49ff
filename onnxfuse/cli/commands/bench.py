"""onnxfuse bench"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from .options import PATH, files_like, format_, given_inputs, provider, rules, seed, shape, timeout
from .options import model as model_argument
from .work import begin, limited, print_json, read_model
from .work import seconds as allowed


@click.command(short_help="Measure MODEL against what becomes of it.")
@model_argument
@click.argument("fused", type=PATH, metavar="[FUSED]", required=False, shell_complete=files_like)
@given_inputs
@provider
@click.option(
    "--target",
    type=click.Choice(["onnxfuse", "onnx", "ort"]),
    default="onnxfuse",
    show_default=True,
    help="What to make of MODEL, if FUSED is not given.",
)
@rules
@shape
@seed
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Of onnxruntime, on a CPU.")
@click.option("--seconds", type=click.FloatRange(min=0), default=10, show_default=True, help="To measure, at most.")
@click.option("--rounds", type=click.IntRange(min=1), metavar="N", help="Exactly so many, whatever time it takes.")
@timeout
@click.option("--profile/--no-profile", default=True, show_default=True, help="Say what each op takes.")
@format_
def bench(
    model: Path,
    fused: Path | None,
    inputs: Path | None,
    provider: str,
    target: str,
    rules: tuple[Path, ...],
    shapes: dict[str, tuple[int, ...]],
    seed: int,
    threads: int,
    seconds: float,
    rounds: int | None,
    timeout: float | None,
    profile: bool,
    style: str,
) -> None:
    """Measure MODEL against FUSED, or against what `onnxfuse optimize` makes of MODEL.

    Both run in onnxruntime with all its optimizations, in turns, on the same inputs; outputs are compared first.

    \b
    Example:
      onnxfuse bench bert.onnx --shape input_ids:1,128 --target ort
      onnxfuse bench bert.onnx bert.fused.onnx --provider cuda
      onnxfuse bench bert.onnx bert.fused.onnx --format json | jq .ratio.median
    """
    from onnxfuse import pipeline
    from onnxfuse.cli import console, tables
    from onnxfuse.fusing.build import Build
    from onnxfuse.model import files
    from onnxfuse.performance import benchmark
    from onnxfuse.proof.claim import Experiment
    from onnxfuse.targets.target import Target

    given = files.read_inputs(inputs) if inputs else None
    begin(model)
    source = read_model(model)
    original = benchmark.Side(source, model.parent, str(model))
    limit = allowed(timeout)
    with console.progress(model.name) as progress:
        if fused is not None:
            other = benchmark.Side(read_model(fused), fused.parent, str(fused))
        else:
            aimed = Target(target, provider if target == "ort" else "cpu")
            build = Build(aimed, rules=rules, base_dir=model.parent)
            made = pipeline.optimize(source, build, Experiment(timeout=limit), progress=progress)
            other = benchmark.Side(made.model, model.parent, f"what onnxfuse makes of it (--target {target})")
        measure = partial(
            benchmark.bench,
            original,
            other,
            provider=provider,
            rules=rules,
            threads=threads,
            given=given,
            shapes=shapes,
            seed=seed,
            seconds=seconds,
            rounds=rounds,
            profile=profile,
        )
        result = limited(lambda tell: measure(progress=tell), model, limit, progress)
    if style == "json":
        print_json(result.to_json())
    else:
        tables.print_bench(console.console(), result)
