"""Normal forms of attention scores: Softmax over the last axis, whatever was taken off first, or viewed otherwise.

Softmax         of z - ReduceMax(z) is that of z; over the axis before the last it is that of the transposed scores;
                a merge of leading axes floats up through it
views           scores viewed in another shape, only to add something, keep theirs: what is added is viewed instead
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from onnxfuse.model.dims import Dim, Shape, product
from onnxfuse.model.op_traits import SCORES, SOFTMAX
from onnxfuse.terms.term import Term, Terms, same_shape

from .axes import Block, blocks_of, swapped
from .merges import is_scores, leading_merge, unmerge
from .reductions import axis_from_the_end
from .sums import combine
from .table import Applied, hoisted, law, make, scaled
from .views import as_reshape, expand, reshape, transpose

DEEP = 8
"""How many ops may lie between the view of weights and that of their scores."""


def _axis(a: Applied) -> int:
    """The axis of a Softmax, from the end if the rank is known."""
    axis, rank = int(a.attrs.get("axis", -1)), a.args[0].rank
    return axis - rank if rank is not None and axis >= 0 else axis


@law("Softmax", "Softmax(x - ReduceMax(x, axes=(-1,))) = Softmax(x)")
def _of_steadied(a: Applied) -> Term | None:
    x, factor = hoisted(a.args[0])
    steady = _unshifted(a.terms, x, _axis(a))
    if steady is None:
        return None
    base, own = hoisted(steady)
    return make(a.terms, "Softmax", [scaled(a.terms, base, own * factor)], a.attrs, a.shape, a.dtype)


@law("Softmax", "Softmax(MatMul(x, y), axis=-2) = T(Softmax(T(MatMul(x, y))))")
def _of_columns(a: Applied) -> Term | None:
    x, _ = hoisted(a.args[0])
    if x.shape is None or len(x.shape) < 3 or _axis(a) != -2 or not is_scores(x):
        return None
    turned = swapped(len(x.shape))
    return transpose(a.terms, make(a.terms, "Softmax", [transpose(a.terms, a.args[0], turned)], {}), turned)


@law("Softmax", "Softmax(merge(x)) = merge(Softmax(x))")
def _of_merged(a: Applied) -> Term | None:
    x, factor = hoisted(a.args[0])
    if x.shape is None or _axis(a) != -1 or leading_merge(x) is None:
        return None
    return reshape(a.terms, make(a.terms, "Softmax", [scaled(a.terms, unmerge(a.terms, x), factor)], {}), x.shape)


law("Softmax", "Softmax(x, axis=3) = Softmax(x)")(axis_from_the_end)


@law(
    "Cast",
    "Bool(ReduceMax(Cast(Not(Equal(2 * MatMul(x, y), low))), axes=(-1,))) = Expand(true, (2, 3, 4, 1))",
)
def _seen_throughout(a: Applied) -> Term | None:
    """torch guards a softmax against rows that are -inf throughout.  Scores that no mask hides are so where their
    product overflows alone, and one that has no columns is not reduced."""
    x = a.args[0]
    if a.dtype != TensorProto.BOOL or x.op != "ReduceMax" or x.attr("axes") != (-1,) or a.shape is None:
        return None
    for op in ("Cast", "Not", "Equal"):
        x = x.args[0]
        if x.op != op:
            return None
    for scores, low in (x.args, x.args[::-1]):
        base, factor = hoisted(scores)
        product_ = base.args[0] if base.op == "Reshape" and len(base.args) == 1 else base
        if low.scalar == -math.inf and product_.op == "MatMul" and factor and math.isfinite(factor):
            true = a.terms.constant(np.ones(1, bool), TensorProto.BOOL)
            return expand(a.terms, true, a.shape)
    return None


@law("Attention", "Attention(x, y, a, ones) = Attention(x, y, a, Reshape(ones, (1, 4)))")
def _mask_of_a_row(a: Applied) -> Term | None:
    """A mask has rows and columns; a sum may have left a vector of a constant, or one number for all scores."""
    mask = a.args[3] if len(a.args) > 3 else None
    if mask is None or mask.op == "Absent" or mask.shape is None or len(mask.shape) > 1:
        return None
    args = [*a.args[:3], reshape(a.terms, mask, (*(1,) * (2 - len(mask.shape)), *mask.shape)), *a.args[4:]]
    return make(a.terms, a.op, args, a.attrs, a.shape, a.dtype)


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


@law("Reshape Squeeze Unsqueeze Flatten", "merge(unmerge(MatMul(u, v)) + a) = MatMul(u, v) + merge(a)")
def _masked_scores(a: Applied) -> Term | None:
    """Scores viewed in another shape only to add to them are as they were, and what is added is viewed instead.

    A sum alone: behind it stands what else is computed of products, such as the norm of a residual."""
    return _in_shape(a.terms, a.args[0], a.shape, 2) if a.real and a.args[0].op == "Add" else None


@law(
    "Reshape Squeeze Unsqueeze Flatten",
    "merge(Softmax(unmerge(MatMul(u, v)) + a)) = Softmax(MatMul(u, v) + merge(a))",
)
def _masked_weights(a: Applied) -> Term | None:
    """So are weights, if their rows stay rows."""
    x = a.args[0].args[0] if a.args[0].op == "Reshape" and len(a.args[0].args) == 1 else a.args[0]
    return _in_shape(a.terms, x, a.shape) if x.op in SOFTMAX else None


def _in_shape(terms: Terms, x: Term, shape: Shape | None, depth: int = DEEP) -> Term | None:
    """What is computed of scores in this shape, if that is the shape in which they came, before they were viewed."""
    x, factor = hoisted(x)
    if not depth or shape is None or x.shape is None or x.closed or x.op not in SCORES or same_shape(x.shape, shape):
        return None
    if x.op == "Reshape":
        found = _seen_alike(terms, x, shape)
    elif x.op in SOFTMAX and (x.attr("axis", -1) != -1 or not _rows(x.shape, shape)):
        found = None
    else:
        found = _of_operands(terms, x, x.shape, shape, depth)
    return None if found is None else scaled(terms, found, factor)


def _seen_alike(terms: Terms, x: Term, shape: Shape) -> Term | None:
    """The scores below a view, if they came in this shape, or in one that was seen as those of a batch of one, with its
    windows merged."""
    inner = x.args[0]
    if len(x.args) > 1 or not is_scores(inner):
        return None
    if same_shape(inner.shape, shape):
        return inner
    return reshape(terms, inner, shape) if _one_batch(x.shape, shape) else None


def _one_batch(whole: Shape | None, shape: Shape) -> bool:
    """Is the one shape the other behind a dim of 1?"""
    return len(shape) > 2 and whole == (1, *shape)


def _rows(inner: Shape, outer: Shape) -> bool:
    """Do rows stay rows?  Their lengths may be spelled differently, but then a view holds equally many of them."""
    return bool(outer) and (inner[-1] == outer[-1] or product(inner[:-1]) == product(outer[:-1]))


def _of_operands(terms: Terms, x: Term, inner: Shape, outer: Shape, depth: int) -> Term | None:
    """The op of x in another shape: of scores that had it before, and of other operands viewed alike.  Where rows stay
    rows, an operand may have other columns than the result: lengths that are broadcast together."""

    def of(dims: Shape, operand: Term) -> Shape:
        return (*dims[:-1], operand.shape[-1]) if operand.shape and _rows(inner, outer) else dims

    for i, operand in enumerate(x.args):
        if same_shape(operand.shape, of(outer, operand)):  # what it met had further axes of 1
            scores = operand if is_scores(hoisted(operand)[0]) else None
        elif same_shape(operand.shape, of(inner, operand)):
            scores = _in_shape(terms, operand, of(outer, operand), depth - 1)
        else:
            scores = None
        if scores is None:
            continue
        others = x.args[:i] + x.args[i + 1 :]
        if x.op == "Add":
            others = _of_parts(terms, others, inner, outer)
        found = [scores]
        for other in others:
            part = _in_shape(terms, other, of(outer, other), depth - 1) if same_shape(other.shape, x.shape) else None
            part = part or _viewed(terms, other, of(inner, other), of(outer, other))
            if part is None:
                return None
            found.append(part)
        found.insert(i, found.pop(0))
        return make(terms, x.op, found, dict(x.attrs))
    return None


def _of_parts(terms: Terms, operands: tuple[Term, ...], inner: Shape, outer: Shape) -> tuple[Term, ...]:
    """The operands of a sum, one for all those that have some of the axes which are merged and not the others.

    Positions by row and by column of a picture are expanded by their sum."""
    blocks = blocks_of(inner, outer) or []
    parts = [x for x in operands if x.shape is not None and x.real and _is_part(x.shape, inner, blocks)]
    if len(parts) < 2:
        return operands
    return (*[x for x in operands if x not in parts], make(terms, "Add", parts, {}))


def _is_part(shape: Shape, inner: Shape, blocks: Sequence[Block]) -> bool:
    """Must what has this shape be expanded to be seen merged?"""
    own = (1,) * (len(inner) - len(shape)) + shape
    return any(own[i0:i1] != inner[i0:i1] and any(d != 1 for d in own[i0:i1]) for i0, i1, _, _ in blocks)


law("Reshape Squeeze Unsqueeze Flatten", "merge(unmerge(u)) = u")(as_reshape)


def _viewed(terms: Terms, x: Term, inner: Shape, outer: Shape) -> Term | None:
    """What broadcasts to `inner`, so that it broadcasts to `outer`: expanded where a block of axes is not all or 1."""
    blocks = blocks_of(inner, outer)
    if x.scalar is not None:
        return x
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
