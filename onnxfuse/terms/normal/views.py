"""Normal forms of views: what moves elements and computes nothing.

    one spelling    Squeeze, Unsqueeze, Flatten and Reshape are one Reshape; a Gather of one index or a run of them, and
                    GatherND of one index, are a Slice along one axis; a Tile of dims of 1 is an Expand
    composition     adjacent Reshapes are one, adjacent Transposes are one, adjacent Slices of an axis are one; a view
                    that changes nothing is gone
    order           from the outside in: scalar factor or Not, Repeat and Expand, Reshape, Slice, Transpose; a Transpose
                    moves inside what it commutes with
    dims of 1       come back inside: unsqueeze(f(squeeze a, squeeze b)) is f(a, b)
    products        (a @ b)^T is b^T @ a^T where that saves a Transpose
    repeated heads  merge([.., h, n expanded, ..]) is Repeat(x, axis, n): how grouped-query attention repeats its heads

Every constructor returns a term equal to what it is asked for; where a rank is unknown the op stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from onnxfuse.model.dims import END, Dim, Shape, Sym, exact, product
from onnxfuse.model.op_traits import ELEMENTWISE, SOFTMAX, VIEWS
from onnxfuse.model.schema import freeze
from onnxfuse.terms.infer_table import normal_axis
from onnxfuse.terms.shape_values import position, slice_bounds, slice_length
from onnxfuse.terms.term import Term, Terms, is_number, same_shape

from .axes import (
    below_views,
    blocks_of,
    in_order,
    kept_axis,
    merged_axes,
    merged_blocks,
    merged_rows,
    moves_ones,
    refinement,
    repeated_blocks,
    split_from,
    swapped,
)
from .table import Applied, fold, hoisted, law, make, scaled

Known: TypeAlias = dict[int, Term | None]
# ------------------------------------------------------------------------------------------------ constructors


def reshape(terms: Terms, x: Term, shape: Shape) -> Term:
    """x in another shape of equal size."""
    if same_shape(x.shape, shape):
        return x
    if x.op == "Reshape" and len(x.args) == 1:
        return reshape(terms, x.args[0], shape)
    x, factor = hoisted(x)
    if factor != 1:
        return scaled(terms, reshape(terms, x, shape), factor)
    if x.op == "Not":
        return make(terms, "Not", [reshape(terms, x.args[0], shape)], {})
    if x.op == "Expand":
        repeated = _of_constant(terms, x, shape) or _merge_expand(terms, x, shape)
        if repeated is not None:
            return repeated
    if x.op == "Repeat" and x.shape is not None:
        axis, n = x.attr("axis"), x.attr("n")
        for i0, i1, j0, j1 in blocks_of(x.shape, shape) or []:
            inner = exact(shape[j1 - 1], n) if i1 - i0 == 1 and i0 == axis and j1 > j0 else None
            if inner is not None:
                target = (*shape[: j1 - 1], inner, *shape[j1:])
                return repeat(terms, reshape(terms, x.args[0], target), j1 - 1, n)
    if x.op == "Slice" and (blocks := _of_blocks(terms, x, shape)) is not None:
        return blocks
    if x.shape is not None and len(shape) > len(x.shape) and x.op in ELEMENTWISE:
        regained = _regained(terms, x, shape)
        if regained is not None:
            return regained
    attrs = {"shape": tuple(shape)}
    if x.constant:
        folded = fold(terms, "Reshape", [x], attrs, shape, x.dtype)
        if folded is not None:
            return folded
    return terms.raw("Reshape", [x], freeze(attrs), shape=shape, dtype=x.dtype)


def _of_constant(terms: Terms, x: Term, shape: Shape) -> Term | None:
    """What repeats a constant does so in another shape."""
    core = x.args[0]
    if not core.constant or core.shape is None or x.shape is None or len(x.args) > 1:
        return None
    dims = repeated_blocks(core.shape, x.shape, shape)
    if dims is None or same_shape(dims[0], x.shape):
        return None
    return expand(terms, reshape(terms, expand(terms, core, dims[0]), dims[1]), shape)


def _of_blocks(terms: Terms, x: Term, shape: Shape) -> Term | None:
    """A Slice of blocks of an axis, seen as what the axis was split from: queries, keys and values of one product.

    One position of an axis may have been moved as well, if nothing else was; other axes may be merged then (Swin)."""
    y, axis, start, stop = x.args[0], x.attr("axis"), x.attr("start"), x.attr("stop")
    if len(x.args) > 1 or x.attr("step") != 1 or not all(isinstance(n, int) and n >= 0 for n in (start, stop)):
        return None
    single = (x.shape or ())[axis : axis + 1] == (1,)
    if single and y.op == "Reshape" and len(y.args) == 1 and y.args[0].op == "Transpose":
        under = kept_axis(y.args[0].shape, y.shape, axis)
        y, axis = (y, axis) if under is None else (y.args[0], under)
    if y.op == "Transpose" and single:
        perm, y, dims = y.attr("perm"), y.args[0], y.args[0].shape or ()
        axis = perm[axis]
        kept = [i for i in perm if i != axis and dims[i] != 1]
        if kept != sorted(kept):
            return None
    if y.op != "Reshape" or len(y.args) > 1 or y.shape is None:
        return None
    split = split_from(y.args[0].shape, y.shape, axis)
    part = None if split is None else slice_axis(terms, y.args[0], split[0], start * split[1], stop * split[1])
    if part is None or part.shape is None or same_shape(part.shape, shape):
        return part
    return reshape(terms, part, shape) if merged_rows(part.shape, shape) else None


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


def _regained(terms: Terms, x: Term, shape: Shape, depth: int = 10) -> Term | None:
    """x in this shape, if it was computed from values that all had it before they lost dims of 1: what a variance is
    whose sums were taken without keepdims."""
    if x.scalar is not None and not x.rank:
        return x
    if is_reshape(x):
        return x.args[0] if same_shape(x.args[0].shape, shape) else None
    if not depth or x.op not in ELEMENTWISE or not all(a.scalar is not None or a.shape == x.shape for a in x.args):
        return None
    args = list[Term]()
    for arg in x.args:
        found = _regained(terms, arg, shape, depth - 1)
        if found is None:
            return None
        args.append(found)
    return make(terms, x.op, args, dict(x.attrs))


def transpose(terms: Terms, x: Term, perm: Sequence[int]) -> Term:
    """x with its axes permuted."""
    perm = tuple(perm)
    if perm == tuple(range(len(perm))):
        return x
    if x.op == "Transpose":
        return transpose(terms, x.args[0], [x.attr("perm")[i] for i in perm])
    x, factor = hoisted(x)
    if factor != 1:
        return scaled(terms, transpose(terms, x, perm), factor)
    if x.op == "Not":
        return make(terms, "Not", [transpose(terms, x.args[0], perm)], {})
    shape = None if x.shape is None else tuple(x.shape[i] for i in perm)
    if x.shape is not None and shape is not None:
        moved = _transpose_view(terms, x, x.shape, perm, shape) or _untransposed(terms, x, perm, {})
        if moved is not None:
            return moved
    if x.constant:
        folded = fold(terms, "Transpose", [x], {"perm": perm}, shape, x.dtype)
        if folded is not None:
            return folded
    return terms.raw("Transpose", [x], (("perm", perm),), shape=shape, dtype=x.dtype)


def _transpose_view(terms: Terms, x: Term, old: Shape, perm: tuple[int, ...], shape: Shape) -> Term | None:
    """Transpose moves inside the views it commutes with."""
    if x.op == "MatMul" and perm == swapped(len(perm)):
        flipped = _transpose_product(terms, x, shape)
        if flipped is not None:
            return flipped
    if in_order(old, perm) and x.op != "Slice":
        return reshape(terms, x, shape)
    if x.op == "Reshape" and len(x.args) == 1:
        y = x.args[0]
        blocks = merged_blocks(x)
        if blocks is not None:
            by_axis = {j0: (i0, i1) for i0, i1, j0, _ in blocks}
            return reshape(terms, transpose(terms, y, [i for j in perm for i in range(*by_axis[j])]), shape)
        finer = refinement(y.shape, old) if y.shape is not None and blocks is None else None
        if finer is not None and finer not in (y.shape, old):  # [S,B,E] as [S,B*H,D] splits E, then merges B and H
            axes = merged_axes(finer, old)
            inner = transpose(terms, reshape(terms, y, finer), [i for j in perm for i in axes[j]])
            return reshape(terms, inner, shape)
        inner = reshape(terms, y, tuple(d for d in old if d != 1)) if 1 in old else x
        if y.shape is not None and inner is not x and (inner.shape == y.shape or merged_blocks(inner) is not None):
            source = {d: k for k, d in enumerate(i for i, d in enumerate(old) if d != 1)}
            return reshape(terms, transpose(terms, inner, [source[i] for i in perm if i in source]), shape)
    if x.op == "MatMul" and len(perm) > 2 and perm == (*range(len(perm) - 2), len(perm) - 1, len(perm) - 2):
        a, b = x.args
        scores = not any(t.constant or t.op in SOFTMAX for t in (a, b))
        if scores and a.rank == b.rank == len(perm):  # of keys by queries
            return make(terms, "MatMul", [transpose(terms, b, perm), transpose(terms, a, perm)], {}, shape, x.dtype)
    if x.op == "Expand" and x.args[0].rank == len(old):
        return expand(terms, transpose(terms, x.args[0], perm), shape)
    if x.op == "Repeat":
        return repeat(terms, transpose(terms, x.args[0], perm), perm.index(x.attr("axis")), x.attr("n"))
    if x.op == "Slice" and len(x.args) == 1:
        inner = transpose(terms, x.args[0], perm)
        return slice_axis(terms, inner, perm.index(x.attr("axis")), x.attr("start"), x.attr("stop"), x.attr("step"))
    return None


def _untransposed(terms: Terms, x: Term, perm: tuple[int, ...], known: Known, masked: bool = False) -> Term | None:
    """x with its axes permuted, if it is computed in few steps, element by element or row by row of products with a
    matrix, of Transposes that this undoes; if `masked`, of what has dims of 1 where those of others change, too."""
    if x.id not in known:
        known[x.id] = None
        known[x.id] = _permuted(terms, x, perm, known, masked) if len(known) < 64 else None
    return known[x.id]


def _permuted(terms: Terms, x: Term, perm: tuple[int, ...], known: Known, masked: bool) -> Term | None:
    if x.op == "Transpose":
        return inner if (inner := transpose(terms, x, perm)).op != "Transpose" else None
    if x.op == "Reshape" and x.args[0].op == "Transpose" and moves_ones(x):
        return inner if below_views(inner := transpose(terms, x, perm)).op != "Transpose" else None
    if x.op == "MatMul" and x.args[1].rank == 2 and x.args[0].rank == len(perm) == perm[-1] + 1:
        rows = _rows_permuted(terms, x.args[0], perm, known)
        return None if rows is None else make(terms, "MatMul", [rows, x.args[1]], {})
    if x.op == "Reshape" and (split := _split_together(x, perm)) is not None:
        whole, shape = transpose(terms, x.args[0], split), tuple((x.shape or ())[i] for i in perm)
        return None if below_views(whole).op == "Transpose" else reshape(terms, whole, shape)
    weights = x.op in SOFTMAX and perm[-1] == len(perm) - 1 and x.attr("axis", -1) == -1
    if (x.op not in ELEMENTWISE and not weights) or x.constant or x.shape is None or len(x.shape) != len(perm):
        return None
    args, inside = list[Term](), {} if weights and not masked else known
    masked = masked or weights
    for arg in x.args:
        moved: Term | None = arg
        if not is_number(arg) and arg.op != "Absent":
            wide = arg if arg.shape is None else reshape(terms, arg, (1,) * (len(perm) - len(arg.shape)) + arg.shape)
            given = arg.constant or (masked and wide.shape is not None and in_order(wide.shape, perm))
            moved = transpose(terms, wide, perm) if given else _untransposed(terms, wide, perm, inside, masked)
        if moved is None:
            return None
        args.append(moved)
    return make(terms, x.op, args, dict(x.attrs))


def _rows_permuted(terms: Terms, x: Term, perm: tuple[int, ...], known: Known) -> Term | None:
    """What a product is of, with its axes permuted: a Transpose below takes it in, whole or not."""
    if below_views(x).op != "Transpose":
        return _untransposed(terms, x, perm, known)
    moved = transpose(terms, x, perm)
    return moved if x.op == "Transpose" or moved.op != "Transpose" else None


def _split_together(x: Term, perm: tuple[int, ...]) -> list[int] | None:
    """Where the axes that a Reshape splits an axis into stay side by side: how the axes before it are permuted."""
    if x.shape is None or x.args[0].shape is None or len(x.args) > 1:
        return None
    blocks = blocks_of(x.args[0].shape, x.shape)
    if blocks is None or any(i1 - i0 != 1 or j1 == j0 for i0, i1, j0, j1 in blocks):
        return None
    axes = {j0: (i0, [*range(j0, j1)]) for i0, _, j0, j1 in blocks}
    split = [axes[j][0] for j in perm if j in axes]
    return split if [j for i in perm if i in axes for j in axes[i][1]] == [*perm] else None


def _transpose_product(terms: Terms, x: Term, shape: Shape) -> Term | None:
    """(a @ b)^T as b^T @ a^T where that leaves fewer views; a Transpose that moves a dim of 1 is a Reshape.

    A weight stays behind the batches that it is for: before them onnxruntime multiplies each by itself, and refuses a
    batch of none."""
    if any(a.shape is None or len(a.shape) < 2 for a in x.args) or x.args[0].op in SOFTMAX:
        return None
    if len(x.args[1].shape or ()) < len(x.args[0].shape or ()):
        return None
    flipped = [transpose(terms, a, swapped(len(a.shape or ()))) for a in reversed(x.args)]
    before, after = (
        sum(a.op in ("Transpose", "Reshape") and not a.constant for a in args) for args in (x.args, flipped)
    )
    return make(terms, "MatMul", flipped, {}, shape, x.dtype) if after <= before else None


def expand(terms: Terms, x: Term, shape: Shape) -> Term:
    """x broadcast to `shape`."""
    if same_shape(x.shape, shape):
        return x
    x, factor = hoisted(x)
    if factor != 1:
        return scaled(terms, expand(terms, x, shape), factor)
    if x.constant and not is_number(x):
        folded = fold(terms, "Expand", [x], {"shape": shape}, shape, x.dtype)
        if folded is not None:
            return folded
    return terms.raw("Expand", [x], (("shape", shape),), shape=shape, dtype=x.dtype)


def repeat(terms: Terms, x: Term, axis: int, n: Dim) -> Term:
    """Each slice along `axis` n times in a row (numpy.repeat)."""
    if n == 1:
        return x
    shape = None if x.shape is None else (*x.shape[:axis], x.shape[axis] * n, *x.shape[axis + 1 :])
    merged = next((i1 for i0, i1, j, _ in merged_blocks(x) or () if j == axis and i1 - i0 > 1), 0)
    if merged and shape is not None:  # batches and heads as one axis, each of which is repeated: heads are
        return reshape(terms, repeat(terms, x.args[0], merged - 1, n), shape)
    return terms.raw("Repeat", [x], (("axis", axis), ("n", n)), shape=shape, dtype=x.dtype)


def slice_axis(terms: Terms, x: Term, axis: int, start: Dim, stop: Dim, step: int = 1) -> Term:
    """x[..., start:stop:step, ...] along one axis of a tensor of known rank."""
    x, factor = hoisted(x)
    if factor != 1:
        return scaled(terms, slice_axis(terms, x, axis, start, stop, step), factor)
    if x.op == "Not":
        return make(terms, "Not", [slice_axis(terms, x.args[0], axis, start, stop, step)], {})
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
    known = isinstance(first, int) and isinstance(last, int)
    if known and x.op == "Integers" and x.data is not None and x.data.ndim == 1:
        return terms.integers(x.data[first:last:step], x.dtype)
    shape = (*x.shape[:axis], length, *x.shape[axis + 1 :])
    if x.op == "Expand" and len(x.args) == 1 and (dims := x.args[0].shape) is not None:
        own = axis - len(x.shape) + len(dims)
        repeats = own < 0 or dims[own] == 1
        return expand(terms, x.args[0] if repeats else slice_axis(terms, x.args[0], own, start, stop, step), shape)
    attrs = {"axis": axis, "start": start, "step": step, "stop": stop}
    if x.constant and not any(isinstance(b, Sym) for b in (start, stop)):
        folded = fold(terms, "Slice", [x], attrs, shape, x.dtype)
        if folded is not None:
            return folded
    return terms.raw("Slice", [x], freeze(attrs), shape=shape, dtype=x.dtype)


def is_reshape(term: Term) -> bool:
    """Is it the Reshape, to a shape that it knows, of a term that is no view itself?"""
    return term.op == "Reshape" and len(term.args) == 1 and term.args[0].op not in VIEWS


# ------------------------------------------------------------------------------------------------ ops


def as_reshape(a: Applied) -> Term | None:
    """Squeeze, Unsqueeze, Flatten and Reshape as one Reshape, where the shapes are known."""
    x = a.args[0]
    return None if a.shape is None or x.shape is None else reshape(a.terms, x, a.shape)


@law("Transpose", "T(T(x)) = x")
def _transpose(a: Applied) -> Term | None:
    x, perm = a.args[0], a.attrs.get("perm")
    if x.rank is None and "perm" not in a.attrs:
        return None
    return transpose(a.terms, x, perm or tuple(range(x.rank or 0))[::-1])


@law("Expand", "Expand(x, (2, 3, 4, 4)) = x")
def _expand(a: Applied) -> Term | None:
    x = a.args[0]
    if a.shape is None or x.shape is None or (len(a.args) > 1 and a.args[1].data is None):
        return None
    return expand(a.terms, x, a.shape)


@law("Slice", "Slice(Slice(x, (1,), (4,), (3,)), (1,), (3,), (3,)) = Slice(x, (2,), (4,), (3,))")
def _slice(a: Applied) -> Term | None:
    terms, args, attrs = a.terms, a.args, a.attrs
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
