"""Products of one operand, read from the body of a region: what each multiplies with, and what is done to it.

A body is such a family where each of its outputs is elementwise in one product of the same operand a, a row of bias,
and numbers.  Views between are none: what has one element in its hand knows no shape.  That is all that is asked of it:
whatever rule or exporter wrote an activation, its nodes say what it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.pointwise.device_function import device_function
from onnxfuse.kernels.pointwise.expressions.moves import MOVES
from onnxfuse.kernels.pointwise.expressions.scalars import Scalars
from onnxfuse.kernels.pointwise.expressions.trace import trace
from onnxfuse.kernels.pointwise.expressions.values import Value, computed_type
from onnxfuse.model.graph import elements_read

from .parts import Part, taken_apart
from .source import PRODUCT, Epilogue

SHAPED = frozenset((*MOVES, "ConstantOfShape", "Shape", "Size"))
"""Ops whose results are a matter of shapes: of a single element they would be something else."""
MOST = 16
"""Most products of one launch: their pointers are its arguments."""


@dataclass(frozen=True, slots=True)
class Member:
    """One product; operands go by their names in the body."""

    product: str
    """What it is called itself, before anything is done to it."""
    a: str
    b: str
    bias: str
    """A row that is added or the like; empty if there is none."""
    transposed: bool
    """Whether b is stored as [n, k]."""
    after: Epilogue
    plain: bool
    """Whether nothing is done to the product."""
    part: Part | None = None
    """The columns that it has of a product with b; None: all of them."""
    whole_bias: bool = False
    """Whether the bias is of all columns, though the product has some."""
    rank: int = 0
    """Dimensions of the result at least: those of the numbers that are put together with the product."""
    nodes: tuple[NodeProto, ...] = ()
    """What is done to the product."""


def members(nodes: Sequence[NodeProto], inputs: Sequence[str], outputs: Sequence[str]) -> list[Member]:
    """The products of a body, one for each of its outputs, in their order; nodes are in topological order.

    Raises KernelError, with the reason, if it is no family of products."""
    if len(outputs) > MOST:
        raise KernelError(f"{len(outputs)} products are too many for one launch")
    nodes, parts = taken_apart(nodes)
    found = [_member(nodes, inputs, name, parts) for name in outputs]
    if len({each.a for each in found}) > 1:
        raise KernelError("its products are of several operands")
    if len({each.transposed for each in found}) > 1:
        raise KernelError("some of its matrices are transposed and some are not")
    if len({each.product for each in found}) < len(found):
        raise KernelError("two of its results are of one product")
    return found


@dataclass(frozen=True, slots=True)
class Gate:
    """Two products of one operand of which a result is made, element by element."""

    a: str
    b: str
    """The weights of the first product."""
    c: str
    """Those of the second."""
    first: str
    """What the products are called themselves."""
    second: str
    transposed: bool
    parts: tuple[Part | None, Part | None]
    """The columns that each has of a product with its weights; None: all of them."""
    after: tuple[NodeProto, ...]
    text: str
    """A struct `Gate` that makes one element of two."""
    flops: int
    """For each element of the result, about."""
    rank: int = 0
    """As that of a Member."""


def is_family(nodes: Sequence[NodeProto]) -> bool:
    """Whether a body has several products, or one whose columns are taken apart."""
    products = sum(node.op_type == PRODUCT for node in nodes)
    return products > 1 or (products == 1 and any(node.op_type == "Split" for node in nodes))


def is_gate(outputs: Sequence[str]) -> bool:
    """Whether a family makes one result."""
    return len(outputs) == 1


def gate_of(nodes: Sequence[NodeProto], inputs: Sequence[str], output: str) -> Gate:
    """A body with two products, or two parts of one, and one output.  Raises KernelError, with the reason, if it is no
    gate."""
    nodes, parts = taken_apart(nodes)
    behind = _behind(nodes, output)
    products = [node for node in behind if node.op_type == PRODUCT]
    if len(products) != 2:
        raise KernelError(f"{output} is not computed of two products")
    after = [node for node in behind if node.op_type != PRODUCT]
    if rows := sorted({name for node in after for name in elements_read(node)}.intersection(inputs)):
        raise KernelError(f"{output} is computed of {' and '.join(rows)} besides its products")
    (a, b, turned), (other, c, also) = (_operands(nodes, inputs, product) for product in products)
    if a != other:
        raise KernelError("its products are of several operands")
    if turned != also:
        raise KernelError("one of its matrices is transposed and one is not")
    first, second = (product.output[0] for product in products)
    function, given = _scalars("gate", after, {first: "first", second: "second"}, output)
    struct = f"""struct Gate {{
    static __device__ __forceinline__ float of(float first, float second) {{
        float result;
        gate({given}, result);
        return result;
    }}
}};
"""
    flops = sum(node.op_type != "Constant" for node in after)
    own = parts.get(first), parts.get(second)
    return Gate(a, b, c, first, second, turned, own, tuple(after), function + struct, flops, _rank(after))


def _member(nodes: Sequence[NodeProto], inputs: Sequence[str], output: str, parts: Mapping[str, Part]) -> Member:
    behind = _behind(nodes, output)
    products = [node for node in behind if node.op_type == PRODUCT]
    if len(products) != 1:
        raise KernelError(f"{output} is computed of {len(products)} products, not of one")
    product = products[0]
    a, b, turned = _operands(nodes, inputs, product)
    after = [node for node in behind if node is not product]
    rows = sorted({name for node in after for name in elements_read(node)}.intersection(inputs))
    if len(rows) > 1:
        raise KernelError(f"{output} is computed of {' and '.join(rows)} besides its product")
    name, bias, part = product.output[0], "".join(rows), parts.get(product.output[0])
    early = [part is not None and node.output[0] in part.made for node in after if bias in elements_read(node)]
    if len(set(early)) > 1:
        raise KernelError(f"{bias} is read before columns are taken apart and behind it")
    own = _epilogue(after, name, bias, output)
    return Member(name, a, b, bias, turned, own, output == name, part, any(early), _rank(after), tuple(after))


def _operands(nodes: Sequence[NodeProto], inputs: Sequence[str], product: NodeProto) -> tuple[str, str, bool]:
    """Those of a product, and whether the second is the transpose of what is given."""
    a, b = product.input
    turned = next((node for node in nodes if b in node.output), None)
    b = b if turned is None else _stored(turned)
    if a not in inputs or b not in inputs:
        raise KernelError(f"{PRODUCT} of what is computed in the region itself")
    return a, b, turned is not None


def _behind(nodes: Sequence[NodeProto], output: str) -> list[NodeProto]:
    """The nodes that an output is computed by, back to products."""
    wanted, found = {output}, list[NodeProto]()
    for node in reversed(nodes):
        if not wanted.isdisjoint(node.output):
            found.append(node)
            wanted.update(() if node.op_type == PRODUCT else elements_read(node))
    return found[::-1]


def result_type(
    nodes: Sequence[NodeProto], types: Mapping[str, TensorType], products: Sequence[str], a: str, output: str
) -> np.dtype[np.generic]:
    """The element type of what is done to products of `a`; `types` are those of the body's operands."""
    scalars = Scalars()

    def single(name: str, dtype: np.dtype[np.generic]) -> Value:
        return Value((), dtype, lambda *_: scalars.argument(name, computed_type(dtype)))

    given = {name: single(name, kind.dtype) for name, kind in types.items()}
    given |= {name: single(name, types[a].dtype) for name in products}
    return given[output].dtype if output in given else trace(scalars, nodes, given, [output])[0].dtype


def _rank(nodes: Sequence[NodeProto]) -> int:
    """The most dimensions of the constants among nodes."""
    return max((len(a.t.dims) for node in nodes if node.op_type == "Constant" for a in node.attribute), default=0)


def _stored(node: NodeProto) -> str:
    """The matrix whose transpose a node gives.  Raises KernelError for any other node."""
    if node.op_type != "Transpose" or any(list(attribute.ints) != [1, 0] for attribute in node.attribute):
        raise KernelError(f"{PRODUCT} of what {node.op_type} gives")
    return str(node.input[0])


def _epilogue(nodes: Sequence[NodeProto], product: str, bias: str, output: str) -> Epilogue:
    """What is done to a product, as a struct `Fused` of gemm.cu: the same text wherever the same is done."""
    given = {product: "product"} | ({bias: "bias"} if bias else {})
    text, arguments = _scalars("epilogue", nodes, given, output)
    struct = f"""struct Fused {{
    static __device__ __forceinline__ float of(float product, float bias, float) {{
        float result;
        epilogue({arguments}, result);
        return result;
    }}
}};
"""
    return Epilogue(text + struct, bool(bias), False, sum(node.op_type != "Constant" for node in nodes))


def _scalars(name: str, nodes: Sequence[NodeProto], given: dict[str, str], output: str) -> tuple[str, str]:
    """Nodes as a device function of single elements, and the arguments of a call: those that are `given` under their
    names there, and 0 for what is asked for its type alone."""
    if views := [node.op_type for node in nodes if node.op_type in SHAPED]:
        raise KernelError(f"{views[0]} behind a product is not of single elements")
    names, asked = {"": "", **given}, list[str]()
    renamed: list[NodeProto] = []
    for node in nodes:
        for other in (*node.output, *node.input):
            if other not in names:
                names[other] = f"t{len(names)}"
                if other not in node.output:
                    asked.append(names[other])
        copy = NodeProto(op_type=node.op_type, domain=node.domain, attribute=node.attribute)
        copy.input.extend(names[other] for other in node.input)
        copy.output.extend(names[other] for other in node.output)
        renamed.append(copy)
    taken = [*given.values(), *asked]
    text = device_function(name, renamed, dict.fromkeys(taken, np.dtype(np.float32)), {names[output]: "result"})
    return text, ", ".join("0.0f" if argument in asked else argument for argument in taken)
