"""The same model in float64: what the original was meant to compute, before its dtype rounded it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

NARROW = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})
_TYPED = {"Cast": "to", "EyeLike": "dtype", "SequenceEmpty": "dtype", "Bernoulli": "dtype"}
"""Operators with an attribute that names a dtype."""
_STAYS_FLOAT = {"Resize": 2, "Upsample": 1}
"""Operators with an input that the standard wants in float32 whatever the others are: their scales."""


def to_float64(model: onnx.ModelProto, base_dir: Path | None = None) -> onnx.ModelProto:
    """A copy of `model` in which every float32, float16 and bfloat16 is a float64.

    Casts among floats become casts to float64; integer arithmetic stays what it was.  External data is loaded from
    `base_dir`; raises what onnx raises where it cannot be read.
    """
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    onnx.load_external_data_for_model(wide, str(base_dir or Path.cwd()))
    _graph(wide.graph)
    for function in wide.functions:
        _nodes(function)
        del function.value_info[:]
    return wide


def _graph(graph: onnx.GraphProto) -> None:
    for tensor in graph.initializer:
        _tensor(tensor)
    for sparse in graph.sparse_initializer:
        _tensor(sparse.values)
    for info in (*graph.input, *graph.output):
        _type(info.type)
    del graph.value_info[:]
    _nodes(graph)


def _type(kind: onnx.TypeProto) -> None:
    wrapper = kind.WhichOneof("value")
    if wrapper in ("sequence_type", "optional_type"):
        _type(getattr(kind, wrapper).elem_type)
    elif wrapper == "tensor_type" and kind.tensor_type.elem_type in NARROW:
        kind.tensor_type.elem_type = TensorProto.DOUBLE


def _tensor(tensor: TensorProto) -> None:
    if tensor.data_type in NARROW:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))


def _nodes(owner: onnx.GraphProto | onnx.FunctionProto) -> None:
    nodes = []
    for node in owner.node:
        for attribute in node.attribute:
            _attribute(node, attribute)
        if node.op_type == "ConstantOfShape" and not node.attribute:
            node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(np.zeros(1))))
        position = _STAYS_FLOAT.get(node.op_type, len(node.input))
        if position < len(node.input) and node.input[position]:
            name = f"{node.input[position]}/float32/{node.output[0]}"
            nodes.append(helper.make_node("Cast", [node.input[position]], [name], to=TensorProto.FLOAT))
            node.input[position] = name
        nodes.append(node)
    if len(nodes) > len(owner.node):
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del owner.node[:]
        owner.node.extend(copies)


def _attribute(node: onnx.NodeProto, attribute: AttributeProto) -> None:
    if attribute.type == AttributeProto.TENSOR:
        _tensor(attribute.t)
    elif attribute.type == AttributeProto.GRAPH:
        _graph(attribute.g)
    elif node.op_type == "Constant" and attribute.name in ("value_float", "value_floats"):
        value = attribute.f if attribute.name == "value_float" else list(attribute.floats)
        attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(np.asarray(value, np.float64))))
    elif attribute.name == _TYPED.get(node.op_type) and attribute.i in NARROW:
        attribute.i = TensorProto.DOUBLE


def evaluate(model: onnx.ModelProto, feeds: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """The outputs of `model` for each of `feeds`, by the ONNX reference evaluator: slow, but it has every operator.

    Raises whatever the evaluator raises.
    """
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import OpRun

    class GatherElements(OpRun):
        """In place of the evaluator's own, which refuses indices that are fewer than the data in another dim."""

        def _run(self, data: np.ndarray, indices: np.ndarray, axis: int = 0) -> tuple[np.ndarray]:
            place: list[np.ndarray] = list(np.indices(indices.shape, sparse=True))
            place[axis] = indices
            return (data[tuple(place)],)

    evaluator = ReferenceEvaluator(model, new_ops=[GatherElements])
    with np.errstate(all="ignore"):
        return [list(evaluator.run(None, dict(feed))) for feed in feeds]
