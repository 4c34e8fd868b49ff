"""Which nodes of a quantized model onnxruntime runs on integers: fusing across them would lose a kernel.

onnxruntime looks for a DequantizeLinear on each operand of an op and, for most ops, a QuantizeLinear on its result, and
nothing else there; a Relu before that QuantizeLinear goes into it.  integer_kernels.json says for which ops an
execution provider then has a kernel on integers, and of which version; benchmarks/integer_kernels.py asked it.
Constant weights of few bits it multiplies as they are, by numbers of any kind, which is all that its CUDA provider does
on integers; what MatMulInteger gives is converted and scaled in the same kernel.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from onnx import NodeProto, TensorProto

from onnxfuse.model.graph import Graph
from onnxfuse.model.standard import STANDARD

TABLE = Path(__file__).with_name("integer_kernels.json")
PROVIDERS = ("cpu", "cuda")
_DOMAINS = (*STANDARD, "com.microsoft")
_PASSED = ("Reshape", "Transpose", "Squeeze", "Unsqueeze")
"""What onnxruntime moves to the other side of both ops (core/optimizer/qdq_transformer/qdq_propagation.cc)."""
_CLIPS = ("Relu", "Clip")
"""What a QuantizeLinear behind it may do as well."""


@cache
def table(provider: str, real: str = "FLOAT") -> Mapping[str, Any]:
    """Of an execution provider of onnxruntime, for scales of a type, the ops, those of weights alone, and the kernel of
    a MatMulInteger with what converts and scales its result, if it has one; nothing of types it was not asked about."""
    known: dict[str, Any] = json.loads(TABLE.read_text(encoding="utf-8"))["providers"][provider]
    return known.get(real) or {"ops": {}, "weights": {}, "scaled": ""}


def integer_nodes(graph: Graph, *providers: str) -> dict[int, str]:
    """The positions of nodes of a scope that one of these execution providers runs on integers, and what becomes of
    each, such as QLinearConv."""
    if not any("Linear" in node.op_type or node.op_type.endswith("Integer") for node in graph.nodes):
        return {}
    readers, found = _readers(graph), dict[int, str]()
    for (index, node), provider in product(enumerate(graph.nodes), providers):
        if node.domain not in STANDARD:
            continue
        kernel = _kernel(graph, node, readers, provider) or _of_weights(graph, node, provider)
        if kernel:
            found.setdefault(index, kernel)
        if node.op_type == "MatMulInteger" and (scaled := table(provider)["scaled"]):
            found.update(dict.fromkeys(_scaled(graph, index, readers), scaled))
    return dict(_before_signed_steps(graph, readers, found)) | found


def _real(graph: Graph, source: NodeProto) -> str:
    """The type of the scales of a DequantizeLinear, which is that of what it gives."""
    scale = _constant(graph, source.input[1])
    dtype = scale.data_type if scale is not None else graph.type_of(source.input[1])[0]
    return str(TensorProto.DataType.Name(dtype or TensorProto.FLOAT))


def _is(node: NodeProto, *ops: str) -> bool:
    """Is it one of these ops of ai.onnx, and not another's of the same name?"""
    return node.op_type in ops and node.domain in STANDARD


def _is_step(node: NodeProto, op: str) -> bool:
    """Is it a QuantizeLinear, or a DequantizeLinear?  com.microsoft's compute what ai.onnx's do."""
    return node.op_type == op and node.domain in _DOMAINS


def _readers(graph: Graph) -> dict[str, list[int]]:
    """Value → the nodes that read it."""
    readers: dict[str, list[int]] = {}
    for index, node in enumerate(graph.nodes):
        for name in node.input:
            readers.setdefault(name, []).append(index)
    return readers


def _kernel(graph: Graph, node: NodeProto, readers: Mapping[str, Sequence[int]], provider: str) -> str:
    """The kernel on integers that an op of ai.onnx gets; "" where it has none there."""
    if node.op_type not in table(provider)["ops"]:
        return ""
    source = next(filter(None, (_source(graph, name) for name in node.input)), None)
    entry: Any = None if source is None else table(provider, _real(graph, source))["ops"].get(node.op_type)
    if entry is None:
        return ""
    positions = range(len(node.input)) if entry["operands"] is None else entry["operands"]
    if all(i < len(node.input) and _dequantized(graph, node.input[i]) for i in positions):
        if entry["rounded"] and _rounded(graph, node, readers):
            return str(entry["rounded"][0])
        if entry["floats"]:
            return str(entry["floats"][0])
    return ""


def _of_weights(graph: Graph, node: NodeProto, provider: str) -> str:
    """The kernel of a product whose weights alone are integers: constants, scaled as it takes them; "" if none does."""
    weighted = node.op_type in table(provider)["weights"] and len(node.input) > 1
    source = _source(graph, node.input[1]) if weighted else None
    entry: Any = None if source is None else table(provider, _real(graph, source))["weights"].get(node.op_type)
    if source is None or entry is None or any(a.name == "transB" and a.i for a in node.attribute):
        return ""
    if graph.is_function and source.input[0] in graph.inputs:  # what calls it may give a constant of any kind
        return str(entry["kernel"])
    weights, scale = (_constant(graph, name) for name in source.input[:2])
    if weights is None or scale is None or len(weights.dims) != 2:
        return ""
    turned = _is(graph.nodes[graph.producer[node.input[1]]], "Transpose")
    kind, scaled = TensorProto.DataType.Name(weights.data_type), _scaled_by(source, scale, turned)
    return str(entry["kernel"]) if kind in entry["types"] and scaled in entry["scaled"] else ""


def _scaled_by(source: NodeProto, scale: TensorProto, turned: bool) -> str:
    """What of a matrix, or of the transpose of one, has a scale of its own: all of it, its rows, its columns, or blocks
    of these."""
    attrs = {a.name: a.i for a in source.attribute}
    columns = (attrs.get("axis", 1) in (1, -1)) is not turned
    if attrs.get("block_size"):
        return "blocks of rows" if columns else "blocks"
    if math.prod(scale.dims) == 1:
        return "tensor"
    return "columns" if columns else "rows"


def _constant(graph: Graph, name: str) -> TensorProto | None:
    """The initializer of a name, or what a Constant node gives."""
    index = graph.producer.get(name, -1)
    if index >= 0 and _is(graph.nodes[index], "Constant"):
        return next((a.t for a in graph.nodes[index].attribute if a.name == "value"), None)
    return graph.constant_tensor(name)


def _source(graph: Graph, name: str) -> NodeProto | None:
    """The DequantizeLinear that gives a value, or what is seen of it in another shape."""
    while (index := graph.producer.get(name, -1)) >= 0:
        node = graph.nodes[index]
        if _is_step(node, "DequantizeLinear"):
            return node
        if not _is(node, *_PASSED):
            return None
        name = node.input[0]
    return None


def _dequantized(graph: Graph, name: str) -> bool:
    node = _source(graph, name)
    return node is not None and not any(a.name == "block_size" and a.i for a in node.attribute)


def _rounded(graph: Graph, node: NodeProto, readers: Mapping[str, Sequence[int]]) -> bool:
    """Does nothing but QuantizeLinear read what the node gives, or what a Relu leaves of it?"""
    name = node.output[0]
    while graph.uses.get(name, 0) == len(readers.get(name, ())) > 0:
        above = [graph.nodes[i] for i in readers[name]]
        if all(_is_step(user, "QuantizeLinear") for user in above):
            return True
        if len(above) > 1 or not _is(above[0], *_CLIPS, *_PASSED) or name != above[0].input[0]:
            return False
        name = above[0].output[0]
    return False


def _before_signed_steps(
    graph: Graph, readers: Mapping[str, Sequence[int]], found: Mapping[int, str]
) -> Iterator[tuple[int, str]]:
    """Each Gather of rows that are numbers already, and are quantized to bytes with a sign for a node that runs on
    integers, with that node's kernel.  Were the rows bytes before, the QuantizeLinear would be no step, and gone;
    onnxruntime makes bytes without a sign, which it has most kernels for, where it finds one."""
    for index, node in enumerate(graph.nodes):
        if not _is(node, "Gather") or not _dequantized(graph, node.input[0]) or not _rounded(graph, node, readers):
            continue
        steps = [step for i in readers[node.output[0]] for step in graph.nodes[i].output]
        numbers = [name for step in steps for i in readers.get(step, ()) for name in graph.nodes[i].output]
        signed = any(graph.type_of(step)[0] == TensorProto.INT8 for step in steps)
        kernel = next((found[i] for name in numbers for i in readers.get(name, ()) if i in found), None)
        if signed and kernel is not None:
            yield index, kernel


def _scaled(graph: Graph, index: int, readers: Mapping[str, Sequence[int]]) -> Iterator[int]:
    """The Cast and the Mul behind a MatMulInteger."""
    for op in ("Cast", "Mul"):
        name = graph.nodes[index].output[0]
        if graph.uses.get(name) != 1 or len(readers.get(name, ())) != 1:
            return
        index = readers[name][0]
        if not _is(graph.nodes[index], op):
            return
        yield index
