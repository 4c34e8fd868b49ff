"""Shape and dtype of what gradient ops give: each gradient is like what it is the gradient of."""

from __future__ import annotations

from .infer_table import Inferred, rule
from .term import Attributes, Term, Terms


@rule("AttentionGrad")
def _attention(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """Of queries, keys and values, behind the gradient of what they give."""
    return [(a.shape, args[0].dtype) for a in args[1:4]]


@rule("LinearWeightGrad")
def _linear(terms: Terms, args: list[Term], attrs: Attributes, outputs: int) -> Inferred:
    """Of the weight, [out, in] or, without transB, [in, out], and of the bias [out]."""
    dy, x = (None if a.shape is None else a.shape[-1:] for a in args[:2])
    if dy is None or x is None:
        return [(None, args[0].dtype)] * 2
    return [((*dy, *x) if attrs.get("transB", 1) else (*x, *dy), args[0].dtype), (dy, args[0].dtype)]
