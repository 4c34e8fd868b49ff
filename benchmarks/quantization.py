"""What onnxruntime's quantizers make of fused files: do they take them, does the result load, how many products does it
compute in integers, and how far is it off?

    python -m benchmarks.quantization
    python -m benchmarks.quantization my_models/ --keep weighted --targets ort --quantizers static one-scale

Each model is quantized as it is and as every target writes it, with each --keep, by quantize_dynamic, quantize_static
(QDQ, calibrated with what the files are compared on), both with a scale for each channel, and MatMulNBitsQuantizer (4
bits, blocks of 16); `one-scale` is quantize_static with one scale for the whole of a weight.  Products are counted in
what the quantizer writes, and in what a session of onnxruntime makes of it with all optimizations; of `--keep weighted`
those with a weight.  The error is |quantized - float| / |float| of the
whole of an output, the largest of the outputs, the mean over eight draws of inputs: one draw says little, since what is
rounded up in one file may be rounded down in another.

A file is right if the quantizer takes it, onnxruntime loads the result, it has no fewer products than the original
quantized in the same way, neither written nor run, and its error is at most 1.5 times that one's.  Where a quantizer
refuses the original for what it declares of values between nodes, it gets the original without these declarations.
Exits with 1 where a file is not right for a --keep other than none.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnxruntime as ort
from onnx import ModelProto, NodeProto
from onnxruntime.quantization import CalibrationDataReader, quantize_dynamic, quantize_static

import onnxfuse
from onnxfuse.errors import OnnxfuseError
from onnxfuse.model import files
from onnxfuse.model.walk import nodes
from onnxfuse.performance import execution

from .same_files import TARGETS, models

HERE = Path(__file__).parent
MODELS = HERE.parent / "models"
NAMES = """bert.dynamo bert.ts gpt2.dynamo gpt2.ts llama.ts t5_encoder.dynamo t5_decoder.ts vit.dynamo
    whisper_encoder.dynamo convnext.dynamo mobilenet.dynamo resnet.ts""".split()
"""Twelve of models/: encoders, decoders and convolutions, of both exporters."""
DRAWS = 8
FACTOR = 1.5
"""Of the error of the quantized original, that a file may have."""
ORIGINAL = "original"

INTEGER = frozenset(
    """ConvInteger DynamicQuantizeMatMul MatMulInteger MatMulIntegerToFloat MatMulNBits QAttention QGemm QLinearConv
    QLinearMatMul""".split()
)
"""Products whose op says that they are quantized."""
FLOAT = frozenset("Conv ConvTranspose FusedConv FusedGemm FusedMatMul Gemm MatMul".split())
"""Products that are if what they read is dequantized."""

Feeds: TypeAlias = Sequence[Mapping[str, Any]]


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    """Inputs, one after another, as quantize_static asks for them."""

    def __init__(self, feeds: Feeds) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> Mapping[str, Any] | None:
        return next(self._feeds, None)


def dynamic(source: Path, result: Path, feeds: Feeds) -> None:
    quantize_dynamic(source, result, per_channel=True)


def static(source: Path, result: Path, feeds: Feeds) -> None:
    quantize_static(source, result, _Reader(feeds), per_channel=True)


def one_scale(source: Path, result: Path, feeds: Feeds) -> None:
    quantize_static(source, result, _Reader(feeds))


def nbits(source: Path, result: Path, feeds: Feeds) -> None:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer  # wants onnx_ir

    quantizer = MatMulNBitsQuantizer(onnx.load(source), bits=4, block_size=16, is_symmetric=True)
    quantizer.process()
    quantizer.model.save_model_to_file(str(result), False)


QUANTIZERS: Mapping[str, Callable[[Path, Path, Feeds], None]] = {"dynamic": dynamic, "static": static, "nbits": nbits}
OTHERS: Mapping[str, Callable[[Path, Path, Feeds], None]] = {"one-scale": one_scale}
"""Ways that are measured where they are asked for."""


@dataclass
class Row:
    """What a quantizer makes of one file."""

    model: str
    quantizer: str
    keep: str
    column: str
    """The target that wrote the file, or `original`."""
    refused: str = ""
    """Why there is no result that runs."""
    products: int = 0
    kernels: int = 0
    weighted: int = 0
    """Of the products, those with a weight, which a session keeps."""
    error: float | None = None
    wrong: str = ""
    """What is worse than in the quantized original."""


def quantized(model: ModelProto, *, weighted: bool = False) -> int:
    """How many products of a model compute with quantized numbers; `weighted`: with such a weight."""
    every = list(nodes(model.graph, *model.functions))
    made: dict[str, NodeProto] = {name: node for node in every for name in node.output}
    stored = {t.name for t in model.graph.initializer} | {n for n, node in made.items() if node.op_type == "Constant"}

    def dequantized(name: str) -> bool:
        return name in made and made[name].op_type == "DequantizeLinear"

    def counts(node: NodeProto) -> bool:
        if node.op_type in INTEGER:
            weight = {"QLinearMatMul": 3, "QLinearConv": 3, "QGemm": 3}.get(node.op_type, 1)
            return not weighted or node.input[weight] in stored
        if node.op_type not in FLOAT or not all(map(dequantized, node.input[:2])):
            return False
        return not weighted or made[node.input[1]].input[0] in stored

    return sum(map(counts, every))


def draws(path: Path) -> list[dict[str, Any]]:
    """Inputs of a model: those in an .npz file beside it, called `in:NAME`, and generated ones of the same shapes."""
    given, beside, model = None, path.with_suffix(".npz"), files.read(path)
    if beside.exists():
        arrays = files.read_inputs(beside)
        given = {name.removeprefix("in:"): array for name, array in arrays.items() if name.startswith("in:")}
    first = execution.run(model, path, given=given).inputs
    shapes = {name: array.shape for name, array in first.items()}
    seeds = range(1, DRAWS)
    return [first, *(execution.run(model, path, shapes=shapes, seed=seed).inputs for seed in seeds)]


def computed(path: Path, feeds: Feeds, optimized: Path | None = None) -> list[list[Any]]:
    """The outputs of a file for each of the inputs, in plain onnxruntime, which writes what it runs to `optimized`."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = {given.name for given in session.get_inputs()}
    return [session.run(None, {n: value for n, value in feed.items() if n in names}) for feed in feeds]


def error_of(found: Sequence[Sequence[Any]], wanted: Sequence[Sequence[Any]]) -> float:
    """The mean over runs of the largest relative error of an output; where it is to be infinite or NaN, it says
    nothing."""
    return float(np.mean([max(map(_relative, a, b), default=0.0) for a, b in zip(found, wanted, strict=True)]))


def _relative(found: Any, wanted: Any) -> float:
    if not isinstance(wanted, np.ndarray) or wanted.dtype.kind != "f":
        return 0.0
    finite = np.isfinite(wanted)
    want, got = wanted[finite].astype("f8"), found[finite].astype("f8")
    return float(np.linalg.norm(got - want)) / max(float(np.linalg.norm(want)), 1e-30)


def examined(row: Row, source: Path, feeds: Feeds, expected: Sequence[Sequence[Any]], folder: Path) -> Row:
    """What the row's quantizer makes of a file."""
    result, optimized = folder / f"{source.stem}.{row.quantizer}.onnx", folder / "optimized.onnx"
    try:
        {**QUANTIZERS, **OTHERS}[row.quantizer](source, result, feeds)
        model = onnx.load(result)
        row.products, row.weighted = quantized(model), quantized(model, weighted=True)
        row.error = error_of(computed(result, feeds, optimized), expected)
        row.kernels = quantized(onnx.load(optimized))
    except Exception as error:  # quantizers raise what they like
        row.refused = " ".join(f"{type(error).__name__}: {error}".split()).replace(f"{folder}/", "")[:300]
    return row


def _judge(row: Row, original: Row) -> Row:
    """Say what is worse in a row than in that of the original."""
    if row.refused:
        row.wrong = "refused"
    elif row.weighted < original.weighted or (row.keep != "weighted" and row.products < original.products):
        row.wrong = "fewer products"
    elif row.keep != "weighted" and row.kernels < original.kernels:
        row.wrong = "fewer kernels"
    elif (row.error or 0) > FACTOR * (original.error or 0) + 1e-6:
        row.wrong = "farther off"
    return row


def measured(path: Path, keeps: Sequence[str], targets: Sequence[str], quantizers: Sequence[str]) -> Iterator[Row]:
    """All rows of one model.  Raises OnnxfuseError where it does not run, or is not fused."""
    feeds = draws(path)
    expected = computed(path, feeds)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fused: dict[tuple[str, str], Path] = {}
        for keep in keeps:
            for target in targets:
                fused[keep, target] = folder / f"{keep}.{target}.onnx".replace(" ", "-")
                kept: Any = None if keep == "none" else keep
                onnxfuse.optimize(path, fused[keep, target], validate="off", keep_products=kept, **TARGETS[target])
        for quantizer in quantizers:
            original = examined(Row(path.stem, quantizer, "", ORIGINAL), path, feeds, expected, folder)
            yield original
            if original.refused:
                bare, plain = folder / "plain.onnx", onnx.load(path)
                del plain.graph.value_info[:]
                onnx.save(plain, bare)
                original = examined(Row(path.stem, quantizer, "", "undeclared"), bare, feeds, expected, folder)
                yield original
            for (keep, target), file in fused.items():
                yield _judge(examined(Row(path.stem, quantizer, keep, target), file, feeds, expected, folder), original)


def shown(row: Row) -> str:
    """A line of the table."""
    figures = row.refused or f"{row.products:5}{row.kernels:9}{row.weighted:10}{row.error:9.4f}"
    return f"{row.model:24}{row.quantizer:10}{row.keep:9}{row.column:11}{figures:33}  {row.wrong}".rstrip()


def summed(rows: Iterable[Row]) -> Iterator[str]:
    """How many files are right, for each quantizer and what is kept, of those of each target."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        if row.keep:
            groups.setdefault((row.quantizer, row.keep, row.column), []).append(row)
    for (quantizer, keep, target), group in groups.items():
        wrong = ", ".join(f"{row.model} {row.wrong}" for row in group if row.wrong)
        yield f"{quantizer:10}{keep:9}{target:11}{sum(not r.wrong for r in group):3} of {len(group)}  {wrong}".rstrip()


def recorded(rows: Iterable[Row], date: str) -> str:
    """Everything, as JSON, a row a line."""
    lines = ",\n".join(json.dumps(asdict(row), allow_nan=False) for row in rows)
    versions = {name: version(name) for name in ("onnx", "onnxruntime")}
    return f'{{"date": "{date}", "versions": {json.dumps(versions)}, "rows": [\n{lines}\n]}}\n'


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", type=Path, nargs="*", help="files and folders (default: twelve of models/)")
    parser.add_argument("--keep", nargs="+", choices=("none", "all", "weighted"), default=("none", "all", "weighted"))
    parser.add_argument("--targets", nargs="+", choices=list(TARGETS), default=list(TARGETS))
    parser.add_argument("--quantizers", nargs="+", choices=[*QUANTIZERS, *OTHERS], default=list(QUANTIZERS))
    parser.add_argument("--record", type=Path, metavar="FILE.json", help="default: benchmarks/results/, with the date")
    given = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    rows: list[Row] = []
    for path in models(given.models or [MODELS / f"{name}.onnx" for name in NAMES]):
        try:
            for row in measured(path, given.keep, given.targets, given.quantizers):
                print(shown(row), flush=True)
                rows.append(row)
        except OnnxfuseError as error:
            print(f"{path.name}: left out: {error}", file=sys.stderr)
    print("\nright, of files")
    for line in summed(rows):
        print(line)
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    place = given.record or HERE / "results" / f"quantization.{today}.json"
    place.write_text(recorded(rows, today))
    print(f"written to {place}")
    return int(any(row.wrong for row in rows if row.keep != "none"))


if __name__ == "__main__":
    sys.exit(main())
