"""The graphs of a model and the tensors in them, wherever they are."""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from .walk import owners

_Attribute = onnx.AttributeProto
_HOLDS_TENSORS = (_Attribute.TENSOR, _Attribute.TENSORS, _Attribute.SPARSE_TENSOR, _Attribute.SPARSE_TENSORS)


def bodies(model: onnx.ModelProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    """The graph of `model`, the graphs in its nodes' attributes, its functions and its training graphs."""
    training = (graph for info in model.training_info for graph in (info.initialization, info.algorithm))
    return owners(*training, *model.functions, model.graph)


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every tensor in `model`: the initializers and the attributes of all its `bodies`."""
    for body in bodies(model):
        if isinstance(body, onnx.GraphProto):
            yield from body.initializer
            for sparse in body.sparse_initializer:
                yield from (sparse.values, sparse.indices)
        for node in body.node:
            for attribute in node.attribute:
                if attribute.type not in _HOLDS_TENSORS:
                    continue
                if attribute.HasField("t"):
                    yield attribute.t
                yield from attribute.tensors
                sparse_tensors = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
                for sparse in (*sparse_tensors, *attribute.sparse_tensors):
                    yield from (sparse.values, sparse.indices)
