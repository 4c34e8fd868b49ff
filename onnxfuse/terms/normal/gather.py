"""Normal forms of gathering by indices that are computed, not data: what they pick is a view.

Exporters spell a padding mask as a gather over a mesh of ranges, and positions as a gather by a range.  Such indices
are `affine` in their own coordinates; a Gather or GatherND by them is a Slice, Transpose, Reshape and Expand of the
data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from onnx import TensorProto

from onnxfuse.model.dims import Dim, Shape, at_least, product
from onnxfuse.model.schema import freeze
from onnxfuse.terms.fold import value_of
from onnxfuse.terms.infer_table import normal_axis
from onnxfuse.terms.term import INTEGER, PRECISE, Array, Term, Terms, static

from .affine import LARGEST, Affine, affine, affine_array, broadcast_steps
from .axes import blocks_of
from .concat import chosen
from .ranges import MODERATE
from .table import Applied, law, make
from .views import expand, reshape, slice_axis, transpose

# ------------------------------------------------------------------------------------------------ what indices pick


@dataclass(frozen=True)
class _Pick:
    """Of an axis of the data: the elements from `start` on along an axis of the index, or the one there if None."""

    start: Dim
    along: int | None


def _picked(terms: Terms, x: Term, axis: int, picks: Sequence[_Pick], index: Shape) -> Term | None:
    """x with its axes from `axis` on indexed, as a view; None where it is none for certain."""
    assert x.shape is not None
    used = [p.along for p in picks if p.along is not None]
    if len(set(used)) < len(used):
        return None  # a diagonal
    before, after = x.shape[:axis], x.shape[axis + len(picks) :]
    for k, pick in enumerate(picks, start=axis):
        count = 1 if pick.along is None else index[pick.along]
        part = _part(terms, x, k, pick.start, count)
        if part is None:
            return None
        x = part
    order = sorted(range(len(picks)), key=lambda k: -1 if picks[k].along is None else picks[k].along or 0)
    x = transpose(terms, x, [*range(axis), *(axis + k for k in order), *range(axis + len(picks), x.rank or 0)])
    x = reshape(terms, x, (*before, *(d if i in used else 1 for i, d in enumerate(index)), *after))
    return expand(terms, x, (*before, *index, *after))


def _part(terms: Terms, x: Term, axis: int, start: Dim, count: Dim) -> Term | None:
    """`count` elements of x from `start` on: the indices are in range, or the model would fail."""
    assert x.shape is not None
    dim = x.shape[axis]
    if not at_least(start, 0) or at_least(start + count - 1, dim):
        return None  # counted from the end, or out of range
    if start == 0 and count == dim:
        return x
    if at_least(dim, start + count):
        return slice_axis(terms, x, axis, start, start + count)
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    attrs = {"axis": axis, "start": start, "step": 1, "stop": start + count}
    return terms.raw("Slice", [x], freeze(attrs), shape=shape, dtype=x.dtype)


def _merged(terms: Terms, x: Term, axis: int, index: Affine, shape: Shape) -> Term | None:
    """x, whose axis merges axes of another tensor, indexed as that tensor is by an index for each of them."""
    if x.op != "Reshape" or len(x.args) > 1 or x.shape is None or x.args[0].shape is None or index.offset != 0:
        return None
    source = x.args[0].shape
    blocks = [b for b in blocks_of(source, x.shape) or [] if b[2:] == (axis, axis + 1)]
    if not blocks:
        return None
    dims = source[blocks[0][0] : blocks[0][1]]
    picks: list[_Pick] = []
    for k, dim in enumerate(dims):
        stride = product(dims[k + 1 :])
        along = [a for a, step in enumerate(index.steps) if step == stride and shape[a] != 1 and dim != 1]
        if len(along) > 1 or (along and k and not at_least(dim, shape[along[0]])):
            return None  # it might run over into the next row
        picks.append(_Pick(0, along[0] if along else None))
    if {a for a, step in enumerate(index.steps) if step != 0 and shape[a] != 1} - {p.along for p in picks}:
        return None  # it moves otherwise, perhaps backwards from the end
    apart = reshape(terms, x.args[0], (*x.shape[:axis], *dims, *x.shape[axis + 1 :]))
    return _picked(terms, apart, axis, picks, shape)


def _pick(index: Affine, shape: Shape) -> _Pick | None:
    """The index as a run along one of its axes, or as the same everywhere."""
    moving = [a for a, step in enumerate(index.steps) if step != 0 and shape[a] != 1]
    if not moving:
        return _Pick(index.offset, None)
    return _Pick(index.offset, moving[0]) if len(moving) == 1 and index.steps[moving[0]] == 1 else None


@law("Gather", "Gather(x, (1, 2), axis=3) = Slice(x, (1,), (3,), (3,))")
def _gather(a: Applied) -> Term | None:
    """A Gather of one index or of a run of indices is a Slice, one by a mesh of runs a view."""
    terms, args, attrs, shape = a.terms, a.args, a.attrs, a.shape
    x, i = args
    if x.shape is None or shape is None or i.shape is None:
        return None
    axis = normal_axis(attrs.get("axis", 0), len(x.shape))
    if i.op == "Constant" and i.data is not None and i.data.size and i.data.ndim < 2:
        return _slice(terms, x, axis, i.data, shape)
    index = affine(i)
    if index is None:
        return None
    merged = _merged(terms, x, axis, index, i.shape)
    pick = _pick(index, i.shape) if merged is None else None
    return merged if pick is None else _picked(terms, x, axis, [pick], i.shape)


def _slice(terms: Terms, x: Term, axis: int, index: Array, shape: Shape) -> Term | None:
    """A Gather by constants of rank 0 or 1, which may count from the end."""
    assert x.shape is not None
    dim = x.shape[axis]
    part = chosen(terms, x, axis, [i + dim if i < 0 else i for i in index.ravel()])
    return reshape(terms, part, shape) if index.ndim == 0 and part is not None else part


def runs(index: Term, shape: Shape) -> list[tuple[tuple[Dim, Dim], Dim]] | None:
    """What the indices of a ScatterND are of a tensor of this shape: (start, count) along each of its first axes, and
    that axis's length; None where they are no mesh of runs in the order of the axes."""
    if not index.shape or not isinstance(index.shape[-1], int) or not 0 < index.shape[-1] <= len(shape):
        return None
    mesh, found, used = index.shape[:-1], list[tuple[tuple[Dim, Dim], Dim]](), list[int]()
    for part, dim in zip(_components(index, index.shape[-1]), shape, strict=False):
        run = None if part is None else _pick(part, mesh)
        if run is None:
            return None
        start = run.start + dim if isinstance(run.start, int) and run.start < 0 else run.start
        found.append(((start, 1 if run.along is None else mesh[run.along]), dim))
        used += [] if run.along is None else [run.along]
    whole = all(d == 1 for axis, d in enumerate(mesh) if axis not in used)
    return found if used == sorted(set(used)) and whole else None


@law("GatherND", "GatherND(row, (((0, 0), (0, 1), (0, 2), (0, 3)),)) = row")
def _gather_nd(a: Applied) -> Term | None:
    """A GatherND by a mesh of runs is a view."""
    terms, args, attrs, shape = a.terms, a.args, a.attrs, a.shape
    x, i = args
    if x.shape is None or shape is None or i.shape is None or not i.shape or attrs.get("batch_dims"):
        return None
    index, count = i.shape[:-1], i.shape[-1]
    if not isinstance(count, int) or not 0 < count <= len(x.shape):
        return None
    picks: list[_Pick] = []
    for part in _components(i, count):
        run = None if part is None else _pick(part, index)
        if run is None:
            return None
        dim = x.shape[len(picks)]
        picks.append(_Pick(run.start + dim, run.along) if isinstance(run.start, int) and run.start < 0 else run)
    return _picked(terms, x, 0, picks, index)


@law("GatherND", "GatherND(z, ((2,), (0,), (2,))) = Gather(z, (2, 0, 2))")
def _rows(a: Applied) -> Term | None:
    """A GatherND by one index each is a Gather of rows: how torch's newer exporter looks positions up."""
    x, i = a.args
    if i.shape is None or i.rank == 0 or i.shape[-1] != 1 or a.attrs.get("batch_dims"):
        return None
    return make(a.terms, "Gather", [x, reshape(a.terms, i, i.shape[:-1])], {})


def _components(index: Term, count: int) -> list[Affine | None]:
    """The indices along the last axis, each as a function of the other coordinates."""
    if index.op == "Concat" and len(index.args) == count and index.attr("axis") in (-1, (index.rank or 0) - 1):
        single = all(a.shape is not None and a.shape[-1] == 1 for a in index.args)
        parts = [affine(a) if single else None for a in index.args]
        return [None if p is None else Affine(p.offset, p.steps[:-1]) for p in parts]
    if index.op == "Constant":
        dims = static(index.shape)
        if dims is not None and np.prod(dims) <= LARGEST:
            array = np.asarray(value_of(index))
            return [affine_array(array[..., k]) for k in range(count)]
    whole = affine(index) if count == 1 else None
    return [None if whole is None else Affine(whole.offset, whole.steps[:-1])] * count


@law("GatherElements", "GatherElements(z, ((1, 1, 1, 1), (2, 2, 2, 2))) = Slice(z, (1,), (3,), (0,))")
def _gather_elements(a: Applied) -> Term | None:
    """A GatherElements by a run along its axis is a Slice."""
    terms, args, attrs = a.terms, a.args, a.attrs
    x, i = args
    index = affine(i)
    if x.shape is None or i.shape is None or index is None or len(i.shape) != len(x.shape):
        return None
    axis = normal_axis(attrs.get("axis", 0), len(x.shape))
    run = _pick(index, i.shape)
    if run is None or run.along not in (axis, None) or (run.along is None and i.shape[axis] != 1):
        return None
    for k, count in enumerate(i.shape):
        part = _part(terms, x, k, run.start if k == axis else 0, count)
        if part is None:
            return None
        x = part
    return x


# ------------------------------------------------------------------------------------------------ what indices prove


@law("Greater GreaterOrEqual", "Greater(arange(2000) + 4, arange(2000)) = Expand(true, (2000,))")
def _decided(a: Applied) -> Term | None:
    """Comparisons of indices that come out the same everywhere are constants."""
    indices = [affine(arg) for arg in a.args]
    if None in indices or a.shape is None:
        return None
    known = [i for i in indices if i is not None]
    first, second = (broadcast_steps(i.steps, t.shape, a.shape) for i, t in zip(known, a.args, strict=True))
    gap, steps = known[0].offset - known[1].offset, [p - q for p, q in zip(first, second, strict=True)]
    strict = a.op == "Greater"
    if all(at_least(step, 0) for step in steps) and at_least(gap, 1 if strict else 0):
        truth = True
    elif all(at_least(0, step) for step in steps) and at_least(0 if strict else -1, gap):
        truth = False
    else:
        return None
    return expand(a.terms, a.terms.constant(np.full((1,) * len(a.shape), truth), a.dtype), a.shape)


@law("Range", "Range(0, 2000, 1) = Cast(arange(2000))")
def _of_integers(a: Applied) -> Term | None:
    """Positions as real numbers are those of integers, whose length is known where that is."""
    if a.dtype not in PRECISE:
        return None
    bounds = [_integer(a.terms, x) for x in a.args]
    known = [b for b in bounds if b is not None]
    if len(known) < len(bounds) or any(x.dtype != known[1].dtype and not x.constant for x in known):
        return None
    dtype = known[1].dtype
    alike = [x if x.dtype == dtype else make(a.terms, "Cast", [x], {"to": dtype}) for x in known]
    return make(a.terms, "Cast", [make(a.terms, "Range", alike, {})], {"to": a.dtype})


def _integer(terms: Terms, x: Term) -> Term | None:
    """The integer that a real number is: one that is written, or a size."""
    if x.scalar is not None:
        whole = x.scalar.is_integer() and abs(x.scalar) < MODERATE
        return terms.constant(np.array(int(x.scalar)), TensorProto.INT64) if whole else None
    return x.args[0] if x.op == "Cast" and x.args[0].dtype in INTEGER and x.args[0].data is not None else None


@law("CumSum", "CumSum(Expand((1,), (2000,)), 0, exclusive=1) = arange(2000)")
def _counted(a: Applied) -> Term | None:
    """Ones that are summed up count (a mask's band, as tf2onnx writes it)."""
    x, axis = a.args[0], a.args[1].scalar
    one = x.args[0] if x.op == "Expand" and len(x.args) == 1 else None
    if one is None or not one.scalar or a.dtype not in INTEGER or axis is None or a.attrs.get("reverse"):
        return None
    if a.shape is None or len(a.shape) != 1:
        return None
    step = int(one.scalar)
    first = 0 if a.attrs.get("exclusive") else step
    bounds = [a.terms.integers(np.array(n, object), a.dtype) for n in (first, first + step * a.shape[0], step)]
    return make(a.terms, "Range", bounds, {})
