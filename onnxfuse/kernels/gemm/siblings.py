"""Products of one operand as one launch: Q, K and V, gate and up, keys and values of all layers of a decoder.

The weights stay the tensors that they are, and each product is written to a tensor of its own, so that nothing has to
be put side by side beforehand, nor be taken apart behind it: what is shared is the launch, and the operand in the
cache.  A node calls a function whose body are the products (`members`), which a runtime without this kernel runs as it
ran them before.

"tiled" is one launch of gemm_siblings.cu, "wgmma" the same by warpgroups, "tma" that by tensor maps, "tcgen05" that
with sums in tensor memory.  "vendor" are the vendor's products one by one, each with a pass over it where something is
done to it.  `autotune` knows which is the fastest.  Where there are few tiles their sums are not shared among blocks as
those of a single product are (gemm.py): several products fill a card sooner.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from onnx import FunctionProto, NodeProto

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.access import vector_of
from onnxfuse.kernels.device.device import Array, Device, Product, TensorType, Vendor, nbytes
from onnxfuse.kernels.device.kernel import REAL, Signature, Work
from onnxfuse.kernels.device.products import result
from onnxfuse.kernels.device.replay import KNOWN, Arrays, Capture, Writing, record
from onnxfuse.kernels.rows.region import named

from .apart import Apart, apart
from .autotune import SIBLINGS, TILED, VENDOR, Class
from .forms import ByForms, Forms, Products, Run
from .members import Member, members, result_type
from .parts import span
from .plan import Pass, Result, Sibling, SiblingsLaunch, Vectors, finish_pass, siblings_launch, warpgroup_tiles
from .tiles import Tile, divide, has_warpgroups

MOST = 2**30
"""Rows and columns are counted in 32 bits."""


def family(nodes: Sequence[NodeProto], inputs: Mapping[str, TensorType], outputs: Sequence[str]) -> list[Member]:
    """The products of a body, whose operands fit to each other.  Raises KernelError for what is no such family."""
    found = members(nodes, {name: kind.dtype for name, kind in inputs.items()}, outputs)
    for each, output in zip(found, outputs, strict=True):
        a, b = inputs[each.a], inputs[each.b]
        if len(b.shape) != 2:
            raise KernelError(f"weights of {len(b.shape)} dimensions, not of 2")
        shape = result(a.shape, b.shape, each.transposed)
        if each.rank > len(shape):
            raise KernelError(f"numbers of {each.rank} dimensions with a product {list(shape)}")
        _, width = span(each.part, shape[-1], len(shape))
        long = shape[-1] if each.whole_bias else width
        bias = inputs[each.bias] if each.bias else TensorType(a.dtype, (long,))
        if bias.shape[-1:] != (long,) or math.prod(bias.shape) != long or len(bias.shape) > len(shape):
            raise KernelError(f"bias of shape {list(bias.shape)} is not one row for a product {list(shape)}")
        if a.dtype.name not in REAL or {b.dtype, bias.dtype} != {a.dtype}:
            raise KernelError("operands must have one real element type")
        if result_type(each.nodes, inputs, [each.product], each.a, output) != a.dtype:
            raise KernelError(f"{output} has not the element type of the products")
    return found


def family_types(own: Sequence[Member], inputs: Mapping[str, TensorType]) -> tuple[TensorType, ...]:
    """The types of the results of a family."""
    made = []
    for each in own:
        shape = result(inputs[each.a].shape, inputs[each.b].shape, each.transposed)
        width = span(each.part, shape[-1], len(shape))[1]
        made.append(TensorType(inputs[each.a].dtype, (*shape[:-1], width)))
    return tuple(made)


class Siblings(ByForms):
    """One node; `kernels.of_region` makes the class of a function."""

    name: ClassVar[str] = "gemm"
    signature: ClassVar[Signature]
    body: ClassVar[FunctionProto]

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        self._families: dict[tuple[TensorType | None, ...], list[Member]] = {}
        self._run = Products(self._forms)

    def outputs(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        return family_types(self._family(inputs), named(self.signature, inputs))

    def _forms(self, device: Device, inputs: Arrays, outputs: Arrays) -> Forms | None:
        made = self._planned(device, inputs, outputs)
        if made is None:
            return None

        def named(inputs: Arrays, outputs: Arrays) -> dict[str, Array | None]:
            arrays = dict(zip(self.body.input, inputs, strict=True))
            return arrays | dict(zip(self.body.output, outputs, strict=True))

        def launching(own: SiblingsLaunch) -> Writing:
            def run(device: Device | Capture, inputs: Arrays, outputs: Arrays) -> None:
                arrays = named(inputs, outputs)
                device.launch(own.launch, own.arguments(arrays))

            return run

        def others(device: Device, vendor: Vendor, inputs: Arrays, outputs: Arrays) -> dict[str, Run]:
            return {VENDOR: lambda: made.vendors(device, vendor, named(inputs, outputs))}

        own = {form: record(launching(one), device, inputs, outputs) for form, one in made.own.items()}
        return Forms(made.which, own.pop(TILED), others, own)

    def work(self, inputs: Sequence[TensorType | None]) -> Work:
        types, made = named(self.signature, inputs), self.outputs(inputs)
        flops = sum(
            math.prod(y.shape) * (2 * types[each.a].shape[-1] + each.after.flops)
            for each, y in zip(self._family(inputs), made, strict=True)
        )
        return Work(sum(map(nbytes, types.values())), sum(map(nbytes, made)), flops)

    def _family(self, inputs: Sequence[TensorType | None]) -> list[Member]:
        key = tuple(inputs)
        if key not in self._families:
            if len(self._families) >= KNOWN:
                self._families.clear()
            self._families[key] = family(self.body.node, named(self.signature, inputs), self.body.output)
        return self._families[key]

    def _planned(self, device: Device, inputs: Sequence[Array | None], outputs: Sequence[Array | None]) -> _Plan | None:
        types = [TensorType(x.dtype, tuple(x.shape)) for x in inputs if x is not None]
        arrays, known = dict(zip(self.body.input, inputs, strict=True)), named(self.signature, types)
        each = []
        for member, y, name in zip(self._family(types), outputs, self.body.output, strict=True):
            if y is not None and 0 not in y.shape:
                shape = result(known[member.a].shape, known[member.b].shape, member.transposed)
                first, width = span(member.part, shape[-1], len(shape))
                each.append(_One(member, arrays[member.b], arrays.get(member.bias), y, name, shape[-1], first, width))
        if not each:
            return None
        made = _plan(arrays[each[0].member.a], each, device)
        separate = any(one.member.part for one in each)
        return replace(made, separate=apart(self.body, known, inputs, outputs)) if separate else made


@dataclass(frozen=True, slots=True)
class _One:
    """A member and its arrays."""

    member: Member
    b: Array | None
    bias: Array | None
    y: Array
    output: str
    columns: int
    """Of b."""
    first: int
    width: int

    @property
    def skipped(self) -> int:
        """Elements of the bias in front of its own."""
        return self.first if self.member.whole_bias else 0

    @property
    def sibling(self) -> Sibling:
        member = self.member
        sizes = (self.columns, self.first, self.width, self.skipped)
        return Sibling(member.b, member.bias, self.output, *sizes, member.after)


@dataclass(frozen=True, slots=True)
class _Separate:
    """A product of the vendor's, and the pass over it if there is one; `names` are those of a, b, bias and y."""

    product: Product
    names: tuple[str, str, str, str]
    after: Pass | None


@dataclass(frozen=True, slots=True)
class _Plan:
    """The forms for arrays of known shapes and alignment."""

    own: Mapping[str, SiblingsLaunch]
    """By its form."""
    separate: tuple[_Separate, ...] | Apart
    which: Class

    def vendors(self, device: Device, vendor: Vendor, arrays: Mapping[str, Array | None]) -> None:
        """Each product by the vendor's library; `arrays` are those of the body's names."""
        if isinstance(self.separate, Apart):
            self.separate.run(device, vendor, arrays)
            return
        for each in self.separate:
            a, b, bias, y = (arrays.get(name) for name in each.names)
            assert a is not None
            assert b is not None
            assert y is not None
            vendor.product(each.product, a, b, y)
            if each.after is not None:
                device.launch(each.after.launch, [y, bias, None, y, *each.after.scalars])


def _plan(a: Array | None, each: Sequence[_One], device: Device) -> _Plan:
    """Raises KernelError if the launch would be too large."""
    assert a is not None
    rows, k, dtype = math.prod(a.shape[:-1]), a.shape[-1], a.dtype
    columns, transposed = sum(one.width for one in each), each[0].member.transposed
    if max(rows, k, columns, *(one.columns for one in each)) > MOST:
        raise KernelError(f"more than 2^30 rows or columns, {rows} by {k} by {columns}")
    vectors = Vectors(
        vector_of(dtype.itemsize, [k], [a]),
        vector_of(
            dtype.itemsize,
            [k] if transposed else [x for one in each for x in (one.columns, one.first)],
            [one.b for one in each],
        ),
        vector_of(
            dtype.itemsize,
            [x for one in each for x in (one.width, one.skipped)],
            [x for one in each for x in (one.y, one.bias)],
        ),
    )
    access = min(vectors) * dtype.itemsize
    multiprocessors = device.multiprocessors
    tiles = {TILED: divide(dtype.itemsize, rows, columns, k, 1, multiprocessors).tile}
    if has_warpgroups(device.architecture, rows, columns, k, access, dtype.itemsize):

        def blocks(tile: Tile) -> int:
            return sum(tile.count(rows, one.width) for one in each)

        tiles |= warpgroup_tiles(blocks, multiprocessors, device.architecture, device.maps)
    name, own = each[0].member.a, [one.sibling for one in each]
    return _Plan(
        {
            form: siblings_launch(tile, name, rows, k, own, transposed, dtype.name, vectors)
            for form, tile in tiles.items()
        },
        tuple(_separate(one, rows, k, multiprocessors) for one in each),
        Class.of(Product(rows, columns, k, transposed), 1, dtype.name, access, f"{len(each)} {SIBLINGS}"),
    )


def _separate(one: _One, rows: int, k: int, multiprocessors: int) -> _Separate:
    member, dtype = one.member, one.y.dtype
    vector = vector_of(dtype.itemsize, [one.width], [one.y, one.bias])
    whole = Result(dtype, rows, one.columns, 1, member.after)
    after = None if member.plain else finish_pass(whole, 1, 1.0, vector, multiprocessors)
    product = Product(rows, one.columns, k, member.transposed)
    return _Separate(product, (member.a, member.b, member.bias, one.output), after)
