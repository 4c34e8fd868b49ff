"""The launches of products in each form, for arrays of known shapes and alignment."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device import architectures
from onnxfuse.kernels.device.access import vector_of
from onnxfuse.kernels.device.device import Argument, Array, Grid, Launch, Product, TensorMap
from onnxfuse.kernels.device.types import DTYPES

from .autotune import TCGEN05, TMA, WGMMA
from .source import Epilogue, finish, gemm, partial, siblings
from .tiles import (
    TENSOR_MEMORY,
    WARPGROUPS,
    Division,
    Tile,
    by_maps,
    divide,
    has_warpgroups,
    warpgroup_tile,
)

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


def operands(one: Product, tile: Tile, a: Array, *b: Array) -> tuple[Argument, ...]:
    """The operands of a product as its launch in such tiles is given them: a, and each b of which a
    tile has an equal share of columns.  Boxes of maps are of 64 columns, a row of the pattern: of b stored [k, n]
    several beside each other."""
    if not tile.maps:
        return (a, *b)
    rows, columns = (one.n, one.k) if one.transposed else (one.k, one.n)
    box = (tile.n // len(b) if one.transposed else tile.k, PANEL)
    left = TensorMap(a, one.offset_a, one.m, one.k, (tile.m, PANEL), *_batch(one, one.stride_a))
    batch = _batch(one, one.stride_b)
    return (left, *(TensorMap(each, one.offset_b, rows, columns, box, *batch) for each in b))


def _batch(one: Product, stride: int) -> tuple[int, int]:
    """How many matrices an operand is, and how far apart."""
    return (one.batch, stride) if stride else (1, 0)


class Mapped(NamedTuple):
    """What comes by tensor maps: the operands of a product in such tiles, by the names of their arrays."""

    product: Product
    tile: Tile
    names: Sequence[str] = "ab"

    def of(self, arrays: Mapping[str, Array | None]) -> dict[str, Argument]:
        a, *b = (one for name in self.names if (one := arrays[name]) is not None)
        return dict(zip(self.names, operands(self.product, self.tile, a, *b), strict=True))


class _Operand(NamedTuple):
    """An operand of a product in such tiles: a or b, whose names these are."""

    product: Product
    tile: Tile
    names: tuple[str, str]
    number: int

    def of(self, arrays: Mapping[str, Array | None]) -> Argument:
        a, b = (arrays[name] for name in self.names)
        assert a is not None
        assert b is not None
        return operands(self.product, self.tile, a, b)[self.number]


class SiblingsLaunch(NamedTuple):
    """One launch of several products; arrays among what it is given go by their names."""

    launch: Launch
    given: Sequence[_Operand | str | np.generic | None]

    def arguments(self, arrays: Mapping[str, Array | None]) -> list[Argument]:
        """What it is launched with."""
        return [
            one.of(arrays) if isinstance(one, _Operand) else arrays.get(one) if isinstance(one, str) else one
            for one in self.given
        ]


class Sibling(NamedTuple):
    """One of several products of an operand, by the names of its arrays: y is that with `width` columns of b from
    `first` on, and the bias, if there is one, begins behind `skipped` elements."""

    b: str
    bias: str
    y: str
    columns: int
    first: int
    width: int
    skipped: int
    after: Epilogue


def siblings_launch(
    tile: Tile, a: str, rows: int, k: int, each: Sequence[Sibling], transposed: bool, dtype: str, vectors: Vectors
) -> SiblingsLaunch:
    """Products of one a [rows, k] as one launch of such tiles.  Raises KernelError if it would be too large."""
    blocks = 0
    both = [(Product(rows, one.columns, k, transposed), tile, (a, one.b)) for one in each]
    given: list[_Operand | str | np.generic | None] = [_Operand(*both[0], 0), np.int32(rows), np.int32(k)]
    for one, own in zip(each, both, strict=True):
        blocks += tile.count(rows, one.width)
        if blocks > MOST_BLOCKS:
            raise KernelError("products of more tiles than one launch has blocks")
        given += [_Operand(*own, 1), one.bias or None, one.y]
        given += map(np.int32, (one.columns, one.first, one.width, one.skipped, blocks))
    source = siblings(dtype, tile, transposed, vectors, tuple(one.after for one in each))
    shared = tile.shared(DTYPES[dtype].itemsize, transposed)
    return SiblingsLaunch(Launch(source, "siblings", (blocks,), (tile.threads,), shared), given)


@dataclass(frozen=True, slots=True)
class Pass:
    """A launch on some of the node's arrays and on "sums", which is scratch memory."""

    launch: Launch
    arrays: tuple[str, ...]
    scalars: tuple[np.generic, ...]
    mapped: Mapped | None = None

    def arguments(self, arrays: Mapping[str, Array | None]) -> list[Argument]:
        """What the launch is given."""
        given = {**arrays, **(self.mapped.of(arrays) if self.mapped else {})}
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
    """The forms that one architecture has, nothing where there are none."""


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

    def blocks(tile: Tile) -> int:
        return one.batch * tile.count(one.m, one.n)

    tiles = warpgroup_tiles(blocks, multiprocessors, architecture, maps) if there else {}
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


FORM_TILES: Mapping[str, tuple[Tile, ...]] = {
    WGMMA: WARPGROUPS,
    TMA: tuple(map(by_maps, WARPGROUPS)),
    TCGEN05: TENSOR_MEMORY,
}
"""The tiles of each form that one architecture has."""


def warpgroup_tiles(
    blocks: Callable[[Tile], int], multiprocessors: int, architecture: str, maps: bool
) -> dict[str, Tile]:
    """The tile of each form that this architecture alone has; `blocks` says how many there are of it, `maps` that
    operands may come by tensor maps."""
    return {
        form: warpgroup_tile(blocks, multiprocessors, tiles)
        for form, tiles in FORM_TILES.items()
        if tiles[0].architecture == architectures.own(architecture) and (maps or not tiles[0].maps)
    }


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
        Mapped(product, tile) if tile.maps else None,
    )


def gate_pass(launch: Launch, sizes: tuple[np.generic, ...], product: Product, tile: Tile) -> Pass:
    """The launch of two products like this one, of a with b and with c, whose columns share a tile."""
    return Pass(launch, ("a", "b", "c", "y"), sizes, Mapped(product, tile, "abc") if tile.maps else None)


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
