"""The launches of products in each form, for arrays of known shapes and alignment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.access import vector_of
from onnxfuse.kernels.device.device import Argument, Array, Grid, Launch, Product, TensorMap

from .autotune import TMA, WGMMA
from .source import Epilogue, finish, gemm, partial
from .tiles import Division, Tile, by_maps, divide, has_warpgroups, warpgroup_tile

MOST_BLOCKS = 2**31 - 1
THREADS = 256
BLOCKS = 8
"""On a multiprocessor at a time, of the pass over a product."""
PANEL = 64
"""Columns of a box: a row of the pattern, of elements of 16 bits."""
SUM = 4
"""Bytes of a sum."""
WIDEST_SUM = 4
"""Sums of one access."""


class Result(NamedTuple):
    """y as one matrix, to which products are written one behind the other, and what is done to them."""

    dtype: np.dtype[np.generic]
    rows: int
    columns: int
    period: int
    """Rows of the residual; 1 if there is none."""
    after: Epilogue


class Vectors(NamedTuple):
    """Elements of one access to a, to b, and to bias, residual and y."""

    a: int
    b: int
    y: int

    @classmethod
    def of(cls, one: Product, a: Array, b: Array, y: int = 0) -> Vectors:
        """Of the operands of a product, as they lie; `y` are those of its result, else of sums in float."""
        itemsize = a.dtype.itemsize
        return cls(
            vector_of(itemsize, [one.k], [a]),
            vector_of(itemsize, [one.k if one.transposed else one.n], [b]),
            y or vector_of(SUM, [one.n], ()),
        )


class Maps(NamedTuple):
    """How the operands of a product, which is no batch, come to a tile."""

    product: Product
    tile: Tile

    def of(self, a: Array | None, b: Array | None) -> tuple[TensorMap, TensorMap]:
        """Boxes of 64 columns, a row of the pattern: of b stored [k, n] several beside each other."""
        one, tile = self
        assert a is not None
        assert b is not None
        left = TensorMap(a, one.offset_a, one.m, one.k, (tile.m, PANEL))
        if one.transposed:
            return left, TensorMap(b, one.offset_b, one.n, one.k, (tile.n, PANEL))
        return left, TensorMap(b, one.offset_b, one.k, one.n, (tile.k, PANEL))


@dataclass(frozen=True, slots=True)
class Pass:
    """A launch on some of the node's arrays and on "sums", which is scratch memory."""

    launch: Launch
    arrays: tuple[str, ...]
    scalars: tuple[np.generic, ...]
    maps: Maps | None = None
    """Of a and b, where they come by tensor maps."""

    def arguments(self, arrays: Mapping[str, Array | None]) -> list[Argument]:
        """What the launch is given."""
        given: Mapping[str, Argument] = arrays
        if self.maps is not None:
            given = {**arrays, **dict(zip("ab", self.maps.of(arrays["a"], arrays["b"]), strict=True))}
        return [*(given.get(name) for name in self.arrays), *self.scalars]


@dataclass(frozen=True, slots=True)
class Plan:
    """All forms."""

    products: tuple[Product, ...]
    tiled: tuple[Pass, ...]
    scratch: int
    """Bytes of the sums of the tiled form, 0 if it has none."""
    after: Pass
    """What comes behind the vendor's products."""
    warpgroups: Mapping[str, Sequence[Pass]]
    """The forms by warpgroups, nothing where it has none."""


def plan(
    products: Sequence[Product],
    result: Result,
    vectors: Vectors,
    multiprocessors: int,
    architecture: str = "",
    maps: bool = False,
) -> Plan:
    """Raises KernelError if a launch would be too large."""
    one, itemsize = products[0], result.dtype.itemsize
    division = divide(itemsize, one.m, one.n, one.k, one.batch, multiprocessors)
    whole = division.splits == 1
    if whole:
        tiled = [whole_product(product, division, result, vectors) for product in products]
    else:
        tiled = [partial_sums(product, division, result.dtype, result.rows, vectors) for product in products]
        tiled.append(finish_pass(result, division.splits, one.scale, min(vectors.y, WIDEST_SUM), multiprocessors))
    there = has_warpgroups(architecture, one.m, one.n, one.k, min(vectors) * itemsize, itemsize)
    tiles = warpgroup_tiles(one, multiprocessors, maps) if there else {}
    return Plan(
        tuple(products),
        tuple(tiled),
        0 if whole else division.splits * result.rows * result.columns * SUM,
        finish_pass(result, 1, 1.0, vectors.y, multiprocessors),
        {
            form: [whole_product(product, Division(tile, 1), result, vectors) for product in products]
            for form, tile in tiles.items()
        },
    )


def warpgroup_tiles(one: Product, multiprocessors: int, maps: bool) -> dict[str, Tile]:
    """The tile of each form by warpgroups, of products like this one; `maps` says that the device has tensor maps."""
    tile = warpgroup_tile(lambda tile: one.batch * tile.count(one.m, one.n), multiprocessors)
    return {WGMMA: tile, **({TMA: by_maps(tile)} if maps and one.batch == 1 else {})}


def whole_product(product: Product, division: Division, result: Result, vectors: Vectors) -> Pass:
    """A product with what is behind it, its sums not in parts."""
    tile, dtype = division.tile, result.dtype
    return Pass(
        Launch(
            gemm(dtype.name, tile, product.transposed, vectors, result.after),
            "gemm",
            _grid(product, division),
            (tile.threads,),
            tile.shared(dtype.itemsize, product.transposed),
        ),
        ("a", "b", "bias", "residual", "y"),
        (
            *_sizes(product),
            np.float32(product.scale),
            *_steps(product),
            np.int64(product.offset_y // product.n),
            np.int32(result.period),
        ),
        Maps(product, tile) if tile.maps else None,
    )


def partial_sums(
    product: Product, division: Division, dtype: np.dtype[np.generic], rows: int, vectors: Vectors
) -> Pass:
    """The sums over parts of k, of a product that is a part of `rows` rows."""
    tile = division.tile
    return Pass(
        Launch(
            partial(dtype.name, tile, product.transposed, vectors),
            "partial",
            _grid(product, division),
            (tile.threads,),
            tile.shared(dtype.itemsize, product.transposed),
        ),
        ("a", "b", "sums"),
        (*_sizes(product), *_steps(product), np.int64(product.offset_y // product.n), np.int64(rows)),
    )


def _grid(product: Product, division: Division) -> Grid:
    blocks = product.batch * division.tile.count(product.m, product.n)
    if blocks > MOST_BLOCKS:
        raise KernelError(f"a product of {blocks} tiles is more than one launch has blocks")
    return blocks, division.splits


def _sizes(product: Product) -> tuple[np.generic, ...]:
    return np.int32(product.m), np.int32(product.n), np.int32(product.k)


def _steps(product: Product) -> tuple[np.generic, ...]:
    return tuple(map(np.int64, (product.stride_a, product.stride_b, product.offset_a, product.offset_b)))


def finish_pass(result: Result, count: int, scale: float, vector: int, multiprocessors: int) -> Pass:
    """The pass over y, or over so many parts of it."""
    grid, block = spread(result.rows, result.columns // vector, multiprocessors)
    return Pass(
        Launch(finish(result.dtype.name, count > 1, vector, result.after), "finish", grid, block),
        ("sums" if count > 1 else "y", "bias", "residual", "y"),
        (
            np.int64(result.rows),
            np.int32(result.columns),
            np.int32(count),
            np.float32(scale),
            np.int32(result.period),
        ),
    )


def spread(rows: int, pieces: int, multiprocessors: int) -> tuple[Grid, tuple[int, int]]:
    """Blocks, and the threads of each, for a pass over so many pieces of each row: a thread has one place in all of its
    rows."""
    across = min(THREADS, 1 << (pieces - 1).bit_length())
    down, width = THREADS // across, -(-pieces // across)
    return (width, min(-(-rows // down), max(1, multiprocessors * BLOCKS // width))), (across, down)
