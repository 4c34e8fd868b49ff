"""Laws of products of matrices: scalars leave them, and merges of leading axes float up through them."""

from __future__ import annotations

from onnxfuse.model.op_traits import SOFTMAX
from onnxfuse.terms.term import Term

from .axes import below_views, blocks_of, merged_blocks, moves_ones, swapped
from .merges import common_merge, unmerge, weighs
from .ranges import moderate
from .sums import combine
from .table import Applied, hoisted, law, make, scaled
from .views import reshape, transpose


@law("MatMul", "MatMul(c * x, y) = c * MatMul(x, y)")
def _scaled(a: Applied) -> Term | None:
    if not a.real:
        return None
    parts = [hoisted(x) for x in a.args]
    (x, c), (y, d) = (part if moderate(part[1]) else (arg, 1.0) for part, arg in zip(parts, a.args, strict=True))
    return scaled(a.terms, a.as_op("MatMul", x, y), c * d) if (c, d) != (1, 1) else None


@law("MatMul", "MatMul(x, T(Softmax(y))) = T(MatMul(Softmax(y), T(x)))")
def _weights_on_the_left(a: Applied) -> Term | None:
    """Values as columns (non-local networks)."""
    x, y = a.args
    if not a.real or None in (a.shape, x.shape) or x.rank != y.rank:
        return None
    if y.op != "Transpose" or y.args[0].op not in SOFTMAX:
        return None
    turned = swapped(y.rank or 0)
    if y.attr("perm") != turned or SOFTMAX & {x.op, *(b.op for b in x.args)}:  # of two, either might stand there
        return None
    return transpose(a.terms, make(a.terms, "MatMul", [y.args[0], transpose(a.terms, x, turned)], {}), turned)


@law("MatMul", "MatMul(merge(x), merge(y)) = merge(MatMul(x, y))")
def _of_merged(a: Applied) -> Term | None:
    x, y = a.args
    lead = common_merge(x, y) if a.real and a.shape is not None else None
    if lead is None or a.shape is None:
        return None
    apart = [unmerge(a.terms, operand, lead) for operand in (x, y)]
    return reshape(a.terms, make(a.terms, "MatMul", apart, {}), a.shape)


@law("MatMul", "MatMul(merge(x), z) = merge(MatMul(x, z))")
def _of_merged_rows(a: Applied) -> Term | None:
    """Where the columns are merged, too (heads before a Gemm, which takes all rows as one axis), they stay so."""
    x, y = a.args
    if not a.real or a.shape is None or y.rank != 2 or x.op != "Reshape" or x.shape is None or (x.rank or 0) < 2:
        return None
    blocks, whole = merged_blocks(x), x.args[0].shape
    if blocks is None or whole is None or all(i1 - i0 == 1 for i0, i1, _, _ in blocks[:-1]):
        return None
    if blocks[-1][1] - blocks[-1][0] > 1 and x.rank != 2:
        return None
    rows = reshape(a.terms, x.args[0], (*whole[: blocks[-1][0]], x.shape[-1]))
    return reshape(a.terms, make(a.terms, "MatMul", [rows, y], {}), a.shape)


@law("MatMul", "MatMul(u, Reshape(v, (1, 6, 4, 4))) = Reshape(MatMul(u, v), (1, 6, 4, 4))")
def _of_one_batch(a: Applied) -> Term | None:
    """Heads of a batch of one, by heads that are seen without it: an exporter takes views away that broadcasting spares
    (TrOCR, Mask2Former)."""
    x, y = a.args
    if not a.real or a.shape is None or x.shape is None or y.shape is None:
        return None
    rank = min(len(x.shape), len(y.shape))
    lead = len(a.shape) - rank
    if rank < 3 or not lead or a.shape[:lead] != (1,) * lead:
        return None
    # Made by the laws of views: weights may have the further axis of a mask alone.
    heads = [make(a.terms, "Reshape", [part], {}, (part.shape or ())[-rank:], part.dtype) for part in (x, y)]
    return reshape(a.terms, make(a.terms, "MatMul", heads, {}), a.shape)


@law(
    "MatMul",
    "MatMul(Transpose(Reshape(x, (2, 2, 2, 3, 4)), perm=(0, 2, 1, 3, 4)), Reshape(y, (2, 2, 1, 4, 6))) = "
    "Transpose(MatMul(Transpose(Reshape(x, (2, 2, 2, 3, 4)), perm=(0, 2, 3, 1, 4)), Reshape(y, (2, 2, 1, 4, 6))), "
    "perm=(0, 1, 3, 2, 4))",
)
def _of_shared_keys(a: Applied) -> Term | None:
    """Heads that share keys and values stand before positions, and behind the heads of keys: scores of queries before
    heads (Gemma in JAX: `bqkmd,bskd->bqkms`), and of groups before the heads of keys."""
    x, y = a.args
    if not a.real or x.shape is None or y.shape is None or not 4 <= len(x.shape) == len(y.shape):
        return None
    if x.constant or y.constant:
        return None
    rank, heads = len(x.shape), len(x.shape) - 3
    if y.shape[heads] == 1 != x.shape[heads]:
        perm = (*range(heads), heads + 1, heads, heads + 2)
        moved = transpose(a.terms, x, perm)
        if moved.op == "Reshape" and len(moved.args) == 1:  # by the laws of views, which keep weights as they were
            moved = make(a.terms, "Reshape", [moved.args[0]], {}, moved.shape, moved.dtype)
        if _positions_first(x) or _weighed(x, moved):
            return transpose(a.terms, make(a.terms, "MatMul", [moved, y], {}), perm)
        return None
    if rank > 4 and y.shape[heads - 1] == 1 != x.shape[heads - 1] and y.shape[heads] == x.shape[heads] != 1:
        perm = (*range(heads - 1), heads, heads - 1, heads + 1, heads + 2)
        operands = [transpose(a.terms, t, perm) for t in (x, y)]
        return transpose(a.terms, make(a.terms, "MatMul", operands, {}), perm)
    return None


def _weighed(x: Term, moved: Term) -> bool:
    """Are weights of attention what others are whose scores have these axes exchanged?  Of one row only what is seen in
    no other shape than its scores tells."""
    if x.shape is not None and x.shape[-2] == 1:
        return moved.op in SOFTMAX
    return weighs(x) and below_views(moved).op != "Transpose"


def _positions_first(x: Term) -> bool:
    """Is the third axis from the end of unknown length, and not the second, or does it stand before all heads in what
    x is a view of?"""
    known = [isinstance(d, int) for d in (x.shape or ())[-3:-1]]
    if known != [True, True]:
        return known == [False, True]
    inner = x.args[0] if x.op == "Reshape" and moves_ones(x) else x
    rank = len(x.shape or ())
    if inner.op == "Transpose" and inner.shape is not None:
        axes = [i for i, d in enumerate(x.shape or ()) if d != 1]
        order = [k for k, d in zip(inner.attr("perm"), inner.shape, strict=True) if d != 1]
        source = dict(zip(axes, order, strict=True))
        first, behind = source.get(rank - 3), [source[i] for i in (rank - 2, rank - 4) if i in source]
        apart = source.get(rank - 1) != len(inner.shape) - 1  # channels of a picture, which have no heads
        return not apart and first is not None and all(first < place for place in behind)
    if x.op != "Reshape" or len(x.args) > 1 or x.shape is None or x.args[0].shape is None:
        return False
    blocks = blocks_of(x.args[0].shape, x.shape)
    return blocks is not None and blocks[-1][3] - blocks[-1][2] == 2


@law("Gemm", "Gemm(z, z, z, alpha=2.0, beta=3.0, transB=1) = 2 * MatMul(z, T(z)) + 3 * z")
def _gemm(a: Applied) -> Term | None:
    if not a.real or any(arg.rank not in (None, 2) for arg in a.args[:2]):
        return None
    alpha, beta = a.attrs.get("alpha", 1.0), a.attrs.get("beta", 1.0)
    if not alpha or not beta:
        return None  # what is taken 0 times is not looked at, even if it is infinite
    x, y = (
        make(a.terms, "Transpose", [arg], {"perm": (1, 0)}) if a.attrs.get(flag) else arg
        for arg, flag in zip(a.args, ("transA", "transB"), strict=False)
    )
    result = scaled(a.terms, a.as_op("MatMul", x, y), alpha)
    if len(a.args) > 2 and a.args[2].op != "Absent":
        result = combine(a.terms, "Add", [result, scaled(a.terms, a.args[2], beta)])
    return result
