"""What each node of a model moves and computes, from its shapes alone, and how long a card takes for it at least.

The roofline model (Williams, Waterman and Patterson, Communications of the ACM 52(4), 2009): a node takes as long as
its bytes need at the bandwidth of the card or its operations at the card's rate, whichever is longer, and a launch
besides.  Inputs and outputs are moved once each.  What only relabels memory, is constant, or computes with shapes takes
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onnx import NodeProto, TensorProto

from onnxfuse.lifting.view import View
from onnxfuse.matching.cost import launches_of
from onnxfuse.matching.work import body_of, flops, products_in, tensors
from onnxfuse.model.graph import family
from onnxfuse.model.op_traits import PRODUCTS
from onnxfuse.reporting.records import Bound
from onnxfuse.terms.term import Term
from onnxfuse.training.kept import reads

from .gpus import Card

HALF = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds, each as if the others took none."""

    bytes: float
    flops: float
    launches: float
    instructions: float = 0.0
    """Where those of our compiled kernel are counted."""

    def __add__(self, other: Times) -> Times:
        return Times(
            self.bytes + other.bytes,
            self.flops + other.flops,
            self.launches + other.launches,
            self.instructions + other.instructions,
        )

    @property
    def seconds(self) -> float:
        return max(self.bytes, self.flops, self.instructions) + self.launches

    @property
    def bound(self) -> Bound:
        """What takes the longest."""
        each: dict[Bound, float] = {
            "bytes": self.bytes,
            "flops": self.flops,
            "launches": self.launches,
            "instructions": self.instructions,
        }
        return max(each, key=lambda name: each[name])


@dataclass(frozen=True, slots=True)
class Demand:
    """What a node asks of a card."""

    bytes: int
    """Read and written."""
    flops: int
    """A fused multiply-add is two."""
    matrix: bool
    """Whether tensor cores compute it: products of float16 and bfloat16."""
    weights: int = 0
    """Bytes of what it reads that are the same in every run: the others are activations."""
    launches: int = 1

    def on(self, card: Card) -> Times:
        """How long that takes."""
        rate = card.tensor if self.matrix else card.float32
        return Times(self.bytes / card.bandwidth, self.flops / rate, self.launches * card.launch)


def demand(
    view: View, node: NodeProto, known: Mapping[str, int], told: Mapping[str, Term] | None = None
) -> Demand | None:
    """What a node asks for where symbols of dimensions have the sizes `known`; None if a size is still unknown.

    `told` are terms of values, by name, which may say what the view does not."""
    body = body_of(view, node)
    names = list(node.input) if body is None else reads(node, body)
    read, written = tensors(view, names, known, told), tensors(view, node.output, known, told)
    if read is None or written is None:
        return None
    inputs, outputs = [t for t in read if t is not None], [t for t in written if t is not None]
    moved = sum(tensor.bytes for tensor in (*inputs, *outputs))
    weights = sum(t.bytes for t, name in zip(read, names, strict=True) if t and view.term(name).constant)
    products = 0
    if body is not None:
        operands = tensors(view, node.input, known, told) or ()
        products = products_in(body, dict(zip(node.input, operands, strict=False)), node)
    matrix = (products or family(node.op_type) in PRODUCTS) and outputs[0].dtype in HALF
    return Demand(moved, products or flops(node, inputs, outputs), bool(matrix), weights, launches_of(node))
