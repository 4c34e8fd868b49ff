"""Tensors without elements: whether a model has some, whatever it is fed or at the sizes of a feed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import inliner

from .feeds import Feed

Array = NDArray[Any]


def is_hollow(model: onnx.ModelProto) -> bool:
    """Has it a result without elements whatever it is fed?"""
    inferred = onnx.shape_inference.infer_shapes(inliner.inline_local_functions(model))
    return any(_is_void(info.type.tensor_type) for info in (*inferred.graph.value_info, *inferred.graph.output))


def sized(model: onnx.ModelProto, feed: Feed) -> onnx.ModelProto:
    """The model at the sizes of a feed: a slice of all but the first of an axis is empty where that is one long."""
    sized = onnx.ModelProto()
    sized.CopyFrom(model)
    for info in sized.graph.input:
        for dim, size in zip(info.type.tensor_type.shape.dim, feed.inputs[info.name].shape, strict=True):
            dim.dim_value = size
    return sized


def _is_void(kind: onnx.TypeProto.Tensor) -> bool:
    return any(dim.HasField("dim_value") and not dim.dim_value for dim in kind.shape.dim)


def as_declared(model: onnx.ModelProto, outputs: Sequence[Array]) -> bool:
    """Do the outputs have the shapes that the model says?  onnxruntime 1.31 gives a reduction of an empty axis with
    keepdims a size of 0 for some ops, where the standard has 1: then nobody can say what is right."""
    declared = [output.type.tensor_type for output in model.graph.output]
    return all(
        not tensor.HasField("shape")
        or (
            len(tensor.shape.dim) == array.ndim
            and all(
                not dim.dim_value or dim.dim_value == size
                for dim, size in zip(tensor.shape.dim, array.shape, strict=True)
            )
        )
        for tensor, array in zip(declared, outputs, strict=True)
    )
