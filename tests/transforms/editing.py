"""What transforms share: a model with its types, and edits of its top graph."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper, shape_inference

from onnxfuse.model.walk import attribute_graphs

Array = NDArray[Any]
Dims = tuple[int | str | None, ...]
Rewrite = Callable[["Editor", NodeProto], Sequence[NodeProto] | None]
"""A node → those that compute the same, under the same name of the last output; None where it does not apply."""

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)


@dataclass(frozen=True, slots=True)
class Value:
    """What is known of a value before the edit; `dims` is None where the rank is not."""

    dtype: int
    dims: Dims | None


class Editor:
    """Edits the top graph of a model in place; `chance` is the share of the places that change."""

    def __init__(self, model: onnx.ModelProto, rng: random.Random, chance: float = 0.5) -> None:
        self.model, self.graph, self.rng, self.chance = model, model.graph, rng, chance
        self.opset = max(entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx"))
        self.values = _values(model)
        self.uses = Counter(name for node in self.graph.node for name in (*node.input, *_captured(node)))
        self.uses.update(output.name for output in self.graph.output)
        self.producers = {name: node for node in self.graph.node for name in node.output if name}
        self._names = self.values.keys() | self.uses.keys() | self.producers.keys()
        self._tensors = {tensor.name: tensor for tensor in self.graph.initializer}

    def drawn(self) -> bool:
        """Whether to change this place."""
        return self.rng.random() < self.chance

    def fresh(self, base: str) -> str:
        """A name that nothing has yet."""
        name, count = base, 0
        while name in self._names:
            name, count = f"{base}~{count}", count + 1
        self._names.add(name)
        return name

    def node(self, op: str, inputs: Sequence[str], output: str = "", **attributes: Any) -> NodeProto:
        """A node without a name; its output gets a fresh one where none is given."""
        return helper.make_node(op, inputs, [output or self.fresh(f"{inputs[0]}/{op}")], **attributes)

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        """The name of a new initializer."""
        name = self.fresh("constant")
        self.graph.initializer.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def number(self, value: float, like: str) -> str:
        """A new scalar of a value's element type."""
        return self.constant(value, helper.tensor_dtype_to_np_dtype(self.values[like].dtype))

    def read(self, name: str) -> Array | None:
        """The content of an initializer or a Constant; None for what is computed."""
        if name in self._tensors:
            return numpy_helper.to_array(self._tensors[name])
        producer = self.producers.get(name)
        if producer is not None and producer.op_type == "Constant" and producer.attribute[0].name == "value":
            return numpy_helper.to_array(producer.attribute[0].t)
        return None

    def is_float(self, name: str) -> bool:
        return name in self.values and self.values[name].dtype in FLOATS

    def dims(self, name: str) -> Dims | None:
        return self.values[name].dims if name in self.values else None

    def rewrite(self, rewrites: Sequence[tuple[str, Rewrite]]) -> int:
        """Replace drawn nodes by what the rewrite of their op makes of them; how many were."""
        nodes: list[NodeProto] = []
        count = 0
        for node in self.graph.node:
            made: Sequence[NodeProto] | None = None
            for op, rewrite in rewrites:
                if node.op_type == op and node.domain in ("", "ai.onnx") and made is None and self.drawn():
                    made = rewrite(self, node)
            nodes += [node] if made is None else made
            count += made is not None
        replace_nodes(self.graph, nodes)
        return count


def replace_nodes(graph: onnx.GraphProto, nodes: Sequence[NodeProto]) -> None:
    copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(copies)


def attributes(node: NodeProto) -> dict[str, Any]:
    return {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}


def _captured(node: NodeProto) -> Iterator[str]:
    """Every name that the bodies of a node mention, their own among them."""
    for _, body in attribute_graphs(node):
        for inner in body.node:
            yield from inner.input
            yield from _captured(inner)
        yield from (output.name for output in body.output)


def captured(model: onnx.ModelProto) -> set[str]:
    """Every name that bodies of the top graph's nodes mention."""
    return {name for node in model.graph.node for name in _captured(node)}


def _values(model: onnx.ModelProto) -> dict[str, Value]:
    graph = shape_inference.infer_shapes(model, data_prop=True).graph
    values = {tensor.name: Value(tensor.data_type, tuple(tensor.dims)) for tensor in graph.initializer}
    for info in (*graph.value_info, *graph.output, *graph.input):
        tensor = info.type.tensor_type
        dims: Dims | None = None
        if tensor.HasField("shape"):
            dims = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim)
        values[info.name] = Value(tensor.elem_type, dims)
    return values
