"""Integers that are affine in their own coordinates: index[i, j, ..] = offset + a*i + b*j + ..

`affine` recognises them through ranges, views, sums, multiples, and quotients and remainders by the length of an axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from onnxfuse.model.dims import Dim, Shape, Sym, at_least, exact, product
from onnxfuse.terms.fold import value_of
from onnxfuse.terms.term import INTEGER, Array, Term, static

from .axes import blocks_of

LARGEST = 1 << 20
"""Elements of a constant index that is looked into."""


DEPTH = 20
"""Steps of index arithmetic that are looked through."""


@dataclass(frozen=True)
class Affine:
    """offset + sum of steps[a] * (coordinate along axis a)."""

    offset: Dim
    steps: tuple[Dim, ...]


def affine(term: Term, depth: int = DEPTH) -> Affine | None:
    """An integer tensor as a function of its coordinates, or None where it is none that is known to be affine."""
    shape = term.shape
    if shape is None or term.dtype not in INTEGER or not depth:
        return None
    if term.data is not None and term.data.size and max(term.data.shape, default=1) == term.data.size:
        return _affine_sizes(term.data)
    if term.op == "Constant":
        dims = static(shape)
        return None if dims is None or np.prod(dims) > LARGEST else affine_array(np.asarray(value_of(term)))
    if term.op == "Range":
        start, _, step = (a.data for a in term.args)
        return None if start is None or step is None else Affine(start.item(), (step.item(),))
    rule = _STEPS.get(term.op)
    inner = [affine(a, depth - 1) for a in term.args] if rule is not None else []
    if rule is None or not inner or None in inner:
        return None
    return rule(term, shape, [a for a in inner if a is not None])


def _affine_sizes(data: Array) -> Affine | None:
    """The affine function that a vector of sizes is, if each is as far from the one before it."""
    first, *others = data.reshape(-1)
    step = others[0] - first if others else 0
    if any(size != first + step * i for i, size in enumerate(others, start=1)):
        return None
    return Affine(first, tuple(step if dim > 1 else 0 for dim in data.shape))


def affine_array(array: Array) -> Affine | None:
    """The affine function that a constant is, if it is one."""
    if not array.size:
        return None
    origin = array[(0,) * array.ndim]
    expected = np.full(array.shape, origin, np.int64)
    steps = []
    for axis, dim in enumerate(array.shape):
        corner = [0] * array.ndim
        corner[axis] = 1
        step = int(array[tuple(corner)] - origin) if dim > 1 else 0
        steps.append(step)
        expected += (step * np.arange(dim)).reshape([dim if i == axis else 1 for i in range(array.ndim)])
    return Affine(int(origin), tuple(steps)) if (expected == array).all() else None


Step: TypeAlias = Callable[[Term, Shape, list[Affine]], Affine | None]


def _same(term: Term, shape: Shape, args: list[Affine]) -> Affine | None:
    return args[0] if len(args) == 1 and term.args[0].dtype in INTEGER else None


def _reshaped(term: Term, shape: Shape, args: list[Affine]) -> Affine | None:
    """Axes of 1 come and go, and an axis becomes several: what is counted row by row."""
    source = term.args[0].shape
    if source is None or len(args) != 1:
        return None
    known = [(s, d) for s, d in zip(args[0].steps, source, strict=True) if d != 1]
    blocks = blocks_of(tuple(d for _, d in known), tuple(d for d in shape if d != 1))
    if blocks is None or any(i1 - i0 != 1 for i0, i1, _, _ in blocks):
        return None
    large = [d for d in shape if d != 1]
    steps = iter([known[i0][0] * product(large[j + 1 : j1]) for i0, _, j0, j1 in blocks for j in range(j0, j1)])
    return Affine(args[0].offset, tuple(next(steps) if d != 1 else 0 for d in shape))


def _transposed(term: Term, shape: Shape, args: list[Affine]) -> Affine | None:
    return Affine(args[0].offset, tuple(args[0].steps[i] for i in term.attr("perm")))


def broadcast_steps(steps: Sequence[Dim], source: Shape | None, shape: Shape) -> tuple[Dim, ...]:
    """The steps in a shape that the source is broadcast to: none along an axis that it does not have, or has of 1."""
    assert source is not None
    own = tuple(0 if d == 1 else s for s, d in zip(steps, source, strict=True))
    return (0,) * (len(shape) - len(source)) + own


def _fits(source: Shape | None, shape: Shape) -> bool:
    """Is it known which axes are broadcast?  An unknown length that becomes a number is that number, or 1."""
    own = shape[len(shape) - len(source or ()) :]
    return not any(isinstance(d, Sym) and isinstance(whole, int) for d, whole in zip(source or (), own, strict=True))


def _expanded(term: Term, shape: Shape, args: list[Affine]) -> Affine | None:
    source = term.args[0].shape
    if len(args) != 1 or not _fits(source, shape):
        return None
    return Affine(args[0].offset, broadcast_steps(args[0].steps, source, shape))


def _sliced(term: Term, shape: Shape, args: list[Affine]) -> Affine | None:
    axis, start, step = term.attr("axis"), term.attr("start"), term.attr("step")
    if len(args) != 1 or not at_least(start, 0) or step < 1:
        return None
    steps = tuple(s * step if a == axis else s for a, s in enumerate(args[0].steps))
    return Affine(args[0].offset + args[0].steps[axis] * start, steps)


def _sum(sign: int) -> Step:
    def step(term: Term, shape: Shape, args: list[Affine]) -> Affine | None:
        if not all(_fits(t.shape, shape) for t in term.args):
            return None
        p, q = (broadcast_steps(a.steps, t.shape, shape) for a, t in zip(args, term.args, strict=True))
        return Affine(args[0].offset + sign * args[1].offset, tuple(x + sign * y for x, y in zip(p, q, strict=True)))

    return step


def _negated(term: Term, shape: Shape, args: list[Affine]) -> Affine | None:
    return Affine(-args[0].offset, tuple(-s for s in args[0].steps))


def _multiple(term: Term, shape: Shape, args: list[Affine]) -> Affine | None:
    """A product, one of whose factors is the same everywhere."""
    for i in (0, 1):
        if not any(args[i].steps) and _fits(term.args[1 - i].shape, shape):
            factor, other = args[i].offset, args[1 - i]
            steps = broadcast_steps(other.steps, term.args[1 - i].shape, shape)
            return Affine(other.offset * factor, tuple(s * factor for s in steps))
    return None


def _divided(remainder: bool) -> Step:
    """What counts row by row, by the length of a row: the row, or the place in it."""

    def step(term: Term, shape: Shape, args: list[Affine]) -> Affine | None:
        x, divisor = args
        if any(divisor.steps) or term.args[0].shape != shape or not at_least(x.offset, 0):
            return None
        along = [axis for axis, (s, d) in enumerate(zip(x.steps, shape, strict=True)) if (s, d) == (1, divisor.offset)]
        rest = [0 if axis in along else s for axis, s in enumerate(x.steps)]
        rows = [exact(n, divisor.offset) for n in (x.offset, *rest)]
        if len(along) > 1 or None in rows or not all(at_least(s, 0) for s in rest):
            return None
        if remainder:
            return Affine(0, tuple(int(axis in along) for axis in range(len(shape))))
        whole = [n for n in rows if n is not None]
        return Affine(whole[0], tuple(whole[1:]))

    return step


_STEPS: dict[str, Step] = {
    "Cast": _same,
    "Reshape": _reshaped,
    "Transpose": _transposed,
    "Expand": _expanded,
    "Slice": _sliced,
    "Add": _sum(1),
    "Sub": _sum(-1),
    "Mul": _multiple,
    "Neg": _negated,
    "Div": _divided(remainder=False),
    "Mod": _divided(remainder=True),
}
