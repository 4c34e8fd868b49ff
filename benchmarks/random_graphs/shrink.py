"""A model that is fused wrongly, or not at all, with everything taken away that is not needed for that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import helper

import onnxfuse
from onnxfuse.fusing.build import LEVEL

from .alone import inner_values
from .feeds import Feed
from .judge import Original

Array = NDArray[Any]
Fails = Callable[[onnx.ModelProto, Feed], bool]
"""Does the fault that is looked for show in this model, on these numbers?"""


def fused(model: onnx.ModelProto, target: str, runtime: str | None = None) -> onnx.ModelProto:
    """What the engine alone makes of a model; `target` may name a level, onnxfuse-O1."""
    name, _, level = target.partition("-O")
    served: dict[str, Any] = {"target": name, "level": int(level or LEVEL), "runtime": runtime}
    result = onnxfuse.optimize(model, validate="off", **served).model
    assert isinstance(result, onnx.ModelProto)
    return result


def shrunken(model: onnx.ModelProto, feed: Feed, fails: Fails) -> tuple[onnx.ModelProto, Feed]:
    """A smaller model that fails on the same numbers, and those: one output, and inputs in place of nodes."""
    again = True
    while again:
        again = False
        for smaller, numbers in _smaller(model, feed):
            if _is_valid(smaller) and fails(smaller, numbers):
                model, feed, again = smaller, numbers, True
                break
    return model, feed


def wrongly_fused(target: str) -> Fails:
    """Whether what is fused for the target gives wrong numbers."""

    def fails(model: onnx.ModelProto, feed: Feed) -> bool:
        try:
            original = Original(model, [feed])
            return bool(original.expected) and original.wrong(fused(model, target)) is not None
        except Exception:  # another fault than the one that is looked for
            return False

    return fails


def raises(target: str, error: Exception) -> Fails:
    """Whether fusing for the target, or comparing what comes of it, raises an error of this one's type."""

    def fails(model: onnx.ModelProto, feed: Feed) -> bool:
        try:
            Original(model, [feed]).wrong(fused(model, target))
        except Exception as found:
            return type(found) is type(error)
        return False

    return fails


def _is_valid(model: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception:  # a model that is none any more
        return False
    return True


def _smaller(model: onnx.ModelProto, feed: Feed) -> Iterator[tuple[onnx.ModelProto, Feed]]:
    """Models with one output, which may be a value in between, and with one node less, which is fed instead."""
    if not feed.inputs:
        return
    for output in model.graph.output:
        if len(model.graph.output) > 1:
            smaller = _copy(model)
            del smaller.graph.output[:]
            smaller.graph.output.append(output)
            yield _used(smaller, feed)
    outputs = {output.name for output in model.graph.output}
    inner = {v.name: v for v in onnx.shape_inference.infer_shapes(model).graph.value_info}
    for name in [name for node in model.graph.node for name in node.output if name in inner and name not in outputs]:
        smaller = _copy(model)
        del smaller.graph.output[:]
        smaller.graph.output.append(inner[name])
        yield _used(smaller, feed)
    values = inner_values(model, feed)
    for index, node in enumerate(model.graph.node):
        made = {name: values[name] for name in node.output if name in values}
        if node.op_type == "Constant" or not made:
            continue
        for named in (True, False):
            smaller = _copy(model)
            del smaller.graph.node[index]
            smaller.graph.input.extend(_info(name, array, feed, model, named) for name, array in made.items())
            yield _used(smaller, Feed(feed.name, {**feed.inputs, **made}))


def _info(name: str, array: Array, feed: Feed, model: onnx.ModelProto, named: bool) -> onnx.ValueInfoProto:
    """The type of a value that becomes an input, its dimensions named like inputs' of the same size, or static."""
    names = dict[int, str]()
    for info in model.graph.input:
        for dim, size in zip(info.type.tensor_type.shape.dim, feed.inputs[info.name].shape, strict=True):
            if dim.dim_param:
                names[size] = dim.dim_param
    shape = [names.get(size, size) if named else size for size in array.shape]
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), shape)


def _used(model: onnx.ModelProto, feed: Feed) -> tuple[onnx.ModelProto, Feed]:
    """The model without nodes, inputs, constants and functions that nothing needs."""
    graph = model.graph
    while True:
        read = {name for node in graph.node for name in node.input} | {output.name for output in graph.output}
        for node in graph.node:
            for attribute in node.attribute:
                read |= {name for inner in attribute.g.node for name in inner.input}
                read |= {output.name for output in attribute.g.output}
        kept = [node for node in graph.node if read & set(node.output)]
        if len(kept) == len(graph.node):
            break
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in kept]
        del graph.node[:]
        graph.node.extend(copies)
    for field in (graph.input, graph.initializer):
        left = [item for item in field if item.name in read]
        copied = [type(item).FromString(item.SerializeToString()) for item in left]
        del field[:]
        field.extend(copied)
    return model, Feed(feed.name, {name: a for name, a in feed.inputs.items() if name in read})


def _copy(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy
