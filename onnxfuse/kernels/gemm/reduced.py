"""One product, what is elementwise behind it, and a normalization, softmax or reduction of its rows, as one launch: a
layer's last product with its bias, the residual sum and the norm that the next layer begins with.

"tiled" is gemm_rows.cu: the last block of some rows reduces them; "wgmma", "tma" and "tcgen05" as of one alone.
"vendor" is the vendor's product into scratch memory, and the row kernel of the rest.  `autotune` knows which is the
fastest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, ClassVar

import numpy as np
from onnx import FunctionProto, NodeProto, helper

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.access import aligned
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
from onnxfuse.kernels.device.kernel import Signature, Work
from onnxfuse.kernels.device.products import multiplications, products
from onnxfuse.kernels.device.replay import KNOWN, Arrays, record
from onnxfuse.kernels.pointwise.expressions.carried import Carried, Functions, Stored
from onnxfuse.kernels.pointwise.expressions.index import coordinates
from onnxfuse.kernels.pointwise.expressions.scalars import Scalar, Scalars
from onnxfuse.kernels.pointwise.expressions.values import Value
from onnxfuse.kernels.pointwise.loops import Loop, bytes_read, reached
from onnxfuse.kernels.rows.fused import ROWS, Reduced, RowLoop, Written, row_types, rows
from onnxfuse.kernels.rows.places import PlaceError, kinds_of, places, stored, traced, used_by
from onnxfuse.kernels.rows.region import named

from .autotune import TILED, VENDOR, Class
from .epilogue import MOST_NARROW, Multiplied, Operand, in_lanes, neighbours
from .forms import ByForms, Forms, Products, Run
from .plan import MOST_BLOCKS, SUM, Vectors, operands, warpgroup_tiles
from .source import PRODUCT
from .source import product as multiplied
from .tiles import Division, Tile, divide, has_warpgroups

ENTRY = "product_rows"
PRODUCTS = frozenset((PRODUCT,))
ARGUMENT = "product"
"""What device code calls an element of the product."""


@dataclass(frozen=True)
class Reduction:
    """A product and the reduction of its rows."""

    a: Operand
    b: Operand
    product: Product
    dtype: np.dtype[np.generic]
    reduce: str
    center: int
    epsilon: float
    again: bool
    """Whether the product is needed behind the reduction."""
    inputs: tuple[int, ...]
    """Numbers of the arrays that are read beside the product."""
    outputs: tuple[int, ...]
    width: int
    """Neighbouring elements that a thread has at a time."""
    text: str
    """The struct `Fused`."""
    carried: Carried
    after: RowLoop
    """The same behind the product, whose number is that of one more input."""
    read: int
    """Bytes of those arrays."""
    flops: int
    """Of each element."""

    def operands(self, inputs: Arrays) -> tuple[Array, Array]:
        """The arrays of the product."""
        a, b = inputs[self.a.number], inputs[self.b.number]
        assert a is not None
        assert b is not None
        return a, b


def is_reduced(nodes: Sequence[NodeProto]) -> bool:
    """Whether a body has a product and a reduction of rows."""
    ops = {node.op_type for node in nodes}
    return PRODUCT in ops and not ops.isdisjoint(ROWS)


def reduced(
    nodes: Sequence[NodeProto], inputs: Mapping[str, TensorType], outputs: Sequence[str], aligned: bool = True
) -> tuple[tuple[TensorType, ...], Reduction | Sequence[Loop]]:
    """The types of the outputs of some nodes, of which one is a product and one reduces its rows, and how they are
    computed: by loops over elements where the product has none; an output named "" is not wanted, and `aligned` says
    that all arrays begin at multiples of 16 bytes.  Raises KernelError where they are anything else."""
    met = _met(nodes, inputs)
    types, after = rows(met.rest, met.given, outputs, aligned)
    if not isinstance(one := next(iter(after), None), RowLoop):
        return types, [loop for loop in after if isinstance(loop, Loop)]
    product, row = met.product, met.row
    assert product.a is not None
    assert product.b is not None
    found, written, used = _stored(met, nodes, outputs)
    count, kinds, width = row.rows * row.columns, kinds_of(used, product.inputs), neighbours(product, aligned)
    text, carried, numbers = _text(kinds, written.moved(in_lanes(product, width)), count, width)
    return types, Reduction(
        product.a,
        product.b,
        found,
        product.dtype,
        str(row.defines.get("REDUCE") or row.defines.get("FORM") or "NORM"),
        int(str(row.defines.get("CENTER", 0))),
        row.epsilon,
        _needs_product(written.each),
        tuple(kinds),
        numbers,
        width,
        text,
        carried,
        one,
        bytes_read(used, product.inputs, count),
        sum(s.flops for s in used) + 9,
    )


def reduced_types(
    nodes: Sequence[NodeProto], inputs: Mapping[str, TensorType], outputs: Sequence[str]
) -> tuple[TensorType, ...]:
    """The types of the outputs of what `reduced` would write.  Raises KernelError as that does."""
    met = _met(nodes, inputs)
    types, _ = row_types(met.rest, met.given, outputs)
    if met.row.rows * met.row.columns:
        _stored(met, nodes, outputs)
    return types


@dataclass(frozen=True)
class _Met:
    """The product and the reduction of a body."""

    product: Multiplied
    row: Reduced
    values: Mapping[str, Value]
    rest: list[NodeProto]
    """The nodes behind the product, which is one more array, and may be asked for."""
    given: dict[str, TensorType]
    """What these read."""


def _met(nodes: Sequence[NodeProto], inputs: Mapping[str, TensorType]) -> _Met:
    """Raises KernelError where there is no product, or none whose rows are reduced."""
    scalars = Scalars()
    product = Multiplied(scalars, argument=ARGUMENT, inputs=list(inputs.values()))
    row = Reduced(scalars)
    values = traced(scalars, nodes, inputs, dict.fromkeys(PRODUCTS, product.meet) | dict.fromkeys(ROWS, row.meet))
    if product.a is None or product.b is None or row.given is None:
        raise KernelError("no product, or no reduction of rows")
    if (product.rows, product.columns) != (row.rows, row.columns):
        raise PlaceError("what is reduced are not the rows of the product")
    whole = next(values[node.output[0]] for node in nodes if node.op_type == PRODUCT)
    taken = [helper.make_node("Identity", [ARGUMENT], node.output) for node in nodes if node.op_type == PRODUCT]
    rest = [*taken, *(node for node in nodes if node.op_type != PRODUCT)]
    return _Met(product, row, values, rest, {**inputs, ARGUMENT: TensorType(whole.dtype, whole.shape)})


def _stored(met: _Met, nodes: Sequence[NodeProto], outputs: Sequence[str]) -> tuple[Product, Written, list[Scalar]]:
    """The sizes of the product, what is written, and all that is computed from.  Raises KernelError."""
    assert met.product.a is not None
    assert met.product.b is not None
    found = products(met.product.a.shape, met.product.b.shape, met.product.b.turned, met.product.scale)
    if len(found) != 1 or found[0].batch != 1:
        raise KernelError("a batch of products, whose rows are reduced")
    written = _written(nodes, met.values, outputs, met.product, met.row)
    return found[0], written, used_by(written.elements)


def _needs_product(stores: Sequence[Stored]) -> bool:
    used = reached([stored.element for stored in stores])
    return any(s.kind == "argument" and s.payload == ARGUMENT for s in used)


def _written(
    nodes: Sequence[NodeProto], values: Mapping[str, Value], outputs: Sequence[str], product: Multiplied, row: Reduced
) -> Written:
    """What is reduced, and the outputs: before the reduction, behind it for each element, and for each row."""
    assert row.given is not None
    behind = _behind(nodes)
    before, after = places(product, PRODUCTS, nodes, values), places(row, ROWS, nodes, values)
    read = row.given.at(coordinates(row.place, row.given.shape))
    kept, each, once = list[Stored](), list[Stored](), list[Stored]()
    for k, name in enumerate(outputs):
        if not name:
            continue
        value, place = values[name], (after if name in behind else before).get(name)
        of_row = name in behind and row.reduces and place == row.row
        one = stored(k, value, place, (row.rows if of_row else row.rows * row.columns,))
        (kept if name not in behind else once if of_row else each).append(one)
    if _needs_product(once):
        raise PlaceError("what is written once for each row needs the product")  # of which rows have one element
    return Written(read, kept, each, once)


def _behind(nodes: Sequence[NodeProto]) -> set[str]:
    """What is computed of the results of the reduction."""
    found: set[str] = set()
    for node in nodes:
        if node.op_type in ROWS or found.intersection(node.input):
            found |= {name for name in node.output if name}
    return found


def _text(kinds: Mapping[int, str], written: Written, count: int, width: int) -> tuple[str, Carried, tuple[int, ...]]:
    """The struct `Fused`, what it carries, and the numbers of the outputs in their order."""
    for wide in (False, True):
        functions = Functions(kinds, wide, width)
        read = functions.value(written.read, "reduced[v]" if width > 1 else "reduced[0]")
        kept, each = (functions.stores(stores) for stores in (written.kept, written.each))
        once = functions.statements((), written.once, once=True)
        if functions.narrow and count < MOST_NARROW:
            break
    carried = functions.carried()
    row = "const Index row = static_cast<Index>(row_);"
    place, own = "long long row_, int column_", [row, "const Index column = static_cast<Index>(column_);"]
    member, product = "__device__ __forceinline__ void", f"const float (&{ARGUMENT})[{width}]"
    text = [
        *carried.head,
        "struct Fused {",
        *(f"{one};" for one in carried.members),
        f"{member} read(float (&reduced)[{width}], {product}, {place}) const {{",
        *(*own, *read, "}"),
        f"{member} keep({product}, {place}) const {{",
        *(*own, *kept, "}"),
        f"{member} write(const float (&result)[{width}], {product}, {place}) const {{",
        *(*own, *each, "}"),
        f"{member} finish(const float result, long long row_) const {{",
        *(row, *once, "}"),
        "};",
        "",
    ]
    numbers = tuple(stored.number for stored in (*written.kept, *written.each, *written.once))
    return "\n".join(text), carried, numbers


@lru_cache(maxsize=1024)
def source(dtype: str, tile: Tile, transposed: bool, vectors: tuple[int, int, int], own: Reduction) -> Source:
    """Entry `product_rows`: a, b; float* sums [gridDim.y, m, n]; unsigned* counters, of the tiles down; what is read
    and written besides, and its numbers; int m, n, k; float scale, epsilon."""
    how = {"REDUCE": own.reduce, "CENTER": own.center, "AGAIN": int(own.again), "NEIGHBOURS": own.width}
    file = multiplied("gemm_rows.cu", dtype, tile, transposed, vectors, more=how)
    entry = f"""extern "C" __global__ void __launch_bounds__({tile.threads}, {tile.resident}) {ENTRY}(
    OPERAND(a), OPERAND(b), float* sums, unsigned* counters,
    {", ".join((*own.carried.parameters, ""))}int m, int n, int k, float scale, float epsilon
) {{
    const Part part = part_of(blockIdx.x, m, n);
    multiply(a, b, Partial{{sums + blockIdx.y * static_cast<long long>(m) * n, m, n}}, part.row, part.column, k);
    const unsigned across = (n + TILE_N - 1) / TILE_N;
    if (!last_of_rows(counters + part.row / TILE_M, across * gridDim.y)) return;
    const Fused fused{own.carried.fill};
    reduce_rows(fused, sums, part.row, m, n, gridDim.y, scale, epsilon);
}}
"""
    return file + (own.text + entry)


@dataclass(frozen=True)
class _Plan:
    """A product at sizes that are known, on a card with so many multiprocessors."""

    own: Reduction
    launches: Mapping[str, tuple[Division, Launch]]
    """By their form."""
    which: Class

    def whole(self, division: Division, launch: Launch, device: Device, inputs: Arrays, outputs: Arrays) -> None:
        """One launch of ours."""
        own, one = self.own, self.own.product
        a, b = own.operands(inputs)
        others = [*(inputs[k] for k in own.inputs), *(outputs[k] for k in own.outputs), *own.carried.values]
        sizes = (*map(np.int32, (one.m, one.n, one.k)), np.float32(one.scale), np.float32(own.epsilon))
        with (
            device.scratch(division.splits * one.m * one.n * SUM) as sums,
            device.counters(-(-one.m // division.tile.m)) as counters,
        ):
            device.launch(launch, [*operands(one, division.tile, a, b), sums, counters, *others, *sizes])

    def vendors(self, device: Device, vendor: Vendor, inputs: Arrays, outputs: Arrays) -> None:
        """The vendor's product, and the row kernel."""
        own, one, after = self.own, self.own.product, self.own.after
        a, b = own.operands(inputs)
        with device.scratch(one.m * one.n * own.dtype.itemsize) as memory:
            y = Buffer(address(memory), (one.m, one.n), own.dtype)
            vendor.product(one, a, b, y)
            after.run(device, [*inputs, y], outputs)


class ReducedProduct(ByForms):
    """One node; `kernels.of_region` makes the class of a function.  Its operands have each its own element type."""

    name: ClassVar[str] = "gemm"
    signature: ClassVar[Signature]
    body: ClassVar[FunctionProto]

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        self._known: dict[Any, tuple[tuple[TensorType, ...], Reduction | Sequence[Loop]]] = {}
        self._run = Products(self._forms)

    def outputs(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        return self._of(tuple(inputs), (True,) * len(self.body.output))[0]

    def work(self, inputs: Sequence[TensorType | None]) -> Work:
        types, own = self._of(tuple(inputs), (True,) * len(self.body.output))
        if not isinstance(own, Reduction):
            return Work(sum(loop.read for loop in own), sum(map(nbytes, types)), sum(loop.flops for loop in own))
        a, b = (TensorType(own.dtype, operand.shape) for operand in (own.a, own.b))
        return Work(
            read=nbytes(a) + nbytes(b) + own.read,
            written=sum(map(nbytes, types)),
            flops=2 * multiplications(a.shape, b.shape, own.b.turned) + own.product.m * own.product.n * own.flops,
        )

    def _forms(self, device: Device, inputs: Arrays, outputs: Arrays) -> Forms | None:
        types = tuple(None if x is None else TensorType(x.dtype, tuple(x.shape)) for x in inputs)
        wanted = tuple(y is not None for y in outputs)
        own = self._of(types, wanted, aligned((*inputs, *outputs)))[1]
        if not isinstance(own, Reduction):
            return Forms.alone(record(partial(_run_all, own), device, inputs, outputs)) if own else None
        plan = _planned(device, own, *own.operands(inputs))

        def others(device: Device, vendor: Vendor, inputs: Arrays, outputs: Arrays) -> dict[str, Run]:
            return {VENDOR: lambda: plan.vendors(device, vendor, inputs, outputs)}

        made = {form: record(partial(plan.whole, *x), device, inputs, outputs) for form, x in plan.launches.items()}
        return Forms(plan.which, made.pop(TILED), others, made)

    def _of(
        self, inputs: tuple[TensorType | None, ...], wanted: tuple[bool, ...], whole: bool = True
    ) -> tuple[tuple[TensorType, ...], Reduction | Sequence[Loop]]:
        key = (inputs, wanted, whole)
        if key not in self._known:
            types = named(self.signature, inputs)
            if len(self._known) >= KNOWN:
                self._known.clear()
            names = [name if asked else "" for name, asked in zip(self.body.output, wanted, strict=True)]
            self._known[key] = reduced(list(self.body.node), types, names, whole)
        return self._known[key]


def _planned(device: Device, own: Reduction, a: Array, b: Array) -> _Plan:
    one, itemsize, vectors = own.product, own.dtype.itemsize, Vectors.of(own.product, a, b)
    which = Class.of(one, 1, own.dtype.name, min(vectors.a, vectors.b) * itemsize, "rows")
    divisions = {TILED: divide(itemsize, one.m, one.n, one.k, 1, device.multiprocessors)}
    if has_warpgroups(device.architecture, one.m, one.n, one.k, which.access, itemsize):
        tiles = warpgroup_tiles(
            lambda tile: tile.count(one.m, one.n), device.multiprocessors, device.architecture, device.maps
        )
        divisions |= {form: Division(tile, 1) for form, tile in tiles.items()}
    return _Plan(own, {form: (d, _launch(own, d, vectors)) for form, d in divisions.items()}, which)


def _launch(own: Reduction, division: Division, vectors: Vectors) -> Launch:
    """Raises KernelError if it would be too large."""
    one, tile = own.product, division.tile
    blocks = tile.count(one.m, one.n)
    if blocks > MOST_BLOCKS:
        raise KernelError(f"a product of {blocks} tiles is more than one launch has blocks")
    made = source(own.dtype.name, tile, one.transposed, vectors, own)
    shared = tile.shared(own.dtype.itemsize, one.transposed)
    return Launch(made, ENTRY, (blocks, division.splits), (tile.threads,), shared)


def _run_all(loops: Sequence[Loop], device: Device, inputs: Arrays, outputs: Arrays) -> None:
    for loop in loops:
        loop.run(device, inputs, outputs)
