"""Small models, and what their conversion decides."""

from __future__ import annotations

import onnx
import onnx.parser

from onnxfuse.model.element_flow import Flow
from onnxfuse.precision.islands import Islands, islands
from onnxfuse.precision.ports import ports
from onnxfuse.precision.scope import Scope
from onnxfuse.precision.wanted import Precision, Ranges

FP16 = Precision("fp16")


def parse(graph: str, tail: str = "", opset: int = 17) -> onnx.ModelProto:
    imports = f'["": {opset}, "own": 1, "onnxfuse": 1, "com.microsoft": 1]'
    return onnx.parser.parse_model(f"<ir_version: 9, opset_import: {imports}>\n{graph}\n{tail}")


def scope_of(model: onnx.ModelProto, precision: Precision = FP16) -> Scope:
    graph, opset = model.graph, model.opset_import[0].version
    return Scope(
        graph.node,
        Flow(model).main,
        [ports(node, opset, precision.dtype, {}) for node in graph.node],
        {tensor.name: tensor for tensor in graph.initializer},
        {info.name: False for info in graph.input},
        {info.name: False for info in graph.output},
    )


def found(model: onnx.ModelProto, ranges: Ranges | None = None, precision: Precision = FP16) -> Islands:
    return islands(scope_of(model, precision), precision, ranges or {}, model.opset_import[0].version)


def reasons(model: onnx.ModelProto, ranges: Ranges | None = None, precision: Precision = FP16) -> dict[str, str]:
    """The first output of each node that must stay in float32 → why."""
    return {model.graph.node[i].output[0]: why for i, why in found(model, ranges, precision).reasons.items()}
