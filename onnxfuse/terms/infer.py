"""Shape and dtype of canonical ops over terms (ONNX operator specification, symbolic dimensions).

An unknown rank is None and an unknown dimension a fresh symbol: neither stops anything.  onnx's own shape inference
is the fall-back for ops that are not listed here; it does not carry symbolic arithmetic, which matching needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from onnx import TensorProto

from onnxfuse.model.dims import Dim, Shape, Sym, broadcast, exact, floor_divide, maximum, product, viewed
from onnxfuse.model.einsum import dims_of, letters_of
from onnxfuse.model.op_traits import BOOLEAN, BROADCAST, LIKE_FIRST

from .shape_values import slice_bounds, slice_length
from .term import Attributes, Term, Terms

Inferred: TypeAlias = list[tuple[Shape | None, int]]
"""(shape, dtype) per output; shape None where the rank, dtype 0 where the type is unknown."""
Inference: TypeAlias = Callable[[Terms, list[Term], Attributes, int], Inferred]
"""(terms, args, attrs, number of outputs) → what is known of the first outputs."""
BOOL, INT64, FLOAT = int(TensorProto.BOOL), int(TensorProto.INT64), int(TensorProto.FLOAT)


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

_RULES: dict[str, Inference] = {}


def infer(terms: Terms, op: str, args: list[Term], attrs: Attributes, outputs: int = 1) -> Inferred:
    """(shape, dtype) of every output; dtype 0 and shape None where unknown."""
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
        return [(args[0].shape, dtype)] + [(None, dtype)] * (outputs - 1)
    rule = _RULES.get(op)
    if rule is not None:
        known = rule(terms, args, attrs, outputs)
        return known + [(None, dtype)] * (outputs - len(known))
    if op.startswith("Reduce"):
        return _reduce(args, attrs)
    return [(None, 0)] * outputs


def _rule(*ops: str) -> Callable[[Inference], Inference]:
    def register(function: Inference) -> Inference:
        for op in ops:
            _RULES[op] = function
        return function

    return register


def unknown_rank(terms: Terms, like: Term) -> Shape | None:
    return None if like.shape is None else terms.fresh_shape(len(like.shape))


def normal_axis(axis: int, rank: int) -> int:
    return axis + rank if axis < 0 else axis


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


@_rule("LayerNormalization")
def _layer_normalization(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """Y like X; mean and inverse standard deviation with dims of 1 for the axes normalised."""
    x, axis = args[0].shape, attrs.get("axis", -1)
    if x is None:
        return [(None, args[0].dtype)]
    first = normal_axis(axis, len(x))
    reduced: Shape = (*x[:first], *(1 for _ in x[first:]))
    known: Inferred = [(x, args[0].dtype), (reduced, args[0].dtype), (reduced, args[0].dtype)]
    return known[:outputs]


@_rule("MatMul", "FusedMatMul")
def _matmul(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    x, y = args[0].shape, args[1].shape
    if x is None or y is None:
        return [(None, args[0].dtype)]
    if attrs.get("transB"):
        y = (*y[:-2], y[-1], y[-2])
    if len(y) == 1:
        return [(x[:-1], args[0].dtype)]
    if len(x) == 1:
        return [(y[:-2] + y[-1:], args[0].dtype)]
    return [((*broadcast(x[:-2], y[:-2]), x[-2], y[-1]), args[0].dtype)]


@_rule("Einsum")
def _einsum(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    shapes = [a.shape for a in args if a.shape is not None]
    named = letters_of(attrs["equation"], [len(s) for s in shapes]) if len(shapes) == len(args) else None
    dims = dims_of(named[0], shapes) if named is not None else None
    if named is None or dims is None or not set(named[1]) <= dims.keys():
        return [(None, args[0].dtype)]
    return [(tuple(dims[c] for c in named[1]), args[0].dtype)]


@_rule("Gemm")
def _gemm(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    x, y = args[0].shape, args[1].shape
    rows = x[1 if attrs.get("transA") else 0] if x is not None else terms.fresh_dim()
    columns = y[0 if attrs.get("transB") else 1] if y is not None else terms.fresh_dim()
    return [((rows, columns), args[0].dtype)]


@_rule("Transpose")
def _transpose(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    x = args[0]
    if x.shape is None:
        return [(terms.fresh_shape(len(attrs["perm"])) if "perm" in attrs else None, x.dtype)]
    perm = attrs.get("perm") or tuple(range(len(x.shape)))[::-1]
    return [(tuple(x.shape[i] for i in perm), x.dtype)]


@_rule("Shape")
def _shape(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    if args[0].shape is None:
        return [(terms.fresh_shape(1), INT64)]
    return [((len(args[0].shape[attrs.get("start", 0) : attrs.get("end")]),), INT64)]


@_rule("Size")
def _size(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    return [((), INT64)]


@_rule("Concat")
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


@_rule("Gather")
def _gather(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    x, i = args[0].shape, args[1].shape
    if x is None or i is None:
        return [(None, args[0].dtype)]
    axis = normal_axis(attrs.get("axis", 0), len(x))
    return [(x[:axis] + i + x[axis + 1 :], args[0].dtype)]


@_rule("GatherElements")
def _gather_elements(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    return [(args[1].shape, args[0].dtype)]


@_rule("GatherND")
def _gather_nd(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    x, i = args[0].shape, args[1].shape
    if x is None or i is None or not isinstance(i[-1], int):
        return [(None, args[0].dtype)]
    return [(i[:-1] + x[i[-1] + attrs.get("batch_dims", 0) :], args[0].dtype)]


@_rule("Squeeze")
def _squeeze(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    x, axes = args[0].shape, attrs.get("axes")
    # Without axes, which dims go depends on what the symbols stand for.
    if x is None or len(args) > 1 or (axes is None and any(isinstance(d, Sym) for d in x)):
        return [(None, args[0].dtype)]
    gone = {normal_axis(a, len(x)) for a in axes} if axes is not None else {i for i, d in enumerate(x) if d == 1}
    return [(tuple(d for i, d in enumerate(x) if i not in gone), args[0].dtype)]


@_rule("Unsqueeze")
def _unsqueeze(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    x, axes = args[0].shape, attrs.get("axes")
    if x is None or axes is None:
        return [(None, args[0].dtype)]
    rank = len(x) + len(axes)
    new, rest = {normal_axis(a, rank) for a in axes}, iter(x)
    return [(tuple(1 if i in new else next(rest) for i in range(rank)), args[0].dtype)]


@_rule("Flatten")
def _flatten(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    x = args[0].shape
    if x is None:
        return [(terms.fresh_shape(2), args[0].dtype)]
    axis = normal_axis(attrs.get("axis", 1), len(x))
    return [((product(x[:axis]), product(x[axis:])), args[0].dtype)]


def _length(term: Term) -> int | None:
    """Number of elements of a rank-1 tensor, if known."""
    return term.shape[0] if term.shape and isinstance(term.shape[0], int) else None


@_rule("Reshape")
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


@_rule("Expand")
def _expand(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    x, data = args[0], args[1].data
    if data is None or x.shape is None:
        rank = _length(args[1])
        return [(None if rank is None or x.shape is None else terms.fresh_shape(max(rank, len(x.shape))), x.dtype)]
    return [(broadcast(x.shape, tuple(data)), x.dtype)]


@_rule("ConstantOfShape")
def _constant_of_shape(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    value = attrs.get("value")
    dtype = FLOAT if value is None else int(TensorProto.FromString(value[1]).data_type)
    if args[0].data is not None:
        return [(tuple(args[0].data), dtype)]
    rank = _length(args[0])
    return [(None if rank is None else terms.fresh_shape(rank), dtype)]


@_rule("Range")
def _range(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    start, stop, step = (a.data for a in args)
    if start is not None and stop is not None and step is not None and step.item() == 1:
        return [((maximum(stop.item() - start.item(), 0),), args[0].dtype)]
    return [(terms.fresh_shape(1), args[0].dtype)]


@_rule("Slice")
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


@_rule("Split")
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


@_rule("Conv", "FusedConv", "MaxPool", "AveragePool", "LpPool")
def _window(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    x, w = args[0], args[1] if len(args) > 1 else None
    kernel = attrs.get("kernel_shape") or (w.shape[2:] if w is not None and w.shape is not None else None)
    if x.shape is None or kernel is None or (w is not None and w.shape is None):
        return [(unknown_rank(terms, x), x.dtype)]
    channels = x.shape[1] if w is None or w.shape is None else w.shape[0]
    n = len(kernel)
    if attrs.get("ceil_mode"):
        return [((x.shape[0], channels, *terms.fresh_shape(n)), x.dtype)]
    strides, dilations = attrs.get("strides", (1,) * n), attrs.get("dilations", (1,) * n)
    if attrs.get("auto_pad", "NOTSET").startswith("SAME"):
        same = [floor_divide(x.shape[2 + i] + strides[i] - 1, strides[i]) for i in range(n)]
        return [((x.shape[0], channels, *same), x.dtype)]
    pads = attrs.get("pads", (0,) * 2 * n)
    dims: list[Dim] = []
    for i in range(n):
        span = dilations[i] * (kernel[i] - 1) + 1
        dims.append(floor_divide(x.shape[2 + i] + pads[i] + pads[i + n] - span, strides[i]) + 1)
    return [((x.shape[0], channels, *dims), x.dtype)]


@_rule("ConvTranspose")
def _conv_transpose(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    x, w = args[0], args[1]
    if x.shape is None or w.shape is None:
        return [(unknown_rank(terms, x), x.dtype)]
    n, channels = len(x.shape) - 2, w.shape[1] * attrs.get("group", 1)
    if "output_shape" in attrs or "auto_pad" in attrs:
        return [((x.shape[0], channels, *terms.fresh_shape(n)), x.dtype)]
    strides, dilations = attrs.get("strides", (1,) * n), attrs.get("dilations", (1,) * n)
    pads, extra = attrs.get("pads", (0,) * 2 * n), attrs.get("output_padding", (0,) * n)
    dims: list[Dim] = []
    for i in range(n):
        span = (w.shape[2 + i] - 1) * dilations[i] + 1
        dims.append((x.shape[2 + i] - 1) * strides[i] + extra[i] + span - pads[i] - pads[i + n])
    return [((x.shape[0], channels, *dims), x.dtype)]


@_rule("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    x = args[0].shape
    return [(None if x is None else x[:2] + (1,) * (len(x) - 2), args[0].dtype)]


@_rule("Resize")
def _resize(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """By sizes, where they are known and each is what its dimension becomes (ai.onnx Resize-11)."""
    x, sizes = args[0], args[3].data if len(args) > 3 else None
    whole = "axes" not in attrs and attrs.get("keep_aspect_ratio_policy", "stretch") == "stretch"
    if sizes is None or x.shape is None or not whole:
        return [(None, 0)]
    return [(tuple(sizes), x.dtype)]


@_rule("Tile")
def _tile(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    x, data = args[0].shape, args[1].data
    if x is None or data is None:
        return [(unknown_rank(terms, args[0]), args[0].dtype)]
    return [(tuple(d * n for d, n in zip(x, data, strict=True)), args[0].dtype)]


@_rule("Pad")
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


@_rule("TopK")
def _top_k(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    shape = unknown_rank(terms, args[0])
    return [(shape, args[0].dtype), (shape, INT64)]


@_rule("ArgMax", "ArgMin")
def _arg(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    x = args[0].shape
    if x is None:
        return [(None, INT64)]
    axis, keep = normal_axis(attrs.get("axis", 0), len(x)), attrs.get("keepdims", 1)
    return [(tuple(1 if i == axis else d for i, d in enumerate(x) if keep or i != axis), INT64)]


@_rule("NonZero")
def _non_zero(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    rank = args[0].rank
    return [(None if rank is None else (rank, terms.fresh_dim()), INT64)]


@_rule("OneHot")
def _one_hot(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    return [(None, args[2].dtype)]


@_rule("RandomNormalLike", "RandomUniformLike", "EyeLike")
def _like(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    return [(args[0].shape, int(attrs.get("dtype", args[0].dtype)))]


@_rule("Attention")
def _attention(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """ai.onnx Attention-23: Y like Q with the head size of V; present key and value grow along the sequence."""
    q, v, dtype = args[0].shape, args[2].shape, args[0].dtype
    if q is None or v is None:
        return [(None, dtype)]
    if len(q) == 4:
        y: Shape = (*q[:3], v[3])
    else:
        size = exact(v[2], attrs.get("kv_num_heads", 1))
        y = (q[0], q[1], size * attrs.get("q_num_heads", 1) if size is not None else terms.fresh_dim())
    return [(y, dtype), *((_present(args, attrs, i), args[i].dtype) for i in (1, 2))]


def _present(args: list[Term], attrs: Attributes, position: int) -> Shape | None:
    """The new keys (position 1) or values (2) as [B,H,T,D], behind those of the past."""
    new, past = args[position].shape, args[position + 3] if len(args) > position + 3 else None
    if new is not None and len(new) == 3:
        size = exact(new[2], attrs.get("kv_num_heads", 1))
        new = None if size is None else (new[0], attrs.get("kv_num_heads", 1), new[1], size)
    if new is None or past is None or past.op == "Absent":
        return new
    return None if past.shape is None else (*new[:2], past.shape[2] + new[2], new[3])


@_rule("com.microsoft.Attention")
def _packed_attention(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """com.microsoft Attention of equal hidden sizes: the input's shape with a third of the columns of the weights."""
    x, w = args[0].shape, args[1].shape
    size = exact(w[1], 3) if w is not None and len(w) == 2 else None
    return [(None if x is None or size is None else (*x[:2], size), args[0].dtype)]


@_rule("com.microsoft.FusedMatMul")
def _microsoft_matmul(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    if any(attrs.get(name) for name in ("transA", "transBatchA", "transBatchB")):
        return [(None, args[0].dtype)]
    return _matmul(terms, args, attrs, outputs)


@_rule("com.microsoft.MatMulNBits")
def _quantized_matmul(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """A product with packed weights of N columns."""
    x = args[0].shape
    return [(None if x is None else (*x[:-1], attrs["N"]), args[0].dtype)]


@_rule("EmbedLayerNormalization")
def _embed(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """Rows of a table of words, one for each id; their normalization, mask_index and their sum."""
    return _chosen(args[0], args[2]) * 3


@_rule("EmbedSimplifiedLayerNormalization")
def _embed_simplified(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """Rows of a table, one for each id; normalised and as they are."""
    return _chosen(args[0], args[1]) * 2


def _chosen(ids: Term, table: Term) -> Inferred:
    if ids.shape is None or table.shape is None:
        return [(None, table.dtype)]
    return [((*ids.shape, table.shape[-1]), table.dtype)]
