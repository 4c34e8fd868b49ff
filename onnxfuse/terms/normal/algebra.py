"""Normal forms of arithmetic: equal up to the algebra of real numbers.

    sums, products  a - b is a + (-1)b, a / b is a * Reciprocal(b), small powers are products; sums and products are
                    flat and ordered, their constants collected; a chain that several nodes use (`close`) is one operand
                    of a longer one
    scalars         a scalar factor leaves MatMul, Reciprocal and every view.  It leaves a product of two only: opening
                    longer ones would steal the 0.5 of a GELU
    names           Max(x, 0) and Clip(x, 0, inf) are Relu, Less is Greater turned round, ReduceSum / N is ReduceMean, a
                    Cast between real types is nothing; reductions keep their dims and count axes from the end
    merges          a merge of leading axes floats up through MatMul, + and Softmax over attention scores

Only real types obey these laws: integer division truncates, so integer arithmetic stays as it is written.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from onnx import TensorProto

from onnxfuse.model.dims import Dim, Shape, broadcast, product
from onnxfuse.model.op_traits import NEUTRAL, SCORES, SOFTMAX
from onnxfuse.model.schema import freeze
from onnxfuse.terms.term import CLOSED, REAL, Attributes, Term, Terms, is_number, same_shape, static

from .ranges import in_range, moderate, nonnegative
from .table import Form, fold, form, hoisted, make, scaled, split_scalar
from .views import Block, blocks_of, leading_merge, merged_blocks, reshape, transpose, unmerge

# ------------------------------------------------------------------------------------------------ sums and products


def combine(terms: Terms, op: str, args: Sequence[Term]) -> Term:
    """A flat sum (Add) or product (Mul) of real terms: constants collected, operands in a fixed order."""
    shapes = [a.shape for a in args]
    shape = None if None in shapes else broadcast(*[s for s in shapes if s is not None])
    dtype, number, operands = args[0].dtype, NEUTRAL[op], list[Term]()
    for arg in args:
        for operand in arg.args if arg.op == op and not arg.closed else (arg,):
            if is_number(operand) and _never_widens(operand, args):
                assert operand.scalar is not None
                total = number + operand.scalar if op == "Add" else number * operand.scalar
                plain = all(part and math.isfinite(part) for part in (number, operand.scalar))
                if in_range(total, dtype) or not plain:
                    number = total
                else:
                    operands.append(operand)
            else:
                operands.append(_without_leading_ones(terms, operand, args))
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
    if any(hoisted(operand)[0].op == "Reshape" for operand in operands):
        lifted = lift_merge(terms, op, operands, shape)
        lifted = _lift_rows(terms, operands, shape) if lifted is None and op == "Add" else lifted
        if lifted is not None:
            return lifted
    operands.sort(key=lambda t: (is_number(t), t.id))
    if all(a.constant for a in operands):
        folded = fold(terms, op, operands, {}, shape, dtype)
        if folded is not None:
            return folded
    return terms.raw(op, operands, shape=shape, dtype=dtype)


def close(terms: Terms, term: Term) -> Term:
    """The same sum or product, which stays one operand of a longer one, as it is used as a whole elsewhere; any other
    term as it is."""
    if term.op not in NEUTRAL or term.dtype not in REAL:
        return term
    return terms.raw(term.op, term.args, term.attrs, shape=term.shape, dtype=term.dtype, key=CLOSED)


def _never_widens(number: Term, args: Sequence[Term]) -> bool:
    """May a one-element constant lose its shape, because another operand has at least its rank?"""
    rank = number.rank
    return not rank or any(a is not number and a.rank is not None and a.rank >= rank for a in args)


def _without_leading_ones(terms: Terms, constant: Term, args: Sequence[Term]) -> Term:
    """A constant of shape [1, n] is one of shape [n] beside an operand of at least its rank; others stay."""
    dims = static(constant.shape) if constant.constant else None
    if dims is None or dims[:1] != (1,) or len(dims) < 2:
        return constant
    if not any(a is not constant and a.rank is not None and a.rank >= len(dims) for a in args):
        return constant
    lead = next((i for i, d in enumerate(dims) if d != 1), len(dims) - 1)
    return reshape(terms, constant, dims[lead:])


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
    """ReduceSum(x) * 1/N is ReduceMean(x) if N is the number of elements reduced; edits `operands`."""
    for i, term in enumerate(operands):
        if term.op != "ReduceSum" or term.args[0].shape is None or not term.attr("axes"):
            continue
        count = product(term.args[0].shape[a] for a in term.attr("axes"))
        if isinstance(count, int):
            # A factor stored in half precision is 1/N rounded: half an ulp is 2**-11 of it.
            half, brain = term.dtype == TensorProto.FLOAT16, term.dtype == TensorProto.BFLOAT16
            tolerance = 2.0**-11 if half else 2.0**-8 if brain else 1e-6
            if number != 1 and count and abs(number * count - 1) <= tolerance:
                operands[i] = make(terms, "ReduceMean", term.args, dict(term.attrs))
                return 1.0
    return number


@form("Add", "Sum")
def _sum(terms: Terms, args: list[Term], attrs: Attributes, shape: Shape | None, dtype: int) -> Term | None:
    return combine(terms, "Add", args) if dtype in REAL else None


@form("Mul")
def _product(terms: Terms, args: list[Term], attrs: Attributes, shape: Shape | None, dtype: int) -> Term | None:
    return combine(terms, "Mul", args) if dtype in REAL else None


@form("Sub")
def _subtract(terms: Terms, args: list[Term], attrs: Attributes, shape: Shape | None, dtype: int) -> Term | None:
    if dtype not in REAL:
        return None
    return combine(terms, "Add", [args[0], combine(terms, "Mul", [args[1], terms.number(-1, dtype)])])


@form("Div")
def _divide(terms: Terms, args: list[Term], attrs: Attributes, shape: Shape | None, dtype: int) -> Term | None:
    if dtype not in REAL:
        return None
    return combine(terms, "Mul", [args[0], make(terms, "Reciprocal", [args[1]], {}, args[1].shape, dtype)])


@form("Neg")
def _negate(terms: Terms, args: list[Term], attrs: Attributes, shape: Shape | None, dtype: int) -> Term | None:
    return scaled(terms, args[0], -1) if dtype in REAL else None


@form("Reciprocal")
def _reciprocal(terms: Terms, args: list[Term], attrs: Attributes, shape: Shape | None, dtype: int) -> Term | None:
    x = args[0]
    if x.scalar is not None:
        if not x.scalar:  # an infinity takes in the other factors, in whatever order they come
            return terms.number(math.copysign(math.inf, x.scalar), dtype, x.rank or 0)
        if in_range(1 / x.scalar, dtype):
            return terms.number(1 / x.scalar, dtype, x.rank or 0)
        return terms.raw("Reciprocal", args, shape=shape, dtype=dtype)
    if x.op == "Reciprocal":
        return x.args[0]
    split = split_scalar(x)
    if split is not None and split[1] and in_range(1 / split[1], dtype):
        return scaled(terms, make(terms, "Reciprocal", [split[0]], {}, shape, dtype), 1 / split[1])
    return None


@form("Sqrt")
def _square_root(terms: Terms, args: list[Term], attrs: Attributes, shape: Shape | None, dtype: int) -> Term | None:
    x = args[0]
    if x.op == "Reciprocal" and nonnegative(x.args[0]):  # of -inf, the one is 0 and the other is no number
        return make(terms, "Reciprocal", [make(terms, "Sqrt", [x.args[0]], {}, shape, dtype)], {}, shape, dtype)
    return None


@form("Pow")
def _power(terms: Terms, args: list[Term], attrs: Attributes, shape: Shape | None, dtype: int) -> Term | None:
    x, exponent = args
    if dtype not in REAL or exponent.scalar is None or shape != x.shape or (shape is None and exponent.rank):
        return None
    e = exponent.scalar
    if e == 1:
        return x
    if e in (2, 3, 4):
        factor = close(terms, x) if x.op == "Mul" else x  # (a*b)**2 stays a square
        return combine(terms, "Mul", [factor] * int(e))
    if e == 0.5 and nonnegative(x):  # of -inf, the power is inf and the root is no number
        return make(terms, "Sqrt", [x], {}, shape, dtype)
    if e in (-1, -2) or (e == -0.5 and nonnegative(x)):
        power = make(terms, "Pow", [x, terms.number(-e, dtype)], {}, shape, dtype)
        return make(terms, "Reciprocal", [power], {}, shape, dtype)
    return None


# ------------------------------------------------------------------------------------------------ elementwise


@form("Clip")
def _clip(terms: Terms, args: list[Term], attrs: Attributes, shape: Shape | None, dtype: int) -> Term | None:
    low = args[1] if len(args) > 1 and args[1].op != "Absent" else None
    high = args[2] if len(args) > 2 and args[2].op != "Absent" else None
    if low is not None and low.scalar == 0 and high is not None and high.scalar == math.inf:
        return make(terms, "Relu", [args[0]], {}, shape, dtype)  # without a maximum, inf becomes the largest number
    return None


def _elementwise(op: str) -> Form:
    def lifted(terms: Terms, args: list[Term], attrs: Attributes, shape: Shape | None, dtype: int) -> Term | None:
        return lift_merge(terms, op, args, args[0].shape)

    return lifted


def _flip(other: str) -> Form:
    def flipped(terms: Terms, args: list[Term], attrs: Attributes, shape: Shape | None, dtype: int) -> Term | None:
        return make(terms, other, args[::-1], {}, shape, dtype)

    return flipped


def _activation(op: str) -> Form:
    """A merge of all axes but the last floats up through it."""

    def lifted(terms: Terms, args: list[Term], attrs: Attributes, shape: Shape | None, dtype: int) -> Term | None:
        if len(args) != 1 or not _merges_rows(args[0]) or shape is None:
            return None
        return reshape(terms, make(terms, op, [args[0].args[0]], attrs), shape)

    return lifted


for _op in ("Tanh", "IsNaN"):
    form(_op)(_elementwise(_op))
for _op in ("Gelu", "FastGelu", "QuickGelu", "Swish", "Mish", "HardSwish"):
    form(_op)(_activation(_op))
form("Less")(_flip("Greater"))
form("LessOrEqual")(_flip("GreaterOrEqual"))

# ------------------------------------------------------------------------------------------------ matrices and axes


@form("MatMul")
def _matmul(terms: Terms, args: list[Term], attrs: Attributes, shape: Shape | None, dtype: int) -> Term | None:
    if dtype not in REAL:
        return None
    (x, c), (y, d) = hoisted(args[0]), hoisted(args[1])
    if not moderate(c):
        x, c = args[0], 1.0
    if not moderate(d):
        y, d = args[1], 1.0
    if c * d != 1:
        return scaled(terms, make(terms, "MatMul", [x, y], {}, shape, dtype), c * d)
    if x.shape is None or y.shape is None or shape is None:
        return None
    turned = (*range(len(y.shape) - 2), len(y.shape) - 1, len(y.shape) - 2)
    w = y.args[0] if y.op == "Transpose" and y.attr("perm") == turned else None
    both = SOFTMAX & {x.op, *(a.op for a in x.args)}  # of two, either might stand on the left
    if w is not None and w.op in SOFTMAX and not both and len(x.shape) == len(y.shape):
        # Values as columns (non-local networks): weights stand on the left.
        return transpose(terms, make(terms, "MatMul", [w, transpose(terms, x, turned)], {}), turned)
    lead_x, lead_y = leading_merge(x), leading_merge(y)
    if lead_x is not None and lead_x == lead_y:
        inner = make(terms, "MatMul", [unmerge(terms, x), unmerge(terms, y)], {})
        return reshape(terms, inner, shape)
    if len(y.shape) == 2 and x.op == "Reshape" and len(x.shape) >= 2:
        blocks = merged_blocks(x)
        if blocks is not None and blocks[-1][1] - blocks[-1][0] == 1:
            return reshape(terms, make(terms, "MatMul", [x.args[0], y], {}), shape)
    return None


@form("Gemm")
def _gemm(terms: Terms, args: list[Term], attrs: Attributes, shape: Shape | None, dtype: int) -> Term | None:
    if dtype not in REAL or any(a.rank not in (None, 2) for a in args[:2]):
        return None
    if not attrs.get("alpha", 1.0) or not attrs.get("beta", 1.0):
        return None  # what is taken 0 times is not looked at, even if it is infinite
    x, y = (
        make(terms, "Transpose", [a], {"perm": (1, 0)}) if attrs.get(flag) else a
        for a, flag in zip(args, ("transA", "transB"), strict=False)
    )
    result = scaled(terms, make(terms, "MatMul", [x, y], {}, shape, dtype), attrs.get("alpha", 1.0))
    if len(args) > 2 and args[2].op != "Absent":
        result = combine(terms, "Add", [result, scaled(terms, args[2], attrs.get("beta", 1.0))])
    return result


def from_the_end(op: str, default: int) -> Form:
    """Axes count from the end, so that rules need not know a rank; the default is left out."""

    def negative(terms: Terms, args: list[Term], attrs: Attributes, shape: Shape | None, dtype: int) -> Term | None:
        attrs = dict(attrs)
        axis, rank = attrs.pop("axis", default), args[0].rank
        axis = axis - rank if rank is not None and axis >= 0 else axis
        if axis != default:
            attrs["axis"] = axis
        return terms.raw(op, args, freeze(attrs), shape=shape, dtype=dtype)

    return negative


def _reduce(op: str) -> Form:
    """Negative sorted axes, dimensions kept; the derived reductions in terms of ReduceSum."""

    def reduced(terms: Terms, args: list[Term], attrs: Attributes, shape: Shape | None, dtype: int) -> Term | None:
        x = args[0]
        if len(args) > 1:  # axes that are not constant
            return None
        axes = attrs.get("axes")
        if not axes and attrs.get("noop_with_empty_axes"):
            return x
        if x.shape is None:
            if op != "ReduceMean" or not axes:
                return None
            plain = {k: v for k, v in attrs.items() if k != "noop_with_empty_axes"}
            return terms.raw(op, args, freeze(plain), shape=shape, dtype=dtype)
        rank = len(x.shape)
        if not rank:
            return None  # a scalar has no axes to count
        axes = tuple(sorted(a - rank if a >= 0 else a for a in axes)) if axes else tuple(range(-rank, 0))
        if dtype in REAL and op in ("ReduceSumSquare", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"):
            inner = make(terms, "Exp", [x], {}) if op == "ReduceLogSumExp" else x
            if op in ("ReduceSumSquare", "ReduceL2"):
                inner = make(terms, "Pow", [x, terms.number(2, dtype)], {})
            total = make(terms, "ReduceSum", [inner], {"axes": axes})
            last = {"ReduceL2": "Sqrt", "ReduceLogSum": "Log", "ReduceLogSumExp": "Log"}.get(op)
            result = total if last is None else make(terms, last, [total], {})
            return result if attrs.get("keepdims", 1) or shape is None else reshape(terms, result, shape)
        kept = tuple(1 if i - rank in axes else d for i, d in enumerate(x.shape))
        base, factor = hoisted(x)
        if op == "ReduceMax" and axes[0] > -3 and leading_merge(base) is not None and is_scores(base.args[0]):
            inner = make(terms, op, [scaled(terms, unmerge(terms, base), factor)], {"axes": axes})
            return make(terms, "Reshape", [inner], {}, kept if attrs.get("keepdims", 1) else shape, dtype)
        inner = terms.raw(op, args, (("axes", axes),), shape=kept, dtype=dtype)
        if x.constant:
            inner = fold(terms, op, args, {"axes": axes}, kept, dtype) or inner
        return inner if attrs.get("keepdims", 1) or shape is None else reshape(terms, inner, shape)

    return reduced


@form("GlobalAveragePool")
def _global_average_pool(
    terms: Terms, args: list[Term], attrs: Attributes, shape: Shape | None, dtype: int
) -> Term | None:
    rank = args[0].rank
    if rank is None or rank < 3:
        return None
    return make(terms, "ReduceMean", args, {"axes": tuple(range(2 - rank, 0)), "keepdims": 1})


def _normalization(op: str) -> Form:
    """Over the last axis, with a scale and a shift along it: a merge of the other axes floats up."""
    counted = from_the_end(op, -1)

    def normalized(terms: Terms, args: list[Term], attrs: Attributes, shape: Shape | None, dtype: int) -> Term | None:
        x, *rest = args
        blocks = merged_blocks(x)
        if x.shape is not None and blocks is not None and attrs.get("axis", -1) in (-1, len(x.shape) - 1):
            i0, i1, _, _ = blocks[-1]
            if i1 - i0 == 1 and all(a.op == "Absent" or a.rank == 1 for a in rest):
                return reshape(terms, make(terms, op, [x.args[0], *rest], dict(attrs) | {"axis": -1}), x.shape)
        return counted(terms, args, attrs, shape, dtype)

    return normalized


form("LogSoftmax")(from_the_end("LogSoftmax", -1))
for _op in ("LayerNormalization", "RMSNormalization"):
    form(_op)(_normalization(_op))
for _kind in ("Mean", "Sum", "Max", "Min", "Prod", "SumSquare", "L2", "L1", "LogSum", "LogSumExp"):
    form(f"Reduce{_kind}")(_reduce(f"Reduce{_kind}"))

# ------------------------------------------------------------------------------------------------ merges


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
        if op in NEUTRAL:
            return reshape(terms, combine(terms, op, lifted), shape)
        return reshape(terms, make(terms, op, lifted, {}), shape)
    return None


def _lift_rows(terms: Terms, operands: list[Term], shape: Shape | None) -> Term | None:
    """A sum of rows that were merged alike, and of biases along them, is a merge of the sum."""
    views = [hoisted(t)[0] for t in operands if same_shape(t.shape, shape)]
    if (
        shape is None
        or not views
        or not all(_merges_rows(v) and v.args[0].shape == views[0].args[0].shape for v in views)
    ):
        return None
    biases = [t for t in operands if not same_shape(t.shape, shape)]
    if not all(t.rank is not None and t.rank <= 1 and not is_number(t) for t in biases):
        return None
    inner = views[0].args[0].shape
    assert inner is not None
    rows = [reshape(terms, t, inner) for t in operands if same_shape(t.shape, shape)]
    return reshape(terms, combine(terms, "Add", [*rows, *biases]), shape) if len(operands) > 1 else None


def _merges_rows(term: Term) -> bool:
    """Is it a Reshape that merges some axes, and not the last?"""
    blocks = merged_blocks(term)
    if not blocks or term.args[0].shape is None or blocks[-1][1] - blocks[-1][0] != 1:
        return False
    return any(sum(d != 1 for d in term.args[0].shape[i0:i1]) > 1 for i0, i1, _, _ in blocks)


def is_scores(term: Term, depth: int = 6) -> bool:
    """Does a product of matrices lie below, with only score arithmetic in between?"""
    if term.op == "MatMul":
        return True
    return depth > 0 and term.op in SCORES and any(is_scores(a, depth - 1) for a in term.args)


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
