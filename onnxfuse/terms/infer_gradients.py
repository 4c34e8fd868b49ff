"""Shape and dtype of what gradient ops give: each gradient is like what it is the gradient of."""

from __future__ import annotations

from onnxfuse.model.dims import Shape, exact

from .infer_table import Inferred, rule
from .term import Attributes, Term, Terms


@rule("AttentionGrad")
def _attention(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """Of queries, keys and values, behind the gradient of what they give, and of scores, summed over `bias_axes`."""
    q, k = (a.shape for a in args[1:3])
    scores: Shape | None = None
    if q is not None and k is not None:
        whole = (q[0], q[1] if len(q) == 4 else attrs["q_num_heads"], q[-2], k[-2])
        scores = tuple(1 if at - 4 in attrs.get("bias_axes", ()) else dim for at, dim in enumerate(whole))
    return [*((a.shape, args[0].dtype) for a in args[1:4]), (scores, args[0].dtype)][:outputs]


@rule("LinearWeightGrad")
def _linear(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """Of the weight, [out, in] or, without transB, [in, out], and of the bias [out]."""
    dy, x = (None if a.shape is None else a.shape[-1:] for a in args[:2])
    if dy is None or x is None:
        return [(None, args[0].dtype)] * 2
    return [((*dy, *x) if attrs.get("transB", 1) else (*x, *dy), args[0].dtype), (dy, args[0].dtype)]


@rule("BatchNormalizationGrad", "BatchNormInternal", "GroupNormalizationGrad")
def _batch(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """Of what was normalised, and of scale and shift, each [channels], as mean and inverse deviation are."""
    scale = args[2] if len(args) == 5 else args[1]
    return [(args[0].shape, args[0].dtype), *((scale.shape, args[0].dtype) for _ in range(2))]


@rule("GroupNormalizationGrad")
def _groups(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """Of what was normalised, and of scale and shift, each [channels]."""
    return [(args[i].shape, args[0].dtype) for i in (0, 2, 2)]


@rule("ConvWeightGrad")
def _convolution(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """Of the weight, [out, in of a group, ...], and of the bias [out]."""
    dy, x = (a.shape for a in args[:2])
    if dy is None or x is None:
        return [(None, args[0].dtype)] * 2
    inner = exact(x[1], attrs.get("group", 1))
    weight = None if inner is None else (dy[1], inner, *attrs["kernel_shape"])
    return [(weight, args[0].dtype), ((dy[1],), args[0].dtype)]


@rule("EmbeddingGrad")
def _embedding(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """Of the embedding, [rows, width]."""
    shape = args[0].shape
    return [(None if shape is None else (attrs["num_embeddings"], shape[-1]), args[0].dtype)]
