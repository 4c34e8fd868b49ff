"""Transposes in a loop over elements: threads that read and write vectors, though neighbours lie along another axis.

A thread computes a square of `width` by `width` elements: of what is transposed it reads `width` vectors along the axis
whose elements are neighbours there, and of each result it writes as many along the last one.  Lanes of a warp lie side
by side along both axes, so that what they read and write together is whole sectors, without shared memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .expressions.index import LANE, ROW, Coordinates, Index, Variable, coordinates, divide, flat, total, variable
from .expressions.scalars import Scalar

ALONG, ACROSS = 8, 4
"""Lanes of a warp side by side along the last axis, and along the other one, at most."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """`count` squares; the elements of the one of loop variable `j`, and where its row `u` of them is written to."""

    count: int
    coordinates: Coordinates
    place: Index


def probe(shape: tuple[int, ...]) -> Coordinates:
    """Coordinates that say where they come out again."""
    return tuple(variable(f"c{axis}", n) for axis, n in enumerate(shape))


def across(loads: Sequence[Scalar], shape: tuple[int, ...], width: int) -> int | None:
    """The axis along which the first of these is read whose neighbours are not those of the last axis; None if there is
    none, or if squares do not fill what is made.  `loads` are those at `probe`."""
    last = len(shape) - 1
    for load in loads:
        steps = {a.name: c for a, c in load.payload[1].terms.items() if isinstance(a, Variable)}
        neighbours = [axis for axis in range(last) if steps.get(f"c{axis}") == 1]
        if steps.get(f"c{last}", 0) > 1 and neighbours and not shape[last] % width and not shape[neighbours[0]] % width:
            return neighbours[0]
    return None


def tiles(shape: tuple[int, ...], axis: int, width: int) -> Tiles:
    """Squares of elements of a result, along its last axis and along `axis`."""
    last = len(shape) - 1
    along, down = shape[last] // width, shape[axis] // width
    lanes, rows = math.gcd(along, ALONG), math.gcd(down, ACROSS)
    others = tuple(n for k, n in enumerate(shape) if k not in (axis, last))
    count = math.prod(others) * along * down
    rest = variable("j", count)
    rest, lane = divide(rest, lanes)
    rest, row = divide(rest, rows)
    rest, far = divide(rest, along // lanes)
    rest, far_down = divide(rest, down // rows)
    found = iter(coordinates(rest, others))
    own = [total([(far, lanes * width), (lane, width), (variable("v", width, LANE), 1)])]
    turned = total([(far_down, rows * width), (row, width), (variable("u", width, ROW), 1)])
    place = [turned if k == axis else next(found) for k in range(last)] + own
    at = flat(tuple(place), shape)
    first = Index(at.const, {a: c for a, c in at.terms.items() if a.depends != LANE})
    return Tiles(count, tuple(place), first)
