"""Merges of leading axes, which float up through sums of rows and through what is computed of attention scores."""

from __future__ import annotations

from collections.abc import Sequence

from onnxfuse.model.dims import Dim, Shape
from onnxfuse.model.op_traits import ELEMENTWISE, NEUTRAL, SCORES, SOFTMAX
from onnxfuse.terms.term import Term, Terms, is_number, same_shape

from .axes import Block, blocks_of, merged_rows
from .table import hoisted, make
from .views import reshape


def leading_merge(term: Term) -> Shape | None:
    """The leading dims before a Reshape that merges some of them and keeps the last two, else None.  Dims of 1 that are
    merged with others, as what is sliced from a stack leaves them, are none of them."""
    if term.op != "Reshape" or term.shape is None or len(term.shape) < 3 or len(term.args) > 1:
        return None
    source = term.args[0].shape
    blocks = blocks_of(source, term.shape) if source is not None else None
    if source is None or blocks is None:
        return None
    lead = [b for b in blocks if b[2] < len(term.shape) - 2]
    if not lead or lead[-1][3] != len(term.shape) - 2 or any(j1 - j0 != 1 or i1 == i0 for i0, i1, j0, j1 in lead):
        return None
    if all(sum(d != 1 for d in source[i0:i1]) < 2 for i0, i1, _, _ in lead):
        return None  # dims of 1 come and go
    return tuple(d for i0, i1, _, _ in lead for d in source[i0:i1] if d != 1 or i1 - i0 == 1)


def common_merge(x: Term, y: Term) -> Shape | None:
    """The leading dims that two leading merges have in common, each of which may merge more that the other does not
    split: windows that are counted by image, row and column there are one axis here.  None where they have none."""
    a, b = leading_merge(x), leading_merge(y)
    blocks = blocks_of(a, b) if a is not None and b is not None else None
    if a is None or b is None or blocks is None:
        return None
    if any(min(i1 - i0, j1 - j0) != 1 for i0, i1, j0, j1 in blocks) or len(blocks) < 2:
        return None
    return tuple(a[i0] if i1 - i0 == 1 else b[j0] for i0, i1, j0, _ in blocks)


def unmerge(terms: Terms, term: Term, lead: Shape | None = None) -> Term:
    """The term below a leading merge, with its last two dims as they are above it, and those before as they are below,
    or as `lead` says, which may merge some of them."""
    lead = lead if lead is not None else leading_merge(term)
    assert lead is not None
    assert term.shape is not None
    return reshape(terms, term.args[0], lead + term.shape[-2:])


def lift_merge(terms: Terms, op: str, operands: list[Term], shape: Shape | None) -> Term | None:
    """op(merge(x), y, ...) as merge(op(x, unmerge(y), ...)) for an elementwise op over attention scores in rank 3."""
    if shape is None or (op in NEUTRAL and sum(not is_number(t) for t in operands) < 2):
        return None
    for operand in operands:
        term, _ = hoisted(operand)
        if term.op != "Reshape" or not same_shape(term.shape, shape):
            continue
        if leading_merge(term) is None or not is_scores(term.args[0]):
            continue
        inner = unmerge(terms, term).shape
        assert inner is not None
        lifted = _unmerged(terms, operands, inner, shape)
        if lifted is None:
            continue
        return reshape(terms, make(terms, op, lifted, {}), shape)
    return None


def lift_rows(terms: Terms, operands: list[Term], shape: Shape | None) -> Term | None:
    """A sum of rows that were merged alike, and of biases along them, is a merge of the sum."""
    views = [hoisted(t)[0] for t in operands if same_shape(t.shape, shape)]
    if (
        shape is None
        or not views
        or not all(merges_rows(v) and v.args[0].shape == views[0].args[0].shape for v in views)
    ):
        return None
    biases = [t for t in operands if not same_shape(t.shape, shape)]
    if not all(t.rank is not None and t.rank <= 1 and not is_number(t) for t in biases):
        return None
    inner = views[0].args[0].shape
    assert inner is not None
    rows = [reshape(terms, t, inner) for t in operands if same_shape(t.shape, shape)]
    return reshape(terms, make(terms, "Add", [*rows, *biases], {}), shape) if len(operands) > 1 else None


def lift_scaled(terms: Terms, operands: list[Term], shape: Shape | None) -> Term | None:
    """Rows of a product of bytes that were merged, converted and scaled, all alike or each column, are a merge of what
    is scaled."""
    views = [t for t in operands if same_shape(t.shape, shape)]
    if shape is None or len(views) != 1 or not merges_rows(views[0]) or not of_integers(views[0].args[0]):
        return None
    if not all(t is views[0] or (t.rank is not None and t.rank <= 1) for t in operands):
        return None
    scaled = [t.args[0] if t is views[0] else t for t in operands]
    return reshape(terms, make(terms, "Mul", scaled, {}), shape)


def of_integers(term: Term) -> bool:
    """Is it a product of bytes, converted?"""
    return term.op == "Cast" and term.args[0].op == "MatMulInteger"


def merges_rows(term: Term) -> bool:
    """Is it a Reshape that merges some axes, and not the last?"""
    source = term.args[0].shape if term.op == "Reshape" and len(term.args) == 1 else None
    return source is not None and term.shape is not None and merged_rows(source, term.shape)


def is_scores(term: Term, depth: int = 6) -> bool:
    """Does a product of matrices lie below, with only score arithmetic in between?"""
    if term.op == "MatMul":
        return True
    return depth > 0 and term.op in SCORES and any(is_scores(a, depth - 1) for a in term.args)


def weighs(term: Term, depth: int = 4) -> bool:
    """Is it weights of attention: a Softmax, and what is cut off it (a sink), hidden behind it or taken from it?"""
    return term.op in SOFTMAX or (
        depth > 0
        and (term.op in ("Slice", "Reshape") or term.op in ELEMENTWISE)
        and any(weighs(a, depth - 1) for a in term.args)
    )


def _unmerged(terms: Terms, operands: Sequence[Term], inner: Shape, outer: Shape) -> list[Term] | None:
    """The operands in the shape that they have before the merge; None where one does not split that way."""
    blocks = blocks_of(inner, outer)
    lifted = []
    for operand in operands:
        if operand.scalar is not None:
            lifted.append(operand)
            continue
        target = _unmerged_shape(operand.shape, inner, outer, blocks)
        if target is None:
            return None
        lifted.append(reshape(terms, operand, target))
    return lifted


def _unmerged_shape(shape: Shape | None, inner: Shape, outer: Shape, blocks: list[Block] | None) -> Shape | None:
    if shape is None or blocks is None or len(shape) > len(outer):
        return None
    missing = len(outer) - len(shape)
    if all(inner[i0:i1] == outer[j0:j1] for i0, i1, j0, j1 in blocks if j1 > missing):
        return shape  # the merge is of axes that it does not have
    shape = (1,) * missing + shape
    result: list[Dim] = []
    for i0, i1, j0, _ in blocks:
        if shape[j0] == outer[j0]:
            result += inner[i0:i1]
        elif shape[j0] == 1:
            result += [1] * (i1 - i0)
        else:
            return None
    return tuple(result)
