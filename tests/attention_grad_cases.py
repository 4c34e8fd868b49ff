"""Calls of the kernels of attention's gradients for tests: inputs, and what NumPy makes of them in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .attention_cases import Case
from .row_cases import Values, Wanted, values


def inputs(case: Case, dtype: np.dtype[Any]) -> list[Values | None]:
    """The gradient of what attention gives, its queries, keys and values, and the mask where it has one."""
    q, k, v, mask, *_ = case.inputs(dtype)
    assert q is not None
    head_v = case.head_v or case.head
    shape = (*q.shape[:-1], case.heads * head_v if case.flat else head_v)
    dy = values(np.random.default_rng(case.seed + 1), shape, dtype)
    return [dy, q, k, v, *([] if mask is None else [mask])]


def node(case: Case) -> dict[str, Any]:
    """The attributes of the node, which always has a scale."""
    return {"scale": case.head**-0.5, **case.node}


def expected(attributes: Mapping[str, Any], given: Sequence[Values | None]) -> list[Wanted]:
    """dQ, dK, dV and dBias in float64."""
    dy, q, k, v, mask = (None if a is None else a for a in [*given, None][:5])
    assert dy is not None
    assert q is not None
    assert k is not None
    assert v is not None
    heads, kv_heads = attributes.get("q_num_heads", 0), attributes.get("kv_num_heads", 0)
    wide_dy, wide_q = (_heads(x, heads) for x in (dy, q))
    own_k, own_v = (_heads(x, kv_heads) for x in (k, v))
    group = wide_q.shape[1] // own_k.shape[1]
    wide_k, wide_v = (np.repeat(x, group, 1) for x in (own_k, own_v))
    scale = attributes["scale"]
    weights = _weights(attributes, wide_q @ wide_k.swapaxes(2, 3) * scale, mask)
    gradients = wide_dy @ wide_v.swapaxes(2, 3)
    with np.errstate(all="ignore"):
        delta = (weights * gradients).sum(-1, keepdims=True)
        bias = weights * (gradients - delta)
        if mask is not None and mask.dtype == bool:
            bias = np.where(mask, bias, 0)
        scores, axes = scale * bias, tuple(attributes.get("bias_axes", ()))
        known = np.nan_to_num(weights)
        sizes = abs(scale) * known * (np.abs(gradients) + np.nan_to_num(np.abs(delta)))
        turned, sizes_turned, weights_turned = (x.swapaxes(2, 3) for x in (scores, sizes, weights))
        found = [
            (scores @ wide_k, sizes @ np.abs(wide_k), 1, q),
            (turned @ wide_q, sizes_turned @ np.abs(wide_q), group, k),
            (weights_turned @ wide_dy, known.swapaxes(2, 3) @ np.abs(wide_dy), group, v),
        ]
        # What a gradient of a weight is summed from, and its mean over a row: by their sizes both are rounded.
        steps = np.abs(wide_dy) @ np.abs(wide_v.swapaxes(2, 3))
        terms = known * np.nan_to_num(steps + (known * steps).sum(-1, keepdims=True))
        of_bias = Wanted(bias.sum(axes, keepdims=True), terms.sum(axes, keepdims=True), weighed=True)
    return [
        *(
            Wanted(_like(value, times, to), np.nan_to_num(_like(size, times, to)), weighed=True)
            for value, size, times, to in found
        ),
        of_bias,
    ]


def _heads(x: Values, heads: int) -> Values:
    wide = x.astype(np.float64)
    return wide if x.ndim == 4 else wide.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def _weights(attributes: Mapping[str, Any], scores: Values, mask: Values | None) -> Values:
    queries, keys = scores.shape[2:]
    if attributes.get("is_causal", 0):
        scores = np.where(np.arange(keys) > np.arange(queries)[:, None], -np.inf, scores)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask.astype(np.float64)
    with np.errstate(all="ignore"):
        weights = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
        weights = weights / weights.sum(-1, keepdims=True)
    if guard := attributes.get("nan_to_zero", 0):
        none = np.isnan(weights) if guard == 1 else (scores == -np.inf).all(-1, keepdims=True)
        weights = np.where(none, 0, weights)
    shares: Values = weights
    return shares


def _like(gradient: Values, times: int, to: Values) -> Values:
    """Summed over the heads that share one, and in the shape of what it is the gradient of."""
    b, h, rows, size = gradient.shape
    summed = gradient.reshape(b, h // times, times, rows, size).sum(2)
    return summed if to.ndim == 4 else summed.swapaxes(1, 2).reshape(to.shape)
