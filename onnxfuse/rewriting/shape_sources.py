"""Where the dimensions of a scope can be read: which value has which, so that a vector of them is a Concat of Shapes.

A vector of dimensions falls into parts: numbers, dimensions that stand side by side in the shape of one value, and
polynomials, which are computed.  The same parts tell what a vector costs and how it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from onnxfuse.model.dims import Dim, Shape, Sym

CHOICE = 8
"""Values remembered per dimension; the first ones serve the whole scope."""


@dataclass(frozen=True)
class Numbers:
    """Known dimensions."""

    dims: tuple[int, ...]


@dataclass(frozen=True)
class Run:
    """Dimensions `start` to `stop` of a value; `whole` if those are all it has."""

    value: str
    start: int
    stop: int
    whole: bool


@dataclass(frozen=True)
class Polynomial:
    """A dimension that no value has, as products of symbols: ((symbols, coefficient), ...)."""

    terms: tuple[tuple[tuple[Run, ...], int], ...]


Part: TypeAlias = Numbers | Run | Polynomial


def without_ones(dims: Sequence[Dim]) -> list[Dim]:
    return [d for d in dims if d != 1]


class Dimensions:
    """The dimensions of the values of one scope, in the order in which they become known; those `under` come first."""

    def __init__(self, under: Dimensions | None = None) -> None:
        self._under = under
        self._places: dict[Dim, list[tuple[float, str, int, Shape]]] = {}

    def add(self, value: str, shape: Shape | None, position: float) -> None:
        """A value of this shape is computed at this position."""
        for axis, dim in enumerate(shape or ()):
            if isinstance(dim, Sym):
                places = self._places.setdefault(dim, [])
                if len(places) < CHOICE:
                    places.append((position, value, axis, shape or ()))

    def _of(self, dim: Dim) -> Sequence[tuple[float, str, int, Shape]]:
        """Where a dimension stands, as far as it is remembered."""
        own = self._places.get(dim, [])
        return own if self._under is None else [*self._under._of(dim), *own][:CHOICE]

    def parts(
        self, dims: Sequence[Dim], before: float, there: Callable[[str], bool] = lambda name: True
    ) -> list[Part] | None:
        """What a vector of dimensions consists of, of values `there` before a position; None if it cannot be had."""
        result: list[Part] = []
        i = 0
        while i < len(dims):
            dim = dims[i]
            if not isinstance(dim, Sym):
                last = result[-1] if result else None
                known = last.dims if isinstance(last, Numbers) else ()
                if known:
                    result.pop()
                result.append(Numbers((*known, dim)))
                i += 1
                continue
            run = self._longest(dims[i:], before, there)
            if run is not None:
                result.append(run)
                i += run.stop - run.start
                continue
            polynomial = self._polynomial(dim, before, there)
            if polynomial is None:
                return None
            result.append(polynomial)
            i += 1
        return result

    def _longest(self, dims: Sequence[Dim], before: float, there: Callable[[str], bool]) -> Run | None:
        """The first value that has the most of these dimensions side by side, from the first one on."""
        best: Run | None = None
        for position, value, axis, shape in self._of(dims[0]):
            if position >= before or not there(value):
                continue
            stop = axis
            while stop < len(shape) and stop - axis < len(dims) and shape[stop] == dims[stop - axis]:
                stop += 1
            if stop - axis < len(dims):  # Numbers at its end are written as such: the rest is asked for more often.
                while not isinstance(shape[stop - 1], Sym):
                    stop -= 1
            if best is None or stop - axis > best.stop - best.start:
                best = Run(value, axis, stop, axis == 0 and stop == len(shape))
        return best

    def _polynomial(self, dim: Sym, before: float, there: Callable[[str], bool]) -> Polynomial | None:
        terms = []
        for monomial, coefficient in dim.terms:
            runs = [self._longest([Sym((((name,), 1),))], before, there) for name in monomial]
            if None in runs:
                return None
            terms.append((tuple(run for run in runs if run is not None), coefficient))
        return Polynomial(tuple(terms))
