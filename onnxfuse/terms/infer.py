"""Shape and dtype of canonical ops over terms (ONNX operator specification, symbolic dimensions).

An unknown rank is None and an unknown dimension a fresh symbol: neither stops anything.  onnx's own shape inference
is the fall-back for ops that are not listed here; it does not carry symbolic arithmetic, which matching needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from onnx import TensorProto

from onnxfuse.model.broadcast import broadcast
from onnxfuse.model.dims import Dim, Sym, exact, maximum, product, viewed
from onnxfuse.model.op_traits import BOOLEAN, BROADCAST, LIKE_FIRST

from . import infer_gradients as infer_gradients  # whose rules belong to the table, as do the next
from . import infer_layers as infer_layers
from . import infer_quantized as infer_quantized
from .infer_table import BOOL, FLOAT, INT64, RULES, Inferred, normal_axis, rule, unknown_rank
from .shape_values import difference, slice_bounds, slice_length
from .term import Attributes, Term, Terms

_ALIASES = {
    f"com.microsoft.{op}": op
    for op in (
        "Gelu FastGelu QuickGelu BiasGelu RotaryEmbedding FusedConv EmbedLayerNormalization SkipLayerNormalization "
        "SkipSimplifiedLayerNormalization"
    ).split()
} | {
    "ai.onnx.SimplifiedLayerNormalization": "RMSNormalization",
    "com.microsoft.FusedGemm": "Gemm",
    "com.microsoft.GroupNorm": "GroupNormalization",
    "com.microsoft.SkipGroupNorm": "GroupNormalization",
}
"""Ops of onnxruntime that shape inference treats like one of ai.onnx, or like the fused op of the same signature."""

_FINE = 16
"""Multiples of a sixteenth below sixteen have no rounding in any real type: bfloat16 has 8 bits."""

_SECOND = {"Dropout": BOOL, "MaxPool": INT64}
"""Element types of second results (a mask, indices) where it is not that of the first."""


def infer(terms: Terms, op: str, args: list[Term], attrs: Attributes, outputs: int = 1) -> Inferred:
    """(shape, dtype) of every output; dtype 0 and shape None where unknown.

    What nobody knows of an op is the same whenever the same is asked, so that equal expressions have equal shapes."""
    before = terms.unknowns
    found = _infer(terms, op, args, attrs, outputs)
    if terms.unknowns == before:
        return found
    asked = (op, *(a.id for a in args), *sorted(attrs.items()), outputs)
    return list(terms.inferred.setdefault(asked, found))


def _infer(terms: Terms, op: str, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    op = _ALIASES.get(op, op.removeprefix("ai.onnx."))
    dtype = BOOL if op in BOOLEAN else args[0].dtype if args else 0
    if op in BROADCAST:
        if op == "Where":
            dtype = args[1].dtype
        shapes = [a.shape for a in args]
        return [(None if None in shapes else broadcast(*[s for s in shapes if s is not None]), dtype)]
    if op in LIKE_FIRST:
        if op == "Cast":
            dtype = int(attrs["to"])
        return [(args[0].shape, dtype)] + [(None, _SECOND.get(op, dtype))] * (outputs - 1)
    known_rule = RULES.get(op)
    if known_rule is not None:
        known = known_rule(terms, args, attrs, outputs)
        return known + [(None, _SECOND.get(op, dtype))] * (outputs - len(known))
    if op.startswith("Reduce"):
        return _reduce(args, attrs)
    return [(None, 0)] * outputs


def _reduce(args: list[Term], attrs: Attributes) -> Inferred:
    x = args[0]
    if x.shape is None:
        return [(None, x.dtype)]
    rank, axes = len(x.shape), attrs.get("axes")
    if not axes and attrs.get("noop_with_empty_axes"):
        return [(x.shape, x.dtype)]
    reduced = {normal_axis(a, rank) for a in axes} if axes else set(range(rank))
    keep = attrs.get("keepdims", 1)
    return [(tuple(1 if i in reduced else d for i, d in enumerate(x.shape) if keep or i not in reduced), x.dtype)]


@rule("Transpose")
def _transpose(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    x = args[0]
    if x.shape is None:
        return [(terms.fresh_shape(len(attrs["perm"])) if "perm" in attrs else None, x.dtype)]
    perm = attrs.get("perm") or tuple(range(len(x.shape)))[::-1]
    return [(tuple(x.shape[i] for i in perm), x.dtype)]


@rule("Shape")
def _shape(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    if args[0].shape is None:
        return [(terms.fresh_shape(1), INT64)]
    return [((len(args[0].shape[attrs.get("start", 0) : attrs.get("end")]),), INT64)]


@rule("Size")
def _size(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    return [((), INT64)]


@rule("Concat")
def _concat(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    shapes = [a.shape for a in args if a.shape is not None]
    if len(shapes) < len(args):
        return [(terms.fresh_shape(len(shapes[0])) if shapes else None, args[0].dtype)]
    axis = normal_axis(attrs["axis"], len(shapes[0]))
    total: Dim = 0
    for shape in shapes:
        total = total + shape[axis]
    # Dims off the axis are equal in every run: take the most specific spelling.
    result = [next((s[i] for s in shapes if isinstance(s[i], int)), shapes[0][i]) for i in range(len(shapes[0]))]
    result[axis] = total
    return [(tuple(result), args[0].dtype)]


@rule("Gather")
def _gather(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    x, i = args[0].shape, args[1].shape
    if x is None or i is None:
        return [(None, args[0].dtype)]
    axis = normal_axis(attrs.get("axis", 0), len(x))
    return [(x[:axis] + i + x[axis + 1 :], args[0].dtype)]


@rule("GatherElements")
def _gather_elements(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    return [(args[1].shape, args[0].dtype)]


@rule("GatherND")
def _gather_nd(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    x, i = args[0].shape, args[1].shape
    if x is None or i is None or not isinstance(i[-1], int):
        return [(None, args[0].dtype)]
    return [(i[:-1] + x[i[-1] + attrs.get("batch_dims", 0) :], args[0].dtype)]


@rule("Squeeze")
def _squeeze(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    x, axes = args[0].shape, attrs.get("axes")
    # Without axes, which dims go depends on what the symbols stand for.
    if x is None or len(args) > 1 or (axes is None and any(isinstance(d, Sym) for d in x)):
        return [(None, args[0].dtype)]
    gone = {normal_axis(a, len(x)) for a in axes} if axes is not None else {i for i, d in enumerate(x) if d == 1}
    return [(tuple(d for i, d in enumerate(x) if i not in gone), args[0].dtype)]


@rule("Unsqueeze")
def _unsqueeze(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    x, axes = args[0].shape, attrs.get("axes")
    if x is None or axes is None:
        return [(None, args[0].dtype)]
    rank = len(x) + len(axes)
    new, rest = {normal_axis(a, rank) for a in axes}, iter(x)
    return [(tuple(1 if i in new else next(rest) for i in range(rank)), args[0].dtype)]


@rule("Flatten")
def _flatten(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    x = args[0].shape
    if x is None:
        return [(terms.fresh_shape(2), args[0].dtype)]
    axis = normal_axis(attrs.get("axis", 1), len(x))
    return [((product(x[:axis]), product(x[axis:])), args[0].dtype)]


def _length(term: Term) -> int | None:
    """Number of elements of a rank-1 tensor, if known."""
    return term.shape[0] if term.shape and isinstance(term.shape[0], int) else None


@rule("Reshape")
def _reshape(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    x, data = args[0], args[1].data
    if data is None:
        rank = _length(args[1])
        return [(None if rank is None else terms.fresh_shape(rank), x.dtype)]
    zero_copies = not attrs.get("allowzero")
    if x.shape is None:
        known = [terms.fresh_dim() if d == -1 or (d == 0 and zero_copies) else d for d in data]
        return [(tuple(known), x.dtype)]
    if any(d == 0 and zero_copies and i >= len(x.shape) for i, d in enumerate(data)):
        return [(terms.fresh_shape(len(data)), x.dtype)]
    result: list[Dim] = [x.shape[i] if d == 0 and zero_copies else d for i, d in enumerate(data)]
    if -1 in result:
        i = result.index(-1)
        # Equal factors cancel before the division, so that an empty tensor does not hide the rest.
        result[i] = viewed(product(x.shape), product(result[:i] + result[i + 1 :]))
    return [(tuple(result), x.dtype)]


@rule("Expand")
def _expand(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    x, data = args[0], args[1].data
    if data is None or x.shape is None:
        rank = _length(args[1])
        return [(None if rank is None or x.shape is None else terms.fresh_shape(max(rank, len(x.shape))), x.dtype)]
    return [(broadcast(x.shape, tuple(data)), x.dtype)]


@rule("ConstantOfShape")
def _constant_of_shape(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    value = attrs.get("value")
    dtype = FLOAT if value is None else int(TensorProto.FromString(value[1]).data_type)
    if args[0].data is not None:
        return [(tuple(args[0].data), dtype)]
    rank = _length(args[0])
    return [(None if rank is None else terms.fresh_shape(rank), dtype)]


@rule("Range")
def _range(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    start, stop, step = (a.data for a in args)
    pace = step.item() if step is not None else None
    length = difference(args[1], args[0]) if pace == 1 else None
    if length is not None:
        return [((maximum(length, 0),), args[0].dtype)]
    if start is not None and stop is not None and pace:
        first, last = start.item(), stop.item()
        if not any(isinstance(d, Sym) for d in (first, last, pace)):
            return [((len(range(first, last, pace)),), args[0].dtype)]
    bounds = [a.scalar for a in args if a.scalar is not None and (a.scalar * _FINE).is_integer()]
    if len(bounds) == 3 and bounds[2] and max(map(abs, bounds)) < _FINE:  # numbers that every real type holds
        return [((max(math.ceil((bounds[1] - bounds[0]) / bounds[2]), 0),), args[0].dtype)]
    return [(terms.fresh_shape(1), args[0].dtype)]


@rule("Slice")
def _slice(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    x = args[0]
    if x.shape is None:
        return [(None, x.dtype)]
    bounds = slice_bounds(args)
    if bounds is None:
        return [(terms.fresh_shape(len(x.shape)), x.dtype)]
    result = list(x.shape)
    for axis, start, stop, step in bounds:
        axis = normal_axis(axis, len(result))
        result[axis] = slice_length(terms, result[axis], start, stop, step)
    return [(tuple(result), x.dtype)]


@rule("Split")
def _split(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    x = args[0]
    if x.shape is None:
        return [(None, x.dtype)] * outputs
    axis = normal_axis(attrs.get("axis", 0), len(x.shape))
    dim = x.shape[axis]
    sizes: Sequence[Dim] | None = attrs.get("split")
    if sizes is None:
        part: Dim | None = exact(dim, outputs)
        if part is None and isinstance(dim, int):
            size = -(-dim // outputs)
            sizes = [size] * (outputs - 1) + [dim - size * (outputs - 1)]
        else:
            sizes = [part if part is not None else terms.fresh_dim() for _ in range(outputs)]
    return [((*x.shape[:axis], size, *x.shape[axis + 1 :]), x.dtype) for size in sizes]


@rule("Tile")
def _tile(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    x, data = args[0].shape, args[1].data
    if x is None or data is None:
        return [(unknown_rank(terms, args[0]), args[0].dtype)]
    return [(tuple(d * n for d, n in zip(x, data, strict=True)), args[0].dtype)]


@rule("Pad")
def _pad(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    x, data = args[0].shape, args[1].data if len(args) > 1 else None
    axes = args[3].data if len(args) > 3 and args[3].op != "Absent" else None
    if x is None or data is None or (len(args) > 3 and args[3].op != "Absent" and axes is None):
        return [(unknown_rank(terms, args[0]), args[0].dtype)]
    padded = [normal_axis(a, len(x)) for a in axes] if axes is not None else list(range(len(x)))
    result = list(x)
    for i, axis in enumerate(padded):
        result[axis] = result[axis] + data[i] + data[i + len(padded)]
    return [(tuple(result), args[0].dtype)]


@rule("TopK")
def _top_k(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    x, k = args[0].shape, args[1].data if len(args) > 1 else None
    shape = unknown_rank(terms, args[0])
    if x is not None and k is not None:
        axis = normal_axis(attrs.get("axis", -1), len(x))
        shape = (*x[:axis], k.item(), *x[axis + 1 :])
    return [(shape, args[0].dtype), (shape, INT64)]


@rule("ArgMax", "ArgMin")
def _arg(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    x = args[0].shape
    if x is None:
        return [(None, INT64)]
    axis, keep = normal_axis(attrs.get("axis", 0), len(x)), attrs.get("keepdims", 1)
    return [(tuple(1 if i == axis else d for i, d in enumerate(x) if keep or i != axis), INT64)]


@rule("NonZero")
def _non_zero(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    rank = args[0].rank
    return [(None if rank is None else (rank, terms.fresh_dim()), INT64)]


@rule("OneHot")
def _one_hot(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    return [(None, args[2].dtype)]


@rule("RandomNormalLike", "RandomUniformLike", "EyeLike")
def _like(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    return [(args[0].shape, int(attrs.get("dtype", args[0].dtype)))]
