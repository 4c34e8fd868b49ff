"""Which ops onnxruntime's CPU provider runs in which element types: it is asked, with a model of one node for each.

The answer goes to onnxfuse/ort_kernels.json, which `--target ort` and function bodies consult.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from onnx import TensorProto, helper

from onnxfuse.targets import KERNELS

TYPES = ("float", "float16", "bfloat16", "double")
NEWEST = 24
"""Opset of the one-node models: the newest that onnxruntime 1.31 supports in full."""

POINTWISE = """Relu Sigmoid Tanh Erf Softplus Softsign Elu Selu Celu Mish HardSigmoid HardSwish LeakyRelu
ThresholdedRelu Gelu Swish Softmax LogSoftmax
com.microsoft.Gelu com.microsoft.FastGelu com.microsoft.QuickGelu""".split()
"""Ops of one tensor."""

SEVERAL: Mapping[str, tuple[list[list[int]], dict[str, Any]]] = {
    "Attention": ([[1, 4, 8], [1, 4, 8], [1, 4, 8]], {"q_num_heads": 2, "kv_num_heads": 2}),
    "Gemm": ([[4, 8], [8, 8], [8]], {}),
    "GroupNormalization": ([[1, 8, 4], [8], [8]], {"num_groups": 2}),
    "InstanceNormalization": ([[1, 8, 4], [8], [8]], {}),
    "LayerNormalization": ([[1, 4, 8], [8], [8]], {}),
    "RMSNormalization": ([[1, 4, 8], [8]], {}),
    "RotaryEmbedding": ([[1, 2, 4, 8], [1, 4, 4], [1, 4, 4]], {}),
    "SimplifiedLayerNormalization": ([[1, 4, 8], [8]], {}),
    "Sum": ([[4, 8], [4, 8]], {}),
    "com.microsoft.Attention": ([[1, 4, 8], [8, 24], [24]], {"num_heads": 2}),
    "com.microsoft.BiasGelu": ([[4, 8], [8]], {}),
    "com.microsoft.FusedConv": ([[1, 2, 4, 4], [2, 2, 3, 3], [2]], {"activation": "Relu"}),
    "com.microsoft.FusedGemm": ([[4, 8], [8, 8], [8]], {"activation": "Relu"}),
    "com.microsoft.FusedMatMul": ([[4, 8], [8, 8]], {"transB": 1}),
    "com.microsoft.MultiHeadAttention": ([[1, 4, 8], [1, 4, 8], [1, 4, 8]], {"num_heads": 2}),
    "com.microsoft.SkipLayerNormalization": ([[1, 4, 8], [1, 4, 8], [8], [8]], {}),
    "com.microsoft.SkipSimplifiedLayerNormalization": ([[1, 4, 8], [1, 4, 8], [8]], {}),
}
"""Other ops: shapes of their inputs, and attributes."""


def model(op: str, kind: str) -> onnx.ModelProto:
    """One node of an op in one element type."""
    shapes, attributes = SEVERAL.get(op, ([[4, 8]], {}))
    dtype = TensorProto.DataType.Value(kind.upper())
    domain, _, name = op.rpartition(".")
    inputs = [helper.make_tensor_value_info(f"x{i}", dtype, shape) for i, shape in enumerate(shapes)]
    node = helper.make_node(name, [i.name for i in inputs], ["y"], domain=domain, **attributes)
    graph = helper.make_graph([node], op, inputs, [helper.make_tensor_value_info("y", dtype, None)])
    imports = [helper.make_opsetid("", NEWEST), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def runs(op: str, kind: str) -> bool:
    """Does onnxruntime load the one-node model?"""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(model(op, kind).SerializeToString(), options, providers=["CPUExecutionProvider"])
    except Exception:  # onnxruntime's own classes, all derived from Exception
        return False
    return True


def table() -> dict[str, Any]:
    return {
        "onnxruntime": onnxruntime.__version__,
        "provider": "CPUExecutionProvider",
        "opset": NEWEST,
        "kernels": {op: [kind for kind in TYPES if runs(op, kind)] for op in sorted([*POINTWISE, *SEVERAL])},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, epilog="example:\n  python -m benchmarks.ort_kernels")
    parser.add_argument("--output", type=Path, default=KERNELS)
    given = parser.parse_args()
    found = table()
    given.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for op, kinds in found["kernels"].items():
        print(f"{op:48} {', '.join(kinds) or 'no kernel'}")


if __name__ == "__main__":
    main()
