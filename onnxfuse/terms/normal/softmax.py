"""Normal forms of attention scores: Softmax over the last axis, whatever was taken off first, or viewed otherwise.

Softmax         of z - ReduceMax(z) is that of z; over the axis before the last it is that of the transposed scores;
                a merge of leading axes floats up through it
views           scores viewed in another shape, only to add something, keep theirs: what is added is viewed instead
"""

from __future__ import annotations

from onnxfuse.model.dims import Dim, Shape
from onnxfuse.terms.term import REAL, Attributes, Term, Terms, same_shape

from .algebra import combine, from_the_end, is_scores
from .table import form, hoisted, make, scaled
from .views import as_reshape, blocks_of, expand, leading_merge, reshape, transpose, unmerge


@form("Softmax")
def softmax(terms: Terms, args: list[Term], attrs: Attributes, shape: Shape | None, dtype: int) -> Term | None:
    """Over the last axis, of scores that nothing was taken off, below a merge of leading axes."""
    x, factor = hoisted(args[0])
    steady = _unshifted(terms, x, attrs.get("axis", -1))
    if steady is not None:
        base, own = hoisted(steady)
        return make(terms, "Softmax", [scaled(terms, base, own * factor)], attrs, shape, dtype)
    if x.shape is not None and len(x.shape) > 2 and attrs.get("axis", -1) in (-2, len(x.shape) - 2) and is_scores(x):
        turned = (*range(len(x.shape) - 2), len(x.shape) - 1, len(x.shape) - 2)
        inner = make(terms, "Softmax", [transpose(terms, args[0], turned)], {})
        return transpose(terms, inner, turned)
    if x.shape is not None and attrs.get("axis", -1) in (-1, len(x.shape) - 1) and leading_merge(x) is not None:
        return reshape(terms, make(terms, "Softmax", [scaled(terms, unmerge(terms, x), factor)], {}), x.shape)
    return from_the_end("Softmax", -1)(terms, args, attrs, shape, dtype)


def _unshifted(terms: Terms, x: Term, axis: int) -> Term | None:
    """z of z - ReduceMax(z), whose Softmax is that of z; None if x is no such sum.

    Only for a maximum of z itself over that axis: an arbitrary shift may be so large that rounding makes rows equal."""
    if x.op != "Add" or x.shape is None:
        return None
    axis = axis if axis < 0 else axis - len(x.shape)
    for i, operand in enumerate(x.args):
        y, sign = hoisted(operand)
        if sign != -1 or not {y.op, *(a.op for a in y.args)} & {"ReduceMax"}:
            continue
        rest = [a for j, a in enumerate(x.args) if j != i]
        z = rest[0] if len(rest) == 1 else combine(terms, "Add", rest)
        whole = y.op == "ReduceMax" and z is y.args[0] and axis in y.attr("axes", ())
        if same_shape(z.shape, x.shape) and (whole or (axis == -1 and z is _of_largest(terms, y, x.shape))):
            return z
    return None


def _of_largest(terms: Terms, y: Term, shape: Shape) -> Term | None:
    """The term of this shape whose largest element along the last axis y is, though it was taken in another view."""
    inner = y.args[0] if y.op == "Reshape" and len(y.args) == 1 else y
    if inner.op != "ReduceMax" or inner.attr("axes") != (-1,) or not same_shape(y.shape, (*shape[:-1], 1)):
        return None
    rows = inner.args[0]
    return reshape(terms, rows, shape) if rows.shape is not None and rows.shape[-1] == shape[-1] else None


@form("Reshape", "Squeeze", "Unsqueeze", "Flatten")
def _reshaped(terms: Terms, args: list[Term], attrs: Attributes, shape: Shape | None, dtype: int) -> Term | None:
    """Scores viewed in another shape only to add to them are as they were, and what is added is viewed instead."""
    x = args[0]
    if x.op == "Add" and not x.closed and dtype in REAL and shape is not None and x.shape is not None:
        for i, operand in enumerate(x.args):
            view, factor = hoisted(operand)
            inner = view.args[0] if view.op == "Reshape" and not same_shape(view.shape, shape) else view
            if not same_shape(inner.shape, shape) or not is_scores(inner):
                continue
            rest = [a for j, a in enumerate(x.args) if j != i]
            added = _viewed(terms, rest[0] if len(rest) == 1 else combine(terms, "Add", rest), x.shape, shape)
            if added is not None:
                return combine(terms, "Add", [scaled(terms, inner, factor), added])
    return as_reshape(terms, args, attrs, shape, dtype)


def _viewed(terms: Terms, x: Term, inner: Shape, outer: Shape) -> Term | None:
    """What broadcasts to `inner`, so that it broadcasts to `outer`: expanded where a block of axes is not all or 1."""
    blocks = blocks_of(inner, outer)
    if x.shape is None or len(x.shape) > len(inner) or blocks is None:
        return None
    own = (1,) * (len(inner) - len(x.shape)) + x.shape
    wide, viewed = list(own), list[Dim]()
    for i0, i1, j0, j1 in blocks:
        single = all(d == 1 for d in own[i0:i1])
        if not single:
            wide[i0:i1] = inner[i0:i1]
        viewed += (1,) * (j1 - j0) if single else outer[j0:j1]
    return reshape(terms, expand(terms, reshape(terms, x, own), tuple(wide)), tuple(viewed))
