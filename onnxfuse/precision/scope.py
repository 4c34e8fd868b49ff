"""One scope of a model as its conversion sees it: nodes, their ports, what is constant, and who reads what."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from onnxfuse.model.element_flow import UNKNOWN, Kind
from onnxfuse.model.graph import captured_names
from onnxfuse.model.op_traits import CASTS, MOVEMENT, PRODUCTS, SOFTMAX
from onnxfuse.model.types import CONSTANTS
from onnxfuse.model.walk import attribute_graphs, has_bodies

from .ports import ANY, SINGLE, Ports

FLOAT = int(TensorProto.FLOAT)
MOVES = (MOVEMENT | {"Concat"}) - CASTS
"""Ops that take numbers from one place to another."""
_MADE_OF_NO_NUMBERS = CASTS | {"ConstantOfShape", "Range", "Where", "OneHot", "EyeLike", "Trilu"}
"""Ops that make floats of integers, booleans and constants; others without floats, like Gather, take weights."""


@dataclass
class Scope:
    """The nodes of a graph, or of a function; of inputs and outputs, whether they are in half precision."""

    nodes: Sequence[NodeProto]
    kinds: Mapping[str, Kind]
    ports: Sequence[Ports]
    weights: Mapping[str, TensorProto]
    """Initializers."""
    inputs: Mapping[str, bool]
    outputs: Mapping[str, bool]
    numbers: Callable[[TensorProto], np.ndarray | None] = numpy_helper.to_array
    """Of a constant, wherever they are; None where they are not to be read."""
    body: bool = False
    """Whether it is the body of a fused op."""
    converts: Callable[[NodeProto], bool] = lambda node: False
    """Are the bodies of a node of control flow converted?"""
    producer: dict[str, int] = field(default_factory=dict)
    readers: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    """Value → nodes that read it, each with the type that it wants (`ports`)."""
    constants: dict[str, TensorProto] = field(default_factory=dict)
    """Constants of float32, those of Constant nodes among them."""
    captured: set[str] = field(default_factory=set)
    """Values that bodies of control flow read as they are; bodies that are converted read either type."""

    def __post_init__(self) -> None:
        own = {name: tensor for name, tensor in self.weights.items() if name not in self.inputs}
        self.constants = {name: tensor for name, tensor in own.items() if tensor.data_type == FLOAT}
        for index, node in enumerate(self.nodes):
            if node.op_type == "Constant" and (tensor := _constant(node)) is not None:
                self.constants[node.output[0]] = tensor
            self.producer |= dict.fromkeys(filter(None, node.output), index)
            wanted = list(zip(node.input, self.ports[index].inputs, strict=False))
            if has_bodies(node):
                pinned = self._pinned(node)
                self.captured |= pinned
                wanted += [(name, SINGLE if name in pinned else ANY) for name in sorted(captured_names(node))]
            for name, port in wanted:
                if self.real(name):
                    self.readers.setdefault(name, []).append((index, port))

    def _pinned(self, node: NodeProto) -> set[str]:
        """What bodies read that are not converted: those of the node, or some in those."""
        read = captured_names(node)
        if not self.converts(node):
            return read
        inside = [inner for _, body in attribute_graphs(node) for inner in body.node if has_bodies(inner)]
        return {name for inner in inside for name in self._pinned(inner)} & read

    def real(self, name: str) -> bool:
        """Is a value of float32, before the conversion?"""
        return name in self.constants or self.kinds.get(name, UNKNOWN).dtype == FLOAT

    def read(self, index: int) -> list[str]:
        """The float32 values that a node reads and that are no constants."""
        return [name for name in self.nodes[index].input if self.real(name) and name not in self.constants]

    def array(self, name: str) -> np.ndarray | None:
        """The numbers of a constant; None where they are not to be read."""
        return self.numbers(self.constants[name])

    def port_of(self, name: str) -> str:
        """The type of a value that a node makes."""
        index = self.producer[name]
        return self.ports[index].outputs[list(self.nodes[index].output).index(name)]

    @cached_property
    def scores(self) -> set[int]:
        """Products whose results become the weights of a softmax, which turns a rounding into a factor."""
        found: set[int] = set()
        pending = [index for index, node in enumerate(self.nodes) if node.op_type in SOFTMAX]
        seen = set(pending)
        while pending:
            index = pending.pop()
            for name in self.nodes[index].input:
                behind = self.producer.get(name)
                if behind is None or behind in seen or not self.real(name):
                    continue
                seen.add(behind)
                if self.nodes[behind].op_type in PRODUCTS:
                    found.add(behind)
                else:
                    pending.append(behind)
        return found

    @cached_property
    def counted(self) -> set[str]:
        """Values that come from integers, booleans and constants alone: positions, masks and sizes."""
        found: set[str] = set()
        for index, node in enumerate(self.nodes):
            made, read = [name for name in node.output if self.real(name)], self.read(index)
            alone = all(name in found for name in read) if read else node.op_type in _MADE_OF_NO_NUMBERS
            if made and alone and not has_bodies(node):
                found |= set(made) - self.constants.keys()
        return found


def _constant(node: NodeProto) -> TensorProto | None:
    """The tensor of a Constant node, if that is float32."""
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            return None
        if attribute.name == "value" and attribute.t.data_type == FLOAT:
            tensor: TensorProto = attribute.t
            return tensor
        if CONSTANTS.get(attribute.name) == FLOAT:
            value = helper.get_attribute_value(attribute)
            return numpy_helper.from_array(np.asarray(value, np.float32))
    return None
