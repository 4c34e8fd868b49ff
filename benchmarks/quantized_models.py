"""Quantize, then fuse: what becomes of a model's fusions and of its kernels on integers?

    python -m benchmarks.quantized_models
    python -m benchmarks.quantized_models models/vit.ts.onnx models/bert.ts.onnx --how dynamic qdq --target ort

Each model (twelve of models/ where none is named) is quantized by onnxruntime in each of the ways, calibrated on
inputs as the proof generates them, and fused for each target; so is the model itself.  One line a file: the verdict of
the proof, the largest error, the ops on integers that onnxruntime runs of the file before and after, nodes, and which
fused ops of the model the quantized file has not, and why that is right.  An activation in a product counted as such.
Exits with 1 where a file is refused, differs, has fewer ops on integers than the quantized model has different ones,
or, quantized by `dynamic` or `nbits`, which leave everything between products in floats, lacks a fused op for no
reason.  What the quantizer itself refuses is left out.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto, NodeProto, version_converter

from benchmarks.quantization import MODELS, NAMES
from onnxfuse.errors import OnnxfuseError
from onnxfuse.fusing.build import Build
from onnxfuse.model import files
from onnxfuse.model.graph import DOMAIN, REGION, count_nodes, family_of
from onnxfuse.model.walk import nodes
from onnxfuse.pipeline import optimize
from onnxfuse.proof.oracle import Oracle
from onnxfuse.runtime.quiet import Session, onnxruntime
from onnxfuse.targets.contrib import DOMAIN as CONTRIB
from onnxfuse.targets.target import Target

ON_INTEGERS = ("QLinear", "QGemm", "QAttention", "MatMulInteger", "ConvInteger", "DynamicQuantizeMatMul", "MatMulNBits")
"""How the ops begin that compute on integers."""
ACTIVATIONS = ("Clip", "Relu", "Sigmoid", "Swish", "HardSwish", "Gelu")
PRODUCTS = frozenset("ConvIntegerToFloat FusedConv FusedGemm FusedMatMul Gemm MatMulIntegerToFloat MatMulNBits".split())
"""Fused ops that are a product with what follows it: a quantized product is another op."""


def _dynamic(source: Path, made: Path) -> None:
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(source, made)


def _nbits(form: str, opset: int = 0) -> Callable[[Path, Path], None]:
    def run(source: Path, made: Path) -> None:
        from onnxruntime.quantization import QuantFormat
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer  # wants onnx_ir

        model = onnx.load(source)
        model = version_converter.convert_version(model, opset) if opset else model
        options = {"bits": 4, "block_size": 16, "is_symmetric": True, "quant_format": QuantFormat[form]}
        quantizer = MatMulNBitsQuantizer(model, **options)
        quantizer.process()
        quantizer.model.save_model_to_file(str(made), False)

    return run


def _static(form: str, kind: str) -> Callable[[Path, Path], None]:
    def run(source: Path, made: Path) -> None:
        from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

        class Reader(CalibrationDataReader):  # type: ignore[misc]
            def __init__(self) -> None:
                self.left = [Oracle(onnx.load(source)).cases[0].inputs]

            def get_next(self) -> Mapping[str, Any] | None:
                return self.left.pop() if self.left else None

        quantize_static(source, made, Reader(), quant_format=QuantFormat[form], activation_type=QuantType[kind])

    return run


TARGETS = ("onnxfuse", "onnx", "ort")
BETWEEN = ("dynamic", "nbits", "nbits-qdq")
"""Ways that leave in floats what is between products."""
HOW: Mapping[str, Callable[[Path, Path], None]] = {
    "dynamic": _dynamic,
    "nbits": _nbits("QOperator"),
    "qdq": _static("QDQ", "QInt8"),
    "qdq-unsigned": _static("QDQ", "QUInt8"),
    "qoperator": _static("QOperator", "QInt8"),
}
OTHERS: Mapping[str, Callable[[Path, Path], None]] = {"nbits-qdq": _nbits("QDQ", 21)}
"""Ways that are measured where they are asked for: weights of 4 bits behind DequantizeLinear, which opset 21 has."""


def kernels(model: ModelProto) -> Counter[str]:
    """The ops on integers that onnxruntime runs for a model."""
    return Counter(node.op_type for node in _on_integers(_optimized(model)))


def different(model: ModelProto) -> int:
    """How many of them there are that do not compute what another one computes, number for number."""
    optimized = _optimized(model)
    named = [(node.op_type, node.output[0]) for node in _on_integers(optimized)]
    outputs = [name for _, name in named]
    del optimized.graph.output[:]
    optimized.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
    found = set()
    values = Session(optimized, optimize=False).run(Oracle(model).cases[0].inputs)
    for (op, _), value in zip(named, values, strict=True):
        found.add((op, value.shape, value.tobytes()))
    return len(found)


def _on_integers(model: ModelProto) -> list[NodeProto]:
    return [node for node in nodes(model.graph, *model.functions) if node.op_type.startswith(ON_INTEGERS)]


def _optimized(model: ModelProto) -> ModelProto:
    """What onnxruntime runs for a model."""
    ort = onnxruntime()
    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.optimized_model_filepath = str(Path(folder, "optimized.onnx"))
        ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath)


def census(model: ModelProto) -> Counter[str]:
    """Fused ops by family; of a product, the activation that is in it.  Regions are left out: what lies between ops of
    floats is something else between those of integers."""
    found: Counter[str] = Counter()
    owners = (model.graph, *(function for function in model.functions if function.domain != DOMAIN))
    standard = ("LayerNormalization", "RMSNormalization", "Gelu", "Swish", "Attention")
    for node in nodes(*owners):
        family = family_of(node)
        if family in PRODUCTS:
            family = next((a.s.decode() for a in node.attribute if a.name == "activation"), "")
        elif family == REGION or (node.domain not in (DOMAIN, CONTRIB) and family not in standard):
            continue
        found[family] += bool(family)
    return found


class UnquantizedError(Exception):
    """The quantizer refuses the model as it is: there is nothing to fuse."""


def reason(op: str, count: int, quantized: ModelProto, target: str) -> str:
    """Why so many fused ops of the model in floats cannot be in the quantized one that is written for a target; ""
    where nothing says so."""
    every = list(nodes(quantized.graph, *quantized.functions))
    made = {name: node for node in every for name in node.output}
    read = (made.get(node.input[0]) for node in every if node.op_type == "DequantizeLinear")
    tables = sum(node is not None and node.op_type == "Gather" for node in read)
    if op.startswith("Embed") and tables >= count:
        return "its table is bytes"
    sums = sum(node.op_type == "ConvInteger" for node in every)
    if op in ACTIVATIONS and target != "onnxfuse" and sums >= count:
        return "behind ConvInteger, whose sums no kernel converts, scales and activates"
    return ""


def line(path: Path, how: str, plain: ModelProto, build: Build, folder: Path) -> tuple[str, bool]:
    """What there is to say of a model that is quantized in one way; and whether it is right."""
    made = folder / f"{path.stem}.{how}.onnx"
    name = f"{path.stem:24} {how:12} {build.target.name:8}"
    try:
        if not made.exists():
            _quantized(path, how, made)
        model = files.read(made, weights=True)
        before = kernels(model).total()
        done = optimize(model, build)
    except OnnxfuseError as error:
        return f"{name} {' '.join(str(error).split())}", False
    after, verdict = kernels(done.model).total(), done.report.validation
    needed = before if after >= before else different(model)
    twice = f", {before - needed} of them twice" if needed < before else ""
    lacking = census(plain) - census(done.model)
    why = {op: reason(op, count, model, build.target.name) for op, count in sorted(lacking.items())}
    told = ", ".join(f"{lacking[op]} {op}" + f" ({text})" * bool(text) for op, text in why.items()) or "nothing"
    largest = f"{verdict.max_error or 0:.1e}"
    sizes = f"{count_nodes(model)} -> {count_nodes(done.model)} nodes"
    text = f"{name} {verdict.verdict} {largest}; {before}{twice} -> {after} on integers; {sizes}; not fused: {told}"
    whole = how not in BETWEEN or all(why.values())
    return text, verdict.verdict == "equal" and after >= needed and not done.report.left_out and whole


def _quantized(path: Path, how: str, made: Path) -> None:
    """Quantize a model; where a quantizer refuses it for what it declares of values, without these declarations."""
    ways = {**HOW, **OTHERS}
    try:
        ways[how](path, made)
    except Exception:  # quantizers raise what they like
        bare = made.with_suffix(".bare.onnx")
        model = onnx.load(path)
        del model.graph.value_info[:]
        onnx.save(model, bare)
        try:
            ways[how](bare, made)
        except Exception as error:
            raise UnquantizedError(" ".join(f"{type(error).__name__}: {error}".split())[:120]) from error


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, nargs="*", default=[MODELS / f"{name}.onnx" for name in NAMES])
    parser.add_argument("--how", nargs="+", choices=sorted({**HOW, **OTHERS}), default=sorted(HOW))
    parser.add_argument("--target", nargs="+", choices=TARGETS, default=TARGETS)
    given = parser.parse_args(arguments)
    right: dict[str, list[bool]] = {target: [] for target in given.target}
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        for path in given.model:
            for target in given.target:
                build = Build(Target(target))
                plain = optimize(files.read(path, weights=True), build).model
                for how in given.how:
                    try:
                        text, good = line(path, how, plain, build, Path(folder))
                    except UnquantizedError as error:
                        print(
                            f"{path.stem:24} {how:12} {target:8} left out: the quantizer refuses it: {error}",
                            flush=True,
                        )
                        continue
                    print(text + ("" if good else "  WRONG"), flush=True)
                    right[target].append(good)
    for target, found in right.items():
        print(f"{target}: {sum(found)} of {len(found)} right")
    return 0 if all(good for found in right.values() for good in found) else 1


if __name__ == "__main__":
    sys.exit(main())
