"""Convolutions for the ONNX reference evaluator, in place of its own.

Those gather every window of an input before the first product (onnx 1.23: a first layer of an image model takes
gigabytes), or add up in Python.  Here each place of the kernel is one product of matrices.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
from onnx.reference.op_run import OpRun

Array: TypeAlias = np.ndarray[Any, Any]
Sizes: TypeAlias = Sequence[int]


def convolved(x: Array, w: Array, strides: Sizes, dilations: Sizes, pads: Sizes, group: int) -> Array:
    """Cross-correlation.

    x is [N, group * C, *size], w [group * M, C, *kernel], the result [N, group * M, *(where a window fits)]; `pads` are
    zeros before each spatial axis, then after each.

    Raises ValueError if no window fits.
    """
    rank, kernel = w.ndim - 2, w.shape[2:]
    x = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:], strict=True)])
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    out = [(size - span) // step + 1 for size, span, step in zip(x.shape[2:], spans, strides, strict=True)]
    if min(out) < 1:
        raise ValueError(f"a window of {spans} does not fit into {list(x.shape[2:])}")
    x = x.reshape(len(x), group, w.shape[1], *x.shape[2:])
    matrices = w.reshape(group, len(w) // group, w.shape[1], math.prod(kernel))
    y = np.zeros((len(x), group, matrices.shape[1], math.prod(out)), np.result_type(x, w))
    for matrix, seen in _places(matrices, kernel, out, strides, dilations):
        y += _product(matrix, x[seen].reshape(len(x), group, w.shape[1], math.prod(out)))
    return y.reshape(len(x), len(w), *out)


def transposed(x: Array, w: Array, strides: Sizes, dilations: Sizes, group: int) -> Array:
    """The transpose of `convolved` in x, before pads are cut off: every number of x adds w, times itself, to a window.

    x is [N, group * C, *size], w [group * C, M, *kernel], the result [N, group * M, *(size - 1) * stride + span]."""
    size, kernel = x.shape[2:], w.shape[2:]
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    full = [(s - 1) * step + span for s, step, span in zip(size, strides, spans, strict=True)]
    matrices = w.reshape(group, len(w) // group, w.shape[1], math.prod(kernel)).swapaxes(1, 2)
    rows = x.reshape(len(x), group, matrices.shape[2], math.prod(size))
    y = np.zeros((len(x), group, w.shape[1], *full), np.result_type(x, w))
    for matrix, seen in _places(matrices, kernel, size, strides, dilations):
        y[seen] += _product(matrix, rows).reshape(len(x), group, w.shape[1], *size)
    return y.reshape(len(x), group * w.shape[1], *full)


def _places(
    matrices: Array, kernel: Sizes, count: Sizes, strides: Sizes, dilations: Sizes
) -> Iterator[tuple[Array, tuple[slice, ...]]]:
    """The matrix of each place of a kernel, and what `count` windows see there of [N, group, C, *size]."""
    for number, place in enumerate(itertools.product(*map(range, kernel))):
        axes = zip(place, dilations, count, strides, strict=True)
        seen = (slice(k * d, k * d + (n - 1) * step + 1, step) for k, d, n, step in axes)
        yield matrices[..., number], (slice(None), slice(None), slice(None), *seen)


def _product(matrix: Array, rows: Array) -> Array:
    """matrix @ rows; one channel of each group is no sum, and a product of matrices a slow way to do it."""
    return np.asarray(matrix * rows if matrix.shape[-1] == 1 else matrix @ rows)


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
