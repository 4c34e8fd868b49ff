"""Convolutions for the ONNX reference evaluator, in place of its own.

Those gather every window of an input before the first product (onnx 1.23: a first layer of an image model takes
gigabytes), or add up in Python.  These go through it in pieces that stay in a cache.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from onnx.reference.op_run import OpRun

Array: TypeAlias = np.ndarray[Any, Any]
Sizes: TypeAlias = Sequence[int]

_PIECE = 1 << 20
"""Numbers of windows that are gathered at once."""


def convolved(x: Array, w: Array, strides: Sizes, dilations: Sizes, pads: Sizes, group: int) -> Array:
    """Cross-correlation.

    x is [N, group * C, *size], w [group * M, C, *kernel], the result [N, group * M, *(where a window fits)]; `pads` are
    zeros before each spatial axis, then after each."""
    rank = w.ndim - 2
    n, kernel = len(x), w.shape[2:]
    x = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    x = x.reshape(n, group, x.shape[1] // group, *x.shape[2:])
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    if any(size < span for size, span in zip(x.shape[3:], spans, strict=True)):
        raise ValueError(f"a window of {spans} does not fit into {list(x.shape[3:])}")
    windows = sliding_window_view(x, spans, axis=tuple(range(3, 3 + rank)))
    steps = [slice(None)] * 3 + [slice(None, None, step) for step in (*strides, *dilations)]
    windows = windows[tuple(steps)]  # n, group, C, *out, *kernel
    out = windows.shape[3 : 3 + rank]
    windows = np.moveaxis(windows, 2, 2 + rank)
    matrix = w.reshape(group, -1, math.prod(w.shape[1:])).swapaxes(1, 2)
    y = np.empty((n, group, *out, matrix.shape[2]), np.result_type(x, w))
    rows = max(1, _PIECE // max(1, windows[:, :, :1].size))
    for start in range(0, out[0], rows):
        piece = windows[:, :, start : start + rows]
        product = piece.reshape(n, group, -1, matrix.shape[1]) @ matrix
        y[:, :, start : start + rows] = product.reshape(y[:, :, start : start + rows].shape)
    return np.moveaxis(y, -1, 2).reshape(n, -1, *out)


def transposed(x: Array, w: Array, strides: Sizes, dilations: Sizes, group: int) -> Array:
    """The transpose of `convolved` in x, before pads are cut off: every number of x adds w, times itself, to a window.

    x is [N, group * C, *size], w [group * C, M, *kernel], the result [N, group * M, *(size - 1) * stride + span]."""
    n, size, kernel = len(x), x.shape[2:], w.shape[2:]
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    full = [(s - 1) * step + span for s, step, span in zip(size, strides, spans, strict=True)]
    y = np.zeros((n, group, w.shape[1], *full), np.result_type(x, w))
    rows = x.reshape(n, group, x.shape[1] // group, -1)
    matrices = w.reshape(group, -1, w.shape[1], math.prod(kernel)).swapaxes(1, 2)
    for number, place in enumerate(itertools.product(*map(range, kernel))):
        covered = (
            slice(k * d, k * d + (s - 1) * step + 1, step)
            for k, d, s, step in zip(place, dilations, size, strides, strict=True)
        )
        y[(slice(None), slice(None), slice(None), *covered)] += (matrices[..., number] @ rows).reshape(
            n, group, -1, *size
        )
    return y.reshape(n, -1, *full)


class Conv(OpRun):
    def _run(
        self,
        x: Array,
        w: Array,
        b: Array | None = None,
        auto_pad: str | None = None,
        dilations: Sizes | None = None,
        group: int | None = None,
        kernel_shape: Sizes | None = None,
        pads: Sizes | None = None,
        strides: Sizes | None = None,
    ) -> tuple[Array]:
        rank = w.ndim - 2
        strides, dilations = strides or [1] * rank, dilations or [1] * rank
        if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            spans = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
            wanted = (
                max(0, (-(-s // t) - 1) * t + span - s) for s, t, span in zip(x.shape[2:], strides, spans, strict=True)
            )
            pads = _halves(list(wanted), auto_pad == "SAME_UPPER")
        elif auto_pad == "VALID" or not pads:
            pads = [0] * 2 * rank
        return (_biased(convolved(x, w, strides, dilations, pads, group or 1), b).astype(x.dtype),)


class ConvTranspose(OpRun):
    def _run(
        self,
        x: Array,
        w: Array,
        b: Array | None = None,
        auto_pad: str | None = None,
        dilations: Sizes | None = None,
        group: int | None = None,
        kernel_shape: Sizes | None = None,
        output_padding: Sizes | None = None,
        output_shape: Sizes | None = None,
        pads: Sizes | None = None,
        strides: Sizes | None = None,
    ) -> tuple[Array]:
        rank = w.ndim - 2
        strides, dilations = strides or [1] * rank, dilations or [1] * rank
        more = output_padding or [0] * rank
        y = transposed(x, w, strides, dilations, group or 1)
        y = np.pad(y, [(0, 0), (0, 0), *((0, extra) for extra in more)])
        if not output_shape and auto_pad in ("SAME_UPPER", "SAME_LOWER"):
            output_shape = [size * step for size, step in zip(x.shape[2:], strides, strict=True)]
        if output_shape:
            surplus = [has - wanted for has, wanted in zip(y.shape[2:], output_shape[-rank:], strict=True)]
            pads = _halves(surplus, auto_pad == "SAME_UPPER")
        elif auto_pad == "VALID" or not pads:
            pads = [0] * 2 * rank
        before, after = pads[:rank], pads[rank:]
        # Where pads are below 0, the result is wider than what the windows cover, and 0 there.
        y = np.pad(y, [(0, 0), (0, 0), *((max(0, -a), max(0, -b)) for a, b in zip(before, after, strict=True))])
        kept = (slice(max(0, a), size - max(0, b)) for size, a, b in zip(y.shape[2:], before, after, strict=True))
        return (_biased(y[(slice(None), slice(None), *kept)], b).astype(x.dtype),)


def _halves(totals: Sizes, rest_after: bool) -> list[int]:
    """Pads before each axis, then after each, where only their sums are given."""
    before = [total // 2 if rest_after else total - total // 2 for total in totals]
    return before + [total - start for total, start in zip(totals, before, strict=True)]


def _biased(y: Array, b: Array | None) -> Array:
    return y if b is None else np.asarray(y + b.reshape(-1, *(1,) * (y.ndim - 2)))
