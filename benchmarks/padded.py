"""Fused models beside their originals where nobody looks: a sample that is all padding, and sizes that nobody named.

    python -m benchmarks.padded models --target ort
    python -m benchmarks.padded models --level 1

Each model of a folder is optimized without a proof, so that it is the rules that are judged.  Then original and fused
model run on the proof's usual and unusual inputs at five sizes that the proof does not take.  Where they differ by more
than the tolerance, float64 says whether that is rounding (`numerics.is_rounding`); where the original has NaN, it has
no answer.  onnxruntime's CPU computes most of a half precision model in float32, where a fill of -65504 does not make
the scores of a row equal that it hides throughout, as it does in half: either is right.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx

import onnxfuse
from onnxfuse.fusing.build import LEVEL
from onnxfuse.proof import float64, input_shapes, numerics
from onnxfuse.proof.bfloat16 import emulated
from onnxfuse.proof.input_values import Case, unusual_case, usual_case
from onnxfuse.proof.inputs import generate
from onnxfuse.runtime.quiet import Session, SessionError

SIZES = (
    {"batch": 5, "sequence": 11, "past": 6, "image": 48, "signal": 800},
    {"batch": 3, "sequence": 1, "past": 1, "image": 80, "signal": 1200},
    {"batch": 4, "sequence": 23, "past": 17, "image": 128, "signal": 560},
    {"batch": 3, "sequence": 12, "past": 3, "image": 160, "signal": 2000},
    {"batch": 6, "sequence": 30, "past": 2, "image": 100, "signal": 666},
)
"""Of each kind of axis (`input_shapes.LADDERS`); at least three samples, of which one can be padding."""


def cases(model: onnx.ModelProto, session: Session) -> Iterator[Case]:
    """Usual and unusual inputs at each of SIZES on which the original runs; of static shapes, the proof's own."""
    inputs = input_shapes.as_weights_say(input_shapes.read(model, {}), ())
    kinds = input_shapes.kinds_of(inputs, {})
    made: list[Case] = []
    for sizes in SIZES if kinds else ():
        symbols = {symbol: sizes[kind] for symbol, kind in kinds.items()}
        shapes = {
            item.name: {d: input_shapes.evaluate(d, symbols) for d in item.dims if isinstance(d, str)}
            for item in inputs
        }
        if any(item.past for item in inputs):
            input_shapes.cover_past(inputs, {}, shapes)
        usual = usual_case(inputs, shapes, 1, len(made), False)
        made += [usual, unusual_case(inputs, usual)]
    if not kinds:
        made, _ = generate(model, lambda case: "", seed=1)
    for case in made:
        try:
            session.run(case.inputs)
        except SessionError:
            continue
        yield case


def is_half(model: onnx.ModelProto) -> bool:
    """Are weights of a model in float16?"""
    return any(tensor.data_type == onnx.TensorProto.FLOAT16 for tensor in model.graph.initializer)


def differing(original: onnx.ModelProto, fused: onnx.ModelProto) -> tuple[int, list[str]]:
    """How many cases the original runs on, and what the fused model does differently."""
    before, after = Session(original, None, optimize=False), Session(fused, None, optimize=True)
    half = Session(emulated(original, onnx.TensorProto.FLOAT16), None, optimize=False) if is_half(original) else None
    exact: float64.Evaluator | None = None
    found, count = [], 0
    for case in cases(original, before):
        count += 1
        wanted = before.run(case.inputs)
        try:
            got = after.run(case.inputs)
        except SessionError as error:
            found.append(f"does not run at {case.name}: {error}")
            continue
        if half:
            wanted = [numerics.nearer(*each) for each in zip(got, wanted, half.run(case.inputs), strict=True)]
        for index, (a, b) in enumerate(zip(got, wanted, strict=True)):
            difference = numerics.compare(a, b, known=case.unusual)
            if not difference.reason:
                continue
            exact = exact or float64.Evaluator(float64.to_float64(original))
            truth = exact.run({name: numerics.widen(value) for name, value in case.inputs.items()})[index]
            if not (isinstance(b, np.ndarray) and numerics.is_rounding(a, b, truth, known=case.unusual)):
                found.append(f"output {before.outputs[index]!r} {difference.reason} at {case.name}")
    return count, found


def main() -> None:
    """Print every difference, and how many models have one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", default="onnxfuse", choices=["onnxfuse", "onnx", "ort"])
    parser.add_argument("--provider", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--level", type=int, default=LEVEL, choices=range(3), help="-O0 to -O2")
    parser.add_argument("--only", default="*", help="models whose names match this pattern")
    arguments = parser.parse_args()
    models = wrong = total = 0
    for path in sorted(arguments.folder.glob(f"{arguments.only}.onnx")):
        original = onnx.load(path)
        given = {"target": arguments.target, "provider": arguments.provider, "level": arguments.level}
        fused = onnxfuse.optimize(original, validate="off", **given).model
        count, found = differing(original, fused)
        models, wrong, total = models + 1, wrong + bool(found), total + count
        for line in found:
            print(f"{path.stem}: {line}", flush=True)
    print(f"{arguments.target}: {wrong} of {models} models wrong on {total} sets of inputs", flush=True)


if __name__ == "__main__":
    main()
