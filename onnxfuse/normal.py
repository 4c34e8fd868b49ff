"""The normal form of terms: one spelling for each expression, up to the algebra of real numbers and of views.

    algebra   a - b is a + (-1)b, a / b is a * Reciprocal(b), powers are products; sums and products are flat, their
              constants collected; a scalar factor leaves MatMul, Reshape, Transpose, Expand and Slice
    views     Squeeze, Unsqueeze, Flatten and Reshape are one Reshape; adjacent views compose and cancel; a repeated
              head is Repeat(x, axis, n); a merge of leading axes floats up through MatMul, + and Softmax

The order from the outside in is fixed, so that rewriting ends: scalar, merge, Repeat and Expand, unsqueeze, Slice,
Transpose.  Views, and what depends on shapes, belong here; what an op means belongs into a rule.  STUDY: each part was
kept because real exports need it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from onnx import TensorProto

from .canonical import freeze
from .infer import infer, normal_axis
from .shape_data import END, position, slice_bounds, slice_length
from .symbolic import Dim, Shape, Sym, broadcast, exact, product
from .terms import FOLDABLE, REAL, SMALL, Term, Terms, is_number, same_shape, static, value_of

NEUTRAL = {"Add": 0.0, "Mul": 1.0}
SCORE_OPS = frozenset("Mul Add Softmax SafeSoftmax Where Tanh Reshape IsNaN".split())
VIEWS = frozenset({"Reshape", "Transpose", "Slice", "Expand", "Repeat"})


def make(
    terms: Terms, op: str, args: Sequence[Term], attrs: Mapping[str, Any], shape: Shape | None = None, dtype: int = 0
) -> Term:
    """The normal form of one op; `shape` and `dtype` are inferred where not given."""
    arguments = list(args)
    if not dtype:
        shape, dtype = infer(terms, op, arguments, attrs)[0]
    rule = _FORMS.get(op)
    if rule is not None:
        term = rule(terms, arguments, attrs, shape, dtype)
        if term is not None:
            return term
    if op in FOLDABLE and arguments and all(a.constant for a in arguments):
        folded = fold(terms, op, arguments, attrs, shape, dtype)
        if folded is not None:
            return folded
    return terms.raw(op, arguments, freeze(dict(attrs)), shape=shape, dtype=dtype)


def fold(
    terms: Terms, op: str, args: list[Term], attrs: Mapping[str, Any], shape: Shape | None, dtype: int
) -> Term | None:
    """The constant that an op over constants computes, or None where it is large (folded when it is written)."""
    size = product(shape) if shape is not None else None
    if not isinstance(size, int) or size > SMALL or any(_large(a) for a in args):
        return None
    term = terms.raw(op, args, freeze(dict(attrs)), shape=shape, dtype=dtype)
    try:
        return terms.constant(value_of(term), dtype)
    except (ValueError, KeyError, IndexError):
        return None


def _large(term: Term) -> bool:
    dims = static(term.shape)
    return term.op != "Absent" and (dims is None or int(np.prod(dims)) > SMALL)


# ------------------------------------------------------------------------------------------------ algebra


def scaled(terms: Terms, term: Term, factor: float) -> Term:
    return term if factor == 1 else combine(terms, "Mul", [term, terms.number(factor, term.dtype)])


def combine(terms: Terms, op: str, args: Sequence[Term]) -> Term:
    """A flat sum (Add) or product (Mul) of real terms: constants collected, operands in a fixed order."""
    shapes = [a.shape for a in args]
    shape = None if None in shapes else broadcast(*[s for s in shapes if s is not None])
    dtype, number, operands = args[0].dtype, NEUTRAL[op], list[Term]()
    for arg in args:
        for operand in arg.args if arg.op == op and arg.id not in terms.shared else (arg,):
            if is_number(operand) and _never_widens(operand, args):
                assert operand.scalar is not None
                number = number + operand.scalar if op == "Add" else number * operand.scalar
            else:
                operands.append(operand)
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
    lifted = _lift_merge(terms, op, operands, shape)
    if lifted is not None:
        return lifted
    operands.sort(key=lambda t: (is_number(t), t.id))
    if all(a.constant for a in operands):
        folded = fold(terms, op, operands, {}, shape, dtype)
        if folded is not None:
            return folded
    return terms.raw(op, operands, shape=shape, dtype=dtype)


def _one_factor(terms: Terms, operands: list[Term], dtype: int) -> list[Term]:
    """Constant factors multiplied together, where that makes no larger constant.

    Not so for sums: two masks of finfo.min would add up to -inf."""
    constants = [t for t in operands if t.constant and t.shape is not None]
    if len(constants) < 2 or len(constants) == len(operands):
        return operands
    shape = broadcast(*[t.shape for t in constants if t.shape is not None])
    if all(t.shape != shape for t in constants):
        return operands
    product_ = fold(terms, "Mul", constants, {}, shape, dtype) or terms.raw("Mul", constants, shape=shape, dtype=dtype)
    return [t for t in operands if t not in constants] + [product_]


def _never_widens(number: Term, args: Sequence[Term]) -> bool:
    """May a one-element constant lose its shape, because another operand has at least its rank?"""
    rank = number.rank
    return not rank or any(a is not number and a.rank is not None and a.rank >= rank for a in args)


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
            continue
        for j, divisor in enumerate(operands):
            if divisor.op == "Reciprocal" and divisor.args[0].op == "Cast":
                data = divisor.args[0].args[0].data
                if data is not None and data.size == 1 and data.item() == count:
                    operands[i] = make(terms, "ReduceMean", term.args, dict(term.attrs))
                    del operands[j]
                    return number
    return number


def split_scalar(term: Term) -> tuple[Term, float] | None:
    """(x, c) of a product of exactly one term and a number: opening longer ones would steal the 0.5 of a GELU."""
    if term.op == "Mul" and len(term.args) == 2 and is_number(term.args[1]):
        assert term.args[1].scalar is not None
        if same_shape(term.args[0].shape, term.shape) or (term.shape is None and not term.args[1].rank):
            return term.args[0], term.args[1].scalar
    return None


def _hoist(term: Term) -> tuple[Term, float]:
    return split_scalar(term) or (term, 1.0)


def _subtract(terms: Terms, args: list[Term], attrs: Any, shape: Shape | None, dtype: int) -> Term | None:
    if dtype not in REAL:
        return None
    return combine(terms, "Add", [args[0], combine(terms, "Mul", [args[1], terms.number(-1, dtype)])])


def _divide(terms: Terms, args: list[Term], attrs: Any, shape: Shape | None, dtype: int) -> Term | None:
    if dtype not in REAL:
        return None
    return combine(terms, "Mul", [args[0], make(terms, "Reciprocal", [args[1]], {}, args[1].shape, dtype)])


def _reciprocal(terms: Terms, args: list[Term], attrs: Any, shape: Shape | None, dtype: int) -> Term | None:
    x = args[0]
    if x.scalar is not None:
        return terms.number(1 / x.scalar, dtype, x.rank or 0) if x.scalar else None
    if x.op == "Reciprocal":
        return x.args[0]
    split = split_scalar(x)
    if split is not None and split[1]:
        return scaled(terms, make(terms, "Reciprocal", [split[0]], {}, shape, dtype), 1 / split[1])
    return None


def _square_root(terms: Terms, args: list[Term], attrs: Any, shape: Shape | None, dtype: int) -> Term | None:
    x = args[0]
    if x.op == "Reciprocal":
        return make(terms, "Reciprocal", [make(terms, "Sqrt", [x.args[0]], {}, shape, dtype)], {}, shape, dtype)
    return None


def _power(terms: Terms, args: list[Term], attrs: Any, shape: Shape | None, dtype: int) -> Term | None:
    x, exponent = args
    if dtype not in REAL or exponent.scalar is None or (shape != x.shape):
        return None
    e = exponent.scalar
    if e == 1:
        return x
    if e in (2, 3, 4):
        if x.op == "Mul":
            terms.shared.add(x.id)  # (a*b)**2 stays a square
        return combine(terms, "Mul", [x] * int(e))
    if e == 0.5:
        return make(terms, "Sqrt", [x], {}, shape, dtype)
    if e in (-0.5, -1, -2):
        power = make(terms, "Pow", [x, terms.number(-e, dtype)], {}, shape, dtype)
        return make(terms, "Reciprocal", [power], {}, shape, dtype)
    return None


def _sum(terms: Terms, args: list[Term], attrs: Any, shape: Shape | None, dtype: int) -> Term | None:
    return combine(terms, "Add", args) if dtype in REAL else None


def _product(terms: Terms, args: list[Term], attrs: Any, shape: Shape | None, dtype: int) -> Term | None:
    return combine(terms, "Mul", args) if dtype in REAL else None


def _negate(terms: Terms, args: list[Term], attrs: Any, shape: Shape | None, dtype: int) -> Term | None:
    return scaled(terms, args[0], -1) if dtype in REAL else None


def _cast(terms: Terms, args: list[Term], attrs: Mapping[str, Any], shape: Shape | None, dtype: int) -> Term | None:
    x = args[0]
    if x.dtype == dtype or (x.dtype in REAL and dtype in REAL and not x.constant):
        return x
    if x.dtype in REAL and dtype in REAL and x.scalar is not None:
        return terms.number(float(np.float64(x.scalar).astype(_numpy(dtype))), dtype, x.rank or 0)
    return x if x.constant and x.dtype in REAL and dtype in REAL else None


def _numpy(dtype: int) -> Any:
    from .terms import numpy_dtype

    return numpy_dtype(dtype)


def _maximum(terms: Terms, args: list[Term], attrs: Any, shape: Shape | None, dtype: int) -> Term | None:
    if len(args) == 2:
        for x, zero in (args, args[::-1]):
            if zero.scalar == 0 and same_shape(x.shape, shape):
                return make(terms, "Relu", [x], {}, shape, dtype)
    return None


def _clip(terms: Terms, args: list[Term], attrs: Any, shape: Shape | None, dtype: int) -> Term | None:
    low = args[1] if len(args) > 1 and args[1].op != "Absent" else None
    high = args[2] if len(args) > 2 and args[2].op != "Absent" else None
    if low is not None and low.scalar == 0 and (high is None or (high.scalar or 0) >= 3e38):
        return make(terms, "Relu", [args[0]], {}, shape, dtype)
    return None


def _where(terms: Terms, args: list[Term], attrs: Any, shape: Shape | None, dtype: int) -> Term | None:
    condition, x, y = args
    if condition.op == "Not":
        return make(terms, "Where", [condition.args[0], y, x], {}, shape, dtype)
    if condition.op == "Constant" and condition.data is not None and condition.data.size:
        if all(condition.data.ravel()) and same_shape(x.shape, shape):
            return x
        if not any(condition.data.ravel()) and same_shape(y.shape, shape):
            return y
    return _lift_merge(terms, "Where", args, shape)


def _elementwise(op: str) -> Callable[[Terms, list[Term], Any, Shape | None, int], Term | None]:
    def lifted(terms: Terms, args: list[Term], attrs: Any, shape: Shape | None, dtype: int) -> Term | None:
        return _lift_merge(terms, op, args, args[0].shape)

    return lifted


def _flip(other: str) -> Callable[[Terms, list[Term], Any, Shape | None, int], Term | None]:
    def flipped(terms: Terms, args: list[Term], attrs: Any, shape: Shape | None, dtype: int) -> Term | None:
        return make(terms, other, args[::-1], {}, shape, dtype)

    return flipped


def _not(terms: Terms, args: list[Term], attrs: Any, shape: Shape | None, dtype: int) -> Term | None:
    return args[0].args[0] if args[0].op == "Not" else None


def _commutative(op: str) -> Callable[[Terms, list[Term], Any, Shape | None, int], Term | None]:
    def ordered(terms: Terms, args: list[Term], attrs: Any, shape: Shape | None, dtype: int) -> Term | None:
        if op in ("And", "Or") and len(args) == 2:
            for x, c in (args, args[::-1]):
                if c.data is not None and c.data.size and c.op == "Constant" and same_shape(x.shape, shape):
                    truth = [bool(b) for b in c.data.ravel()]
                    if (op == "And" and all(truth)) or (op == "Or" and not any(truth)):
                        return x
        if args == sorted(args, key=lambda t: t.id):
            return None
        return make(terms, op, sorted(args, key=lambda t: t.id), attrs, shape, dtype)

    return ordered


def _matmul(terms: Terms, args: list[Term], attrs: Any, shape: Shape | None, dtype: int) -> Term | None:
    if dtype not in REAL:
        return None
    (x, c), (y, d) = _hoist(args[0]), _hoist(args[1])
    if c * d != 1:
        return scaled(terms, make(terms, "MatMul", [x, y], {}, shape, dtype), c * d)
    if x.shape is None or y.shape is None or shape is None:
        return None
    lead_x, lead_y = leading_merge(x), leading_merge(y)
    if lead_x is not None and lead_x == lead_y:
        inner = make(terms, "MatMul", [unmerge(terms, x), unmerge(terms, y)], {})
        return reshape(terms, inner, shape)
    if len(y.shape) == 2 and x.op == "Reshape" and len(x.shape) >= 2:
        blocks = merged_blocks(x)
        if blocks is not None and blocks[-1][1] - blocks[-1][0] == 1:
            return reshape(terms, make(terms, "MatMul", [x.args[0], y], {}), shape)
    return None


def _gemm(terms: Terms, args: list[Term], attrs: Mapping[str, Any], shape: Shape | None, dtype: int) -> Term | None:
    if dtype not in REAL or any(a.rank not in (None, 2) for a in args[:2]):
        return None
    x, y = (
        make(terms, "Transpose", [a], {"perm": (1, 0)}) if attrs.get(flag) else a
        for a, flag in zip(args, ("transA", "transB"), strict=False)
    )
    result = scaled(terms, make(terms, "MatMul", [x, y], {}, shape, dtype), attrs.get("alpha", 1.0))
    if len(args) > 2 and args[2].op != "Absent":
        result = combine(terms, "Add", [result, scaled(terms, args[2], attrs.get("beta", 1.0))])
    return result


def _softmax(terms: Terms, args: list[Term], attrs: Mapping[str, Any], shape: Shape | None, dtype: int) -> Term | None:
    x, factor = _hoist(args[0])
    if x.shape is not None and attrs.get("axis", -1) in (-1, len(x.shape) - 1) and leading_merge(x) is not None:
        return reshape(terms, make(terms, "Softmax", [scaled(terms, unmerge(terms, x), factor)], {}), x.shape)
    return _from_the_end("Softmax", -1)(terms, args, attrs, shape, dtype)


def _from_the_end(op: str, default: int) -> Callable[[Terms, list[Term], Any, Shape | None, int], Term | None]:
    """Axes count from the end, so that rules need not know a rank; the default is left out."""

    def negative(terms: Terms, args: list[Term], attrs: Any, shape: Shape | None, dtype: int) -> Term | None:
        attrs = dict(attrs)
        axis, rank = attrs.pop("axis", default), args[0].rank
        axis = axis - rank if rank is not None and axis >= 0 else axis
        if axis != default:
            attrs["axis"] = axis
        return terms.raw(op, args, freeze(attrs), shape=shape, dtype=dtype)

    return negative


def _reduce(op: str) -> Callable[[Terms, list[Term], Any, Shape | None, int], Term | None]:
    """Negative sorted axes, dimensions kept; the derived reductions in terms of ReduceSum."""

    def reduced(terms: Terms, args: list[Term], attrs: Any, shape: Shape | None, dtype: int) -> Term | None:
        x = args[0]
        if len(args) > 1:  # axes that are not constant
            return None
        axes = attrs.get("axes")
        if not axes and attrs.get("noop_with_empty_axes"):
            return x
        if x.shape is None:
            return (
                None
                if op != "ReduceMean" or not axes
                else terms.raw(
                    op,
                    args,
                    freeze({k: v for k, v in attrs.items() if k != "noop_with_empty_axes"}),
                    shape=shape,
                    dtype=dtype,
                )
            )
        rank = len(x.shape)
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
        inner = terms.raw(op, args, (("axes", axes),), shape=kept, dtype=dtype)
        if x.constant:
            inner = fold(terms, op, args, {"axes": axes}, kept, dtype) or inner
        return inner if attrs.get("keepdims", 1) or shape is None else reshape(terms, inner, shape)

    return reduced


def _global_average_pool(terms: Terms, args: list[Term], attrs: Any, shape: Shape | None, dtype: int) -> Term | None:
    rank = args[0].rank
    if rank is None or rank < 3:
        return None
    return make(terms, "ReduceMean", args, {"axes": tuple(range(2 - rank, 0)), "keepdims": 1})


# ------------------------------------------------------------------------------------------------ views


def blocks_of(a: Shape, b: Shape) -> list[tuple[int, int, int, int]] | None:
    """Align two shapes of equal size into minimal blocks of equal products: (a from, a to, b from, b to)."""
    i = j = 0
    result = []
    while i < len(a) or j < len(b):
        first_i, first_j = i, j
        p: Dim = 1
        q: Dim = 1
        if i < len(a):
            p, i = a[i], i + 1
        if j < len(b):
            q, j = b[j], j + 1
        while p != q:
            if i < len(a) and (exact(q, p) is not None or j == len(b)):
                p, i = p * a[i], i + 1
            elif j < len(b):
                q, j = q * b[j], j + 1
            elif i < len(a):
                p, i = p * a[i], i + 1
            else:
                return None
        result.append((first_i, i, first_j, j))
    return result


def merged_blocks(term: Term) -> list[tuple[int, int, int, int]] | None:
    """The blocks of a Reshape that only merges: each new dimension comes from one or more old ones."""
    if term.op != "Reshape" or term.args[0].shape is None or term.shape is None or len(term.args) > 1:
        return None
    blocks = blocks_of(term.args[0].shape, term.shape)
    if blocks is None or any(j1 - j0 != 1 or i1 == i0 for i0, i1, j0, j1 in blocks):
        return None
    return blocks


def leading_merge(term: Term) -> Shape | None:
    """The leading dims before a Reshape that merges some of them and keeps the last two, else None."""
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
    return source[: lead[-1][1]]


def unmerge(terms: Terms, term: Term) -> Term:
    """The term below a leading merge, with its last two dims as they are above it."""
    lead = leading_merge(term)
    assert lead is not None
    assert term.shape is not None
    return reshape(terms, term.args[0], lead + term.shape[-2:])


def _lift_merge(terms: Terms, op: str, operands: list[Term], shape: Shape | None) -> Term | None:
    """op(merge(x), y, ...) as merge(op(x, unmerge(y), ...)) for an elementwise op over attention scores in rank 3."""
    if shape is None or (op in NEUTRAL and sum(not is_number(t) for t in operands) < 2):
        return None
    for operand in operands:
        term, _ = _hoist(operand)
        if term.op != "Reshape" or not same_shape(term.shape, shape):
            continue
        if leading_merge(term) is None or not _is_scores(term.args[0]):
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


def _is_scores(term: Term, depth: int = 6) -> bool:
    """Does a product of matrices lie below, with only score arithmetic in between?"""
    if term.op == "MatMul":
        return True
    return depth > 0 and term.op in SCORE_OPS and any(_is_scores(a, depth - 1) for a in term.args)


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


def _unmerged_shape(
    shape: Shape | None, inner: Shape, outer: Shape, blocks: list[tuple[int, int, int, int]] | None
) -> Shape | None:
    if shape is None or blocks is None or len(shape) != len(outer):
        return None
    result: list[Dim] = []
    for i0, i1, j0, _ in blocks:
        if shape[j0] == outer[j0]:
            result += inner[i0:i1]
        elif shape[j0] == 1:
            result += [1] * (i1 - i0)
        else:
            return None
    return tuple(result)


def reshape(terms: Terms, x: Term, shape: Shape) -> Term:
    """x in another shape of equal size."""
    if same_shape(x.shape, shape):
        return x
    if x.op == "Reshape" and len(x.args) == 1:
        return reshape(terms, x.args[0], shape)
    x, factor = _hoist(x)
    if factor != 1:
        return scaled(terms, reshape(terms, x, shape), factor)
    if x.op == "Expand":
        repeated = _merge_expand(terms, x, shape)
        if repeated is not None:
            return repeated
    if x.op == "Repeat" and x.shape is not None:
        axis, n = x.attr("axis"), x.attr("n")
        for i0, i1, j0, j1 in blocks_of(x.shape, shape) or []:
            inner = exact(shape[j1 - 1], n) if i1 - i0 == 1 and i0 == axis and j1 > j0 else None
            if inner is not None:
                target = (*shape[: j1 - 1], inner, *shape[j1:])
                return repeat(terms, reshape(terms, x.args[0], target), j1 - 1, n)
    attrs = {"shape": tuple(shape)}
    if x.constant:
        folded = fold(terms, "Reshape", [x], attrs, shape, x.dtype)
        if folded is not None:
            return folded
    return terms.raw("Reshape", [x], freeze(attrs), shape=shape, dtype=x.dtype)


def _merge_expand(terms: Terms, x: Term, shape: Shape) -> Term | None:
    """merge([.., h, expanded n, ..]) as Repeat(.., axis of h, n): how grouped-query attention repeats its heads."""
    source = x.args[0]
    if source.shape is None or x.shape is None or len(source.shape) != len(x.shape):
        return None
    expanded = [i for i, (p, q) in enumerate(zip(source.shape, x.shape, strict=True)) if p == 1 and q != 1]
    blocks = blocks_of(x.shape, shape)
    if len(expanded) != 1 or blocks is None or any(j1 - j0 != 1 for _, _, j0, j1 in blocks):
        return None
    for i0, i1, j0, _ in blocks:
        if i0 < expanded[0] == i1 - 1:
            base = reshape(terms, source, tuple(product(source.shape[a:b]) for a, b, _, _ in blocks))
            return repeat(terms, base, j0, x.shape[expanded[0]])
    return None


def repeat(terms: Terms, x: Term, axis: int, n: Dim) -> Term:
    """Each slice along `axis` n times in a row (numpy.repeat)."""
    if n == 1:
        return x
    shape = None if x.shape is None else (*x.shape[:axis], x.shape[axis] * n, *x.shape[axis + 1 :])
    return terms.raw("Repeat", [x], (("axis", axis), ("n", n)), shape=shape, dtype=x.dtype)


def transpose(terms: Terms, x: Term, perm: Sequence[int]) -> Term:
    """x with its axes permuted."""
    perm = tuple(perm)
    if perm == tuple(range(len(perm))):
        return x
    if x.op == "Transpose":
        return transpose(terms, x.args[0], [x.attr("perm")[i] for i in perm])
    x, factor = _hoist(x)
    if factor != 1:
        return scaled(terms, transpose(terms, x, perm), factor)
    shape = None if x.shape is None else tuple(x.shape[i] for i in perm)
    if x.shape is not None and shape is not None:
        moved = _transpose_view(terms, x, x.shape, perm, shape)
        if moved is not None:
            return moved
    if x.constant:
        folded = fold(terms, "Transpose", [x], {"perm": perm}, shape, x.dtype)
        if folded is not None:
            return folded
    return terms.raw("Transpose", [x], (("perm", perm),), shape=shape, dtype=x.dtype)


def _transpose_view(terms: Terms, x: Term, old: Shape, perm: tuple[int, ...], shape: Shape) -> Term | None:
    """Transpose moves inside the views it commutes with."""
    kept = [i for i in perm if old[i] != 1]
    if kept == sorted(kept) and x.op != "Slice":
        return reshape(terms, x, shape)  # only dims of 1 move
    if x.op == "Reshape" and len(x.args) == 1:
        y = x.args[0]
        blocks = merged_blocks(x)
        if blocks is not None:
            by_axis = {j0: (i0, i1) for i0, i1, j0, _ in blocks}
            return reshape(terms, transpose(terms, y, [i for j in perm for i in range(*by_axis[j])]), shape)
        if y.shape is not None and 1 not in y.shape and tuple(d for d in old if d != 1) == y.shape:
            source = {d: k for k, d in enumerate(i for i, d in enumerate(old) if d != 1)}
            return reshape(terms, transpose(terms, y, [source[i] for i in perm if i in source]), shape)
    if x.op == "Expand" and x.args[0].rank == len(old):
        return expand(terms, transpose(terms, x.args[0], perm), shape)
    if x.op == "Repeat":
        return repeat(terms, transpose(terms, x.args[0], perm), perm.index(x.attr("axis")), x.attr("n"))
    if x.op == "Slice" and len(x.args) == 1:
        inner = transpose(terms, x.args[0], perm)
        return slice_axis(terms, inner, perm.index(x.attr("axis")), x.attr("start"), x.attr("stop"), x.attr("step"))
    return None


def expand(terms: Terms, x: Term, shape: Shape) -> Term:
    """x broadcast to `shape`."""
    if same_shape(x.shape, shape):
        return x
    x, factor = _hoist(x)
    if factor != 1:
        return scaled(terms, expand(terms, x, shape), factor)
    if x.constant:
        folded = fold(terms, "Expand", [x], {"shape": shape}, shape, x.dtype)
        if folded is not None:
            return folded
    return terms.raw("Expand", [x], (("shape", shape),), shape=shape, dtype=x.dtype)


def slice_axis(terms: Terms, x: Term, axis: int, start: Dim, stop: Dim, step: int = 1) -> Term:
    """x[..., start:stop:step, ...] along one axis of a tensor of known rank."""
    x, factor = _hoist(x)
    if factor != 1:
        return scaled(terms, slice_axis(terms, x, axis, start, stop, step), factor)
    assert x.shape is not None
    dim = x.shape[axis]
    length = slice_length(terms, dim, start, stop, step)
    first = last = None
    if step > 0:
        first, last = position(start, dim), position(stop, dim)
        if step == 1 and first == 0 and last == dim:
            return x
        start, stop = start if first is None else first, stop if last is None else last
    if step == 1 and x.op == "Slice" and len(x.args) == 1 and x.attr("axis") == axis and x.attr("step") == 1:
        base = x.attr("start")
        if first is not None and last is not None and not isinstance(base, Sym):
            inner_stop = x.attr("stop")
            if isinstance(inner_stop, Sym) or not isinstance(last, int) or base + last <= inner_stop:
                return slice_axis(terms, x.args[0], axis, first + base, last + base)
    shape = (*x.shape[:axis], length, *x.shape[axis + 1 :])
    attrs = {"axis": axis, "start": start, "step": step, "stop": stop}
    if x.constant and not any(isinstance(b, Sym) for b in (start, stop)):
        folded = fold(terms, "Slice", [x], attrs, shape, x.dtype)
        if folded is not None:
            return folded
    return terms.raw("Slice", [x], freeze(attrs), shape=shape, dtype=x.dtype)


def _as_reshape(terms: Terms, args: list[Term], attrs: Any, shape: Shape | None, dtype: int) -> Term | None:
    if shape is None or args[0].shape is None:
        return None
    return reshape(terms, args[0], shape)


def _transpose(
    terms: Terms, args: list[Term], attrs: Mapping[str, Any], shape: Shape | None, dtype: int
) -> Term | None:
    rank = args[0].rank
    if rank is None and "perm" not in attrs:
        return None
    return transpose(terms, args[0], attrs.get("perm") or tuple(range(rank or 0))[::-1])


def _expand(terms: Terms, args: list[Term], attrs: Any, shape: Shape | None, dtype: int) -> Term | None:
    if shape is None or args[0].shape is None or (len(args) > 1 and args[1].data is None):
        return None
    return expand(terms, args[0], shape)


def _tile(terms: Terms, args: list[Term], attrs: Any, shape: Shape | None, dtype: int) -> Term | None:
    x, counts = args[0], args[1].data
    if shape is None or counts is None or x.shape is None:
        return None
    if same_shape(x.shape, shape):
        return x
    if all(n == 1 or d == 1 for n, d in zip(counts, x.shape, strict=True)):
        return expand(terms, x, shape)
    return None


def _slice(terms: Terms, args: list[Term], attrs: Any, shape: Shape | None, dtype: int) -> Term | None:
    x = args[0]
    if len(args) == 1 and x.shape is not None:  # canonical already
        return slice_axis(terms, x, attrs["axis"], attrs["start"], attrs["stop"], attrs["step"])
    bounds = slice_bounds(args) if x.shape is not None else None
    if bounds is None or x.shape is None:
        return None
    for axis, start, stop, step in bounds:
        if step < 0 and isinstance(stop, int) and stop <= -END:
            stop = -END
        x = slice_axis(terms, x, normal_axis(axis, len(args[0].shape or ())), start, stop, step)
    return x


def _gather(terms: Terms, args: list[Term], attrs: Mapping[str, Any], shape: Shape | None, dtype: int) -> Term | None:
    """A Gather of one index or of a run of indices is a Slice."""
    x, i = args
    if x.shape is None or shape is None or i.op != "Constant" or i.data is None or not i.data.size:
        return None
    axis = normal_axis(attrs.get("axis", 0), len(x.shape))
    dim = x.shape[axis]
    indices = [index + dim if index < 0 else index for index in i.data.ravel()]
    if i.data.ndim > 1 or any(b - a != 1 for a, b in pairwise(indices)):
        return None
    if isinstance(dim, int) and not all(0 <= n < dim for n in indices):
        return None
    part = slice_axis(terms, x, axis, indices[0], indices[-1] + 1)
    return reshape(terms, part, shape) if i.data.ndim == 0 else part


def _gather_nd(
    terms: Terms, args: list[Term], attrs: Mapping[str, Any], shape: Shape | None, dtype: int
) -> Term | None:
    x, i = args
    if x.shape is None or shape is None or attrs.get("batch_dims") or i.scalar is None or i.op != "Constant":
        return None
    index, dim = int(i.scalar), x.shape[0]
    if not isinstance(dim, int) or not -dim <= index < dim:
        return None
    index += dim if index < 0 else 0
    return reshape(terms, slice_axis(terms, x, 0, index, index + 1), shape)


def _concat(terms: Terms, args: list[Term], attrs: Mapping[str, Any], shape: Shape | None, dtype: int) -> Term | None:
    if shape is None:
        return None
    axis = normal_axis(attrs["axis"], len(shape))
    kept = [a for a in args if a.shape is None or product(a.shape) != 0] or args[:1]
    if len(kept) == 1:
        return kept[0]
    if len(kept) == len(args) and attrs["axis"] < 0:
        return None
    return make(terms, "Concat", kept, {"axis": axis - len(shape)}, shape, dtype)


def _full(terms: Terms, args: list[Term], attrs: Mapping[str, Any], shape: Shape | None, dtype: int) -> Term | None:
    if shape is None:
        return None
    value = attrs.get("value")
    filler = 0.0
    if value is not None:
        from onnx import numpy_helper

        filler = numpy_helper.to_array(TensorProto.FromString(value[1])).item()
    dims = static(shape)
    if dims is not None and int(np.prod(dims)) <= SMALL:
        return terms.constant(np.full(dims, filler, _numpy(dtype)), dtype)
    return expand(terms, terms.constant(np.full((1,) * len(shape), filler, _numpy(dtype)), dtype), shape)


def _pad(terms: Terms, args: list[Term], attrs: Any, shape: Shape | None, dtype: int) -> Term | None:
    pads = args[1].data if len(args) > 1 else None
    return args[0] if pads is not None and all(p == 0 for p in pads.ravel()) else None


def _identity(terms: Terms, args: list[Term], attrs: Any, shape: Shape | None, dtype: int) -> Term | None:
    return args[0]


def _dropout(terms: Terms, args: list[Term], attrs: Any, shape: Shape | None, dtype: int) -> Term | None:
    training = args[2] if len(args) > 2 else None
    return args[0] if training is None or training.op == "Absent" or training.scalar == 0 else None


_FORMS: dict[str, Callable[[Terms, list[Term], Any, Shape | None, int], Term | None]] = {
    "Add": _sum,
    "Sum": _sum,
    "Mul": _product,
    "Sub": _subtract,
    "Div": _divide,
    "Neg": _negate,
    "Reciprocal": _reciprocal,
    "Sqrt": _square_root,
    "Pow": _power,
    "Cast": _cast,
    "Max": _maximum,
    "Clip": _clip,
    "Where": _where,
    "Not": _not,
    "Tanh": _elementwise("Tanh"),
    "IsNaN": _elementwise("IsNaN"),
    "Less": _flip("Greater"),
    "LessOrEqual": _flip("GreaterOrEqual"),
    "And": _commutative("And"),
    "Or": _commutative("Or"),
    "Equal": _commutative("Equal"),
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Softmax": _softmax,
    "LogSoftmax": _from_the_end("LogSoftmax", -1),
    "LayerNormalization": _from_the_end("LayerNormalization", -1),
    "RMSNormalization": _from_the_end("RMSNormalization", -1),
    "GlobalAveragePool": _global_average_pool,
    "Identity": _identity,
    "Dropout": _dropout,
    "Reshape": _as_reshape,
    "Squeeze": _as_reshape,
    "Unsqueeze": _as_reshape,
    "Flatten": _as_reshape,
    "Transpose": _transpose,
    "Expand": _expand,
    "Tile": _tile,
    "Slice": _slice,
    "Gather": _gather,
    "GatherND": _gather_nd,
    "Concat": _concat,
    "ConstantOfShape": _full,
    "Pad": _pad,
    **{
        f"Reduce{kind}": _reduce(f"Reduce{kind}")
        for kind in ("Mean", "Sum", "Max", "Min", "Prod", "SumSquare", "L2", "L1", "LogSum", "LogSumExp")
    },
}


def rebuild(terms: Terms, term: Term, args: Sequence[Term]) -> Term:
    """The term with other arguments, in normal form again."""
    if all(a is b for a, b in zip(args, term.args, strict=True)):
        return term
    op, x = term.op, args[0]
    if op in VIEWS and len(args) == 1:
        if op == "Reshape" and term.shape is not None:
            return reshape(terms, x, term.shape)
        if op == "Transpose":
            return transpose(terms, x, term.attr("perm"))
        if op == "Expand" and term.shape is not None:
            return expand(terms, x, term.shape)
        if op == "Repeat":
            return repeat(terms, x, term.attr("axis"), term.attr("n"))
        if op == "Slice" and x.shape is not None:
            return slice_axis(terms, x, term.attr("axis"), term.attr("start"), term.attr("stop"), term.attr("step"))
    if op in NEUTRAL and term.dtype in REAL:
        result = combine(terms, op, args)
    else:
        result = make(terms, op, args, dict(term.attrs), term.shape, term.dtype)
    if term.id in terms.shared:
        terms.shared.add(result.id)
    return result
