"""FusedMatMul: a product, its scale and bias, and an activation, by the fastest of three forms.

"tiled" is a kernel of ours, gemm.cu: nothing but the result is written, rounded once.  "vendor" is the vendor's product
and one pass over it in place, gemm_epilogue.cu: the product is rounded to the op's element type before that, as it is
where the ops are separate.  "cublaslt" is the vendor's product with an epilogue of its own, for the few activations
that it has (cublaslt.py).  `dispatch` knows which is the fastest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from ..errors import KernelError
from . import cublaslt
from .arrangement import vector_of
from .device import After, Array, Device, Grid, Product, Source, TensorType, address
from .dispatch import CUBLASLT, TILED, VENDOR, Class, choose
from .gemm_source import Attributes, Epilogue, Tile, epilogue, finish, gemm
from .kernel import Parameter, Signature, Work
from .products import multiplications, products, result
from .replay import KNOWN, VECTOR

HALF = (
    Tile(128, 128, 32, 64, 64, threads=128, stages=3, resident=2),
    Tile(64, 64, 32, 32, 32, threads=128, stages=4, resident=4),
    Tile(16, 64, 64, 16, 16, threads=128, stages=4, resident=4),
)
FLOAT = (
    Tile(128, 128, 16, 0, 0, threads=256, stages=3, resident=2),
    Tile(64, 64, 16, 0, 0, threads=256, stages=3, resident=2),
    Tile(16, 64, 64, 0, 0, threads=256, stages=3, resident=2),
)
"""For many rows and columns, for fewer, and for a few rows."""
MEDIUM_SHARE = 0.7
"""Of the large tile's rate: each number that is read from shared memory is multiplied half as often."""
MOST = 2**30
"""Rows and columns are counted in 32 bits."""
MOST_BLOCKS = 2**31 - 1
THREADS = 256
BLOCKS = 8
"""On a multiprocessor at a time, of the pass over a product."""


@lru_cache(maxsize=1024)
def tile_of(itemsize: int, m: int, n: int, batch: int, multiprocessors: int) -> Tile:
    """The tile that keeps the multiprocessors busy for the shortest time: a block takes as long as its tile is large,
    and they all take as long as that which has the most."""
    large, medium, small = HALF if itemsize == 2 else FLOAT
    if m <= small.m:
        return small

    def turns(tile: Tile) -> int:
        return -(-batch * (-(-m // tile.m)) * (-(-n // tile.n)) // multiprocessors)

    longer = turns(large) * large.m * large.n
    return large if longer * MEDIUM_SHARE <= turns(medium) * medium.m * medium.n else medium


@dataclass(frozen=True, slots=True)
class _Launch:
    """A launch on a, b, bias and y, or on bias and y."""

    source: Source
    entry: str
    grid: Grid
    block: Grid
    scalars: tuple[np.generic, ...]
    shared: int = 0


@dataclass(frozen=True, slots=True)
class _Plan:
    """Both forms for arrays of known shapes and alignment."""

    products: tuple[Product, ...]
    tiled: tuple[_Launch, ...]
    after: _Launch
    which: Class


class FusedMatMul:
    """com.microsoft FusedMatMul with the bias and activation of its FusedGemm; fused_matmul.rule has the meaning."""

    signature: ClassVar[Signature] = Signature(
        "FusedMatMul", (Parameter("A"), Parameter("B"), Parameter("bias", optional=True)), (Parameter("Y"),)
    )

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        known: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in attributes.items()}
        self.transposed, self.scale = bool(known.get("transB", 0)), float(known.get("alpha", 1.0))
        self.attributes: Attributes = tuple(sorted(known.items()))
        other = known.keys() - {"activation", "activation_params", "alpha", "transB"}
        if other or "activation" not in known:
            what = f"has no attribute {min(other)}" if other else "lacks its activation"
            raise KernelError(f"{self.signature.op} {what}")
        self.activation = str(known["activation"])
        epilogue(self.signature.op, self.attributes, True)
        self._plans: dict[tuple[object, ...], _Plan | None] = {}

    def outputs(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        a, b, bias = _three(inputs)
        assert a is not None
        assert b is not None
        shape = result(a.shape, b.shape, self.transposed)
        if bias is not None:
            if bias.shape[-1:] not in ((), shape[-1:]) or math.prod(bias.shape) != shape[-1]:
                raise KernelError(f"bias of shape {list(bias.shape)} is not one row for a product {list(shape)}")
            shape = (*(1,) * (len(bias.shape) - len(shape)), *shape)
        return (TensorType(a.dtype, shape),)

    def launch(self, device: Device, inputs: Sequence[Array | None], outputs: Sequence[Array | None]) -> None:
        a, b, bias = _three(inputs)
        y = outputs[0]
        if a is None or b is None or y is None:
            return
        arrays = (a, b, bias, y)
        key = (
            device.multiprocessors,
            *[None if x is None else (x.shape, x.dtype.num, address(x) % VECTOR) for x in arrays],
        )
        if key not in self._plans:
            if len(self._plans) >= KNOWN:
                self._plans.clear()
            self._plans[key] = self._planned(device.multiprocessors, a, b, bias, y)
        plan = self._plans[key]
        if plan is None:
            return

        def tiled() -> None:
            for one in plan.tiled:
                device.launch(one.source, one.entry, one.grid, one.block, [*arrays, *one.scalars], one.shared)

        forms, vendor = {TILED: tiled}, device.vendor
        if vendor is not None:

            def vendors() -> None:
                for product in plan.products:
                    vendor.product(product, a, b, y)
                after = plan.after
                device.launch(after.source, after.entry, after.grid, after.block, [y, bias, *after.scalars])

            def fused() -> None:
                after = After(bias, activation=self.activation)
                with device.scratch(cublaslt.WORKSPACE) as workspace:
                    for product in plan.products:
                        vendor.fused(product, a, b, y, after, workspace)

            forms[VENDOR] = vendors
            if plan.which.epilogue and vendor.fuses(self.activation, a.dtype):
                forms[CUBLASLT] = fused
        choose(vendor, plan.which, forms)

    def work(self, inputs: Sequence[TensorType | None]) -> Work:
        a, b, bias = _three(inputs)
        assert a is not None
        assert b is not None
        (y,) = self.outputs(inputs)
        after = epilogue(self.signature.op, self.attributes, bias is not None)
        return Work(
            read=sum(math.prod(x.shape) * x.dtype.itemsize for x in (a, b, bias) if x is not None),
            written=math.prod(y.shape) * y.dtype.itemsize,
            flops=2 * multiplications(a.shape, b.shape, self.transposed) + after.flops * math.prod(y.shape),
        )

    def which(self, inputs: Sequence[TensorType | None]) -> Class:
        """The class of shapes, for arrays that are aligned."""
        a, b, bias = _three(inputs)
        assert a is not None
        assert b is not None
        found, itemsize = products(a.shape, b.shape, self.transposed), a.dtype.itemsize
        one = found[0] if found else Product(0, 0, 0)
        columns = (one.k, one.k if self.transposed else one.n, one.n)
        access = min(math.gcd(16 // itemsize, n) for n in columns) * itemsize
        return Class.of(one, len(found), a.dtype.name, access, cublaslt.name(self.activation, bias is not None))

    def _planned(self, multiprocessors: int, a: Array, b: Array, bias: Array | None, y: Array) -> _Plan | None:
        found = products(a.shape, b.shape, self.transposed, self.scale)
        if not found:
            return None
        one, dtype = found[0], a.dtype
        if max(one.m, one.n, one.k) > MOST:
            raise KernelError(f"{self.signature.op}: more than 2^30 rows or columns, {one.m} by {one.k} by {one.n}")
        after = epilogue(self.signature.op, self.attributes, bias is not None)
        vectors = (
            vector_of(one.k, [a]),
            vector_of(one.k if self.transposed else one.n, [b]),
            vector_of(one.n, [y] if bias is None else [y, bias]),
        )
        tile = tile_of(dtype.itemsize, one.m, one.n, one.batch, multiprocessors)
        return _Plan(
            tuple(found),
            tuple(_tiled(product, dtype.name, dtype.itemsize, tile, vectors, after) for product in found),
            _after(found, dtype.name, vectors[2], after, multiprocessors),
            Class.of(
                one,
                len(found),
                dtype.name,
                min(vectors) * dtype.itemsize,
                cublaslt.name(self.activation, bias is not None),
            ),
        )


def _three(given: Sequence[Any]) -> tuple[Any, Any, Any]:
    """A, B and bias, None where it is left out."""
    a, b, *rest = given
    return a, b, rest[0] if rest else None


def _tiled(
    product: Product, dtype: str, itemsize: int, tile: Tile, vectors: tuple[int, int, int], after: Epilogue
) -> _Launch:
    blocks = product.batch * -(-product.m // tile.m) * -(-product.n // tile.n)
    if blocks > MOST_BLOCKS:
        raise KernelError(f"a product of {blocks} tiles is more than one launch has blocks")
    sizes = map(np.int32, (product.m, product.n, product.k))
    steps = (product.stride_a, product.stride_b, product.offset_a, product.offset_b, product.offset_y)
    return _Launch(
        gemm(dtype, tile, product.transposed, vectors, after),
        "gemm",
        (blocks,),
        (tile.threads,),
        (*sizes, np.float32(product.scale), *map(np.int64, steps)),
        tile.shared(itemsize, product.transposed),
    )


def _after(found: Sequence[Product], dtype: str, vector: int, after: Epilogue, multiprocessors: int) -> _Launch:
    """The pass over all products, which lie one behind the other."""
    one = found[0]
    rows, pieces = len(found) * one.batch * one.m, one.n // vector
    across = min(THREADS, 1 << (pieces - 1).bit_length())
    down, width = THREADS // across, -(-pieces // across)
    height = min(-(-rows // down), max(1, multiprocessors * BLOCKS // width))
    return _Launch(
        finish(dtype, vector, after), "finish", (width, height), (across, down), (np.int64(rows), np.int32(one.n))
    )
