"""Sizes and bytes of values whose dimensions may be symbols.

They weigh one partition against another and decide nothing about what is right: that two numbers of elements are equal
is a question to polynomials, not to these figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from zlib import crc32

from onnxfuse.matching.cost import BYTES
from onnxfuse.model.dims import Dim, Shape, product
from onnxfuse.model.symbols import evaluate

NOMINAL = 128
"""What a symbol is taken for where bytes are weighed."""


class Same(Mapping[str, int]):
    """Every symbol is the same size."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __getitem__(self, name: str) -> int:
        return self._size

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


_NOMINAL = Same(NOMINAL)


def numel(shape: Shape) -> Dim:
    """The number of elements: equal polynomials are equal numbers, whatever the sizes."""
    return product(shape)


def elements(shape: Shape) -> int:
    """About how many they are."""
    return max(evaluate(numel(shape), _NOMINAL) or 0, 0)


def size(shape: Shape, dtype: int) -> int:
    """About how many bytes."""
    return elements(shape) * BYTES.get(dtype, 4)


class Times(Same):
    """Symbols are so many times as large."""

    def __init__(self, symbols: Mapping[str, int], factor: int) -> None:
        super().__init__(factor)
        self._symbols = symbols

    def __getitem__(self, name: str) -> int:
        return self._size * self._symbols[name]


class Different(Same):
    """Symbols are of sizes of their own, nearly always: what fits at these fits by more than a coincidence."""

    def __init__(self) -> None:
        super().__init__(0)

    def __getitem__(self, name: str) -> int:
        return 5 + crc32(name.encode()) % 89


UNLIKE = Different()
ALIKE = (Same(12), Same(64), Same(240))
"""What symbols are taken for where a kernel is tried; of those alike, sizes that are divided by many numbers."""


FACTORS = (1, 8, 64, 512)
"""What those are multiplied by where a dimension would be 0, as n // 256 is for a small n."""


def tried(shapes: Sequence[Shape], symbols: Mapping[str, int]) -> tuple[tuple[int, ...] | None, ...]:
    """Sizes of the shapes to try a kernel with, at which no dimension that is not always 0 is, if there are any; None
    for a shape that has no sizes there."""
    made = (tuple(_sizes(shape, Times(symbols, factor)) for shape in shapes) for factor in FACTORS)
    first = next(made)
    whole = (found for found in (first, *made) if all(map(_whole, shapes, found)))
    return next(whole, first)


def _sizes(shape: Shape, symbols: Mapping[str, int]) -> tuple[int, ...] | None:
    found = [evaluate(dim, symbols) for dim in shape]
    sizes = tuple(dim for dim in found if dim is not None and dim >= 0)
    return sizes if len(sizes) == len(shape) else None


def _whole(shape: Shape, sizes: tuple[int, ...] | None) -> bool:
    return sizes is not None and all(size or dim == 0 for dim, size in zip(shape, sizes, strict=True))
