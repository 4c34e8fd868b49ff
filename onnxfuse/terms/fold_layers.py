"""Constant folding of layers: normalizations, convolutions and resized pictures of constants alone.

Exports leave them where weights are standardized at each run (NFNet, BiT), where a table of positions is brought to
the size of the picture (ViT, DPT, SAM) or goes through a projection of its own (XCiT), and where a decoder's first
layer has nothing to attend but its own queries (DETR).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .term import REAL, Term

Array: TypeAlias = NDArray[Any]
Operands: TypeAlias = Sequence[Array | None]
"""Inputs in the places that they have in a node, None where one is absent."""

Layer: TypeAlias = Callable[[Operands, Mapping[str, Any], Term], Array]

_WORK = 1 << 28
"""Products of a convolution that is folded: some seconds of one core."""


def _softmax(x: Operands, attrs: Mapping[str, Any], term: Term) -> Array:
    given, axis = _given(x[0]), attrs.get("axis", -1)
    powers = np.exp(given - given.max(axis=axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis=axis, keepdims=True))


def _layer_norm(x: Operands, attrs: Mapping[str, Any], term: Term) -> Array:
    given, first = _given(x[0]), attrs.get("axis", -1) % _given(x[0]).ndim
    axes = tuple(range(first, given.ndim))
    mean, variance = given.mean(axis=axes, keepdims=True), given.var(axis=axes, keepdims=True)
    normal = (given - mean) / np.sqrt(variance + attrs.get("epsilon", 1e-5))
    scale, bias = (x[i] if len(x) > i else None for i in (1, 2))
    return np.asarray(normal * (1 if scale is None else scale) + (0 if bias is None else bias))


def _batch_norm(x: Operands, attrs: Mapping[str, Any], term: Term) -> Array:
    given, scale, shift, mean, variance = map(_given, x)
    if attrs.get("training_mode"):
        axes = (0, *range(2, given.ndim))
        mean, variance = given.mean(axis=axes), given.var(axis=axes)
    factor = scale / np.sqrt(variance + attrs.get("epsilon", 1e-5))
    channels = (1, -1) + (1,) * (given.ndim - 2)
    return np.asarray(given * factor.reshape(channels) + (shift - mean * factor).reshape(channels))


def _conv(x: Operands, attrs: Mapping[str, Any], term: Term) -> Array:
    given, kernel = _given(x[0]), _given(x[1])
    spatial, groups = kernel.ndim - 2, attrs.get("group", 1)
    if attrs.get("auto_pad", "NOTSET") != "NOTSET" or math.prod(term.shape or ()) * kernel[0].size > _WORK:
        raise ValueError("a convolution that is padded by name, or large, is not folded")
    pads = attrs.get("pads", (0,) * 2 * spatial)
    steps = zip(attrs.get("strides", (1,) * spatial), attrs.get("dilations", (1,) * spatial), strict=True)
    padded = np.pad(given, [(0, 0), (0, 0), *((pads[i], pads[i + spatial]) for i in range(spatial))])
    for axis, (stride, dilation) in enumerate(steps, 2):  # each adds a last axis, of the elements under the kernel
        span = (kernel.shape[axis] - 1) * dilation + 1
        windows = np.lib.stride_tricks.sliding_window_view(padded, span, axis)
        padded = windows.swapaxes(0, axis)[::stride].swapaxes(0, axis)[..., ::dilation]
    over = (1, *range(2 + spatial, 2 + 2 * spatial)), (1, *range(2, 2 + spatial))
    parts = zip(np.split(padded, groups, axis=1), np.split(kernel, groups), strict=True)
    result = np.concatenate([np.moveaxis(np.tensordot(p, k, over), -1, 1) for p, k in parts], axis=1)
    bias = x[2] if len(x) > 2 else None
    return result if bias is None else result + bias.reshape(-1, *(1,) * spatial)


def _resize(x: Operands, attrs: Mapping[str, Any], term: Term) -> Array:
    """Axis by axis, for each element of the result the elements that it is a mean of."""
    given, result = _given(x[0]), _given(x[0])
    scales, dims = x[2] if len(x) > 2 else None, [int(d) for d in term.shape or () if isinstance(d, int)]
    nearest = attrs.get("mode", "nearest") == "nearest"
    if attrs.get("antialias") or not given.size or not (nearest or (term.dtype in REAL and np.isfinite(given).all())):
        raise ValueError("a Resize of nothing, of what is no number, or against aliases is not folded")
    for axis, (old, new) in enumerate(zip(given.shape, dims, strict=True)):
        scale = new / old if scales is None or not scales.size else float(scales[axis])
        if scale == 1:
            continue
        at = _positions(old, new, scale, attrs.get("coordinate_transformation_mode", "half_pixel"))
        if nearest:
            result = result.take(_nearest(at, old, attrs.get("nearest_mode", "round_prefer_floor")), axis)
        else:
            result = np.moveaxis(np.tensordot(_means(at, old, attrs), result, (1, axis)), 0, axis)
    return result


def _positions(old: int, new: int, scale: float, mode: str) -> Array:
    """Where the elements of a result lie on the axis that is resized (ai.onnx Resize)."""
    i = np.arange(new, dtype=np.float64)
    match mode:
        case "asymmetric":
            return np.asarray(i / scale)
        case "align_corners":
            return np.asarray(i * (old - 1) / max(new - 1, 1))
        case "pytorch_half_pixel" if new == 1:
            return np.zeros(1)
        case "half_pixel" | "pytorch_half_pixel":
            return np.asarray((i + 0.5) / scale - 0.5)
    raise ValueError(f"Resize by {mode} is not folded")


def _nearest(at: Array, old: int, mode: str) -> Array:
    halves = {"floor": 0.0, "ceil": 0.0, "round_prefer_floor": 0.5, "round_prefer_ceil": 0.5}[mode]
    up = mode in ("ceil", "round_prefer_floor")
    # Where a runtime's float32 may fall to the other side of a step, only the runtime can say which element it takes.
    beside = np.abs(at - halves - np.rint(at - halves))
    if ((beside > 0) & (beside < 1e-4)).any():
        raise ValueError("rounding decides which element is nearest")
    index = np.ceil(at - halves) if up else np.floor(at + halves)
    return np.clip(index, 0, old - 1).astype(np.int64)


def _means(at: Array, old: int, attrs: Mapping[str, Any]) -> Array:
    """A row of weights of the old elements for each new one."""
    first = np.floor(at)
    rest, taps, weights = at - first, range(2), [1 - (at - first), at - first]
    if attrs["mode"] == "cubic":
        taps, a = range(-1, 3), attrs.get("cubic_coeff_a", -0.75)
        weights = [_cubic(np.abs(rest - tap), a) for tap in taps]
    table = np.zeros((len(at), old))
    for tap, weight in zip(taps, weights, strict=True):
        index = (first + tap).astype(np.int64)
        inside = (index >= 0) & (index < old)
        kept = weight * inside if attrs.get("exclude_outside") else weight
        np.add.at(table, (np.arange(len(at)), np.clip(index, 0, old - 1)), kept)
    return table / table.sum(axis=1, keepdims=True) if attrs.get("exclude_outside") else table


def _cubic(distance: Array, a: float) -> Array:
    """The weight of an element so far away (Keys, 1981)."""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0))


def _given(x: Array | None) -> Array:
    if x is None:
        raise ValueError("an input is missing")
    return x


LAYERS: Mapping[str, Layer] = {
    "BatchNormalization": _batch_norm,
    "Conv": _conv,
    "LayerNormalization": _layer_norm,
    "Resize": _resize,
    "Softmax": _softmax,
}
