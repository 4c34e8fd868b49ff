"""Softmax, its logarithm, and Softmax whose hidden rows are 0, over any axis: softmax.cu, softmax_columns.cu, and
row_turned.cu where columns begin anywhere in memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
from onnx import helper

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.access import aligned, vector_of
from onnxfuse.kernels.device.device import Array, Device, Launch, Source, TensorType, nbytes
from onnxfuse.kernels.device.kernel import Parameter, Signature, Work
from onnxfuse.kernels.device.replay import Replay
from onnxfuse.kernels.device.types import TYPES

from .arrangement import SECTOR
from .launch import MOST_COLUMNS, Given, launch
from .passes import Passes
from .several import several
from .source import Expression, Operand, Program

THREADS, MOST_THREADS = 256, 1024
"""Of a block of softmax_columns.cu, where a block has tiles of columns; and where it has whole slabs, at most."""
WARP = 32
SLOTS = 4096
"""Vectors times their elements of a block at most: it keeps two numbers for each of them."""


@cache
def program(form: str) -> Program:
    """Softmax of rows; `form` is SOFTMAX, LOG or SAFE."""
    return Program(
        "softmax.cu",
        "softmax(fused, rows, columns)",
        Expression("input", (Operand("input"),)),
        Expression("value"),
        defines=(("FORM", form),),
    )


@cache
def columns_source(form: str, dtype: str, vector: int, threads: int = THREADS, slabs: bool = False) -> Source:
    """Softmax along an axis that is not the last, of so many neighbours at a time; a block of at most so many threads
    has tiles of columns, or whole slabs."""
    return Source.file(
        "softmax_columns.cu", FORM=form, TYPE=TYPES[dtype], VECTOR=vector, THREADS=threads, SLABS=int(slabs)
    )


@dataclass(frozen=True, slots=True)
class Slabs:
    """What a block of so many threads has of x [outer, columns, inner] where that is whole slabs [columns, inner]:
    `count` of them, each of `width` vectors by `columns`, and threads for `depth` columns."""

    width: int
    depth: int
    count: int
    threads: int


def slabs(columns: int, width: int, sector: int, most: int = MOST_THREADS, enough: int = THREADS) -> Slabs | None:
    """Slabs for a block of at most so many threads, of which each warp begins at a sector of so many vectors; None
    where a slab has too many.

    A thread has one column, and slabs begin at a sector together, or the first threads of a block lie before them.  Or
    it has every depth-th column of one slab, `enough` threads if there may be so many: then depth times width is a
    multiple of a sector."""
    slab = columns * width
    together = slab * (sector // math.gcd(sector, slab))
    if together <= most:
        count = together // slab * max(1, THREADS // together)
        return Slabs(width, columns, count, _warps(count * slab))
    if slab <= THREADS:
        count = THREADS // slab
        return Slabs(width, columns, count, _warps(count * slab + sector - 1))
    depth = sector // math.gcd(sector, width)
    depth *= max(1, min(enough, most, columns * width) // (depth * width))
    return Slabs(width, depth, 1, _warps(depth * width)) if depth * width <= most else None


def _warps(threads: int) -> int:
    """The same, in whole warps."""
    return -(-threads // WARP) * WARP


class Softmax:
    """ai.onnx Softmax-13, along one axis."""

    name: ClassVar[str] = "softmax"
    signature: ClassVar[Signature] = Signature("Softmax", (Parameter("input"),), (Parameter("output"),))
    form: ClassVar[str] = "SOFTMAX"

    def __init__(self, attributes: Mapping[str, Any]) -> None:
        self.axis = int(attributes.get("axis", -1))
        self._replay = Replay(self._launch)

    def outputs(self, inputs: Sequence[TensorType | None]) -> tuple[TensorType, ...]:
        x = inputs[0]
        assert x is not None
        if not -len(x.shape) <= self.axis < len(x.shape):
            raise KernelError(f"{self.signature.op}: axis {self.axis} of an input of shape {list(x.shape)}")
        return (x,)

    def launch(self, device: Device, inputs: Sequence[Array | None], outputs: Sequence[Array | None]) -> None:
        self._replay(device, inputs, outputs)

    def _launch(self, device: Device, inputs: Sequence[Array | None], outputs: Sequence[Array | None]) -> None:
        x, y = inputs[0], outputs[0]
        if x is None or y is None or 0 in x.shape:
            return
        axis = self.axis % len(x.shape)
        outer, columns, inner = math.prod(x.shape[:axis]), x.shape[axis], math.prod(x.shape[axis + 1 :])
        if inner == 1:
            launch(device, program(self.form), outer, columns, {"input": Given(x), "output": Given(y)})
            return
        if columns > MOST_COLUMNS:
            raise KernelError(f"{self.signature.op}: {columns} elements along axis {axis} are more than 2^30")
        vector = vector_of(x.dtype.itemsize, (inner,), (x, y))
        if found := self._slabs(x, y, columns, inner, vector, device.multiprocessors):
            code = columns_source(self.form, x.dtype.name, vector, _power(max(THREADS, found.threads)), slabs=True)
            sizes = (np.int64(outer), np.int32(found.width), np.int32(found.depth), np.int32(found.count))
            launched = Launch(code, "softmax_columns", (-(-outer // found.count),), (found.threads,))
            device.launch(launched, (x, y, np.int64(inner), np.int32(columns), *sizes))
            return
        if tiles := self._tiles(x, y, inner):
            tiles.run(device, [x], [y])
            return
        while vector > 1 and outer * _across(columns, inner // vector) < device.multiprocessors:
            vector //= 2
        width, depth = tile(columns, inner // vector)
        code = columns_source(self.form, x.dtype.name, vector)
        blocks = outer * _across(columns, inner // vector)
        given = (x, y, np.int64(inner), np.int32(columns))
        device.launch(Launch(code, "softmax_columns", (blocks,), (width, depth)), given)

    def _slabs(self, x: Array, y: Array, columns: int, inner: int, vector: int, multiprocessors: int) -> Slabs | None:
        """Whole slabs for each block, where columns begin anywhere in a sector and are short; None where tiles of
        columns give more of the card something to do."""
        size, outer = x.dtype.itemsize, math.prod(x.shape) // (columns * inner)
        if size * inner % SECTOR == 0 or not aligned((x, y)):
            return None
        most, enough = min(MOST_THREADS, SLOTS // vector), max(THREADS, 2 * multiprocessors * THREADS // outer)
        found = slabs(columns, inner // vector, SECTOR // (size * vector), most, enough)
        if found is None or found.depth >= columns:
            return found
        blocks = min(multiprocessors, outer * _across(columns, inner))
        return found if -(-outer // found.count) * found.threads >= blocks * THREADS else None

    def _tiles(self, x: Array, y: Array, inner: int) -> Passes | None:
        """Tiles of neighbours in shared memory, where columns begin anywhere in a sector, and these would be read as
        many times as they are parts of accesses; None where there is no room for them."""
        if self.form == SafeSoftmax.form or x.dtype.itemsize * inner % SECTOR == 0:
            return None
        node = helper.make_node(self.signature.op, ["input"], ["output"], axis=self.axis)
        given = {"input": TensorType(x.dtype, tuple(x.shape))}
        (found,) = several([node], given, ["output"], aligned((x, y)))[1]
        return found if isinstance(found, Passes) and found.tiles else None

    def work(self, inputs: Sequence[TensorType | None]) -> Work:
        x = inputs[0]
        assert x is not None
        return Work(read=nbytes(x), written=nbytes(x), flops=5 * math.prod(x.shape))


def tile(columns: int, inner: int) -> tuple[int, int]:
    """Vectors of neighbours along `inner`, which has so many, and threads along the axis, of one block: a warp's
    accesses are neighbours where there are as many, and short columns leave no thread without work."""
    least = min(32, _power(inner))
    depth = min(THREADS // least, _power(columns))
    return min(THREADS // depth, _power(inner)), depth


def _across(columns: int, inner: int) -> int:
    """Blocks along `inner`."""
    return -(-inner // tile(columns, inner)[0])


def _power(number: int) -> int:
    """The least power of 2 that is not smaller."""
    return 1 << max(0, number - 1).bit_length()


class LogSoftmax(Softmax):
    """ai.onnx LogSoftmax-13, along one axis."""

    signature = Signature("LogSoftmax", (Parameter("input"),), (Parameter("output"),))
    form = "LOG"


class SafeSoftmax(Softmax):
    """Softmax with 0 in place of NaN: rows that are -inf throughout."""

    signature = Signature("SafeSoftmax", (Parameter("input"),), (Parameter("y"),))
    form = "SAFE"
