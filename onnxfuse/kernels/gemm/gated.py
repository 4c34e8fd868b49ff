"""Two products of one operand and what makes one result of them, element by element: SwiGLU and GeGLU with their
products, as one launch.

"tiled" is gemm_gated.cu: a block has the sums of both products in registers, which is why the largest tile is not for
it.  "wgmma" is the same by warpgroups, whose tile has columns of both products side by side, "tma" that by tensor maps,
"tcgen05" that with sums in tensor memory.  "vendor" are the vendor's products, into scratch memory, and one pass over
both (`apart`).  `autotune` knows which is the fastest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from onnx import FunctionProto, NodeProto

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.access import vector_of
from onnxfuse.kernels.device.device import Array, Device, Launch, Product, TensorType, Vendor, nbytes
from onnxfuse.kernels.device.kernel import REAL, Signature, Work
from onnxfuse.kernels.device.products import result
from onnxfuse.kernels.device.replay import KNOWN, Arrays, Capture, Writing, record
from onnxfuse.kernels.rows.region import named

from .apart import Apart, apart
from .autotune import GATED, TILED, VENDOR, Class
from .forms import ByForms, Forms, Products, Run
from .members import Gate, gate_of, result_type
from .parts import span
from .plan import MOST_BLOCKS, Pass, gate_pass, warpgroup_tiles
from .siblings import MOST
from .source import gated
from .tiles import FLOAT, HALF, Tile, divide, has_warpgroups


def gate(nodes: Sequence[NodeProto], inputs: Mapping[str, TensorType], outputs: Sequence[str]) -> Gate:
    """The gate that a body is, whose operands fit to each other.  Raises KernelError for what is none."""
    found = gate_of(nodes, {name: kind.dtype for name, kind in inputs.items()}, outputs[0])
    a, b, c = (inputs[name] for name in (found.a, found.b, found.c))
    if b != c or len(b.shape) != 2:
        raise KernelError("its weights are not two matrices of one shape")
    if len({width for _, width in spans(found, a, b)}) > 1:
        raise KernelError("one of its parts is wider than the other")
    if a.dtype.name not in REAL or a.dtype != b.dtype:
        raise KernelError("operands must have one real element type")
    if result_type(found.after, inputs, [found.first, found.second], found.a, outputs[0]) != a.dtype:
        raise KernelError(f"{outputs[0]} has not the element type of the products")
    if found.rank > len(result(a.shape, b.shape, found.transposed)):
        raise KernelError(f"numbers of {found.rank} dimensions with products of {list(a.shape)}")
    return found


def spans(own: Gate, a: TensorType, b: TensorType) -> list[tuple[int, int]]:
    """The first column and the number of columns of each product."""
    columns = result(a.shape, b.shape, own.transposed)[-1]
    return [span(part, columns, len(a.shape)) for part in own.parts]


def gated_types(own: Gate, inputs: Mapping[str, TensorType]) -> tuple[TensorType, ...]:
    """The type of a gate's result."""
    a, b = inputs[own.a], inputs[own.b]
    return (TensorType(a.dtype, (*a.shape[:-1], spans(own, a, b)[0][1])),)


class Gated(ByForms):
    """One node; `kernels.of_region` makes the class of a function."""

    name: ClassVar[str] = "gemm"
    signature: ClassVar[Signature]
    body: ClassVar[FunctionProto]

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        self._gates: dict[tuple[TensorType | None, ...], Gate] = {}
        self._run = Products(self._forms)

    def outputs(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        return gated_types(self._gate(inputs), named(self.signature, inputs))

    def _forms(self, device: Device, inputs: Arrays, outputs: Arrays) -> Forms | None:
        made = self._planned(device, inputs, outputs)
        if made is None:
            return None

        def launching(one: Pass) -> Writing:
            def run(device: Device | Capture, inputs: Arrays, outputs: Arrays) -> None:
                arrays = dict(zip(self.body.input, inputs, strict=True))
                given = {role: arrays[name] for role, name in zip("abc", made.names, strict=True)}
                device.launch(one.launch, one.arguments({**given, "y": outputs[0]}))

            return run

        def others(device: Device, vendor: Vendor, inputs: Arrays, outputs: Arrays) -> dict[str, Run]:
            arrays = dict(zip((*self.body.input, *self.body.output), (*inputs, *outputs), strict=True))
            return {VENDOR: lambda: made.apart.run(device, vendor, arrays)}

        own = {form: record(launching(one), device, inputs, outputs) for form, one in made.own.items()}
        return Forms(made.which, own.pop(TILED), others, own)

    def work(self, inputs: Sequence[TensorType | None]) -> Work:
        types, own = named(self.signature, inputs), self._gate(inputs)
        (y,) = self.outputs(inputs)
        flops = math.prod(y.shape) * (4 * types[own.a].shape[-1] + own.flops)
        return Work(sum(map(nbytes, types.values())), nbytes(y), flops)

    def _gate(self, inputs: Sequence[TensorType | None]) -> Gate:
        key = tuple(inputs)
        if key not in self._gates:
            if len(self._gates) >= KNOWN:
                self._gates.clear()
            self._gates[key] = gate(self.body.node, named(self.signature, inputs), self.body.output)
        return self._gates[key]

    def _planned(self, device: Device, inputs: Sequence[Array | None], outputs: Sequence[Array | None]) -> _Plan | None:
        kinds = [TensorType(x.dtype, tuple(x.shape)) for x in inputs if x is not None]
        own, types = self._gate(kinds), named(self.signature, kinds)
        arrays, y = dict(zip(self.body.input, inputs, strict=True)), outputs[0]
        a, b, c = (arrays[name] for name in (own.a, own.b, own.c))
        if a is None or y is None or 0 in y.shape:
            return None
        rows, width, k, dtype = math.prod(y.shape[:-1]), y.shape[-1], a.shape[-1], a.dtype
        (one, _), (other, _) = spans(own, types[own.a], types[own.b])
        n = result(types[own.a].shape, types[own.b].shape, own.transposed)[-1]
        if max(rows, n, 2 * width, k) > MOST:
            raise KernelError(f"more than 2^30 rows or columns, {rows} by {k} by {n}")
        itemsize = dtype.itemsize
        vectors = (
            vector_of(itemsize, [k], [a]),
            vector_of(itemsize, [k] if own.transposed else [n, one, other], [b, c]),
            vector_of(itemsize, [width], [y]),
        )
        which = Class.of(Product(rows, 2 * width, k, own.transposed), 1, dtype.name, min(vectors) * itemsize, GATED)

        product, sizes = Product(rows, n, k, own.transposed), (rows, width, n, k, one, other)

        def launched(tile: Tile, columns: int) -> Pass:
            blocks = tile.count(rows, columns)
            if blocks > MOST_BLOCKS:
                raise KernelError("products of more tiles than one launch has blocks")
            source = gated(dtype.name, tile, own.transposed, vectors, own.text)
            launch = Launch(source, "gated", (blocks,), (tile.threads,), tile.shared(itemsize, own.transposed))
            return gate_pass(launch, tuple(map(np.int32, sizes)), product, tile)

        made = {TILED: launched(_tile(itemsize, rows, width, k, device.multiprocessors), width)}
        if has_warpgroups(device.architecture, rows, 2 * width, k, which.access, itemsize):
            tiles = warpgroup_tiles(
                lambda tile: tile.count(rows, 2 * width), device.multiprocessors, device.architecture, device.maps
            )
            made |= {form: launched(tile, 2 * width) for form, tile in tiles.items()}
        return _Plan(made, (own.a, own.b, own.c), apart(self.body, types, inputs, outputs), which)


def _tile(itemsize: int, rows: int, columns: int, k: int, multiprocessors: int) -> Tile:
    large, medium, _ = HALF if itemsize == 2 else FLOAT
    found = divide(itemsize, rows, 2 * columns, k, 1, multiprocessors).tile
    return medium if found == large else found


@dataclass(frozen=True, slots=True)
class _Plan:
    """The forms for arrays of known shapes and alignment."""

    own: Mapping[str, Pass]
    """Ours, by its form."""
    names: tuple[str, str, str]
    """Of a, b and c."""
    apart: Apart
    which: Class
