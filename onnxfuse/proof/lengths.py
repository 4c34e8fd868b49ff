"""Shorter sequences for the sites of a model that fixes their length.

A model exported for 1,500 frames or 197 patches has that number in the shapes of its Reshapes, and its attention takes
gigabytes in float64.  What a row of a product gives does not depend on how many rows there are, nor does attention on
how many keys.  So a site is given the same equation of a few rows: one size, and all its multiples, become smaller in
what it is fed and among its constants.  Whether this holds for a site is not argued but tried, as with `pictures`: so
it must run and be right, else it is judged at its own sizes.

A picture of 64 x 64 has rows of 4,096, and it may have 512 channels, 8 heads of 64 among them.  What weights have as a
dim are channels, and these stay where channels are in a shape: at its end, or behind its first axis.  Which of the two,
if it matters, is tried as well.

Left as it is, is a site that counts otherwise: a Slice from 100 on would be something else, or nothing, of a few rows.
One with a table of positions, or a bias of pairs of them, does not run.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import numpy_helper

from onnxfuse.model.external_data import is_external

from .cuts import Cut, called, is_size

_Tensors: TypeAlias = Mapping[str, onnx.TensorProto]

_SMALL = 1 << 15
"""Elements of stops together, that are soon computed as they are."""
_LONG = 20
"""The least size that is made smaller."""
_STANDS_IN = (12, 14, 18, 20), (11, 13, 17, 19)
"""What an even and an odd size become, the first that is not there already."""
_STAND_IN_FOR_SIDES = (6, 8, 10), (5, 7, 9)
"""What those do that are less than `_LONG`: windows have few places a side, and many together."""
_SIDE = 12
"""The least of these."""
_FEW = 8
"""What counts as far as this does so of few rows, too."""
_TRIED = 2
"""Ways in which a site is made smaller."""
_ENDLESS = 1 << 30
"""A Slice up to here goes to the end."""
_FITTING = {("Reshape", 1), ("Expand", 1)}
"""Ops and their inputs of sizes that have to fit, or the op refuses to run."""
_COUNTING = {"Slice", "Split", "Pad"}
"""Ops that count, before some opset by their attributes."""


@dataclass(frozen=True, slots=True)
class _Number:
    """What may be a size or a count."""

    size: int
    resizable: bool = False
    """Does it become smaller with the size?"""
    fits: bool = False
    """Is it no count, but what has to fit or is refused?"""

    def stays(self, size: int, kept: set[int]) -> bool:
        """Does it say the same where `size` is smaller, and sizes that are `kept` are not?"""
        if self.size % size == 0 and self.size:
            return self.resizable
        return self.fits or self.size <= _FEW or self.size >= _ENDLESS or self.size in kept

    def stays_in(self, site: Cut, kept: set[int]) -> bool:
        """The same of a site that has `channels`, and in which nothing is to be cut off for being short."""
        assert site.length is not None
        size, small = site.length
        if self.size % size == 0 and self.size:
            return self.resizable and (self.fits or self.size not in site.channels)
        few = self.size < min(small, _FEW + 1)
        return self.fits or few or self.size >= _ENDLESS or (self.size in kept and self.size <= small)


class Lengths:
    """Makes sites of two models shorter, given what values are in `real` runs."""

    def __init__(self, original: onnx.ModelProto, fused: onnx.ModelProto, real: Sequence[Mapping[str, Any]]) -> None:
        self._models, self._real = (original, fused), real
        self._tensors = tuple({tensor.name: tensor for tensor in model.graph.initializer} for model in self._models)

    def shorter(self, site: Cut) -> list[Cut]:
        """The site with one size made smaller, in the ways that are to be tried, one after another; none where there is
        none to be."""
        shapes: list[tuple[int, ...]] = [self._real[0][name].shape for name in site.stops]
        same = all([run[name].shape for name in site.stops] == shapes for run in self._real)
        if site.entangled or not same or sum(map(math.prod, shapes)) <= _SMALL:
            return []
        parts = list(zip(self._models, self._tensors, (site.original, site.fused), strict=True))
        tensors = [tensor for part in parts for tensor in _read(*part)]
        if any(is_external(tensor) for tensor in tensors if is_size(tensor)):
            return []
        bound = {size for tensor in tensors if not is_size(tensor) for size in tensor.dims}
        numbers = {*_observed(site, self._real), *(number for part in parts for number in _numbers(*part))}
        plain = [replace(site, length=length) for length in _lengths(shapes, bound, numbers)]
        plain = sorted(plain, key=lambda made: (self._elements(made), made.length))[:1]
        views = [tuple(np.abs(numpy_helper.to_array(t)).ravel().tolist()) for t in tensors if is_size(t)]
        beside = list(_beside_channels(site, shapes, views, bound, numbers))
        sides = {made.length[0] for made in beside if made.length}
        # What is added to each place of a picture has sizes of 1 behind that of channels.
        first = any(len(t.dims) > 1 and t.dims[0] > 1 and set(t.dims[1:]) == {1} for t in tensors)

        def unlikely(made: Cut) -> tuple[bool, bool, bool, int]:
            """Are channels elsewhere, or is it their size, or the square of a side?  Of others, that which leaves least
            is the first."""
            size = made.length[0] if made.length else 0
            square = any(side * side == size for side in sides)
            return made.channels_first != first, size in bound, square, self._elements(made)

        order = sorted(beside, key=unlikely)
        return [*plain, *(made for made in order if made.length not in [one.length for one in plain])][:_TRIED]

    def _elements(self, site: Cut) -> int:
        return sum(map(math.prod, site.shapes(self._real[0]).values()))


def _lengths(
    shapes: Sequence[tuple[int, ...]], bound: set[int], numbers: Iterable[_Number]
) -> Iterator[tuple[int, int]]:
    """The sizes that may become smaller, of what has these shapes beside constants that are `bound` to sizes, and what
    stands for each."""
    numbers = list(numbers)
    sizes = {size for shape in shapes for size in shape}
    rows = {size for shape in shapes for size in shape[:-1]}
    mentioned = rows | {number.size for number in numbers if number.resizable}
    for size in {size for size in mentioned if size >= _LONG and any(n and n % size == 0 for n in rows)}:
        small = next((n for n in _STANDS_IN[size % 2] if n not in sizes | bound), None)
        # What is a multiple of it, or what it is a multiple of, becomes smaller with it, or it stays as it is.
        tied = any(n and n % size == 0 for n in bound)
        tied = tied or any((n >= _LONG and size % n == 0) or n * n == size for n in mentioned | bound if n < size)
        kept = {n for n in sizes | bound if n % size}
        if small is not None and not tied and all(number.stays(size, kept) for number in numbers):
            yield size, small


def _channels(shapes: Sequence[tuple[int, ...]], bound: set[int], views: Sequence[tuple[int, ...]]) -> set[int]:
    """Sizes that are no rows: those that constants have, those that only end shapes, and what these are made of where a
    shape takes them apart."""
    ends = {shape[-1] for shape in shapes if shape} - {size for shape in shapes for size in shape[:-1]}
    found = (bound | ends) - {1}
    found |= {view[-1] for view in views if any(math.prod(view[at:]) in found for at in range(len(view) - 1))}
    return found


def _beside_channels(
    site: Cut,
    shapes: Sequence[tuple[int, ...]],
    views: Sequence[tuple[int, ...]],
    bound: set[int],
    numbers: Iterable[_Number],
) -> Iterator[Cut]:
    """The site with a size made smaller of which that of channels may be a multiple; `views` are constant shapes."""
    numbers, channels = list(numbers), _channels(shapes, bound, views)
    sizes = {size for shape in shapes for size in shape}
    rows = {size for shape in shapes for size in shape[:-1]}
    mentioned = rows | {number.size for number in numbers if number.resizable}
    for size in sorted(size for size in mentioned if size >= _SIDE and any(n and n % size == 0 for n in sizes)):
        side = any(n and n % size**2 == 0 for n in sizes) or any(shape.count(size) > 1 for shape in shapes)
        square = any(n * n == size for n in mentioned if n < _SIDE)
        if not side and (square or size < _LONG or size in channels):
            continue
        stand_in = _STANDS_IN if size >= _LONG else _STAND_IN_FOR_SIDES
        small = next((n for n in stand_in[size % 2] if n not in sizes | bound), None)
        if small is None:
            continue
        own_channels = frozenset(n for n in channels if n in bound or n % size**2)
        before: list[tuple[int, ...]] = []
        for first in (False, True):
            made = replace(site, length=(size, small), channels=own_channels, channels_first=first)
            own = [made.resized_shape(shape) for shape in (*shapes, *views)]
            fed = own[: len(shapes)]
            pairs = zip(itertools.chain(*shapes), itertools.chain(*fed), strict=True)
            kept = {old for old, new in pairs if old == new} | bound
            if fed != shapes and own != before and all(number.stays_in(made, kept) for number in numbers):
                yield made
            before = own


def _read(model: onnx.ModelProto, tensors: _Tensors, cone: Iterable[int]) -> Iterator[onnx.TensorProto]:
    """The constants that nodes read or have."""
    for index in cone:
        node = model.graph.node[index]
        yield from (tensors[name] for name in node.input if name in tensors)
        yield from (attribute.t for attribute in node.attribute if attribute.HasField("t"))


def _observed(site: Cut, real: Sequence[Mapping[str, Any]]) -> Iterator[_Number]:
    """Shapes that are what they were in real runs."""
    for size in {size for run in real for name in site.observed for size in np.ravel(run[name]).tolist()}:
        yield _Number(size, resizable=True, fits=True)


def _numbers(model: onnx.ModelProto, tensors: _Tensors, cone: Iterable[int]) -> Iterator[_Number]:
    """What nodes and the functions that they call have."""
    own = list(cone)
    yield from _numbers_of([model.graph.node[index] for index in own], tensors, resizable=True)
    for function in called(model, own):
        yield from _numbers_of(function.node, {}, resizable=False)


def _numbers_of(nodes: Sequence[onnx.NodeProto], tensors: _Tensors, resizable: bool) -> Iterator[_Number]:
    constants = {name: tensors[name] for node in nodes for name in node.input if name in tensors}
    constants = {name: tensor for name, tensor in constants.items() if is_size(tensor)}
    plain: dict[str, list[int]] = {}
    for node in nodes:
        for attribute in node.attribute:
            numbers = [abs(number) for number in (attribute.i, *attribute.ints)]
            if node.op_type != "Constant":
                yield from (_Number(number, fits=node.op_type not in _COUNTING) for number in numbers)
            elif attribute.HasField("t"):
                constants |= {node.output[0]: attribute.t} if is_size(attribute.t) else {}
            else:
                plain[node.output[0]] = numbers
    for node in nodes:
        for at, name in enumerate(node.input):
            fits = (node.op_type, at) in _FITTING
            if name in constants:
                elements = np.abs(numpy_helper.to_array(constants[name])).ravel().tolist()
                yield from (_Number(number, resizable, fits) for number in elements)
            yield from (_Number(number, False, fits) for number in plain.get(name, ()))
