"""The table of normal forms, and the function that applies it.

`make` is the way to a term in normal form.  What an op's normal form is, `algebra`, `views` and others say: each
enters its forms into the table with `@form` and calls `make` where it needs one of the others.  Users import from
`normal`, which sees to it that the table is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from onnxfuse.model.dims import Shape, product
from onnxfuse.model.op_traits import FOLDABLE
from onnxfuse.model.schema import freeze
from onnxfuse.terms.fold import value_of
from onnxfuse.terms.infer import infer
from onnxfuse.terms.term import (
    SMALL,
    Attributes,
    Term,
    Terms,
    UnknownValueError,
    is_number,
    same_shape,
    static,
)

Form: TypeAlias = Callable[[Terms, list[Term], Attributes, Shape | None, int], Term | None]
"""(terms, args, attrs, shape, dtype) → the op in normal form, or None if it is in normal form as it stands.

`args` are in normal form and `attrs` canonical (see `schema`); `shape` (None: unknown rank) and `dtype`
(TensorProto.DataType) are those of the result.  A form that rewrites strips a view or a scalar or moves it outwards, in
the order that `normal` fixes: that is why `make` ends."""

_FORMS: dict[str, Form] = {}


def form(*ops: str) -> Callable[[Form], Form]:
    """Decorator: this function is the normal form of these ops."""

    def register(function: Form) -> Form:
        _FORMS.update(dict.fromkeys(ops, function))
        return function

    return register


def make(
    terms: Terms, op: str, args: Sequence[Term], attrs: Attributes, shape: Shape | None = None, dtype: int = 0
) -> Term:
    """The normal form of one op; `shape` and `dtype` are inferred where not given."""
    arguments = list(args)
    if not dtype:
        shape, dtype = infer(terms, op, arguments, attrs)[0]
    normal = _FORMS.get(op)
    if normal is not None:
        term = normal(terms, arguments, attrs, shape, dtype)
        if term is not None:
            return term
    if op in FOLDABLE and arguments and all(a.constant for a in arguments):
        folded = fold(terms, op, arguments, attrs, shape, dtype)
        if folded is not None:
            return folded
    return terms.raw(op, arguments, freeze(dict(attrs)), shape=shape, dtype=dtype)


def fold(terms: Terms, op: str, args: list[Term], attrs: Attributes, shape: Shape | None, dtype: int) -> Term | None:
    """The constant that an op over constants computes, or None where it is large (folded when it is written)."""
    size = product(shape) if shape is not None else None
    if not isinstance(size, int) or size > SMALL or any(_large(a) for a in args):
        return None
    term = terms.raw(op, args, freeze(dict(attrs)), shape=shape, dtype=dtype)
    try:
        return terms.constant(value_of(term), dtype)
    except UnknownValueError:
        return None


def _large(term: Term) -> bool:
    dims = static(term.shape)
    return term.op != "Absent" and (dims is None or int(np.prod(dims)) > SMALL)


def scaled(terms: Terms, term: Term, factor: float) -> Term:
    """factor * term for a real term."""
    if factor == 1:
        return term
    return make(terms, "Mul", [term, terms.number(factor, term.dtype)], {}, term.shape, term.dtype)


def hoisted(term: Term) -> tuple[Term, float]:
    """(x, c) with term = c * x, where the factor may leave a view or a MatMul; (term, 1) where there is none."""
    return split_scalar(term) or (term, 1.0)


def split_scalar(term: Term) -> tuple[Term, float] | None:
    """(x, c) of a product of exactly one term and a number: opening longer ones would steal the 0.5 of a GELU."""
    if term.op == "Mul" and len(term.args) == 2 and is_number(term.args[1]):
        assert term.args[1].scalar is not None
        if same_shape(term.args[0].shape, term.shape) or (term.shape is None and not term.args[1].rank):
            return term.args[0], term.args[1].scalar
    return None
