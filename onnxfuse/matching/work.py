"""The sizes of what nodes read and write, and how many operations they are, from shapes alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from onnx import FunctionProto, NodeProto

from onnxfuse.lifting.view import View
from onnxfuse.model.graph import REGION, family, family_of
from onnxfuse.model.op_traits import PRODUCTS
from onnxfuse.model.symbols import evaluate
from onnxfuse.terms.term import Term

from .cost import BYTES


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


def body_of(view: View, node: NodeProto) -> FunctionProto | None:
    """The function of a region; None for any other node."""
    functions = view.graph.model.functions if family_of(node) == REGION else ()
    return next((f for f in functions if (f.domain, f.name) == (node.domain, node.op_type)), None)


def products_in(body: FunctionProto, read: Mapping[str, Tensor | None], node: NodeProto) -> int:
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
