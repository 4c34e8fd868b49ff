"""Shapes and types of what layers are made of: products of matrices, convolutions, attention, embeddings."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from onnxfuse.model.broadcast import broadcast
from onnxfuse.model.dims import Dim, Shape, exact, floor_divide
from onnxfuse.model.einsum import dims_of, letters_of

from .fold import value_of
from .infer_table import Inferred, normal_axis, rule, unknown_rank
from .term import Attributes, Term, Terms


@rule("LayerNormalization")
def _layer_normalization(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """Y like X; mean and inverse standard deviation with dims of 1 for the axes normalised."""
    x, axis = args[0].shape, attrs.get("axis", -1)
    if x is None:
        return [(None, args[0].dtype)]
    first = normal_axis(axis, len(x))
    reduced: Shape = (*x[:first], *(1 for _ in x[first:]))
    known: Inferred = [(x, args[0].dtype), (reduced, args[0].dtype), (reduced, args[0].dtype)]
    return known[:outputs]


@rule("MatMul", "FusedMatMul")
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


@rule("Einsum")
def _einsum(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    shapes = [a.shape for a in args if a.shape is not None]
    named = letters_of(attrs["equation"], [len(s) for s in shapes]) if len(shapes) == len(args) else None
    dims = dims_of(named[0], shapes) if named is not None else None
    if named is None or dims is None or not set(named[1]) <= dims.keys():
        return [(None, args[0].dtype)]
    return [(tuple(dims[c] for c in named[1]), args[0].dtype)]


@rule("Gemm")
def _gemm(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    x, y = args[0].shape, args[1].shape
    rows = x[1 if attrs.get("transA") else 0] if x is not None else terms.fresh_dim()
    columns = y[0 if attrs.get("transB") else 1] if y is not None else terms.fresh_dim()
    return [((rows, columns), args[0].dtype)]


@rule("Conv", "FusedConv", "MaxPool", "AveragePool", "LpPool")
def _window(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    x, w = args[0], args[1] if len(args) > 1 else None
    kernel = attrs.get("kernel_shape") or (w.shape[2:] if w is not None and w.shape is not None else None)
    if x.shape is None or kernel is None or (w is not None and w.shape is None):
        return [(unknown_rank(terms, x), x.dtype)]
    channels = x.shape[1] if w is None or w.shape is None else w.shape[0]
    n = len(kernel)
    strides, dilations = attrs.get("strides", (1,) * n), attrs.get("dilations", (1,) * n)
    # A last window that would begin in the padding counts in some versions only.
    if attrs.get("ceil_mode") and any(attrs.get("pads", ())):
        return [((x.shape[0], channels, *terms.fresh_shape(n)), x.dtype)]
    if attrs.get("auto_pad", "NOTSET").startswith("SAME"):
        same = [floor_divide(x.shape[2 + i] + strides[i] - 1, strides[i]) for i in range(n)]
        return [((x.shape[0], channels, *same), x.dtype)]
    pads = attrs.get("pads", (0,) * 2 * n)
    dims: list[Dim] = []
    for i in range(n):
        span = dilations[i] * (kernel[i] - 1) + 1
        span -= strides[i] - 1 if attrs.get("ceil_mode") else 0
        dims.append(floor_divide(x.shape[2 + i] + pads[i] + pads[i + n] - span, strides[i]) + 1)
    return [((x.shape[0], channels, *dims), x.dtype)]


@rule("ConvTranspose")
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


@rule("GlobalAveragePool", "GlobalMaxPool")
def _global_pool(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    x = args[0].shape
    return [(None if x is None else x[:2] + (1,) * (len(x) - 2), args[0].dtype)]


@rule("Resize", "Upsample")
def _resize(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """By sizes or scales, where they are known and each is what its dimension becomes (ai.onnx Resize-11): a scaled
    dimension is rounded down."""
    x, wanted = args[0], _resized(args)
    whole = "axes" not in attrs and attrs.get("keep_aspect_ratio_policy", "stretch") == "stretch"
    if wanted is None or x.shape is None or not whole or len(x.shape) != len(wanted):
        return [(None, 0)]
    if len(args) > 3:
        return [(tuple(wanted), x.dtype)]
    return [(tuple(_scaled(terms, dim, float(scale)) for dim, scale in zip(x.shape, wanted, strict=True)), x.dtype)]


def _resized(args: list[Term]) -> list[Any] | None:
    """The sizes, else the scales, that a Resize is given; None where they are not known."""
    if len(args) > 3:
        return None if args[3].data is None else list(args[3].data)
    scales = args[min(len(args) - 1, 2)]
    if len(args) == 1 or scales.op != "Constant" or scales.load is None:
        return None
    return list(value_of(scales))


def _scaled(terms: Terms, dim: Dim, scale: float) -> Dim:
    if isinstance(dim, int):
        return math.floor(np.float32(dim) * np.float32(scale))
    return dim * int(scale) if scale.is_integer() else terms.fresh_dim()


@rule("Attention")
def _attention(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """ai.onnx Attention-23: Y like Q with the head size of V; present key and value grow along the sequence; scores are
    those of each query and all keys.  Where a function body runs, batches and queries that have names of their own are
    broadcast together."""
    q, v, dtype = args[0].shape, args[2].shape, args[0].dtype
    if q is None or v is None:
        return [(None, dtype)]
    mask = args[3].shape if len(args) > 3 else None
    batches = [a.shape[:1] for a in args[:3] if a.shape is not None]
    (batch,) = broadcast(*batches, mask[:1] if mask is not None and len(mask) == 4 else (1,))
    (rows,) = broadcast(q[-2:-1], mask[-2:-1] if mask is not None and len(mask) > 1 else (1,))
    if len(q) == 4:
        y: Shape = (batch, q[1], rows, v[3])
    else:
        size = exact(v[2], attrs.get("kv_num_heads", 1))
        y = (batch, rows, size * attrs.get("q_num_heads", 1) if size is not None else terms.fresh_dim())
    keys, values = (_present(args, attrs, i) for i in (1, 2))
    heads = q[1] if len(q) == 4 else attrs.get("q_num_heads", 1)
    scores = None if keys is None else (batch, heads, rows, keys[2])
    return [(y, dtype), (keys, args[1].dtype), (values, args[2].dtype), (scores, dtype)][: max(outputs, 1)]


def _present(args: list[Term], attrs: Attributes, position: int) -> Shape | None:
    """The new keys (position 1) or values (2) as [B,H,T,D], behind those of the past."""
    new, past = args[position].shape, args[position + 3] if len(args) > position + 3 else None
    if new is not None and len(new) == 3:
        size = exact(new[2], attrs.get("kv_num_heads", 1))
        new = None if size is None else (new[0], attrs.get("kv_num_heads", 1), new[1], size)
    if new is None or past is None or past.op == "Absent":
        return new
    return None if past.shape is None else (*new[:2], past.shape[2] + new[2], new[3])


@rule("com.microsoft.Attention")
def _packed_attention(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """com.microsoft Attention of equal hidden sizes: the input's shape with a third of the columns of the weights."""
    x, w = args[0].shape, args[1].shape
    size = exact(w[1], 3) if w is not None and len(w) == 2 else None
    return [(None if x is None or size is None else (*x[:2], size), args[0].dtype)]


@rule("com.microsoft.GroupQueryAttention")
def _grouped_attention(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """Like the queries, which keys and values may stand behind in the same columns; the cache, longer or not."""
    q, heads, groups = args[0], attrs.get("num_heads", 1), attrs.get("kv_num_heads", 1)
    if q.shape is None or len(q.shape) != 3:
        return [(None, q.dtype)]
    packed = len(args) < 2 or args[1].op == "Absent"
    size = exact(q.shape[2], heads + 2 * groups if packed else heads)
    columns = terms.fresh_dim() if size is None else size * heads
    cache = (q.shape[0], groups, terms.fresh_dim(), terms.fresh_dim() if size is None else size)
    held = [args[i].dtype if len(args) > i and args[i].op != "Absent" else q.dtype for i in (3, 4)]
    return [((*q.shape[:2], columns), q.dtype), *((cache, dtype) for dtype in held)]


@rule("com.microsoft.FusedMatMul")
def _microsoft_matmul(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    if any(attrs.get(name) for name in ("transA", "transBatchA", "transBatchB")):
        return [(None, args[0].dtype)]
    return _matmul(terms, args, attrs, outputs)


@rule("EmbedLayerNormalization")
def _embed(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """Rows of a table of words, one for each id; their normalization, mask_index and their sum."""
    return _chosen(args[0], args[2]) * 3


@rule("EmbedSimplifiedLayerNormalization")
def _embed_simplified(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """Rows of a table, one for each id; normalised and as they are."""
    return _chosen(args[0], args[1]) * 2


def _chosen(ids: Term, table: Term) -> Inferred:
    if ids.shape is None or table.shape is None:
        return [(None, table.dtype)]
    return [((*ids.shape, table.shape[-1]), table.dtype)]


@rule("LSTM", "GRU", "RNN")
def _recurrent(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """The state after every step and after the last one, and an LSTM's cell after that."""
    x, recurrence = args[0].shape, args[2].shape
    if x is None or recurrence is None:
        return [(None, args[0].dtype)] * outputs
    (directions, _, hidden), (steps, batch) = recurrence, x[:2]
    every: Shape = (steps, directions, batch, hidden)
    last: Shape = (directions, batch, hidden)
    if attrs.get("layout"):
        batch, steps = x[:2]
        every, last = (batch, steps, directions, hidden), (batch, directions, hidden)
    return [(shape, args[0].dtype) for shape in (every, last, last)[:outputs]]


@rule("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
def _loss(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """One number, or one for each label; the logarithms of probabilities."""
    scores, labels = args[0], args[1]
    each = labels.shape if attrs.get("reduction") == "none" else ()
    return [(each, scores.dtype), (scores.shape, scores.dtype)]


@rule("CausalConvWithState")
def _causal_conv(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """ai.onnx CausalConvWithState-27: Y like X [B,C,S]; of the steps the last ones, one less than the kernel has."""
    x, w = args[0].shape, args[1].shape
    return [(x, args[0].dtype), (None if x is None or w is None else (*x[:2], w[2] - 1), args[0].dtype)]


@rule("LinearAttention")
def _linear_attention(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """ai.onnx LinearAttention-27: Y [B,S,H*D] with the columns of a head of V; the state [B,G,D,D] of each group."""
    q, k, v, dtype = args[0].shape, args[1].shape, args[2].shape, args[0].dtype
    groups, heads = attrs.get("kv_num_heads", 0), attrs.get("q_num_heads", 0)
    rows, columns = (exact(x[2], groups) if x is not None and groups else None for x in (k, v))
    if q is None or rows is None or columns is None:
        return [(None, dtype)] * 2
    return [((*q[:2], columns * heads), dtype), ((q[0], groups, rows, columns), dtype)]


@rule("AffineGrid")
def _affine_grid(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """ai.onnx AffineGrid-20: a place of two or three coordinates for each position of [N,C,(D,)H,W]."""
    size, theta = args[1].data, args[0].shape
    known = None if size is None or theta is None else (size[0], *size[2:], theta[1])
    return [(known, args[0].dtype)]


@rule("CenterCropPad")
def _center(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """ai.onnx CenterCropPad-18: some axes, or all, as long as is asked for."""
    x, wanted = args[0].shape, args[1].data
    if x is None or wanted is None:
        return [(None, args[0].dtype)]
    axes = [normal_axis(axis, len(x)) for axis in attrs.get("axes", range(len(x)))]
    lengths = dict(zip(axes, wanted, strict=True))
    return [(tuple(lengths.get(axis, dim) for axis, dim in enumerate(x)), args[0].dtype)]
