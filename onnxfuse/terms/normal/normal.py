"""The normal form of terms: one spelling for each expression, up to the algebra of real numbers and of views.

`make` and the constructors below answer terms in normal form, given arguments in normal form; equal spellings are one
term.  `sums`, `products`, `select`, `views`, `gather` and others say which spellings are equal, law by law.  The order
from the outside in is fixed, so that rewriting ends: scalar, merge, Repeat and Expand, unsqueeze, Slice, Transpose.

Views, and what depends on shapes, belong here; what an op means belongs into a rule.  STUDY: each part was kept because
real exports need it.
"""

from __future__ import annotations

from collections.abc import Sequence

from onnxfuse.model.op_traits import NEUTRAL, VIEWS
from onnxfuse.terms.term import REAL, Term, Terms

from . import concat as concat  # their laws belong to the table
from . import einsum as einsum
from . import elementwise as elementwise
from . import fills as fills
from . import gather as gather
from . import pad as pad
from . import products as products
from . import quantized as quantized
from . import reductions as reductions
from . import scatter as scatter
from . import select as select
from . import sequences as sequences
from . import softmax as softmax
from .sums import close, combine
from .table import fold, make
from .views import expand, repeat, reshape, slice_axis, transpose

__all__ = [
    "close",
    "closed",
    "combine",
    "expand",
    "fold",
    "make",
    "rebuild",
    "repeat",
    "reshape",
    "slice_axis",
    "transpose",
]


def rebuild(terms: Terms, term: Term, args: Sequence[Term]) -> Term:
    """The term with other arguments, in normal form again."""
    if all(a is b for a, b in zip(args, term.args, strict=True)):
        return term
    op, x = term.op, args[0]
    if op in VIEWS and len(args) == 1:
        if op == "Reshape" and term.shape is not None:
            return make(terms, op, args, dict(term.attrs), term.shape, term.dtype)
        if op == "Transpose":
            return transpose(terms, x, term.attr("perm"))
        if op == "Expand" and term.shape is not None:
            return expand(terms, x, term.shape)
        if op == "Repeat":
            return repeat(terms, x, term.attr("axis"), term.attr("n"))
        if op == "Slice" and x.shape is not None:
            return slice_axis(terms, x, term.attr("axis"), term.attr("start"), term.attr("stop"), term.attr("step"))
    if term.closed:
        return close(terms, combine(terms, op, args))
    if term.key is not None:
        return terms.raw(op, args, term.attrs, shape=term.shape, dtype=term.dtype, key=term.key)
    if op in NEUTRAL and term.dtype in REAL:
        return combine(terms, op, args)
    return make(terms, op, args, dict(term.attrs), term.shape, term.dtype)


def closed(terms: Terms, term: Term) -> Term:
    """The same term for a value that several nodes use: a sum or product is closed, also if it is seen in another
    shape or order."""
    if term.op in ("Reshape", "Transpose") and len(term.args) == 1:
        return rebuild(terms, term, [closed(terms, term.args[0])])
    return close(terms, term)
