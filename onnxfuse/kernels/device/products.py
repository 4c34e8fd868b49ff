"""Shapes of matrix products: ONNX MatMul's broadcasting as products of strided batches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from onnxfuse.errors import KernelError

from .device import Product


class _Run(NamedTuple):
    """Neighbouring dimensions of a batch along which each operand either goes on or stays."""

    extent: int
    stride_a: int
    stride_b: int


def stored(shape: Sequence[int], transposed: bool) -> tuple[int, int]:
    """Rows and columns [k, n] of the matrices in an operand b."""
    rows, columns = shape[-2:]
    return (columns, rows) if transposed else (rows, columns)


def result(a: Sequence[int], b: Sequence[int], transposed: bool) -> tuple[int, ...]:
    """The shape of a b, as MatMul has it; both have two dimensions at least.  Raises KernelError if they do not fit."""
    if len(a) < 2 or len(b) < 2:
        raise KernelError(f"matrices have two dimensions: {list(a)} by {list(b)}")
    k, n = stored(b, transposed)
    if a[-1] != k:
        raise KernelError(f"{list(a)} by {list(b)}: rows of {a[-1]} do not fit columns of {k}")
    try:
        return (*np.broadcast_shapes(tuple(a[:-2]), tuple(b[:-2])), a[-2], n)
    except ValueError:
        raise KernelError(f"{list(a)} by {list(b)}: the batches do not fit") from None


def products(a: Sequence[int], b: Sequence[int], transposed: bool = False, scale: float = 1.0) -> list[Product]:
    """scale · a b as products of one stride each: mostly one.  Rows of a that share one matrix of b are one product
    with more rows.  Empty where the result is."""
    shape = result(a, b, transposed)
    if 0 in shape:
        return []
    m, n, k = shape[-2], shape[-1], a[-1]
    runs = _runs(a[:-2], b[:-2], m * k, k * n)
    if runs and not runs[0].stride_b:
        m *= runs.pop(0).extent
    batch = runs.pop(0) if runs else _Run(1, 0, 0)
    found = []
    places = itertools.product(*(range(run.extent) for run in runs[::-1]))
    for number, place in enumerate(places):
        steps = list(zip(place[::-1], runs, strict=True))
        found.append(
            Product(
                m,
                n,
                k,
                transposed,
                scale,
                batch.extent,
                batch.stride_a,
                batch.stride_b,
                sum(i * run.stride_a for i, run in steps),
                sum(i * run.stride_b for i, run in steps),
                number * batch.extent * m * n,
            )
        )
    return found


def _runs(a: Sequence[int], b: Sequence[int], size_a: int, size_b: int) -> list[_Run]:
    """The dimensions of a batch from the last to the first, joined where both operands do as before."""
    rank = max(len(a), len(b))
    runs: list[_Run] = []
    for own_a, own_b in zip(*([*(1,) * (rank - len(x)), *x][::-1] for x in (a, b)), strict=True):
        extent = max(own_a, own_b)
        if extent == 1:
            continue
        stride_a, stride_b = size_a if own_a > 1 else 0, size_b if own_b > 1 else 0
        size_a, size_b = size_a * own_a, size_b * own_b
        if runs and (bool(runs[-1].stride_a), bool(runs[-1].stride_b)) == (bool(stride_a), bool(stride_b)):
            runs[-1] = runs[-1]._replace(extent=runs[-1].extent * extent)
        else:
            runs.append(_Run(extent, stride_a, stride_b))
    return runs


def multiplications(a: Sequence[int], b: Sequence[int], transposed: bool) -> int:
    """Products of two numbers that a b is made of."""
    return math.prod(result(a, b, transposed)) * a[-1]
