"""Smaller pictures for the sites of convolutions.

A convolution does the same with every window: the equation of a picture of 224 x 224 is that of one of 14 x 14, which
takes a two hundredth of the time in float64, where no library has a fast kernel.  Whether this holds for a site is not
argued but tried: with smaller pictures it must run and be right, else it is judged at its own sizes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import onnx

from .cut_feeds import stand_in
from .cuts import Cut

_WINDOWS = {"Conv", "ConvTranspose"}
_SIDE = 8
"""Windows of usual kernels and dilations fit in, and their edges are not all there is."""
_SMALL = 1 << 15
"""Elements of stops together, that are soon computed as they are."""


def smaller(original: onnx.ModelProto, site: Cut, real: Sequence[Mapping[str, Any]]) -> Cut | None:
    """The site with smaller pictures, given what its stops are in real runs; None where it has none, is small, or is
    fed more than noise."""
    if site.entangled or site.observed or not any(original.graph.node[i].op_type in _WINDOWS for i in site.original):
        return None
    values = [[run[name] for run in real] for name in site.stops]
    if any(not stand_in(value) or value.ndim < 3 for runs in values for value in runs):
        return None
    shapes = [runs[0].shape for runs in values]
    if any(value.shape[2:] != shape[2:] for shape, runs in zip(shapes, values, strict=True) for value in runs):
        return None
    if sum(map(math.prod, shapes)) <= _SMALL or len({len(shape) for shape in shapes}) != 1:
        return None
    factors = [_factor(axis) for axis in zip(*(shape[2:] for shape in shapes), strict=True)]
    made = tuple(tuple(-(-n // f) for n, f in zip(shape[2:], factors, strict=True)) for shape in shapes)
    return replace(site, pictures=made) if max(factors, default=1) > 1 else None


def _factor(sizes: Iterable[int]) -> int:
    """What divides the sizes of one axis: pictures of several resolutions stay as many times as large as each other."""
    wide = [size for size in sizes if size > 1]
    factor = 1
    while wide and min(wide) >= 2 * factor * _SIDE and (len({*wide}) == 1 or all(n % (2 * factor) == 0 for n in wide)):
        factor *= 2
    return factor
