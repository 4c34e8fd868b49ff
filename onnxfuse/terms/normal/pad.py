"""Normal forms of zeros around a tensor: a Pad by nothing is nothing, and a convolution pads by itself."""

from __future__ import annotations

import numpy as np

from onnxfuse.terms.term import Term

from .table import Applied, law, make

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
    around, automatic = padding(args[0], 0), _text(attrs.get("auto_pad", "NOTSET"))
    if around is None or automatic not in ("NOTSET", "VALID"):
        return None
    count = len(around) // 2
    if any(around[axis] or around[axis + count] for axis in range(SPATIAL)):
        return None
    more = (*around[SPATIAL:count], *around[SPATIAL + count :])
    own = (automatic == "NOTSET" and attrs.get("pads")) or (0,) * len(more)
    kept = {name: value for name, value in attrs.items() if name not in ("auto_pad", "pads")}
    kept["pads"] = tuple(a + b for a, b in zip(own, more, strict=True))
    return make(terms, "Conv", [args[0].args[0], *args[1:]], kept, shape, dtype)


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
