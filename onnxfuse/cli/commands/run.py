"""onnxfuse run"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .options import PATH, given_inputs, provider, rules, seed, shape, timeout
from .options import model as model_argument
from .work import begin, limited, read_model, seconds


@click.command(short_help="Run MODEL once, and say what comes out.")
@model_argument
@given_inputs
@click.option("--outputs", type=PATH, metavar="FILE.npz", help="Write the outputs there.")
@provider
@shape
@seed
@rules
@timeout
@click.option("--emulate", is_flag=True, help="On a CPU, run the CUDA source of kernels, slowly.")
@click.option("--count", is_flag=True, help="With --emulate: what each kernel costs on a card, by source line.")
def run(
    model: Path,
    inputs: Path | None,
    outputs: Path | None,
    provider: str,
    shapes: dict[str, tuple[int, ...]],
    seed: int,
    rules: tuple[Path, ...],
    timeout: float | None,
    emulate: bool,
    count: bool,
) -> None:
    """Run MODEL once, on given or generated inputs, and say what comes out.

    Fused ops run kernels where they have one on the provider, else their function bodies.  Outputs of types that NumPy
    lacks, such as bfloat16, are written as float32.

    \b
    Example:
      onnxfuse run bert.fused.onnx --shape input_ids:1,128
      onnxfuse run bert.fused.onnx --inputs x.npz --outputs y.npz --provider cuda
      onnxfuse run bert.fused.onnx --emulate --count
    """
    from onnxfuse.cli import console, counts_text, tables
    from onnxfuse.cli.paths import STREAM
    from onnxfuse.errors import UsageError
    from onnxfuse.model import files
    from onnxfuse.performance import execution
    from onnxfuse.system import atomic_write

    if count and not emulate:
        raise UsageError("--count counts what kernels do in the emulator: give --emulate, too")
    if outputs:
        atomic_write.refuse(outputs, filter(None, [model, inputs]))
    out = console.console()
    begin(model)
    source, given = read_model(model), files.read_inputs(inputs) if inputs else None
    options: dict[str, Any] = {
        "given": given,
        "provider": provider,
        "shapes": shapes,
        "seed": seed,
        "emulate": emulate,
        "count": count,
        "rules": rules,
        "in_memory": str(model) == STREAM,
    }
    result = limited(lambda tell: execution.run(source, model, **options), model, seconds(timeout, emulate=emulate))
    out.print(f"{model}: {result.case}")
    tables.print_outputs(out, result.outputs)
    if result.kernels:
        out.print(f"  kernels: {', '.join(result.kernels)}")
    for op, reason in result.bodies.items():
        out.print(f"  {op} runs from its function body: {reason}")
    if count:
        counts_text.print_counts(out, result.counts)
    if outputs:
        files.write_arrays(outputs, result.outputs)
        out.print(f"  written to {outputs}")
