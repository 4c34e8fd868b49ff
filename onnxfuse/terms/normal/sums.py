"""Laws of sums and products of real numbers, and of what is a product in disguise.

Sums and products are flat and ordered, their numbers collected; a chain that several nodes use (`close`) is one operand
of a longer one.  A scalar factor leaves Reciprocal as it does every view, but it leaves a product of two only: opening
longer ones would steal the 0.5 of a GELU.  Integers do not obey: their division truncates, so they stay as written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from onnx import TensorProto

from onnxfuse.model.broadcast import broadcast
from onnxfuse.model.dims import Shape, product
from onnxfuse.model.op_traits import NEUTRAL
from onnxfuse.terms.fold import decided
from onnxfuse.terms.term import CLOSED, INTEGER, REAL, SMALL, Term, Terms, is_number, same_shape, static

from .merges import lift_merge, lift_rows, lift_scaled
from .pad import joined
from .ranges import MODERATE, in_range, nonnegative, throughout
from .table import Applied, fold, hoisted, law, make, repeated_constants, scaled, split_scalar, storable
from .views import expand, reshape

WIDE = REAL - {TensorProto.FLOAT16}
"""Real types in which every integer is finite."""


def combine(terms: Terms, op: str, args: Sequence[Term]) -> Term:
    """A flat sum (Add) or product (Mul) of real terms: constants collected, operands in a fixed order."""
    shapes = [a.shape for a in args]
    shape = None if None in shapes else broadcast(*[s for s in shapes if s is not None])
    dtype, number, operands = args[0].dtype, NEUTRAL[op], list[Term]()
    args = _unexpanded(terms, op, args, shape)
    flat = [operand for arg in args for operand in (arg.args if arg.op == op and not arg.closed else (arg,))]
    for operand in flat:
        if is_number(operand) and _never_widens(operand, flat):
            assert operand.scalar is not None
            total = number + operand.scalar if op == "Add" else number * operand.scalar
            plain = all(part and math.isfinite(part) for part in (number, operand.scalar))
            if in_range(total, dtype) or not plain:
                number = total
            else:
                operands.append(operand)
        else:
            operands.append(_without_leading_ones(terms, operand, flat, shape))
    if op == "Add":
        operands = joined(terms, operands)
    if op == "Mul":
        operands = _one_factor(terms, operands, dtype)
        number = _mean(terms, operands, number)
    if not operands:
        dims = static(shape) or ()
        return terms.constant(np.full(dims, number), dtype)
    if number != NEUTRAL[op]:
        operands.append(terms.number(number, dtype))
    if len(operands) == 1:
        return operands[0]
    if any(o.op == "Reshape" or (o.op == "Mul" and hoisted(o)[0].op == "Reshape") for o in operands):
        lifted = lift_merge(terms, op, operands, shape)
        if lifted is None:
            lifted = (lift_rows if op == "Add" else lift_scaled)(terms, operands, shape)
        if lifted is not None:
            return lifted
    operands.sort(key=lambda t: (is_number(t), t.id))
    if shape is not None and (cores := repeated_constants(operands)) and storable(table := combine(terms, op, cores)):
        return expand(terms, table, shape)
    if all(a.constant for a in operands):
        folded = fold(terms, op, operands, {}, shape, dtype)
        if folded is not None:
            return folded
    return terms.raw(op, operands, shape=shape, dtype=dtype)


def _unexpanded(terms: Terms, op: str, args: Sequence[Term], shape: Shape | None) -> Sequence[Term]:
    """The operands without what repeats one over dims that others have as well: a number, a mask of 0 and 1, or what a
    product repeats of a reduction."""
    mask = any(a.op == "Where" and all(map(is_number, a.args[1:])) for a in args)
    inner = [_repeated(terms, a, vector=mask) or _repeated_row(terms, op, a) for a in args]
    if shape is None or all(term is None for term in inner):
        return args
    kept = list(args)
    for i, term in enumerate(inner):
        others = [b.shape for j, b in enumerate(kept) if j != i and b.shape is not None]
        if term is not None and term.shape is not None and others and broadcast(*others, term.shape) == shape:
            kept[i] = term
    return kept


def _repeated_row(terms: Terms, op: str, term: Term) -> Term | None:
    """What a term repeats of a mask, or along axes that a reduction left, as it does where a mean is differentiated."""
    base, factor = hoisted(term)
    if base.op != "Expand" or len(base.args) > 1 or base.args[0].rank != base.rank:
        return None
    inner = base.args[0]
    return scaled(terms, inner, factor) if _truths(inner) or (op == "Mul" and _reduced(inner)) else None


def _truths(term: Term) -> bool:
    """Is it 1 where a condition holds, and 0 elsewhere?"""
    return term.op == "Cast" and term.args[0].dtype == TensorProto.BOOL


def _reduced(term: Term) -> bool:
    """Is it a reduction, or a product of which one is a factor?"""
    parts = term.args if term.op == "Mul" else (term,)
    return any(part.op in ("ReduceSum", "ReduceMean") for part in parts)


def _repeated(terms: Terms, term: Term, *, vector: bool) -> Term | None:
    """The number that a term of several elements is throughout.  A stored vector is a weight or a bias, which norms
    want where it is, whatever it holds, if it is not beside a mask."""
    if term.op == "Expand" and is_number(term.args[0]):
        return term.args[0]
    if (term.rank or 0) < (1 if vector else 2):
        return None
    dims = static(term.shape) if term.constant and term.scalar is None else None
    if dims is None or not (0 if vector else max(dims, default=0)) < math.prod(dims) <= SMALL:
        return None
    number = decided(term, throughout)
    return terms.number(number, term.dtype) if number is not None else None


def close(terms: Terms, term: Term) -> Term:
    """The same sum or product, which stays one operand of a longer one, as it is used as a whole elsewhere; any other
    term as it is."""
    if term.op not in NEUTRAL or term.dtype not in REAL:
        return term
    return terms.raw(term.op, term.args, term.attrs, shape=term.shape, dtype=term.dtype, key=CLOSED)


def _never_widens(number: Term, flat: Sequence[Term]) -> bool:
    """May a one-element constant lose its shape, because an operand that keeps its own has at least its rank?"""
    rank = number.rank
    return not rank or any(not is_number(a) and a.rank is not None and a.rank >= rank for a in flat)


def _without_leading_ones(terms: Terms, operand: Term, flat: Sequence[Term], shape: Shape | None) -> Term:
    """A constant of shape [1, n] is one of shape [n] beside an operand of at least its rank, which is none that may
    lose its own, and so is a row that was seen as [1, n], if it is repeated beside it; others stay."""
    lead = _leading_ones(operand)
    if not lead or not any(a.rank is not None and a.rank >= (operand.rank or 0) and not _narrow(a) for a in flat):
        return operand
    assert operand.shape is not None
    return operand if operand.shape == shape and not operand.constant else reshape(terms, operand, operand.shape[lead:])


def _leading_ones(term: Term) -> int:
    """How many leading dims of 1 a constant has before its last dim, or a row that is seen in another shape."""
    if (term.rank or 0) < 2:
        return 0
    dims = (static(term.shape) if term.constant else term.shape) or ()
    row = term.op == "Reshape" and len(term.args) == 1 and term.args[0].shape == dims[-1:]
    return next((i for i, d in enumerate(dims[:-1]) if d != 1), len(dims[:-1])) if term.constant or row else 0


def _narrow(term: Term) -> bool:
    return term.constant or _leading_ones(term) > 0


def _one_factor(terms: Terms, operands: list[Term], dtype: int) -> list[Term]:
    """Constant factors multiplied together, where that makes no larger constant.

    Not so for sums: two masks of finfo.min would add up to -inf."""
    constants = [t for t in operands if t.constant and t.shape is not None and not is_number(t)]
    if len(constants) < 2 or len(constants) == len(operands):
        return operands
    shape = broadcast(*[t.shape for t in constants if t.shape is not None])
    if all(t.shape != shape for t in constants):
        return operands
    product_ = fold(terms, "Mul", constants, {}, shape, dtype) or terms.raw("Mul", constants, shape=shape, dtype=dtype)
    return [t for t in operands if t not in constants] + [product_]


def _mean(terms: Terms, operands: list[Term], number: float) -> float:
    """ReduceSum(x) * 1/N is ReduceMean(x) if N is the number of elements reduced, and with -1/N its negative; edits
    `operands`."""
    for i, term in enumerate(operands):
        if term.op != "ReduceSum" or term.args[0].shape is None or not term.attr("axes"):
            continue
        count = product(term.args[0].shape[a] for a in term.attr("axes"))
        if isinstance(count, int):
            # A factor stored in half precision is 1/N rounded: half an ulp is 2**-11 of it.
            half, brain = term.dtype == TensorProto.FLOAT16, term.dtype == TensorProto.BFLOAT16
            tolerance = 2.0**-11 if half else 2.0**-8 if brain else 1e-6
            if number != 1 and count and abs(abs(number) * count - 1) <= tolerance:
                operands[i] = make(terms, "ReduceMean", term.args, dict(term.attrs))
                return math.copysign(1.0, number)
    return number


@law("Add Sum", "doubled * b + (-2 * x) * y = 2 * (a * b + -1 * x * y)")
def _of_multiples(a: Applied) -> Term | None:
    """What is scaled and then turned by angles is turned and then scaled; `doubled` is 2 * a, which others read too.

    Of products alone: a sum of multiples stays as it is written, or it would steal the 0.5 of a GELU.  One has such a
    multiple for a factor: a number of its own is where the rules write it."""
    if not a.real or any(is_number(term) or not _turned(term) for term in a.args):
        return None
    if not any(hoisted(factor)[1] != 1 for term in a.args for factor in term.args):
        return None
    split = [_opened(term) for term in a.args]
    size = abs(split[0][1])
    if size == 1 or not math.isfinite(size) or any(abs(number) != size for _, number in split):
        return None
    products = [combine(a.terms, "Mul", factors) for factors, _ in split]
    if not all(same_shape(p.shape, whole.shape) for p, whole in zip(products, a.args, strict=True)):
        return None
    parts = [scaled(a.terms, p, math.copysign(1.0, number)) for p, (_, number) in zip(products, split, strict=True)]
    return scaled(a.terms, combine(a.terms, "Add", parts), size)


def _turned(term: Term) -> bool:
    """Is it a product of two that are no numbers, or a multiple of a sum of such products?"""
    factors = [factor for factor in term.args if not is_number(factor)] if term.op == "Mul" else []
    return len(factors) > 1 or (len(factors) == 1 and factors[0].op == "Add" and all(map(_turned, factors[0].args)))


def _opened(product_: Term) -> tuple[list[Term], float]:
    """The factors of a product, and the number before them all."""
    factors, number = list[Term](), 1.0
    for factor in product_.args:
        if factor.scalar is not None:
            number *= factor.scalar
        else:
            base, multiple = hoisted(factor)
            factors.append(base)
            number *= multiple
    return factors, number


@law("Add Sum", "a * Cast(x > 0) * 2 + b * Cast(Not(x > 0)) = Where(x > 0, a * 2, b)")
def _choice(a: Applied) -> Term | None:
    """As tf2onnx writes one, by products: of what is finite, which integers are."""
    for x, y in (a.args, a.args[::-1]) if (a.real or a.dtype in INTEGER) and len(a.args) == 2 else ():
        for keep, chosen in _kept(a.terms, x):
            for other, instead in _kept(a.terms, y):
                if other.op == "Not" and other.args[0] is keep:
                    return a.as_op("Where", keep, chosen, instead)
    return None


def _kept(terms: Terms, term: Term) -> Iterator[tuple[Term, Term]]:
    """Each condition by which a product is 0 where it does not hold, and the other factors."""
    for i, factor in enumerate(term.args) if term.op == "Mul" else ():
        if _truths(factor):
            rest = term.args[:i] + term.args[i + 1 :]
            yield factor.args[0], rest[0] if len(rest) == 1 else combine(terms, "Mul", rest)


@law("Add Sum", "(a + (b + 2)) + 3 = a + b + 5")
def _sum(a: Applied) -> Term | None:
    return combine(a.terms, "Add", a.args) if a.real else None


@law("Mul", "0 * Cast(x > 0) = Expand(0, (2, 3, 4, 4))")
def _nothing_of_integers(a: Applied) -> Term | None:
    """0 times what is an integer, and so finite."""
    if len(a.args) != 2:
        return None
    x, y = a.args
    for zero, whole in ((x, y), (y, x)):
        if zero.scalar == 0 and a.shape is not None and a.dtype in WIDE and _whole(whole):
            return expand(a.terms, a.number(0), a.shape)
    return None


def _whole(term: Term) -> bool:
    """Is it an integer or a truth as a real number, or such a one and a number?"""
    if term.op == "Add" and len(term.args) == 2:
        return _whole(term.args[0]) and term.args[1].scalar is not None and abs(term.args[1].scalar) < MODERATE
    return term.op == "Cast" and term.args[0].dtype not in REAL and term.args[0].dtype != TensorProto.STRING


@law("Mul", "(a * (b * 2)) * 3 = a * b * 6")
def _product(a: Applied) -> Term | None:
    return combine(a.terms, "Mul", a.args) if a.real else None


@law("Sub", "Sub(a, b) = a + -1 * b")
def _difference(a: Applied) -> Term | None:
    if not a.real:
        return None
    x, y = a.args
    return make(a.terms, "Add", [x, combine(a.terms, "Mul", [y, a.number(-1)])], {}, a.shape, a.dtype)


@law("Div", "Div(a, b) = a * Reciprocal(b)")
def _quotient(a: Applied) -> Term | None:
    x, y = a.args
    return combine(a.terms, "Mul", [x, make(a.terms, "Reciprocal", [y], {}, y.shape, a.dtype)]) if a.real else None


@law("Neg", "Neg(x) = -1 * x")
def _negative(a: Applied) -> Term | None:
    return scaled(a.terms, a.args[0], -1) if a.real else None


@law("Reciprocal", "Reciprocal(4) = 0.25")
def _of_number(a: Applied) -> Term | None:
    x = a.args[0]
    if x.scalar is None:
        return None
    if not x.scalar:  # an infinity takes in the other factors, in whatever order they come
        return a.terms.number(math.copysign(math.inf, x.scalar), a.dtype, x.rank or 0)
    return a.terms.number(1 / x.scalar, a.dtype, x.rank or 0) if in_range(1 / x.scalar, a.dtype) else a.raw({})


@law("Reciprocal", "Reciprocal(Reciprocal(x)) = x")
def _of_reciprocal(a: Applied) -> Term | None:
    return a.args[0].args[0] if a.args[0].op == "Reciprocal" else None


@law("Reciprocal", "Reciprocal(c * x) = (1 / c) * Reciprocal(x)")
def _of_multiple(a: Applied) -> Term | None:
    split = split_scalar(a.args[0])
    if split is None or not split[1] or not in_range(1 / split[1], a.dtype):
        return None
    return scaled(a.terms, a.as_op("Reciprocal", split[0]), 1 / split[1])


@law("Sqrt", "Sqrt(Reciprocal(x)) = Reciprocal(Sqrt(x)) if x > 0")
def _root_of_reciprocal(a: Applied) -> Term | None:
    x = a.args[0]
    if x.op != "Reciprocal" or not nonnegative(x.args[0]):  # of -inf, the one is 0 and the other is no number
        return None
    return a.as_op("Reciprocal", a.as_op("Sqrt", x.args[0]))


@law("Sqrt", "Sqrt(Max(x, 4)) = Max(Sqrt(x), 2) if x > 0")
def _root_of_bounded(a: Applied) -> Term | None:
    x = a.args[0]
    inner, bound = x.args if x.op == "Max" and len(x.args) == 2 else (x, x)
    if inner.scalar is not None:
        inner, bound = bound, inner
    if inner is x or bound.scalar is None or bound.scalar < 0 or not nonnegative(inner):
        return None
    return a.as_op("Max", a.as_op("Sqrt", inner), a.number(math.sqrt(bound.scalar)))


@law("Sqrt Reciprocal Exp Log Sin Cos", "f(Expand(row, (4, 4))) = Expand(f(row), (4, 4))")
def _of_repeated(a: Applied) -> Term | None:
    """What is repeated is computed once."""
    x = a.args[0]
    if x.op != "Expand" or len(x.args) > 1 or a.shape is None or x.constant:
        return None
    return expand(a.terms, make(a.terms, a.op, [x.args[0]], {}), a.shape)


@law("Sqrt", "Sqrt(x * x) = Abs(x)")
def _root_of_square(a: Applied) -> Term | None:
    x = a.args[0]
    square = x.op == "Mul" and len(x.args) == 2 and x.args[0] is x.args[1]
    return a.as_op("Abs", x.args[0]) if square else None


def _exponent(a: Applied) -> float | None:
    """The number that a power is to, if it is one that widens nothing."""
    x, exponent = a.args
    if not a.real or a.shape != x.shape or (a.shape is None and exponent.rank):
        return None
    return exponent.scalar


@law("Pow", "Pow(x, 1) = x")
def _first_power(a: Applied) -> Term | None:
    return a.args[0] if _exponent(a) == 1 else None


@law("Pow", "Pow(x, 3) = x * x * x")
def _small_power(a: Applied) -> Term | None:
    x, e = a.args[0], _exponent(a)
    if e not in (2, 3, 4):
        return None
    factor = close(a.terms, x) if x.op == "Mul" else x  # (a*b)**2 stays a square
    return combine(a.terms, "Mul", [factor] * int(e))


@law("Pow", "Pow(x, 0.5) = Sqrt(x) if x > 0")
def _root(a: Applied) -> Term | None:
    x = a.args[0]  # of -inf, the power is inf and the root is no number
    return a.as_op("Sqrt", x) if _exponent(a) == 0.5 and nonnegative(x) else None


@law("Pow", "Pow(x, -2) = Reciprocal(Pow(x, 2))")
def _negative_power(a: Applied) -> Term | None:
    x, e = a.args[0], _exponent(a)
    if e not in (-1, -2) and not (e == -0.5 and nonnegative(x)):
        return None
    return a.as_op("Reciprocal", a.as_op("Pow", x, a.number(-e)))
