"""The kernel of a region in which there is a product: that and a pass over its elements, in the fastest form.

"tiled" is gemm.cu, whose sums go through the region while they are in registers, or as sums of parts where there are
few tiles; "wgmma", "tma" and "tcgen05" as of a FusedMatMul.  "vendor" is the vendor's product into memory that is
thrown away, and a pass over it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from typing import Any, ClassVar

import numpy as np
from onnx import FunctionProto, NodeProto

from onnxfuse.kernels.device.access import ACCESS
from onnxfuse.kernels.device.device import (
    Array,
    Buffer,
    Device,
    Launch,
    Product,
    Source,
    TensorType,
    Vendor,
    address,
    nbytes,
)
from onnxfuse.kernels.device.kernel import Kernel, Signature, Work
from onnxfuse.kernels.device.products import multiplications, products
from onnxfuse.kernels.device.replay import KNOWN, Arrays, record
from onnxfuse.kernels.device.types import TYPES
from onnxfuse.kernels.rows.region import Region, named
from onnxfuse.kernels.rows.region import planned_types as row_region_types
from onnxfuse.model.op_traits import MATRIX_PRODUCTS

from .autotune import VENDOR, Class
from .epilogue import Traced, product, product_types
from .forms import ByForms, Forms, Products, Run
from .gated import Gated, gate, gated_types
from .members import is_family, is_gate
from .plan import SUM, THREADS, Vectors, operands, partial_sums, spread, warpgroup_tiles
from .reduced import ReducedProduct, is_reduced, reduced_types
from .siblings import Siblings, family, family_types
from .source import product as multiplied
from .tiles import Tile, divide, has_warpgroups

ENTRY, AFTER = "product", "after_product"
RESIDENT = 4
"""Blocks of the pass that a multiprocessor must have registers for: asked for none, compilers give few, and spill."""


@lru_cache(maxsize=1024)
def tiled(dtype: str, tile: Tile, transposed: bool, vectors: tuple[int, int, int], traced: Traced) -> Source:
    """Entry `product`: a, b; what the region reads, writes and its numbers; int m, n, k; float scale; long long
    stride_a, stride_b, offset_a, offset_b, first."""
    file = multiplied("gemm_region.cu", dtype, tile, transposed, vectors, more={"PASS": 0, "NEIGHBOURS": traced.width})
    entry = f"""extern "C" __global__ void __launch_bounds__({tile.threads}, {tile.resident}) {ENTRY}(
    OPERAND(a), OPERAND(b), {", ".join((*traced.carried.parameters, ""))}
    int m, int n, int k, float scale, long long stride_a, long long stride_b, long long offset_a, long long offset_b,
    long long first
) {{
    const Fused fused{traced.carried.fill};
    const Part part = part_of(blockIdx.x, m, n);
    const Elements<Fused> result{{fused, m, n, scale, first + part.batch * static_cast<long long>(m)}};
    multiply(
        matrix_of(a, offset_a, stride_a, part.batch), matrix_of(b, offset_b, stride_b, part.batch), result, part.row,
        part.column, k
    );
}}
"""
    return file + (traced.text + entry)


@lru_cache(maxsize=1024)
def after(dtype: str, parts: bool, traced: Traced) -> Source:
    """Entry `after_product`: parts; what the region reads, writes and its numbers; long long rows; int columns,
    count; float scale, of the sums."""
    file = Source.file("gemm_region.cu", PASS=1, NEIGHBOURS=traced.width, TYPE=TYPES[dtype], PARTS=int(parts))
    entry = f"""extern "C" __global__ void __launch_bounds__({THREADS}, {RESIDENT}) {AFTER}(
    const Summand* __restrict__ parts, {", ".join((*traced.carried.parameters, ""))}
    long long rows, int columns, int count, float scale
) {{
    const Fused fused{traced.carried.fill};
    finish_elements(parts, fused, rows, columns, count, scale);
}}
"""
    return Source(file.name, file.text + traced.text + entry)


@dataclass(frozen=True)
class _Plan:
    """A product at sizes that are known, on a card with so many multiprocessors."""

    traced: Traced
    products: Sequence[Product]
    which: Class
    vectors: Vectors
    multiprocessors: int

    def others(self, inputs: Arrays, outputs: Arrays) -> list[Any]:
        """What the launches are given besides the operands."""
        traced = self.traced
        return [*(inputs[k] for k in traced.inputs), *(outputs[k] for k in traced.outputs), *traced.carried.values]

    def tiled(self, device: Device, inputs: Arrays, outputs: Arrays) -> None:
        """Our own product."""
        one, traced = self.products[0], self.traced
        (a, b), others = _operands(traced, inputs), self.others(inputs, outputs)
        itemsize = traced.dtype.itemsize
        division = divide(itemsize, one.m, one.n, one.k, one.batch, self.multiprocessors)
        if division.splits > 1:
            with device.scratch(division.splits * traced.rows * traced.columns * SUM) as sums:
                for each in self.products:
                    part = partial_sums(each, division, traced.dtype, traced.rows, self.vectors)
                    device.launch(part.launch, [a, b, sums, *part.scalars])
                self.after(device, sums, division.splits, one.scale, others)
        else:
            self.whole(division.tile, device, inputs, outputs)

    def whole(self, tile: Tile, device: Device, inputs: Arrays, outputs: Arrays) -> None:
        """Our own product, its sums not in parts."""
        one, traced = self.products[0], self.traced
        (a, b), others = _operands(traced, inputs), self.others(inputs, outputs)
        name, itemsize = traced.dtype.name, traced.dtype.itemsize
        source = tiled(name, tile, one.transposed, self.vectors, traced)
        for each in self.products:
            blocks = each.batch * tile.count(each.m, each.n)
            launch = Launch(source, ENTRY, (blocks,), (tile.threads,), tile.shared(itemsize, each.transposed))
            steps = (each.stride_a, each.stride_b, each.offset_a, each.offset_b, each.offset_y // each.n)
            sizes = (np.int32(each.m), np.int32(each.n), np.int32(each.k), np.float32(each.scale))
            device.launch(launch, [*operands(each, tile, a, b), *others, *sizes, *map(np.int64, steps)])

    def vendors(self, device: Device, vendor: Vendor, inputs: Arrays, outputs: Arrays) -> None:
        """The vendor's product, and a pass over it."""
        traced = self.traced
        (a, b), others = _operands(traced, inputs), self.others(inputs, outputs)
        shape = (traced.rows, traced.columns)
        with device.scratch(prod(shape) * traced.dtype.itemsize) as memory:
            y = Buffer(address(memory), shape, traced.dtype)
            for each in self.products:
                vendor.product(each, a, b, y)
            self.after(device, y, 1, 1.0, others)

    def after(self, device: Device, parts: Array, count: int, scale: float, others: Sequence[Any]) -> None:
        """What is done to the elements of a product, or of parts of it."""
        traced = self.traced
        grid, block = spread(traced.rows, traced.columns // traced.width, self.multiprocessors)
        launch = Launch(after(traced.dtype.name, count > 1, traced), AFTER, grid, block)
        sizes = (np.int64(traced.rows), np.int32(traced.columns), np.int32(count), np.float32(scale))
        device.launch(launch, [parts, *others, *sizes])


class ProductRegion(ByForms):
    """One node; `kernel` makes the class of a function.  Its operands have each its own element type."""

    name: ClassVar[str] = "gemm"
    signature: ClassVar[Signature]
    body: ClassVar[FunctionProto]

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        self._traced: dict[Any, Traced] = {}
        self._run = Products(self._forms)

    def outputs(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        return self._of(tuple(inputs), (True,) * len(self.body.output)).types

    def work(self, inputs: Sequence[TensorType | None]) -> Work:
        traced = self._of(tuple(inputs), (True,) * len(self.body.output))
        a, b = (TensorType(traced.dtype, operand.shape) for operand in (traced.a, traced.b))
        return Work(
            read=nbytes(a) + nbytes(b) + traced.read,
            written=sum(map(nbytes, traced.types)),
            flops=2 * multiplications(a.shape, b.shape, traced.b.turned) + traced.rows * traced.columns * traced.flops,
        )

    def _forms(self, device: Device, inputs: Arrays, outputs: Arrays) -> Forms | None:
        types = tuple(None if x is None else TensorType(x.dtype, tuple(x.shape)) for x in inputs)
        aligned = not any(address(x) % ACCESS for x in (*inputs, *outputs) if x is not None)
        traced = self._of(types, tuple(y is not None for y in outputs), aligned)
        if not traced.rows * traced.columns:
            return None
        plan = _planned(device.multiprocessors, traced, *_operands(traced, inputs))

        def others(device: Device, vendor: Vendor, inputs: Arrays, outputs: Arrays) -> dict[str, Run]:
            return {VENDOR: lambda: plan.vendors(device, vendor, inputs, outputs)}

        one, which = plan.products[0], plan.which
        itemsize = traced.dtype.itemsize
        there = has_warpgroups(device.architecture, one.m, one.n, one.k, which.access, itemsize)

        def blocks(tile: Tile) -> int:
            return one.batch * tile.count(one.m, one.n)

        tiles = warpgroup_tiles(blocks, device.multiprocessors, device.architecture, device.maps) if there else {}
        return Forms(
            which,
            record(plan.tiled, device, inputs, outputs),
            others,
            {form: record(partial(plan.whole, tile), device, inputs, outputs) for form, tile in tiles.items()},
        )

    def _of(self, inputs: tuple[TensorType | None, ...], wanted: tuple[bool, ...], aligned: bool = True) -> Traced:
        key = (inputs, wanted, aligned)
        if key not in self._traced:
            types = named(self.signature, inputs)
            if len(self._traced) >= KNOWN:
                self._traced.clear()
            names = [name if asked else "" for name, asked in zip(self.body.output, wanted, strict=True)]
            self._traced[key] = product(list(self.body.node), types, names, aligned)
        return self._traced[key]


def _operands(traced: Traced, inputs: Arrays) -> tuple[Array, Array]:
    a, b = inputs[traced.a.number], inputs[traced.b.number]
    assert a is not None
    assert b is not None
    return a, b


def _planned(multiprocessors: int, traced: Traced, a: Array, b: Array) -> _Plan:
    found = products(traced.a.shape, traced.b.shape, traced.b.turned, traced.scale)
    one, itemsize = found[0], traced.dtype.itemsize
    vectors = Vectors.of(one, a, b)
    access = min(vectors.a, vectors.b) * itemsize
    which = Class.of(one, len(found), traced.dtype.name, access, "region")
    return _Plan(traced, found, which, vectors, multiprocessors)


def base(nodes: Sequence[NodeProto], outputs: Sequence[str]) -> type[Kernel]:
    """The class that runs a body."""
    if is_family(nodes):
        return Gated if is_gate(outputs) else Siblings
    if is_reduced(nodes):
        return ReducedProduct
    return ProductRegion if any(node.op_type in MATRIX_PRODUCTS for node in nodes) else Region


def planned_types(
    nodes: Sequence[NodeProto], inputs: Mapping[str, TensorType], outputs: Sequence[str]
) -> tuple[tuple[TensorType, ...], int]:
    """The types of the outputs of a body, and how many launches it is.  Its code is not written: that takes most of the
    time, and refuses nothing more.  Raises KernelError for what no kernel computes."""
    own = base(nodes, outputs)
    if own is Region:
        return row_region_types(nodes, inputs, outputs)
    if own is Gated:
        return gated_types(gate(nodes, inputs, outputs), inputs), 1
    if own is Siblings:
        return family_types(family(nodes, inputs, outputs), inputs), 1
    if own is ReducedProduct:
        return reduced_types(nodes, inputs, outputs), 1
    return product_types(nodes, inputs, outputs), 1
