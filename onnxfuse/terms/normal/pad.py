"""Normal forms of zeros around a tensor: a Pad by nothing is nothing, a convolution pads by itself, and what follows
one after the other between zeros adds up to a Concat.

The last is how gradients of parts, which automatic differentiation adds up, are the gradient of the whole."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from onnxfuse.model.dims import Shape
from onnxfuse.terms.term import Term, Terms, same_shape

from .table import Applied, hoisted, law, make, scaled
from .views import reshape, transpose

SPATIAL = 2
"""Where the spatial axes of a convolution begin, behind batch and channels."""


@law("Pad", "Pad(x, (1, 2), 0, (-2,)) = Pad(x, (0, 0, 1, 0, 0, 0, 2, 0), 0)")
def _of_all_axes(a: Applied) -> Term | None:
    """Axes that are not named are padded by nothing."""
    rank, pads = a.args[0].rank, a.args[1].data if len(a.args) > 1 else None
    axes = a.args[3].data if len(a.args) > 3 else None
    if rank is None or pads is None or axes is None or pads.size != 2 * axes.size:
        return None
    around = np.zeros(2 * rank, object)
    for i, axis in enumerate(axes.ravel()):
        around[axis % rank], around[axis % rank + rank] = pads.ravel()[i], pads.ravel()[i + axes.size]
    filler = [term for term in a.args[2:3] if term.op != "Absent"]
    return make(a.terms, "Pad", [a.args[0], a.terms.integers(around), *filler], a.attrs, a.shape, a.dtype)


@law("Pad", "Pad(x, (0, 0, 0, 0, 0, 0, 0, 0)) = x")
def _by_nothing(a: Applied) -> Term | None:
    pads = a.args[1].data if len(a.args) > 1 else None
    return a.args[0] if pads is not None and all(p == 0 for p in pads.ravel()) else None


@law("Pad", "Pad(c * x, (0, 0, 0, 1, 0, 0, 0, 0)) = c * Pad(x, (0, 0, 0, 1, 0, 0, 0, 0))")
def _of_multiple(a: Applied) -> Term | None:
    """By zeros, of which a finite multiple is zero."""
    x, factor = hoisted(a.args[0])
    if factor == 1 or not math.isfinite(factor) or padding(a.raw(a.attrs), 0) is None:
        return None
    return scaled(a.terms, make(a.terms, "Pad", [x, *a.args[1:]], a.attrs, a.shape, a.dtype), factor)


@law(
    "Pad",
    "Pad(Pad(x, (0, 0, 0, 1, 0, 0, 0, 0)), (0, 0, 1, 1, 0, 0, 0, 0)) = Pad(x, (0, 0, 1, 2, 0, 0, 0, 0))",
)
def _twice(a: Applied) -> Term | None:
    """By zeros both times."""
    outer = padding(a.raw(a.attrs), 0)
    inner = padding(a.args[0], 0) if outer is not None else None
    if outer is None or inner is None:
        return None
    pads = np.array([p + q for p, q in zip(outer, inner, strict=True)], object)
    return make(a.terms, "Pad", [a.args[0].args[0], a.terms.integers(pads)], {}, a.shape, a.dtype)


@law("Conv", "Conv(Pad(x, (0, 0, 1, 1, 0, 0, 1, 1)), kernel) = Conv(x, kernel, pads=(1, 1, 1, 1))")
def _conv(a: Applied) -> Term | None:
    """A Conv of a tensor with zeros around its spatial axes is a Conv with more of its own."""
    terms, args, attrs, shape, dtype = a.terms, a.args, a.attrs, a.shape, a.dtype
    whole, factor = hoisted(args[0])
    around, automatic = padding(whole, 0), _text(attrs.get("auto_pad", "NOTSET"))
    if around is None or automatic not in ("NOTSET", "VALID"):
        return None
    count = len(around) // 2
    if any(around[axis] or around[axis + count] for axis in range(SPATIAL)):
        return None
    more = (*around[SPATIAL:count], *around[SPATIAL + count :])
    own = (automatic == "NOTSET" and attrs.get("pads")) or (0,) * len(more)
    kept = {name: value for name, value in attrs.items() if name not in ("auto_pad", "pads")}
    kept["pads"] = tuple(a + b for a, b in zip(own, more, strict=True))
    return make(terms, "Conv", [scaled(terms, whole.args[0], factor), *args[1:]], kept, shape, dtype)


# ------------------------------------------------------------------------------------------------ sums


def joined(terms: Terms, operands: Sequence[Term]) -> list[Term]:
    """The operands of a sum, those that are zeros but for one run of an axis put together where one run follows
    another: Pad(x, (0, 1)) + Pad(y, (2, 0)) is Concat(x, y)."""
    rest = list(operands)
    runs = [(operand, run) for operand in operands if (run := _run(terms, operand)) is not None]
    while len(runs) > 1:
        pair = next(((p, q) for p in runs for q in runs if p is not q and _follows(p[1], q[1])), None)
        if pair is None:
            break
        total = _put_together(terms, pair[0][1], pair[1][1])
        for entry in pair:
            rest.remove(entry[0])
            runs.remove(entry)
        rest.append(total)
        again = _run(terms, total)
        runs += [] if again is None else [(total, again)]
    return rest


class _Run(NamedTuple):
    """A tensor in a place along an axis of zeros, with so many of them before it and behind it."""

    part: Term
    shape: Shape
    seen: Shape | None
    """The shape in which the whole is seen, if it is another."""
    axis: int
    before: int
    behind: int


def _run(terms: Terms, term: Term) -> _Run | None:
    """The run that a term is, in which a factor before the Pad has its place, and a Transpose too."""
    base, factor = hoisted(term)
    whole = base.args[0] if base.op == "Reshape" and len(base.args) == 1 else base
    padded = whole.args[0] if whole.op == "Transpose" else whole
    around = padding(padded, 0) if math.isfinite(factor) else None
    if around is None or whole.shape is None:
        return None
    rank = len(around) // 2
    axes = [axis for axis in range(rank) if around[axis] or around[axis + rank]]
    if len(axes) != 1:
        return None
    part, axis = padded.args[0], axes[0]
    if whole is not padded:
        part, axis = transpose(terms, part, whole.attr("perm")), list(whole.attr("perm")).index(axis)
    seen = None if whole is base else base.shape
    return _Run(scaled(terms, part, factor), whole.shape, seen, axis, around[axes[0]], around[axes[0] + rank])


def _follows(first: _Run, second: _Run) -> bool:
    """Does the second run begin where the first ends?"""
    if first.axis != second.axis or first.seen != second.seen or not same_shape(first.shape, second.shape):
        return False
    dim = first.shape[first.axis]
    return isinstance(dim, int) and dim - first.behind == second.before


def _put_together(terms: Terms, first: _Run, second: _Run) -> Term:
    rank = len(first.shape)
    axis = first.axis - rank
    both = (first.part, second.part)
    parts = [part for x in both for part in (x.args if x.op == "Concat" and x.attr("axis") == axis else (x,))]
    whole = make(terms, "Concat", parts, {"axis": axis})
    pads = np.zeros(2 * rank, object)
    pads[first.axis], pads[first.axis + rank] = first.before, second.behind
    total = make(terms, "Pad", [whole, terms.integers(pads)], {})
    return total if first.seen is None else reshape(terms, total, first.seen)


def lengthened(term: Term, number: float) -> Term | None:
    """The tensor that a Pad lengthens by this number behind its last axis; None if it is no such Pad."""
    around = padding(term, number)
    return term.args[0] if around is not None and around[-1] and not any(around[:-1]) else None


def padding(term: Term, number: float) -> tuple[int, ...] | None:
    """How often a Pad puts the number before each axis, then how often behind each; None if it is no such Pad."""
    if term.op != "Pad" or len(term.args) < 2 or _text(term.attr("mode", "constant")) != "constant":
        return None
    rank, pads = term.args[0].rank, term.args[1].data
    filler, axes = (term.args[i] if len(term.args) > i and term.args[i].op != "Absent" else None for i in (2, 3))
    fills = number == (0 if filler is None else filler.scalar)
    if rank is None or pads is None or not fills or (axes and axes.data is None):
        return None
    places = range(rank) if axes is None or axes.data is None else [int(a) % rank for a in axes.data.ravel()]
    sizes = list(pads.ravel())
    if len(sizes) != 2 * len(places) or not all(isinstance(p, int) and p >= 0 for p in sizes):
        return None
    around = [0] * (2 * rank)
    for i, axis in enumerate(places):
        around[axis], around[axis + rank] = sizes[i], sizes[i + len(places)]
    return tuple(around)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
