"""Where the values of a model go: consumers, constants and dims of each, in bodies and functions, too."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import onnx
from onnx import numpy_helper

from onnxfuse.model.dims import declared_name
from onnxfuse.model.graph import skeleton
from onnxfuse.model.op_traits import CASTS, MOVEMENT
from onnxfuse.model.walk import Key, attribute_graphs, called_by, has_bodies, key_of

Value = tuple[str, str]
"""A scope and a name in it; the scope is "" for the graph and the bodies nested in it, else the function's."""
Dims = tuple[int | str, ...]

_NO_SCORE = -1e4
"""What fills a mask is this number, a lower one, or -inf."""
_INFERABLE = 1 << 29
"""Shape inference serializes the model: above this size in bytes it costs more than the tables it would reveal."""
_MOST_NODES, _DEEPEST = 1_000_000, 100
"""Nodes that it goes through, and calls of functions inside one another."""
_ELEMENTS, _POSITIONS = 64, 1 << 14
"""Elements of a constant that is read for what it means, and of one that may be 0, 1, 2, ..."""


class Dataflow:
    """Producers, consumers, constants and dims of every value of a model, in bodies and functions too."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.producers: dict[Value, onnx.NodeProto] = {}
        self.consumers: dict[Value, list[tuple[onnx.NodeProto, int]]] = defaultdict(list)
        self.aliases: dict[Value, list[Value]] = defaultdict(list)
        self.constants: dict[Value, onnx.TensorProto] = {}
        self.dims: dict[Value, Dims] = {}
        self._model, self._inferred = model, False
        self.functions = {key_of(f): f for f in model.functions}
        self._graph(model.graph, "")
        for function in model.functions:
            self._nodes(function.node, self._scope(function))

    def _scope(self, function: onnx.FunctionProto) -> str:
        return "::".join(key_of(function))

    def _graph(self, graph: onnx.GraphProto, scope: str) -> None:
        for tensor in graph.initializer:
            self.constants[scope, tensor.name] = tensor
            self.dims[scope, tensor.name] = tuple(tensor.dims)
        for info in (*graph.input, *graph.value_info):
            self.note_dims(info, scope)
        self._nodes(graph.node, scope)

    def note_dims(self, info: onnx.ValueInfoProto, scope: str) -> None:
        if info.type.tensor_type.HasField("shape"):
            dims = info.type.tensor_type.shape.dim
            # 0 and -1 are unknown here; an axis that really has no elements cannot be indexed at all.
            sizes = tuple(declared_name(dim.dim_param) or max(dim.dim_value, 0) for dim in dims)
            self.dims.setdefault((scope, info.name), sizes)

    def dims_of(self, value: Value) -> Dims:
        """The dims of a value, 0 for those that are unknown; none of a value of which nothing is known.

        Shapes are inferred when the first value is asked for that declares none: few models look up in such a table."""
        if value not in self.dims and not value[0] and not self._inferred:
            self._inferred = True
            for info in inferred(skeleton(self._model)):
                self.note_dims(info, "")
        return self.dims.get(value, ())

    def _nodes(self, nodes: Iterable[onnx.NodeProto], scope: str) -> None:
        for node in nodes:
            for position, name in enumerate(node.input):
                self.consumers[scope, name].append((node, position))
            for name in node.output:
                self.producers[scope, name] = node
            for attribute in node.attribute if node.op_type == "Constant" else ():
                if attribute.HasField("t"):
                    self.constants[scope, node.output[0]] = attribute.t
                    self.dims[scope, node.output[0]] = tuple(attribute.t.dims)
                elif attribute.type in (1, 2):
                    number = attribute.f if attribute.type == 1 else attribute.i
                    self.constants[scope, node.output[0]] = numpy_helper.from_array(np.asarray(number))
            for _, body in attribute_graphs(node) if has_bodies(node) else ():
                self._graph(body, scope)
                self._flow(node, body, scope)
            if function := self.functions.get(called_by(node)):
                inner = self._scope(function)
                for outer, formal in zip(node.input, function.input, strict=False):
                    self.aliases[scope, outer].append((inner, formal))
                    self.dims.setdefault((inner, formal), self.dims.get((scope, outer), ()))
                for formal, outer in zip(function.output, node.output, strict=False):
                    self.aliases[inner, formal].append((scope, outer))

    def _flow(self, node: onnx.NodeProto, body: onnx.GraphProto, scope: str) -> None:
        """The values that a body takes from its node's inputs and gives to its outputs (spec: If, Loop, Scan)."""
        loop = node.op_type == "Loop"
        into = zip(node.input[2:], body.input[2:], strict=False) if loop else zip(node.input, body.input, strict=False)
        for outer, formal in into:
            self.aliases[scope, outer].append((scope, formal.name))
        for result, outer in zip(body.output[1:] if loop else body.output, node.output, strict=False):
            self.aliases[scope, result.name].append((scope, outer))

    def constant(self, value: Value) -> np.ndarray | None:
        """A small constant's elements as float64; None for anything else, infinities, and data outside the file."""
        return self._finite(self._elements(value))

    def scale(self, value: Value) -> np.ndarray | None:
        """The same of one that may be as long as a scale of positions or frequencies."""
        return self._finite(self._elements(value, _POSITIONS))

    @staticmethod
    def _finite(array: np.ndarray | None) -> np.ndarray | None:
        return array if array is not None and np.isfinite(array).all() else None

    def fills_mask(self, value: Value) -> bool:
        """Is it a constant that leaves a score no weight, added or in its place?"""
        array = self._elements(value)
        return array is not None and bool((array <= _NO_SCORE).all())

    def positions(self, value: Value) -> int | None:
        """How many there are, if the values are 0, 1, 2, ... along an axis, 0 where that is unknown; None if not."""
        scope = value[0]
        for _ in range(_DEEPEST):
            node = self.producers.get(value)
            if node is None or not node.input or node.op_type not in MOVEMENT | CASTS:
                break
            value = scope, node.input[0]
        if node is not None and node.op_type in ("Range", "CumSum"):
            return 0
        array = self._elements(value, _POSITIONS)
        counted = array is not None and array.size > 1 and np.array_equal(array.ravel(), np.arange(array.size))
        return array.size if array is not None and counted else None

    def _elements(self, value: Value, most: int = _ELEMENTS) -> np.ndarray | None:
        tensor = self.constants.get(value)
        if tensor is None or tensor.data_location == onnx.TensorProto.EXTERNAL or math.prod(tensor.dims) > most:
            return None
        try:
            array = numpy_helper.to_array(tensor).astype(np.float64)
        except (TypeError, ValueError):  # strings, and raw data of the wrong length
            return None
        return array if array.size else None


def _written_out(model: onnx.ModelProto) -> float:
    """Nodes of the main graph with the bodies of all functions in place of their calls: shape inference goes through
    each.  Infinity where functions call each other deeper than anybody writes them."""
    bodies = {key_of(f): f.node for f in model.functions}
    sizes: dict[Key, int] = {}

    def size(nodes: Iterable[onnx.NodeProto]) -> int:
        return sum(sizes.get(called_by(node), 1) for node in nodes)

    for _ in range(_DEEPEST):
        ready = {
            key: size(body)
            for key, body in bodies.items()
            if key not in sizes and all(call in sizes for n in body if (call := called_by(n)) in bodies)
        }
        sizes |= ready
        if not ready:
            break
    return size(model.graph.node) if len(sizes) == len(bodies) else math.inf


def inferred(bare: onnx.ModelProto, data_prop: bool = False) -> Iterable[onnx.ValueInfoProto]:
    """What onnx infers of the values of the main graph of a `skeleton`, with `data_prop` from sizes that it computes as
    well; nothing where it fails, or would take long."""
    if bare.ByteSize() >= _INFERABLE or _written_out(bare) >= _MOST_NODES:
        return ()
    try:
        values: Iterable[onnx.ValueInfoProto]
        values = onnx.shape_inference.infer_shapes(bare, data_prop=data_prop).graph.value_info
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        return ()
    return values
