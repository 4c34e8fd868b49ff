"""Which ops between DequantizeLinear and QuantizeLinear onnxruntime runs on integers, as it says itself, on a CPU and
by its CUDA provider.

    python -m benchmarks.integer_kernels --write

For each op a model of one node is made, behind a DequantizeLinear for each of its operands, with a QuantizeLinear
behind it and without, on both kinds of bytes; products also with integers as weights alone.  onnxruntime
optimizes it as it would for a run and writes down what is left: where the op is gone, there is a kernel on integers.
Of bytes with a sign it is asked as it decides on Arm; on other processors it takes them for fewer ops.

Of its CUDA provider the release of onnxruntime-gpu is asked that is as new as the onnxruntime that is installed; no GPU
is needed (`cuda_kernels`).

The answer goes to onnxfuse/targets/integer_kernels.json: what runs so is not taken into a fused op.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks import cuda_kernels, ort_optimized
from benchmarks.environments import build
from benchmarks.ort_optimized import optimized
from onnxfuse.runtime.quiet import onnxruntime
from onnxfuse.targets.integer_kernels import TABLE

BLOCK = 16
PACKED = ("UINT4", "INT4", "UINT8", "INT8", "UINT16", "INT16")
OPSET = {"FLOAT": 17, "FLOAT16": 21}
"""The types of scales, and an opset whose QuantizeLinear takes them."""
SCALED: Mapping[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "blocks": ((2, 8), {"axis": 0, "block_size": BLOCK}),
    "columns": ((8,), {"axis": 1}),
    "rows": ((2 * BLOCK,), {"axis": 0}),
    "tensor": ((), {}),
}
"""How the weights of a product of [..., 32] by [32, 8] are scaled: the shape of the scales, and attributes."""


@dataclass(frozen=True)
class Probe:
    """An op, the shapes of its operands, and its attributes; `ahead` is an operand of booleans before them."""

    op: str
    shapes: Sequence[tuple[int, ...]]
    attrs: dict[str, Any] = field(default_factory=dict)
    ahead: bool = False
    any_number: bool = False


_ROWS, _IMAGE, _POOL = (2, 8), (1, 4, 8, 8), {"kernel_shape": [2, 2]}
PROBES = (
    *(Probe(op, [_ROWS, _ROWS]) for op in ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "PRelu")),
    *(
        Probe(op, [_ROWS])
        for op in """Abs Clip Elu Erf Exp HardSigmoid HardSwish LeakyRelu Log LogSoftmax Neg Reciprocal ReduceMean
        Sigmoid Softmax Softplus Sqrt Tanh""".split()
    ),
    *(Probe(op, [_ROWS, (8, 4)]) for op in ("MatMul", "Gemm")),
    *(Probe(op, [_IMAGE, (4, 4, 3, 3)]) for op in ("Conv", "ConvTranspose")),
    *(Probe(op, [_IMAGE], _POOL) for op in ("AveragePool", "LpPool")),
    *(Probe(op, [_IMAGE]) for op in ("GlobalAveragePool", "GlobalMaxPool")),
    Probe("Einsum", [_ROWS, (8, 4)], {"equation": "ij,jk->ik"}),
    Probe("Where", [_ROWS, _ROWS], ahead=True),
    Probe("Concat", [_ROWS, _ROWS], {"axis": 1}, any_number=True),
    Probe("Sum", [_ROWS, _ROWS], any_number=True),
    Probe("LayerNormalization", [_ROWS, (8,)]),
    Probe("InstanceNormalization", [_IMAGE, (4,), (4,)]),
)


def model(probe: Probe, kind: int, rounded: bool, constant: bool, real: str = "FLOAT") -> onnx.ModelProto:
    """The op on `kind`, its result rounded again or not, its operands behind the first constants or not, with scales of
    a real type."""
    element = helper.tensor_dtype_to_np_dtype(kind)
    constants = [
        numpy_helper.from_array(np.array(0.02, _dtype(real)), "scale"),
        numpy_helper.from_array(np.zeros((), element), "zero"),
    ]
    inputs, nodes = [], []
    if probe.ahead:
        inputs.append(helper.make_tensor_value_info("c", TensorProto.BOOL, probe.shapes[0]))
    for number, shape in enumerate(probe.shapes):
        if number and constant:
            constants.append(numpy_helper.from_array(np.ones(shape, element), f"q{number}"))
        else:
            inputs.append(helper.make_tensor_value_info(f"q{number}", kind, shape))
        nodes.append(helper.make_node("DequantizeLinear", [f"q{number}", "scale", "zero"], [f"x{number}"]))
    operands = [*(["c"] if probe.ahead else []), *(f"x{number}" for number in range(len(probe.shapes)))]
    nodes.append(helper.make_node(probe.op, operands, ["y"], **probe.attrs))
    if rounded:
        nodes.append(helper.make_node("QuantizeLinear", ["y", "scale", "zero"], ["r"]))
    return _model(nodes, inputs, "r" if rounded else "y", constants, OPSET[real])


def packed(op: str, kind: int, scaled: str, real: str = "FLOAT") -> onnx.ModelProto:
    """A product with weights of a type of 4 or 8 bits, with a scale for each of blocks, columns, rows or for all."""
    weights = helper.make_tensor("q", kind, (2 * BLOCK, 8), np.ones(2 * BLOCK * 8, np.uint8).tolist())
    shape, attrs = SCALED[scaled]
    scale = numpy_helper.from_array(np.ones(shape, _dtype(real)), "scale")
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "scale"], ["w"], **attrs),
        helper.make_node(op, ["x", "w"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.DataType.Value(real), (2, 2 * BLOCK))]
    return _model(nodes, inputs, "y", [weights, scale], 21)


def _dtype(real: str) -> Any:
    return helper.tensor_dtype_to_np_dtype(TensorProto.DataType.Value(real))


def scaled() -> onnx.ModelProto:
    """A product on integers whose result is converted and scaled, as quantize_dynamic writes it."""
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "a", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=int(TensorProto.FLOAT)),
        helper.make_node("Mul", ["a", "b"], ["s"]),
        helper.make_node("Mul", ["f", "s"], ["y"]),
        helper.make_node("DequantizeLinear", ["q", "a", "z"], ["d"]),  # so that q stays a value of its own
    ]
    weights = helper.make_tensor("w", TensorProto.INT8, (8, 8), np.ones(64, np.int8).tolist())
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, _ROWS)]
    made = _model(nodes, inputs, "y", [weights, numpy_helper.from_array(np.array(0.02, np.float32), "b")], 17)
    made.graph.output.append(onnx.ValueInfoProto(name="d"))
    return onnx.shape_inference.infer_shapes(made)


def _model(nodes: Any, inputs: Any, output: str, constants: Any, opset: int) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, [onnx.ValueInfoProto(name=output)], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return onnx.shape_inference.infer_shapes(made)


def left(asked: onnx.ModelProto) -> list[str]:
    """The ops that the onnxruntime that is installed runs for a model on a CPU."""
    return _ops(optimized(onnxruntime(), asked.SerializeToString()))


def left_on_cuda(version: str, models: Sequence[onnx.ModelProto]) -> list[list[str]]:
    """The ops that this release of onnxruntime-gpu runs for each of the models, which needs no GPU (`cuda_kernels`)."""
    environment = build([f"{cuda_kernels.PACKAGE}=={version}", "numpy<3"])
    questions = [model.SerializeToString() for model in models]
    answers = cuda_kernels.answered(environment, Path(ort_optimized.__file__), questions, cuda_kernels.PROVIDER)
    return [_ops(answer) for answer in answers]


def _ops(model: bytes) -> list[str]:
    return [node.op_type for node in onnx.load_from_string(model).graph.node] if model else []


def kernel(op: str, ops: Sequence[str]) -> str:
    """The op on integers that took the place of this one, of those that are left; "" where it runs on floats."""
    ops = [other for other in ops if other not in ("Transpose", "QuantizeLinear", "DequantizeLinear")]
    return ops[0] if len(ops) == 1 and ops[0] not in (op, "Identity") else ""


Question: TypeAlias = tuple[str, str, str, str]
"""What is asked (rounded, floats, weights, scaled), the op, the type of its bytes, and how it is done."""


def questions(real: str) -> dict[Question, onnx.ModelProto]:
    """All models that onnxruntime is asked about, with scales of a type."""
    found: dict[Question, onnx.ModelProto] = {}
    if real == "FLOAT":  # DynamicQuantizeLinear gives no others
        found["scaled", "MatMulInteger", "", ""] = scaled()
    for probe, kind, constant in product(PROBES, ("UINT8", "INT8"), (False, True)):
        dtype, how = TensorProto.DataType.Value(kind), "constant" if constant else "computed"
        found["rounded", probe.op, kind, how] = model(probe, dtype, True, constant, real)
        found["floats", probe.op, kind, how] = model(probe, dtype, False, constant, real)
    for op, kind, how in product(("MatMul", "Gemm"), PACKED, SCALED):
        found["weights", op, kind, how] = packed(op, TensorProto.DataType.Value(kind), how, real)
    return found


def table(answers: Mapping[Question, Sequence[str]]) -> dict[str, Any]:
    """What onnxruntime says of a provider: the ops that it runs for each model."""
    kernels = {asked: name for asked, ops in answers.items() if (name := kernel(asked[1], ops))}
    found: dict[str, Any] = {}
    for probe in PROBES:
        said = {
            word: sorted({name for asked, name in kernels.items() if asked[:2] == (word, probe.op)})
            for word in ("rounded", "floats")
        }
        if any(said.values()):
            first = int(probe.ahead)
            operands = None if probe.any_number else list(range(first, first + len(probe.shapes)))
            found[probe.op] = {"operands": operands, **said}
    scaled = {name for asked, ops in answers.items() if asked[0] == "scaled" for name in ops if "Integer" in name}
    return {"ops": found, "weights": dict(weights(kernels)), "scaled": "".join(scaled - {"MatMulInteger"})}


def weights(kernels: Mapping[Question, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The products with constants alone on integers: op → the kernel, the types and the scales that it takes."""
    for op in ("MatMul", "Gemm"):
        taken = {asked[2:]: name for asked, name in kernels.items() if asked[:2] == ("weights", op)}
        kinds, scales = (sorted({form[i] for form in taken}) for i in (0, 1))
        assert set(taken) == set(product(kinds, scales)), "each type with each scale"
        if taken:
            (name,) = set(taken.values())
            yield op, {"kernel": name, "types": kinds, "scaled": scales}


def tables() -> dict[str, Any]:
    """What one version of onnxruntime says of both providers."""
    version = onnxruntime().__version__
    found: dict[str, dict[str, Any]] = {"cpu": {}, "cuda": {}}
    for real in OPSET:
        asked = questions(real)
        found["cpu"][real] = table({question: left(model) for question, model in asked.items()})
        on_cuda = left_on_cuda(version, list(asked.values()))
        found["cuda"][real] = table(dict(zip(asked, on_cuda, strict=True)))
    asked_of = f"onnxruntime and of {cuda_kernels.PACKAGE} {version}"
    source = f"what sessions of {asked_of} run, by benchmarks/integer_kernels.py"
    return {"onnxruntime": version, "source": source, "providers": found}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name} anew")
    given = parser.parse_args(arguments)
    text = json.dumps(tables(), indent=2) + "\n"
    if given.write:
        TABLE.write_text(text, encoding="utf-8")
    print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
