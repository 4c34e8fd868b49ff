"""What each node of a model moves and computes, from its shapes alone, and how long a card takes for it at least.

The roofline model (Williams, Waterman and Patterson, Communications of the ACM 52(4), 2009): a node takes as long as
its bytes need at the bandwidth of the card or its operations at the card's rate, whichever is longer, and a launch
besides.  Inputs and outputs are moved once each.  What only relabels memory, is constant, or computes with shapes takes
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from onnx import FunctionProto, NodeProto, TensorProto

from onnxfuse.lifting.view import View
from onnxfuse.matching.cost import BYTES, launches_of
from onnxfuse.model.graph import DOMAIN, REGION, elements_read, family, family_of
from onnxfuse.model.op_traits import FREE, PRODUCTS, RESHAPES, SHAPE_QUERIES
from onnxfuse.model.symbols import evaluate
from onnxfuse.model.walk import called_by, key_of
from onnxfuse.reporting.records import Bound
from onnxfuse.terms.term import Term

from .gpus import Card

HALF = (TensorProto.FLOAT16, TensorProto.BFLOAT16)


class Tensor(NamedTuple):
    """Element type, as ONNX numbers them, and sizes of a value."""

    dtype: int
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * BYTES.get(self.dtype, 4)


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds, each as if the others took none."""

    bytes: float
    flops: float
    launches: float

    def __add__(self, other: Times) -> Times:
        return Times(self.bytes + other.bytes, self.flops + other.flops, self.launches + other.launches)

    @property
    def seconds(self) -> float:
        return max(self.bytes, self.flops) + self.launches

    @property
    def bound(self) -> Bound:
        """What takes the longest."""
        each: dict[Bound, float] = {"bytes": self.bytes, "flops": self.flops, "launches": self.launches}
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


def launched(view: View) -> Iterator[NodeProto]:
    """The nodes of a scope that a runtime launches something for; those of bodies, and of local functions, stand in
    scopes of their own."""
    functions = {key_of(function) for function in view.graph.model.functions if function.domain != DOMAIN}
    for index, node in enumerate(view.graph.nodes):
        runs = index not in view.graph.captures and called_by(node) not in functions
        if runs and node.op_type not in FREE and _computes(view, node):
            yield node


def demand(
    view: View, node: NodeProto, known: Mapping[str, int], told: Mapping[str, Term] | None = None
) -> Demand | None:
    """What a node asks for where symbols of dimensions have the sizes `known`; None if a size is still unknown.

    `told` are terms of values, by name, which may say what the view does not."""
    body = _body(view, node)
    names = _read(node, body)
    read, written = tensors(view, names, known, told), tensors(view, node.output, known, told)
    if read is None or written is None:
        return None
    inputs, outputs = [t for t in read if t is not None], [t for t in written if t is not None]
    moved = sum(tensor.bytes for tensor in (*inputs, *outputs))
    weights = sum(t.bytes for t, name in zip(read, names, strict=True) if t and view.term(name).constant)
    products = 0
    if body is not None:
        operands = tensors(view, node.input, known, told) or ()
        products = _products(body, dict(zip(node.input, operands, strict=False)), node)
    matrix = (products or family(node.op_type) in PRODUCTS) and outputs[0].dtype in HALF
    return Demand(moved, products or flops(node, inputs, outputs), bool(matrix), weights, launches_of(node))


def _body(view: View, node: NodeProto) -> FunctionProto | None:
    """The function of a region; None for any other node."""
    functions = view.graph.model.functions if family_of(node) == REGION else ()
    return next((f for f in functions if (f.domain, f.name) == (node.domain, node.op_type)), None)


def _products(body: FunctionProto, read: Mapping[str, Tensor | None], node: NodeProto) -> int:
    """Operations of the products of a region, which are of its operands [..., k] and [k, n], or [n, k] transposed."""
    own = dict(zip(body.input, node.input, strict=False))
    turned = {inner.output[0]: inner.input[0] for inner in body.node if inner.op_type == "Transpose"}
    found = 0
    for inner in body.node:
        if inner.op_type in PRODUCTS:
            a, b = (read.get(own.get(turned.get(name, name), "")) for name in inner.input[:2])
            if a is not None and b is not None and a.shape and a.shape[-1]:
                found += 2 * a.elements * b.elements // a.shape[-1]
    return found


def _read(node: NodeProto, body: FunctionProto | None) -> Sequence[str]:
    """The inputs of a node whose elements it reads: of a region's some are asked for their shape or type alone."""
    names = list(node.input)
    if body is None:
        return names
    read = {name for inner in body.node if inner.op_type not in SHAPE_QUERIES for name in elements_read(inner)}
    return [name for own, name in zip(body.input, names, strict=True) if own in read]


def tensors(
    view: View, names: Iterable[str], known: Mapping[str, int], told: Mapping[str, Term] | None = None
) -> list[Tensor | None] | None:
    """Types and sizes of some values, None for what is left out; None if one is unknown."""
    found: list[Tensor | None] = []
    for name in names:
        tensor = tensor_of(view.term(name), known, view.dtypes.get(name, 0)) if name else None
        if tensor is None and told is not None and name in told:
            tensor = tensor_of(told[name], known)
        if name and tensor is None:
            return None
        found.append(tensor)
    return found


def tensor_of(term: Term, known: Mapping[str, int], dtype: int = 0) -> Tensor | None:
    """Type and sizes of what a term computes, of element type `dtype` if that is given; None if one is unknown."""
    if term.shape is None or not (dtype or term.dtype):
        return None
    sizes: list[int] = []
    for dim in term.shape:
        size = dim if isinstance(dim, int) else evaluate(dim, known)
        if size is None:
            return None
        sizes.append(size)
    return Tensor(dtype or term.dtype, tuple(sizes))


def flops(node: NodeProto, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> int:
    """Operations of a node: two for each product of numbers, else one for each number read or written."""
    written, shapes = outputs[0].elements, [tensor.shape for tensor in inputs]
    match family(node.op_type):
        case "MatMul" | "FusedMatMul" | "Gemm" | "FusedGemm" if len(shapes) > 1 and shapes[0]:
            transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
            return 2 * written * shapes[0][-2 if transposed and len(shapes[0]) > 1 else -1]
        case "Conv" | "FusedConv" if len(shapes) > 1:
            return 2 * written * math.prod(shapes[1][1:])
        case "ConvTranspose" if len(shapes) > 1:
            return 2 * inputs[0].elements * math.prod(shapes[1][1:])
        case "Attention" | "MultiHeadAttention" | "GroupQueryAttention" if len(shapes) > 1 and len(shapes[1]) > 1:
            return 4 * inputs[0].elements * shapes[1][-2]
    return max(tensor.elements for tensor in (*inputs, *outputs))


def _terms(view: View, names: Iterable[str]) -> Iterator[Term]:
    """What the outputs of a node compute; of a node with several, what they are outputs of."""
    for term in (view.term(name) for name in names if name):
        yield term.args[0] if term.op == "Output" else term


def _computes(view: View, node: NodeProto) -> bool:
    """Does a node more than to relabel what it reads?  The normal form has a Reshape outside of what is computed row by
    row: a Gemm between two of them is the Reshape of a product, which is no view of what the Gemm reads."""
    for term in _terms(view, node.output):
        inner = _relabelled(term)
        if inner.op in FREE or term.constant:
            continue
        if inner is term or all(inner is not _relabelled(read) for read in _terms(view, node.input)):
            return True
    return False


def _relabelled(term: Term) -> Term:
    """The term whose elements this one has, in the same order."""
    while term.op in RESHAPES and term.args:
        term = term.args[0]
    return term
