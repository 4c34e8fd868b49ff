"""Normal form of Einsum: one or two operands as sums, transpositions and one product, which is a MatMul or a Mul."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

from onnxfuse.model.dims import Dim, Shape, product
from onnxfuse.model.einsum import dims_of, letters_of
from onnxfuse.terms.term import REAL, Term, Terms

from .merges import weighs
from .table import Applied, law, make
from .views import reshape, transpose


@law("Einsum", "Einsum(x, z, equation='abij,jk->abik') = MatMul(x, z)")
def _einsum(a: Applied) -> Term | None:
    """The products and sums that an Einsum of one or two real operands of known rank stands for, else None."""
    terms, args, attrs, dtype = a.terms, a.args, a.attrs, a.dtype
    shapes = [a.shape for a in args if a.shape is not None]
    if dtype not in REAL or len(shapes) < len(args) or len(args) > 2:
        return None
    named = letters_of(attrs["equation"], [len(s) for s in shapes])
    if named is None or any(len(set(letters)) < len(letters) for letters in (*named[0], named[1])):
        return None
    operands, result = named
    dims = dims_of(operands, shapes)
    if dims is None or not set(result) <= dims.keys():
        return None
    kept = [
        "".join(c for c in letters if c in result or sum(c in other for other in operands) > 1) for letters in operands
    ]
    summed = [_sum_out(terms, x, old, new) for x, old, new in zip(args, operands, kept, strict=True)]
    if len(args) == 1:
        return _ordered(terms, summed[0], kept[0], result)
    return _product(terms, summed, kept, result, dims)


def _sum_out(terms: Terms, x: Term, letters: str, kept: str) -> Term:
    """x summed over the axes whose letters are not kept."""
    axes = tuple(i - len(letters) for i, c in enumerate(letters) if c not in kept)
    return make(terms, "ReduceSum", [x], {"axes": axes, "keepdims": 0}) if axes else x


def _ordered(terms: Terms, x: Term, letters: str, wanted: str) -> Term:
    return transpose(terms, x, [letters.index(c) for c in wanted])


def _product(terms: Terms, args: Sequence[Term], operands: Sequence[str], result: str, dims: dict[str, Dim]) -> Term:
    (x, y), (a, b) = args, operands
    batch = "".join(c for c in result if c in a and c in b)
    inner = "".join(c for c in a if c in b and c not in result)
    # Weights of attention stay as they are, whatever becomes of the values that they mix.
    order = a if weighs(x) else result
    rows = "".join(c for c in order if c in a and c in result and c not in batch)
    columns = "".join(c for c in result if c in b and c not in batch)
    if len(inner) == 1 and not batch:
        for (t, own, one), (w, other, several) in permutations(((x, a, rows), (y, b, columns))):
            if len(one) == 1 < len(several) and result == several[:-1] + one + several[-1:]:
                # One matrix times each of several: tokens times the weights of every expert.
                each = _ordered(terms, w, other, several[:-1] + inner + several[-1:])
                return make(terms, "MatMul", [_ordered(terms, t, own, one + inner), each], {})
    if len(columns) > 1 >= len(rows) and (batch or result != rows + columns):
        return _product(terms, (y, x), (b, a), result, dims)

    def shape(*groups: str, own: dict[str, Dim] = dims) -> Shape:
        return tuple(product(own[c] for c in group) for group in groups)

    # A letter's dimension has two spellings where lengths are not known: a view of an operand has its own.
    of_x, of_y = (dict(zip(letters, t.shape or (), strict=True)) for t, letters in ((x, a), (y, b)))

    if not inner:
        spread = [
            reshape(
                terms, _ordered(terms, t, own, "".join(c for c in result if c in own)), _in_place(own, result, dims)
            )
            for t, own in ((x, a), (y, b))
        ]
        return make(terms, "Mul", spread, {})
    # Any number of leading axes is multiplied by a matrix of weights, or by keys that several heads share.
    left = reshape(
        terms,
        _ordered(terms, x, a, batch + rows + inner),
        shape(*batch, *rows, inner, own=of_x) if rows else shape(*batch, rows, inner, own=of_x),
    )
    alone = ("",) * len(rows[:-1]) if batch else ()
    turned = _ordered(terms, y, b, batch + inner + columns)
    right = reshape(terms, turned, shape(*batch, *alone, inner, columns, own=of_y))
    whole = reshape(terms, make(terms, "MatMul", [left, right], {}), shape(*batch, *rows, *columns))
    return _ordered(terms, whole, batch + rows + columns, result)


def _in_place(own: str, result: str, dims: dict[str, Dim]) -> Shape:
    """The shape in which an operand's axes stand where the result has them."""
    return tuple(dims[c] if c in own else 1 for c in result)
