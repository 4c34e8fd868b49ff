"""Laws of reductions and normalizations: axes count from the end and stay, derived sums are sums, merges float up."""

from __future__ import annotations

from onnxfuse.model.schema import freeze
from onnxfuse.terms.term import Term

from .axes import merged_blocks
from .merges import is_scores, leading_merge, unmerge
from .table import Applied, fold, hoisted, law, make, scaled
from .views import reshape

REDUCTIONS = " ".join(
    f"Reduce{kind}" for kind in ("Mean", "Sum", "Max", "Min", "Prod", "SumSquare", "L2", "L1", "LogSum", "LogSumExp")
)


def _axes(a: Applied) -> tuple[int, ...] | None:
    """The axes of a reduction, negative and sorted; None where they are not known, or there are none."""
    rank, axes = a.args[0].rank, a.attrs.get("axes")
    if len(a.args) > 1 or not rank or (not axes and a.attrs.get("noop_with_empty_axes")):
        return None
    return tuple(sorted(i - rank if i >= 0 else i for i in axes)) if axes else tuple(range(-rank, 0))


def _kept(a: Applied, term: Term) -> Term:
    """A reduction that keeps its dims as one that keeps them or not, as was asked."""
    return term if a.attrs.get("keepdims", 1) or a.shape is None else reshape(a.terms, term, a.shape)


@law(
    "ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd ReduceLogSumExp",
    "f(x, axes=(), noop_with_empty_axes=1) = x",
)
def _along_no_axis(a: Applied) -> Term | None:
    """Of the others, it depends on the runtime whether squares or absolute values are taken then."""
    nothing = len(a.args) == 1 and not a.attrs.get("axes") and a.attrs.get("noop_with_empty_axes")
    return a.args[0] if nothing else None


@law("ReduceMean", "f(w, axes=(-1,), noop_with_empty_axes=1) = f(w, axes=(-1,))")
def _of_unknown_rank(a: Applied) -> Term | None:
    if len(a.args) > 1 or a.args[0].shape is not None or not a.attrs.get("axes"):
        return None
    return a.raw({k: v for k, v in a.attrs.items() if k != "noop_with_empty_axes"})


@law(
    "ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd",
    "f(ReduceSum(z, axes=(0, 1), keepdims=0), axes=()) = ReduceSum(z, axes=(0, 1), keepdims=0)",
)
def _of_one_element(a: Applied) -> Term | None:
    """A tensor without dims is its own sum."""
    return a.args[0] if a.args[0].rank == 0 and not a.attrs.get("axes") else None


@law("Sqrt Log", "f(squeeze(ReduceMean(x * x, axes=(3,)))) = squeeze(f(ReduceMean(x * x, axes=(3,))))")
def _of_squeezed(a: Applied) -> Term | None:
    """What is computed of a reduction is computed before its dims of 1 go."""
    x = a.args[0]
    if x.op != "Reshape" or len(x.args) > 1 or not x.args[0].op.startswith("Reduce") or a.shape is None:
        return None
    return reshape(a.terms, make(a.terms, a.op, [x.args[0]], {}), a.shape)


def _derived(a: Applied, inner: str, last: str) -> Term | None:
    """last(ReduceSum(inner(x)))."""
    axes, x = _axes(a), a.args[0]
    if axes is None or not a.real:
        return None
    if inner:
        x = make(a.terms, inner, [x, a.number(2)] if inner == "Pow" else [x], {})
    total = make(a.terms, "ReduceSum", [x], {"axes": axes})
    return _kept(a, make(a.terms, last, [total], {}) if last else total)


@law("ReduceSumSquare", "ReduceSumSquare(x, axes=(1,)) = ReduceSum(x * x, axes=(1,))")
def _sum_of_squares(a: Applied) -> Term | None:
    return _derived(a, "Pow", "")


@law("ReduceL2", "ReduceL2(x, axes=(1,)) = Sqrt(ReduceSum(x * x, axes=(1,)))")
def _length(a: Applied) -> Term | None:
    return _derived(a, "Pow", "Sqrt")


@law("ReduceLogSum", "ReduceLogSum(x, axes=(1,)) = Log(ReduceSum(x, axes=(1,))) if x > 0")
def _log_of_sum(a: Applied) -> Term | None:
    return _derived(a, "", "Log")


@law("ReduceLogSumExp", "ReduceLogSumExp(x, axes=(1,)) = Log(ReduceSum(Exp(x), axes=(1,)))")
def _log_of_sum_of_exponentials(a: Applied) -> Term | None:
    """Not of what is constant, whose exponentials may be infinite where the logarithm is not."""
    return None if a.args[0].constant else _derived(a, "Exp", "Log")


@law("ReduceMax", "ReduceMax(merge(MatMul(x, y)), axes=(-1,)) = merge(ReduceMax(MatMul(x, y), axes=(-1,)))")
def _largest_score(a: Applied) -> Term | None:
    axes, (base, factor) = _axes(a), hoisted(a.args[0])
    if axes is None or axes[0] <= -3 or leading_merge(base) is None or not is_scores(base.args[0]):
        return None
    inner = make(a.terms, "ReduceMax", [scaled(a.terms, unmerge(a.terms, base), factor)], {"axes": axes})
    shape = tuple(1 if i - len(base.shape or ()) in axes else d for i, d in enumerate(base.shape or ()))
    return make(a.terms, "Reshape", [inner], {}, shape if a.attrs.get("keepdims", 1) else a.shape, a.dtype)


@law("ReduceSum", "ReduceSum(merge(x), axes=(0,)) = Reshape(ReduceSum(x, axes=(0, 1)), (1, 4, 4))")
def _of_summed_rows(a: Applied) -> Term | None:
    """Axes that were merged into one over which is summed, as those of a linear layer's rows are for its bias."""
    axes, x = _axes(a), a.args[0]
    blocks = merged_blocks(x) if axes is not None and a.real else None
    if axes is None or blocks is None or x.rank is None or x.args[0].rank is None:
        return None
    first, *others = blocks
    if first[1] - first[0] == 1 or -x.rank not in axes or any(i1 - i0 != 1 for i0, i1, _, _ in others):
        return None
    each = (*range(first[1]), *(i0 for i0, _, j, _ in others if j - x.rank in axes))
    inner = make(a.terms, "ReduceSum", [x.args[0]], {"axes": each, "keepdims": 1})
    return _kept(a, reshape(a.terms, inner, tuple(1 if j - x.rank in axes else d for j, d in enumerate(x.shape or ()))))


@law(REDUCTIONS, "f(x, axes=(3,), keepdims=0) = squeeze(f(x, axes=(-1,)))")
def _axes_from_the_end(a: Applied) -> Term | None:
    axes, x = _axes(a), a.args[0]
    if axes is None or x.shape is None:
        return None
    shape = tuple(1 if i - len(x.shape) in axes else d for i, d in enumerate(x.shape))
    inner = a.terms.raw(a.op, a.args, (("axes", axes),), shape=shape, dtype=a.dtype)
    if x.constant:
        inner = fold(a.terms, a.op, a.args, {"axes": axes}, shape, a.dtype) or inner
    return _kept(a, inner)


@law("GlobalAveragePool", "GlobalAveragePool(x) = ReduceMean(x, axes=(-2, -1))")
def _global_average_pool(a: Applied) -> Term | None:
    rank = a.args[0].rank
    if rank is None or rank < 3:
        return None
    return make(a.terms, "ReduceMean", a.args, {"axes": tuple(range(2 - rank, 0)), "keepdims": 1})


@law("LayerNormalization RMSNormalization", "f(merge(x), ones) = merge(f(x, ones))")
def _of_merged_rows(a: Applied) -> Term | None:
    """Over the last axis, with a scale and a shift along it: a merge of the other axes floats up."""
    x, *rest = a.args
    blocks = merged_blocks(x)
    if x.shape is None or blocks is None or a.attrs.get("axis", -1) not in (-1, len(x.shape) - 1):
        return None
    if blocks[-1][1] - blocks[-1][0] != 1 or not all(b.op == "Absent" or b.rank == 1 for b in rest):
        return None
    return reshape(a.terms, make(a.terms, a.op, [x.args[0], *rest], dict(a.attrs) | {"axis": -1}), x.shape)


@law(
    "LayerNormalization RMSNormalization",
    "f(Reshape(x, (6, 1, 4, 4)), Reshape(ReduceMean(u, axes=(0,)), (4, 4)), axis=-2)"
    " = f(Reshape(x, (6, 1, 4, 4)), ReduceMean(u, axes=(0,)), axis=-3)",
)
def _of_squeezed_scale(a: Applied) -> Term | None:
    """A scale that lost leading dims of 1 keeps them where the tensor has them, too.  Not where rows lie along the last
    axis, which most of what is fused with a normalization wants."""
    (x, *rest), axis = a.args, a.attrs.get("axis", -1)
    axis = axis - x.rank if x.rank is not None and axis >= 0 else axis
    lost = {_lost_ones(t) for t in rest if t.rank and not t.constant}
    ones = lost.pop() if len(lost) == 1 else 0
    if (
        not ones
        or x.shape is None
        or any(t.op != "Absent" and t.shape is None for t in rest)
        or x.shape[axis - ones : axis] != (1,) * ones
    ):
        return None
    if axis == -1 and any(d != 1 for d in x.shape[:-1]):
        return None
    wide = [t if not t.shape else reshape(a.terms, t, (1,) * ones + t.shape) if t.constant else t.args[0] for t in rest]
    return make(a.terms, a.op, [x, *wide], dict(a.attrs) | {"axis": axis - ones}, a.shape, a.dtype)


def _lost_ones(term: Term) -> int:
    """How many leading dims of 1 a view has taken away."""
    inner = term.args[0].shape if term.op == "Reshape" and len(term.args) == 1 else None
    if inner is None or term.shape is None:
        return 0
    lost = len(inner) - len(term.shape)
    return lost if lost > 0 and inner == (1,) * lost + term.shape else 0


@law("LogSoftmax", "LogSoftmax(merge(x)) = merge(LogSoftmax(x))")
def _of_viewed_rows(a: Applied) -> Term | None:
    """Rows that only lie in other axes: the view floats up."""
    x, axis = a.args[0], a.attrs.get("axis", -1)
    inner = x.args[0] if x.op == "Reshape" and len(x.args) == 1 else x
    if inner is x or not inner.shape or not x.shape or axis not in (-1, len(x.shape) - 1):
        return None
    return reshape(a.terms, make(a.terms, a.op, [inner], {}), x.shape) if inner.shape[-1] == x.shape[-1] else None


@law("LogSoftmax", "LogSoftmax(x, axis=3) = LogSoftmax(x)")
@law("LayerNormalization RMSNormalization", "f(x, ones, axis=3) = f(x, ones)")
def axis_from_the_end(a: Applied) -> Term:
    """The axis counts from the end, so that rules need not know a rank; the last is left out."""
    attrs = dict(a.attrs)
    axis, rank = attrs.pop("axis", -1), a.args[0].rank
    axis = axis - rank if rank is not None and axis >= 0 else axis
    if axis != -1:
        attrs["axis"] = axis
    return a.terms.raw(a.op, a.args, freeze(attrs), shape=a.shape, dtype=a.dtype)
