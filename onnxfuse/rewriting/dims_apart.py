"""Dimensions of inputs that bear one name and are not equal, told apart in a model (`onnxfuse.proof.namesakes`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from onnx import ModelProto, TensorShapeProto, ValueInfoProto, shape_inference

from onnxfuse.model.graph import skeleton
from onnxfuse.model.walk import owners

DimNames: TypeAlias = Mapping[str, Mapping[str, str]]
"""By input, new names of dimensions that others have under the old ones."""


def told_apart(model: ModelProto, names: DimNames) -> ModelProto:
    """A copy of a model whose inputs have these names of dimensions, its outputs what follows of them."""
    copy = ModelProto()
    copy.CopyFrom(model)
    old = {symbol for renamed in names.values() for symbol in renamed}
    for info in copy.graph.input:
        for dim in dims_of(info):
            if new := names.get(info.name, {}).get(dim.dim_param):
                dim.dim_param = new
    for owner in owners(copy.graph, *copy.functions):
        for info in owner.value_info:
            for dim in dims_of(info):
                if dim.dim_param in old:
                    dim.Clear()  # onnxruntime infers anew which it is
    for info, inferred in zip(copy.graph.output, _inferred_outputs(copy, old), strict=True):
        for dim, other in zip(dims_of(info), dims_of(inferred), strict=False):
            if dim.dim_param in old and other.dim_param:
                dim.dim_param = other.dim_param
    return copy


def dims_of(info: ValueInfoProto) -> Sequence[TensorShapeProto.Dimension]:
    """The declared dimensions of a tensor; of anything else none."""
    dims: Sequence[TensorShapeProto.Dimension] = info.type.tensor_type.shape.dim
    return dims


def _inferred_outputs(model: ModelProto, unknown: Iterable[str]) -> Sequence[ValueInfoProto]:
    """The outputs as onnx infers them where dimensions of `unknown` names are not taken from what they declare."""
    bare = skeleton(model)
    for info in bare.graph.output:
        for dim in dims_of(info):
            if dim.dim_param in unknown:
                dim.Clear()
    try:
        return list(shape_inference.infer_shapes(bare, data_prop=True).graph.output)
    except Exception:  # onnx raises its own C++ errors, RuntimeError and ValueError for models that it cannot infer
        return list(model.graph.output)
