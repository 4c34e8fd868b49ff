"""Models run on tensors without elements, of which onnxruntime (1.31) may crash: in a process of their own.

onnxruntime gives what is reduced of them along axes that count from the end the wrong shape: outside our functions,
such axes are counted from the first on, as the standard means it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import onnx
from numpy.typing import NDArray
from onnx import inliner, numpy_helper

from onnxfuse.errors import OnnxfuseError
from onnxfuse.runtime.quiet import Session, SessionError
from onnxfuse.system.isolation import Tell, TookTooLongError, isolated

from .feeds import Feed, feeds

Array = NDArray[Any]
Answer: TypeAlias = Callable[[], list[Array]]
"""Gives outputs, or raises SessionError or CrashError."""
LONG = 300.0
"""Seconds that a run may take, on a machine that has other work."""


class CrashError(Exception):
    """onnxruntime crashes."""


def alone(
    model: onnx.ModelProto, feed: Feed, original: onnx.ModelProto | None = None, *, optimize: bool = False
) -> list[Array]:
    """The outputs, computed in a process of its own.  Raises SessionError, or CrashError if that dies."""
    return next(each_alone(model, [feed], original, optimize=optimize))()


def each_alone(
    model: onnx.ModelProto, fed: Sequence[Feed], original: onnx.ModelProto | None = None, *, optimize: bool = False
) -> Iterator[Answer]:
    """For each feed what gives its outputs, or raises as `alone` does: computed in one process if none crashes."""
    if not fed:
        return
    try:
        counted = from_the_first(model, original or model)
    except SessionError as error:
        yield from [partial(_given, error)] * len(fed)
        return

    def answers(given: Sequence[Feed]) -> list[list[Array] | SessionError | CrashError]:
        try:
            return list(isolated(partial(_run_all, counted, given, optimize), LONG))
        except SessionError as error:  # no session at all
            return [error] * len(given)
        except (OnnxfuseError, TookTooLongError) as error:
            if len(given) == 1:
                return [CrashError(str(error))]
            return [answer for feed in given for answer in answers([feed])]

    for answer in answers(fed):
        yield partial(_given, answer)


def _run_all(
    model: onnx.ModelProto, given: Sequence[Feed], optimize: bool, tell: Tell
) -> list[list[Array] | SessionError]:
    session = Session(model, optimize=optimize, threads=1)
    found: list[list[Array] | SessionError] = []
    for feed in given:
        try:
            found.append(session.run(feed.inputs))
        except SessionError as error:
            found.append(error)
    return found


def _given(answer: list[Array] | SessionError | CrashError) -> list[Array]:
    if isinstance(answer, Exception):
        raise answer
    return answer


def from_the_first(model: onnx.ModelProto, original: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the axes of its reductions counted from the first on, but in the functions of ops that rules name:
    a region has the model's own reductions.

    The original's values tell ranks behind ops of other domains, too, of which onnx knows no shapes, and what it
    computes of ordinary numbers tells those behind a Reshape to a shape that is computed."""
    plain = _inlined(original)
    ranks = _ranks(plain.graph)
    if any(n.op_type.startswith("Reduce") and n.input[0] not in ranks for n in plain.graph.node):
        ranks |= {name: value.ndim for name, value in inner_values(plain, feeds(original)[0]).items()}
    counted = _inlined(model)
    _count(counted.graph, ranks, {})
    return counted


def _inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without functions, but those of ops that rules name, with the shapes of its values."""
    own = [(f.domain, f.name) for f in model.functions if f.domain != "onnxfuse" or f.name.startswith("Region_")]
    plain = inliner.inline_selected_functions(model, own, exclude=False) if own else model
    return onnx.shape_inference.infer_shapes(plain)


def _ranks(graph: onnx.GraphProto) -> dict[str, int]:
    infos = (*graph.input, *graph.value_info, *graph.output)
    known = {info.name: info.type.tensor_type for info in infos if info.type.tensor_type.HasField("shape")}
    return {name: len(kind.shape.dim) for name, kind in known.items()} | {
        t.name: len(t.dims) for t in graph.initializer
    }


def _count(graph: onnx.GraphProto, ranks: dict[str, int], tensors: dict[str, Array]) -> None:
    ranks = ranks | _ranks(graph)
    tensors = tensors | {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    for node in list(graph.node):
        if node.op_type == "Constant" and node.attribute[0].HasField("t"):
            tensors[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
        for attribute in node.attribute:
            _count(attribute.g, ranks, tensors)
            if node.op_type.startswith("Reduce") and attribute.name == "axes" and node.input[0] in ranks:
                attribute.ints[:] = [axis % ranks[node.input[0]] for axis in attribute.ints]
        if node.op_type.startswith("Reduce") and len(node.input) > 1 and node.input[0] in ranks:
            axes = tensors.get(node.input[1])
            if axes is not None and axes.size and axes.min() < 0:
                name = f"{node.output[0]}/axes"
                graph.initializer.append(numpy_helper.from_array(axes % ranks[node.input[0]], name))
                node.input[1] = name


def inner_values(model: onnx.ModelProto, feed: Feed) -> dict[str, Array]:
    """Every result of the graph's nodes."""
    inferred = onnx.shape_inference.infer_shapes(model)
    known = {output.name for output in model.graph.output}
    extended = onnx.ModelProto.FromString(model.SerializeToString())
    extended.graph.output.extend(info for info in inferred.graph.value_info if info.name not in known)
    try:
        names = [output.name for output in extended.graph.output]
        values = alone(extended, feed) if feed.empty else Session(extended, optimize=False, threads=1).run(feed.inputs)
        return dict(zip(names, values, strict=True))
    except (SessionError, CrashError):
        return {}
