"""The table of laws, and the function that applies them.

`make` is the way to a term in normal form.  What equals what, `sums`, `views` and others say: each enters its laws into
the table with `@law`, the equation beside it, and calls `make` where it needs one of the others.  Users import from
`normal`, which sees to it that the table is complete; `python -m onnxfuse.terms.normal` prints it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from traceback import walk_tb
from typing import NamedTuple, TypeAlias

from onnxfuse.model.dims import Shape, product
from onnxfuse.model.op_traits import FOLDABLE, VIEWS
from onnxfuse.model.schema import freeze
from onnxfuse.terms.blockwise import Blockwise
from onnxfuse.terms.fold import folded
from onnxfuse.terms.infer import infer
from onnxfuse.terms.term import (
    REAL,
    SMALL,
    Array,
    Attributes,
    Term,
    Terms,
    UnknownValueError,
    is_number,
    same_shape,
    static,
)


class Applied(NamedTuple):
    """An op that is about to become a term.

    `args` are in normal form and `attrs` canonical (see `schema`); `shape` (None: unknown rank) and `dtype`
    (TensorProto.DataType) are those of the result."""

    terms: Terms
    op: str
    args: list[Term]
    attrs: Attributes
    shape: Shape | None
    dtype: int

    @property
    def real(self) -> bool:
        return self.dtype in REAL

    def as_op(self, op: str, *args: Term) -> Term:
        """Another op, without attributes, whose result has the shape and the type of this one."""
        return make(self.terms, op, args, {}, self.shape, self.dtype)

    def number(self, value: float) -> Term:
        return self.terms.number(value, self.dtype)

    def raw(self, attrs: Attributes) -> Term:
        """The op as it stands, with these attributes."""
        return self.terms.raw(self.op, self.args, freeze(dict(attrs)), shape=self.shape, dtype=self.dtype)


Rewrite: TypeAlias = Callable[[Applied], Term | None]
"""An op → an equal term, or None where the law says nothing of it.

What rewrites strips a view or a scalar or moves it outwards, in the order that `normal` fixes: that is why `make`
ends."""


class Law(NamedTuple):
    """An equation between spellings of which the right one is the normal form.

    It is an example, which tests compute and make terms of.  x, y, a, b are of shape [2, 3, 4, 4], u, v of [6, 4, 4], z
    of [4, 4], row of [1, 4], ones of [4], w is of unknown rank, q of bytes; c is a number, zero one of shape [1, 1],
    true holds everywhere, f is any of the ops.  T turns the last two axes, merge makes one of the first two, unmerge
    two of the first, squeeze drops the last.  Behind "if" stands what must hold."""

    ops: tuple[str, ...]
    equation: str
    rewrite: Rewrite


TABLE = 1 << 18
"""Elements of a constant that is computed because it is repeated: a megabyte of float32, by which a file may grow."""

LAWS: list[Law] = []
"""All laws, in the order in which they are tried."""
_OF_OP: dict[str, list[Rewrite]] = {}


def law(ops: str, equation: str) -> Callable[[Rewrite], Rewrite]:
    """Decorator: this function rewrites these ops (in words) by this equation; laws are tried in the order they stand,
    and the first that applies wins."""

    def register(rewrite: Rewrite) -> Rewrite:
        LAWS.append(Law(tuple(ops.split()), equation, rewrite))
        for op in ops.split():
            _OF_OP.setdefault(op, []).append(rewrite)
        return rewrite

    return register


def turning(error: RecursionError) -> str:
    """The equation of the law that was applied inside itself without an end; empty where none was."""
    laws = {law.rewrite.__code__: law.equation for law in LAWS}
    seen = Counter(laws[frame.f_code] for frame, _ in walk_tb(error.__traceback__) if frame.f_code in laws)
    return seen.most_common(1)[0][0] if seen else ""


def make(
    terms: Terms, op: str, args: Sequence[Term], attrs: Attributes, shape: Shape | None = None, dtype: int = 0
) -> Term:
    """The normal form of one op; `shape` and `dtype` are inferred where not given."""
    arguments = list(args)
    if not dtype and shape is not None and op in VIEWS:
        dtype = arguments[0].dtype  # perhaps unknown, too: that of what an op gives of which nothing is known
    elif not dtype:
        shape, dtype = infer(terms, op, arguments, attrs)[0]
    laws = _OF_OP.get(op)
    if laws is not None:
        applied = Applied(terms, op, arguments, attrs, shape, dtype)
        for rewrite in laws:
            term = rewrite(applied)
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
        value = folded(term)
    except UnknownValueError:
        return None
    if isinstance(value, Blockwise):
        return terms.blockwise(value, term.shape or (), dtype)
    return _computed(terms, op, args, value, dtype)


def _computed(terms: Terms, op: str, args: list[Term], value: Array, dtype: int) -> Term:
    """What was computed.  A choice by conditions that gives one number everywhere, and what is computed of it, is no
    weight, which norms want as the vector it is, but that number repeated."""
    chosen = dtype in REAL and value.size > 1 and (op == "Where" or any(a.op == "Expand" for a in args))
    if not chosen or not (value == value.flat[0]).all():
        return terms.constant(value, dtype)
    number = terms.number(float(value.flat[0]), dtype)
    return terms.raw("Expand", [number], (("shape", value.shape),), shape=value.shape, dtype=dtype)


def _large(term: Term) -> bool:
    dims = static(term.shape)
    return term.op != "Absent" and (dims is None or math.prod(dims) > SMALL)


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


def repeated_constants(args: Sequence[Term]) -> list[Term]:
    """The constants that operands repeat, as a table of positions is for each picture; none unless all are constants,
    and some repeat more than a number."""
    cores = [x.args[0] if x.op == "Expand" and len(x.args) == 1 else x for x in args]
    some = any(core is not x and core.scalar is None for core, x in zip(cores, args, strict=True))
    return cores if some and all(core.constant for core in cores) else []


def storable(table: Term) -> bool:
    """Is what is repeated of a size that a file may hold, once for all that repeat it?"""
    dims = static(table.shape)
    return dims is not None and math.prod(dims) <= TABLE
