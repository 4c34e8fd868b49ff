"""A scope as regions see it: its launches, and what stands between them that is none.

A value and its reshapes are one tensor in memory: they are called by the value that a launch gives, their `root`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from onnx import FunctionProto, NodeProto, TensorProto, helper

from onnxfuse.lifting.view import View
from onnxfuse.model.dims import Dim, Shape
from onnxfuse.model.op_traits import TRANSCENDENTAL
from onnxfuse.model.types import numpy_name
from onnxfuse.terms.blockwise import Blockwise
from onnxfuse.terms.term import Term

from . import measure

Kind = Literal["pointwise", "rows", "product", "fixed"]
"""What one loop over elements computes, what reduces rows, products of matrices, and what nothing goes into."""

EMBEDDED = 64
"""Most elements of a constant that stands in a body: bounds, axes and shapes.  Of real numbers one: that two layers
differ in a vector is no reason for two kernels."""


@dataclass(eq=False)
class Launch:
    """A node that a runtime launches something for."""

    index: int
    """Of its node, which is in topological order."""
    node: NodeProto
    kind: Kind
    reads: Mapping[str, int]
    """The tensors that it reads which are no constants → bytes; 0 where only the shape is asked."""
    weights: int
    """Bytes of constants that it reads."""
    makes: tuple[str, ...]
    ops: tuple[str, ...]
    """What it computes, in ops of the standard."""
    reason: str = ""
    """Why it is fixed, where it looks as if it were not."""
    elements: int = 0
    """About how many the largest tensor has that it reads or makes."""
    sizes: frozenset[Dim] = frozenset()
    """Of what reduces rows, the numbers of elements of the matrix and of its results; of a product, of its result."""
    shape: Shape | None = None
    """Of all that it makes, where each element of that needs those at its own place alone; of what reduces rows to as
    many, the shape of its operand as well."""
    operands: tuple[str, ...] = ()
    """The values that its body reads."""
    nodes: int = 0
    """Those of its body, and of views on the way to it with the shapes that they take, which another's would have."""
    axes: tuple[int, int] | None = None
    """Of a softmax or a norm by itself, the first and the last axis that it reduces; else none."""
    waits: frozenset[str] = frozenset()
    """The tensors that it waits for: those that it reads, and those whose shape a view on its way asks."""

    @property
    def transcendental(self) -> bool:
        return not TRANSCENDENTAL.isdisjoint(self.ops)


@dataclass
class Scope:
    """The launches of a scope in their order, and what is known of its values."""

    view: View
    told: View
    """The same scope in which our functions are written out: what a fused node gives is known there."""
    functions: Mapping[str, FunctionProto]
    launches: list[Launch] = field(default_factory=list)
    root_of: dict[str, str] = field(default_factory=dict)
    """Reshapes → the value that they are of."""
    hosted: dict[str, int] = field(default_factory=dict)
    """Shapes, and what is computed of shapes → the node that gives each."""
    needed: set[str] = field(default_factory=set)
    """Tensors that must exist whatever is fused."""
    refused: dict[int, str] = field(default_factory=dict)
    """Nodes → why no kernel takes them."""

    forward: frozenset[int] = frozenset()
    """Of a training step, the nodes that the loss waits for."""
    steps: dict[int, list[NodeProto]] = field(default_factory=dict)
    """Nodes → what they are in ops of the standard, of those that were asked for last."""
    weighed: dict[str, int] = field(default_factory=dict)
    """Values → about their bytes."""
    counted: dict[str, tuple[Dim | None, int]] = field(default_factory=dict)
    """Values → how many elements they have, exactly and about."""

    def root(self, name: str) -> str:
        """The tensor that a value is."""
        while name in self.root_of:
            name = self.root_of[name]
        return name

    def term(self, name: str) -> Term:
        return self.told.term(name)

    def dtype(self, name: str) -> int:
        """The element type of a value, 0 where it is unknown."""
        term = self.told.term(name)
        return self.told.dtypes.get(name, 0) or term.dtype

    def kind(self, name: str) -> str:
        """What NumPy calls the element type of a value; empty where it is unknown."""
        return numpy_name(self.dtype(name))

    def bytes(self, name: str) -> int:
        if name not in self.weighed:
            shape = self.term(name).shape
            self.weighed[name] = 0 if shape is None else measure.size(shape, self.dtype(name))
        return self.weighed[name]

    def numel(self, name: str) -> Dim | None:
        """The number of elements of a value; None where its rank is unknown."""
        return self._count(name)[0]

    def elements(self, name: str) -> int:
        """About how many elements a value has, 0 where its rank is unknown."""
        return self._count(name)[1]

    def _count(self, name: str) -> tuple[Dim | None, int]:
        found = self.counted.get(name)
        if found is None:
            shape = self.term(name).shape
            found = (None, 0) if shape is None else (measure.numel(shape), measure.elements(shape))
            self.counted[name] = found
        return found

    def constant(self, name: str) -> bool:
        """Is a value the same in every run?"""
        return self.term(name).constant

    def embedded(self, name: str) -> TensorProto | None:
        """The constant that stands in a body for a value: sizes that are known, and small constants."""
        term = self.term(name)
        if term.op == "Integers" and term.data is not None:
            if all(isinstance(size, int) for size in term.data.ravel()):
                sizes = [int(size) for size in term.data.ravel()]
                return helper.make_tensor("", term.dtype, term.data.shape, sizes)
            return None
        if not term.constant or term.shape is None or not all(isinstance(dim, int) for dim in term.shape):
            return None
        integer = self.dtype(name) in (TensorProto.INT64, TensorProto.INT32)
        return self._stored(name, term) if measure.elements(term.shape) <= (EMBEDDED if integer else 1) else None

    def _stored(self, name: str, term: Term) -> TensorProto | None:
        """A constant with all its bits, where they are in the file."""
        graph = self.view.graph
        tensor, node = graph.constant_tensor(name), graph.producer.get(name)
        if tensor is None and node is not None and graph.nodes[node].op_type == "Constant":
            tensor = next((a.t for a in graph.nodes[node].attribute if a.name == "value"), None)
        if tensor is None or tensor.data_location == TensorProto.EXTERNAL:
            return None
        if node is None and isinstance(term.load, Blockwise):
            term.load.looked_at()
        bare = TensorProto()
        bare.CopyFrom(tensor)
        bare.ClearField("name")
        bare.ClearField("doc_string")
        return bare
