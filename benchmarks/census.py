"""What is fused of what models/ has to fuse: as exported, by onnxruntime's own optimizer, and by onnxfuse.

models/truth.json says how many blocks of each kind a model computes.  A block counts as fused where one node computes
it: an op of its name, or an op that has it inside, such as a FusedMatMul with a Gelu or a SkipLayerNormalization.
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import onnx
import onnxruntime

import onnxfuse
from onnxfuse.model.graph import DOMAIN, family_of
from onnxfuse.model.tensors import bodies

MODELS = Path(__file__).resolve().parent.parent / "models"

OPS = {
    "attention": {"Attention", "MultiHeadAttention", "GroupQueryAttention"},
    "layernorm": {"LayerNormalization", "SkipLayerNormalization", "EmbedLayerNormalization"},
    "rmsnorm": {
        "RMSNormalization",
        "SimplifiedLayerNormalization",
        "SkipSimplifiedLayerNormalization",
        "EmbedSimplifiedLayerNormalization",
    },
    "gelu": {"Gelu", "FastGelu", "BiasGelu", "QuickGelu", "GeGLU"},
    "silu": {"Swish", "Silu", "SwiGLU"},
    "softmax": {"Softmax"},
    "logsoftmax": {"LogSoftmax"},
    "elu": {"Elu"},
    "hardswish": {"HardSwish"},
    "mish": {"Mish"},
    "softplus": {"Softplus"},
}
"""Kind of block → ops that compute one."""

Census = dict[str, int]


def census(model: onnx.ModelProto, truth: Census, original: onnx.ModelProto) -> Census:
    """How many of the blocks in `truth` the graphs of `model` compute in one node each, or have folded away."""
    seen = ops(model)
    found = {kind: min(sum(seen[op] for op in OPS[kind]), wanted) for kind, wanted in truth.items() if kind in OPS}
    if "batchnorm" in truth:
        # truth.json does not count those that must stay.
        stay = max(ops(original)["BatchNormalization"] - truth["batchnorm"], 0)
        found["batchnorm"] = truth["batchnorm"] - max(seen["BatchNormalization"] - stay, 0)
    return found


def ops(model: onnx.ModelProto) -> Counter[str]:
    """How often the graphs of `model` compute each op."""
    graphs = [body for body in bodies(model) if isinstance(body, onnx.GraphProto) or body.domain != DOMAIN]
    calls = Counter((node.domain, node.op_type) for body in graphs for node in body.node)
    seen: Counter[str] = Counter()
    for body in graphs:
        # A local function counts once per call.
        times = calls[body.domain, body.name] if isinstance(body, onnx.FunctionProto) else 1
        for node in body.node:
            seen.update(dict.fromkeys(_names(node), times))
    return seen


def _names(node: onnx.NodeProto) -> Iterator[str]:
    """The ops that a node computes: its own, and its activation."""
    attributes = {attribute.name: attribute for attribute in node.attribute}
    # com.microsoft's QuickGelu is SiLU where its factor is 1.
    op = family_of(node)
    silu = op == "QuickGelu" and "alpha" in attributes and attributes["alpha"].f == 1
    yield "Silu" if silu else op
    if "activation" in attributes:
        yield attributes["activation"].s.decode()


def exported(path: Path) -> onnx.ModelProto:
    """The model as it is."""
    return onnx.load(path, load_external_data=False)


def by_onnxruntime(path: Path) -> onnx.ModelProto:
    """The model as onnxruntime's session rewrites it, with all optimizations but those of memory layout."""
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = f"{folder}/optimized.onnx"
        options.log_severity_level = 3
        onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath, load_external_data=False)


def by_onnxfuse(path: Path) -> onnx.ModelProto:
    """The model that `onnxfuse optimize` writes."""
    return onnxfuse.optimize(path).model


TOOLS: dict[str, Callable[[Path], onnx.ModelProto]] = {
    "as exported": exported,
    f"onnxruntime {onnxruntime.__version__}": by_onnxruntime,
    "onnxfuse": by_onnxfuse,
}


def main() -> None:
    """Print the table of benchmarks/README.md."""
    truths: dict[str, Census] = json.loads((MODELS / "truth.json").read_text())
    wanted: Counter[str] = Counter()
    found = {tool: Counter[str]() for tool in TOOLS}
    for path in sorted(MODELS.glob("*.onnx")):
        truth = truths[path.name.split(".")[0]]
        wanted.update(truth)
        for tool, optimized in TOOLS.items():
            counts = census(optimized(path), truth, exported(path))
            found[tool].update(counts)
            missed = {kind: truth[kind] - count for kind, count in counts.items() if count < truth[kind]}
            if tool == "onnxfuse" and missed:
                print(f"{path.name}: onnxfuse misses {', '.join(f'{n} {kind}' for kind, n in missed.items())}")
    print(f"\n| blocks | in {len(list(MODELS.glob('*.onnx')))} models | {' | '.join(TOOLS)} |")
    print(f"|---|--:|{'--:|' * len(TOOLS)}")
    for kind, total in wanted.most_common():
        print(f"| {kind} | {total} | {' | '.join(str(found[tool][kind]) for tool in TOOLS)} |")


if __name__ == "__main__":
    main()
