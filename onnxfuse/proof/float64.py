"""The same model in float64: what the original was meant to compute, before its dtype rounded it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from onnxfuse.model.standard import STANDARD
from onnxfuse.model.walk import attribute_graphs
from onnxfuse.runtime.quiet import Session, SessionError

NARROW = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})
_TYPED = {"Cast": "to", "EyeLike": "dtype", "SequenceEmpty": "dtype", "Bernoulli": "dtype"}
"""Operators with an attribute that names a dtype."""
_STAYS_FLOAT = {"Resize": 2, "Upsample": 1}
"""Operators with an input that the standard wants in float32 whatever the others are: their scales."""
_SINGLE = frozenset(
    """Atan AveragePool Celu Conv ConvTranspose Elu Erf Gelu GlobalAveragePool GlobalMaxPool HardSigmoid HardSwish LRN
    InstanceNormalization LeakyRelu Mean Mish PRelu Resize RotaryEmbedding Selu Softplus Softsign Tan ThresholdedRelu
    com.microsoft.Attention com.microsoft.BiasGelu com.microsoft.FusedConv com.microsoft.FusedGemm com.microsoft.Gelu
    com.microsoft.MultiHeadAttention com.microsoft.SkipLayerNormalization
    com.microsoft.SkipSimplifiedLayerNormalization""".split()
)
"""Operators that onnxruntime's CPU provider (1.31) is known not to run in float64: it need not be asked."""


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


class Evaluator:
    """Runs a float64 model (`to_float64`): onnxruntime where it has the kernels, else the ONNX reference evaluator.

    Raises whatever the reference evaluator raises where neither has them."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.run: Callable[[Mapping[str, Any]], list[Any]]
        lacking = lacks_double(operators(model.graph.node, model.functions))
        try:
            if lacking:
                raise SessionError("no kernel")
            self.run = Session(model, None, optimize=False).run
        except SessionError:
            self.run = partial(_evaluated, _reference(model))


def shaken(model: onnx.ModelProto, epsilon: float, seed: int) -> onnx.ModelProto:
    """A copy of a float64 model with other last digits of its constants: each off by up to `epsilon`, relatively."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    rng = np.random.default_rng(seed)
    constants = [a.t for node in made.graph.node if node.op_type == "Constant" for a in node.attribute]
    for tensor in (*made.graph.initializer, *constants):
        if tensor.data_type == TensorProto.DOUBLE:
            value = numpy_helper.to_array(tensor)
            value = value * (1 + epsilon * rng.uniform(-1, 1, value.shape))
            tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
    return made


def operators(nodes: Iterable[onnx.NodeProto], functions: Iterable[onnx.FunctionProto]) -> set[str]:
    """The ops that nodes come down to, with their domains if those are not ai.onnx; functions written out."""
    known = {(f.domain, f.name, f.overload): f for f in functions}
    found: set[str] = set()
    seen: set[tuple[str, str, str]] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        key = (node.domain, node.op_type, node.overload)
        if key in known:
            pending += [] if key in seen else known[key].node
            seen.add(key)
            continue
        found.add(f"{node.domain}.{node.op_type}" if node.domain not in STANDARD else node.op_type)
        for _, body in attribute_graphs(node):
            pending += body.node
    return found


def lacks_double(ops: set[str]) -> set[str]:
    """Those that onnxruntime is known not to run in float64."""
    return ops & _SINGLE


def lacks_reference(ops: set[str]) -> set[str]:
    """Those that the reference evaluator does not know."""
    return {op for op in ops if "." in op}


def evaluate(model: onnx.ModelProto, feeds: Sequence[Mapping[str, Any]]) -> list[list[Any]]:
    """The outputs of `model` for each of `feeds`, by the ONNX reference evaluator: slow, but it has every operator.

    Raises whatever the evaluator raises.
    """
    evaluator = _reference(model)
    return [_evaluated(evaluator, feed) for feed in feeds]


def _evaluated(evaluator: Any, feed: Mapping[str, Any]) -> list[Any]:
    with np.errstate(all="ignore"):
        return list(evaluator.run(None, dict(feed)))


def _reference(model: onnx.ModelProto) -> Any:
    from onnx.reference import ReferenceEvaluator
    from onnx.reference.op_run import OpRun

    class GatherElements(OpRun):
        """In place of the evaluator's own, which refuses indices that are fewer than the data in another dim."""

        def _run(self, data: np.ndarray, indices: np.ndarray, axis: int = 0) -> tuple[np.ndarray]:
            place: list[np.ndarray] = list(np.indices(indices.shape, sparse=True))
            place[axis] = indices
            return (data[tuple(place)],)

    class BatchNormalization(OpRun):
        """In place of the evaluator's own (onnx 1.23), which before opset 14 normalizes by the batch in part."""

        def _run(
            self,
            x: np.ndarray,
            scale: np.ndarray,
            bias: np.ndarray,
            mean: np.ndarray,
            var: np.ndarray,
            epsilon: float = 1e-5,
            momentum: float = 0.9,
            training_mode: int = 0,
            spatial: int = 1,
        ) -> tuple[np.ndarray]:
            if training_mode or not spatial:
                raise NotImplementedError("BatchNormalization in training")
            scale, bias, mean, var = (v.reshape(-1, *(1,) * (x.ndim - 2)) for v in (scale, bias, mean, var))
            return (scale * (x - mean) / np.sqrt(var + epsilon) + bias,)

    return ReferenceEvaluator(_named_apart(model), new_ops=[GatherElements, BatchNormalization])


def _named_apart(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with overloads of a function as functions of their own, for readers that ignore overloads."""
    if not any(function.overload for function in model.functions):
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for function in made.functions:
        for node in function.node:
            node.op_type, node.overload = node.op_type + node.overload, ""
        function.name, function.overload = function.name + function.overload, ""
    for node in made.graph.node:
        node.op_type, node.overload = node.op_type + node.overload, ""
    return made
