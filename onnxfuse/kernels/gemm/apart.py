"""A region of products as the vendor's library computes it: each product into scratch memory, and what is behind them
as loops over elements, which take parts of products as well."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onnx import FunctionProto

from onnxfuse.kernels.device.access import ACCESS
from onnxfuse.kernels.device.device import Array, Buffer, Device, Product, TensorType, Vendor, address, nbytes
from onnxfuse.kernels.device.products import result
from onnxfuse.kernels.pointwise.loops import Loop, loops
from onnxfuse.model.graph import REGION, elements_read

from .source import PRODUCT

BEGIN = 256
"""Bytes of which each product begins at a multiple."""


@dataclass(frozen=True, slots=True)
class Apart:
    """What is launched, for operands of known shapes and alignment."""

    products: tuple[tuple[Product, str, str, TensorType, int], ...]
    """Each with the names of its operands, its type, and where it begins in the scratch memory."""
    scratch: int
    """Bytes."""
    after: tuple[Loop, ...]
    inputs: tuple[str, ...]
    """The arrays behind the products that loops are given by their numbers."""
    outputs: tuple[str, ...]

    def run(self, device: Device, vendor: Vendor, arrays: Mapping[str, Array | None]) -> None:
        """Compute the outputs; `arrays` are those of the body's names."""
        with device.scratch(self.scratch) as memory:
            own: list[Array | None] = []
            for product, a, b, kind, first in self.products:
                left, right, y = arrays[a], arrays[b], Buffer(address(memory) + first, kind.shape, kind.dtype)
                assert left is not None
                assert right is not None
                vendor.product(product, left, right, y)
                own.append(y)
            own += [arrays[name] for name in self.inputs]
            for loop in self.after:
                taken = [own[k] for k in loop.inputs] + [arrays[self.outputs[k]] for k in loop.outputs]
                device.launch(loop.launch(device.multiprocessors), [*taken, *loop.parameters])


def apart(
    body: FunctionProto,
    types: Mapping[str, TensorType],
    inputs: Sequence[Array | None],
    outputs: Sequence[Array | None],
) -> Apart:
    """The launches for a region whose products are of its operands."""
    turned = {node.output[0]: node.input[0] for node in body.node if node.op_type == "Transpose"}
    products: list[tuple[Product, str, str, TensorType, int]] = []
    made: dict[str, TensorType] = {}
    first = 0
    for node in body.node:
        if node.op_type == PRODUCT:
            a, b = node.input[0], turned.get(node.input[1], node.input[1])
            transposed = node.input[1] in turned
            kind = TensorType(types[a].dtype, result(types[a].shape, types[b].shape, transposed))
            rows, columns = math.prod(kind.shape[:-1]), kind.shape[-1]
            products.append((Product(rows, columns, types[a].shape[-1], transposed), a, b, kind, first))
            made[node.output[0]] = kind
            first += -(-nbytes(kind) // BEGIN) * BEGIN
    after = [node for node in body.node if node.op_type != PRODUCT and node.output[0] not in turned]
    read = {name for node in after for name in elements_read(node)}  # other operands are asked for their types alone
    rest = {name: kind if name in read else TensorType(kind.dtype, ()) for name, kind in types.items()}
    wanted = [name if y is not None else "" for name, y in zip(body.output, outputs, strict=True)]
    wide = not any(address(x) % ACCESS for x in (*inputs, *outputs) if x is not None)
    found = loops(REGION, after, made | rest, wanted, wide)[1]
    return Apart(tuple(products), first, tuple(found), tuple(types), tuple(body.output))
