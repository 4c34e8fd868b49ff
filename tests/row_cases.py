"""Calls of the row kernels for tests: inputs, and what NumPy makes of them in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.device.kernel import Kernel
from onnxfuse.kernels.emulator.device import Emulated

Values = NDArray[Any]
DTYPES = tuple(map(np.dtype, (np.float32, np.float16, ml_dtypes.bfloat16)))
EPSILON = 1e-5


@dataclass(frozen=True)
class Wanted:
    """An output in float64, and the size of the terms that it is the sum of: where they cancel, float32 leaves an
    error of their size."""

    value: Values
    size: Values | float = 0.0
    weighed: bool = False
    """Whether each term is weighed by a number that is rounded to half precision, where the output is in it."""


def values(rng: np.random.Generator, shape: Sequence[int], dtype: np.dtype[Any], mean: float = 0.0) -> Values:
    return np.asarray(mean + rng.standard_normal(tuple(shape))).astype(dtype)


def misaligned(array: Values) -> Values:
    """The same array, one element past a 16-byte boundary."""
    memory = np.zeros(array.size + 16 // array.dtype.itemsize + 1, array.dtype)
    start = -memory.ctypes.data // array.dtype.itemsize % (16 // array.dtype.itemsize) + 1
    placed = memory[start : start + array.size].reshape(array.shape)
    placed[...] = array
    return placed


def run(
    device: Emulated,
    kernel: Kernel,
    inputs: Sequence[Values | None],
    wanted: Sequence[bool] = (),
    place: Callable[[Values], Values] = lambda array: array,
) -> list[Values | None]:
    """The outputs that are `wanted` (all, if nothing is said); each element must be written."""
    types = kernel.outputs([None if i is None else TensorType(i.dtype, i.shape) for i in inputs])
    asked = [*wanted, *(not wanted for _ in types[len(wanted) :])]
    outputs = [place(np.empty(t.shape, t.dtype)) if w else None for t, w in zip(types, asked, strict=True)]
    placed = [None if i is None else place(i) for i in inputs]
    for array in placed:
        if array is not None:
            array.setflags(write=False)
    with device.fresh(*(o for o in outputs if o is not None)):
        kernel.launch(device, placed, outputs)
    return outputs


def ulps(a: Values, b: Values) -> Values:
    """How many numbers of their 16-bit type lie between a and b, element by element; NaN is next to NaN."""

    def place(x: Values) -> Values:
        bits = x.view(np.int16).astype(np.int64)
        return np.where(bits < 0, -(bits & 0x7FFF), bits)

    return np.where(np.isnan(a) & np.isnan(b), 0, np.abs(place(a) - place(b)))


def assert_close(got: Values | None, wanted: Wanted) -> None:
    """float32 within 1e-5 of float64; half precision within 2 ulp of float64 rounded once.  Where terms cancel, what
    counts is their size; weighed ones may be off by a unit in the last place of that."""
    assert got is not None
    value = np.broadcast_to(wanted.value, got.shape)
    exact = got.astype(np.float64)
    with np.errstate(all="ignore"):
        same = (exact == value) | (np.isnan(exact) & np.isnan(value))
        close = np.abs(exact - value) <= 1e-5 * np.maximum(np.abs(value), wanted.size)
        if got.dtype.itemsize == 2:
            close |= ulps(got, value.astype(got.dtype)) <= 2
            if wanted.weighed:
                close |= np.abs(exact - value) <= float(ml_dtypes.finfo(got.dtype).eps) * np.asarray(wanted.size)
    bad = np.argwhere(~(same | close))
    assert not len(bad), f"{len(bad)} of {got.size}, first {bad[0]}: {exact[tuple(bad[0])]} for {value[tuple(bad[0])]}"


def normalized(x: Values, axes: tuple[int, ...], center: bool = True) -> tuple[Values, Values, Values]:
    """The normal form, the mean and the inverse deviation (or root mean square)."""
    mean = x.mean(axes, keepdims=True)
    d = x - mean if center else x
    inverse = 1 / np.sqrt((d**2).mean(axes, keepdims=True) + EPSILON)
    return d * inverse, mean, inverse


def affine(normal: Values, scale: Values, bias: Values | None = None) -> Wanted:
    """normal * scale + bias; `normal` is a difference of what may be large against it."""
    s = scale.astype(np.float64)
    b = np.zeros(()) if bias is None else bias.astype(np.float64)
    return Wanted(normal * s + b, np.maximum(np.abs(normal), 1) * np.abs(s) + np.abs(b))


def embedding_gradient(dy: Values, indices: Values, rows: int, padding: int = -1) -> Wanted:
    """The rows of dy that have an index in common, added up; one of padding, or outside, is of none."""
    found, size = np.zeros((rows, dy.shape[-1])), np.zeros((rows, dy.shape[-1]))
    seen = (indices >= 0) & (indices < rows) & (indices != padding)
    np.add.at(found, indices[seen], dy[seen].astype(np.float64))
    np.add.at(size, indices[seen], np.abs(dy[seen].astype(np.float64)))
    return Wanted(found, size)


def group_norm_gradient(dy: Values, x: Values, scale: Values, groups: int, epsilon: float = EPSILON) -> list[Wanted]:
    """Of what was normalised, of the scale and of the shift, each sum beside that of the sizes of its terms."""
    dy, x, scale = (one.astype(np.float64) for one in (dy, x, scale))
    parts = (len(x), groups, x.shape[1] // groups, -1)
    g, xs, w = dy.reshape(parts), x.reshape(parts), scale.reshape(1, groups, -1, 1)
    d = xs - xs.mean((2, 3), keepdims=True)
    inverse = 1 / np.sqrt((d * d).mean((2, 3), keepdims=True) + epsilon)
    xh, own = d * inverse, g * w
    dx = inverse * (own - own.mean((2, 3), keepdims=True) - xh * (own * xh).mean((2, 3), keepdims=True))
    size = inverse.max() * np.abs(own).max() * (1 + np.abs(xh).max() ** 2)
    sums = [Wanted(t.sum((0, 3)).ravel(), np.abs(t).sum((0, 3)).ravel()) for t in (g * xh, g)]
    return [Wanted(dx.reshape(x.shape), size), *sums]


def softmax(x: Values, axis: int, op: str) -> Wanted:
    """Softmax, LogSoftmax or SafeSoftmax."""
    with np.errstate(all="ignore"):
        shifted = x.astype(np.float64) - x.astype(np.float64).max(axis, keepdims=True)
        exponentials = np.exp(shifted)
        total = exponentials.sum(axis, keepdims=True)
        if op == "LogSoftmax":
            return Wanted(shifted - np.log(total), 1.0)
        y = exponentials / total
    return Wanted(np.where(np.isnan(y), 0, y) if op == "SafeSoftmax" else y, np.finfo(np.float32).tiny)
