"""Where kernels run, and what they are given.

A `Device` launches CUDA source on arrays.  There are two: `cuda` (CuPy's RawModule on the current GPU) and the
emulator's (g++ on a CPU).  The host side of a kernel knows neither: it sees arrays by what NumPy and CuPy share.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

Grid: TypeAlias = tuple[int, ...]
"""Blocks of a launch, or threads of a block, in x, y and z; what is left out is 1."""

FILES = {path.name: path for path in Path(__file__).parents[1].rglob("*.cu*")}
"""Name → file of device code, whichever room of the kernels it is in."""
INCLUDE = re.compile(r'^[ \t]*#include "([\w.]+\.cuh?)"[ \t]*\n', re.MULTILINE)


class Array(Protocol):
    """Contiguous memory with a shape and an element type, as NumPy and CuPy arrays and `Buffer`s have it."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...


class Buffer(NamedTuple):
    """Contiguous memory that somebody else owns: `pointer` is its address on the device."""

    pointer: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def address(array: Array) -> int:
    """Where an array begins in its device's memory, in bytes."""
    if isinstance(array, Buffer):
        return array.pointer
    interface = getattr(array, "__cuda_array_interface__", None) or array.__array_interface__  # type: ignore[attr-defined]
    return int(interface["data"][0])


class TensorType(NamedTuple):
    """Element type and shape of an array, there already or not; a `float32[2, 7, 64]`."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def nbytes(array: Array | TensorType) -> int:
    """Bytes that the elements take."""
    return math.prod(array.shape) * array.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Source:
    """One translation unit of CUDA C++; `name` is for messages."""

    name: str
    text: str
    architecture: str = ""
    """The only one that it is for, such as "sm_90a", whose instructions not all have; else it is for all."""

    @classmethod
    def file(cls, name: str, **defines: object) -> Source:
        """A file of the kernels, its own headers put in place, under `#define`s: what templates are for elsewhere.

        Compilers and the emulator name the files and lines that the text comes from.
        """
        return cls(name, "".join(f"#define {key} {value}\n" for key, value in defines.items()) + _read(name))

    def __add__(self, text: str) -> Source:
        """The same with more text behind it."""
        return replace(self, text=self.text + text)


@cache
def _read(name: str) -> str:
    """The text of a file, with each header of ours in place of the first `#include` that names it."""
    seen: set[str] = set()

    def read(name: str) -> str:
        if name in seen:
            return ""
        seen.add(name)
        text = FILES[name].read_text(encoding="utf-8")

        def header(found: re.Match[str]) -> str:
            after = text.count("\n", 0, found.end()) + 1
            return f'{read(found[1])}#line {after} "{name}"\n'

        return f'#line 1 "{name}"\n{INCLUDE.sub(header, text)}'

    return read(name)


class TensorMap(NamedTuple):
    """A matrix [rows, columns] in an array, or several; boxes of one are copied in the pattern of 128 bytes
    (headers/bulk.cuh)."""

    array: Array
    offset: int
    """Elements in front of it."""
    rows: int
    columns: int
    box: tuple[int, int]
    """Rows and columns."""
    matrices: int = 1
    step: int = 0
    """Elements from one matrix to the next."""


Argument: TypeAlias = Array | np.generic | TensorMap | None
"""What a kernel is given: an array arrives as a pointer (None as a null pointer), a NumPy scalar as the C type of its
dtype, a tensor map as the 128 bytes that the driver makes of it."""


@dataclass(frozen=True, slots=True)
class Launch:
    """`entry<<<grid, block, shared>>>`: all of a launch but its arguments.

    What kernels repeat is made once, where they plan; each call gives other arguments to it.
    """

    source: Source
    entry: str
    """A `__global__` function of the source, declared `extern "C"`."""
    grid: Grid
    block: Grid
    shared: int = 0
    """Bytes of dynamic shared memory."""

    def __str__(self) -> str:
        """As messages name it."""
        return f"{self.source.name}, kernel {self.entry}"

    @property
    def blocks(self) -> int:
        return math.prod(self.grid)

    @property
    def threads(self) -> int:
        """Of a block."""
        return math.prod(self.block)


@dataclass(frozen=True, slots=True)
class Product:
    """y[i] = scale * a[i] b[i] for `batch` matrices [m, k], [k, n] and [m, n], each row after row in its array.

    Offsets and strides count elements: a[i] begins at `offset_a` + i * `stride_a`; a stride of 0 means that all i share
    one matrix.  The matrices y[i] follow each other from `offset_y` on.  Where b is `transposed`, b[i] is stored as
    [n, k].
    """

    m: int
    n: int
    k: int
    transposed: bool = False
    scale: float = 1.0
    batch: int = 1
    stride_a: int = 0
    stride_b: int = 0
    offset_a: int = 0
    offset_b: int = 0
    offset_y: int = 0


class After(NamedTuple):
    """What a library does to a product before it writes it, in this order."""

    bias: Array | None = None
    """A row of n, added."""
    residual: Array | None = None
    """Shaped like the result, added."""
    activation: str = ""
    """As FusedMatMul calls it; none if empty."""


class Vendor(Protocol):
    """The library of matrix products that comes with a device, and what it takes to compare ours with it: a clock, and
    the memory of the device."""

    @property
    def card(self) -> str | None:
        """Name of what is measured; None where times say nothing about a GPU."""

    @property
    def capturing(self) -> bool:
        """Whether launches are being recorded in a CUDA graph now, and do not run."""

    def product(self, product: Product, a: Array, b: Array, y: Array) -> None:
        """Compute a product in order with the launches.  Arrays have one real element type; sums are taken in float32
        and rounded once.  Raises KernelError if the library refuses."""

    def fuses(self, activation: str, dtype: np.dtype[Any]) -> bool:
        """Whether `fused` computes this activation ("" is none) as ONNX has it, behind products of this type."""

    def fused(self, product: Product, a: Array, b: Array, y: Array, after: After, workspace: Array) -> None:
        """Compute a product and what is `after` it in one launch, in order with the others, and round once.

        `workspace` has cublaslt.WORKSPACE bytes.  Raises KernelError if the library refuses, or has nothing of the
        kind."""

    def read(self, array: Array) -> NDArray[Any]:
        """What is in an array behind all launches so far, which are waited for; not while a graph is captured."""

    def write(self, array: Array, values: NDArray[Any]) -> None:
        """Put values of its shape and type into an array, in order with the launches; not while a graph is captured."""

    def clock(self, run: Callable[[], None]) -> Callable[[], float]:
        """What runs it again and says how many seconds the device takes, whatever the host takes to launch it.

        `run` has run before, and launches the same each time.  Raises KernelError if it cannot be timed so."""


class Device(Protocol):
    """Launches kernels in order: each sees what those before it wrote."""

    multiprocessors: int
    """How many blocks run at a time at least, for grids that walk over their work."""
    architecture: str
    """Such as "sm_90"; empty where nothing is asked of it that some cards have not."""

    @property
    def maps(self) -> bool:
        """Whether kernels may be given tensor maps."""

    @property
    def vendor(self) -> Vendor | None:
        """The vendor's products; None where there are none."""

    def launch(self, launch: Launch, arguments: Sequence[Argument]) -> None:
        """Run a kernel.  Raises KernelError if its source does not compile or the launch is refused."""

    def scratch(self, count: int) -> AbstractContextManager[Array]:
        """At least `count` bytes, on a multiple of 256, for launches within the `with` block; what is in them is
        anybody's guess.

        No other launch has them until the block ends.  They are never given back: a captured CUDA graph may use them
        for as long as it lives.  One block at a time.
        """

    def counters(self, count: int) -> AbstractContextManager[Array]:
        """At least `count` unsigned integers of 32 bits, all 0, which launches within the `with` block leave as 0.

        Else as `scratch`."""
