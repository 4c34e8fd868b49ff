"""What sites are fed: unit normals of several sizes, and what the original gave where that has a meaning."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from . import numerics
from .cuts import Cut

_HUGE = 1e4
"""A float of this size fills a mask."""
_FACTORS = {"rows": (1.0, 1e-6, 16.0, 1e-3, 1.0, 3e-3, 0.1), "samples": (1e-6, 16.0, 1e-3, 1.0, 0.1, 1.0, 3e-3)}
"""Sizes of rows or samples: a variance is to meet any epsilon, and an exponential a large number."""
_LARGE_HALF = 4.0
"""The largest of them in half precision, of whose range a product of two rows of 16 would be out."""
_SMALL = 1e-5
"""What loose tables are multiplied by; loose shifts are 0."""
_LOOSE = 1 << 22
"""Elements of the largest that are."""
_PERIOD = 11
"""Rows after which constant and zero ones come again; prime to the number of sizes."""


def loose(original: onnx.ModelProto, fused: onnx.ModelProto, sites: Sequence[Cut]) -> dict[str, np.ndarray]:
    """Initializers that may have other values than they have, in both models alike: shifts and tables of rows.

    They hide what a small variance shows.  Left out are those that another constant was made of, large ones, and those
    in other files."""
    tensors = {tensor.name: tensor for tensor in original.graph.initializer}
    kept = {tensor.name: tensor for tensor in fused.graph.initializer}
    found: set[str] = set()
    fixed: set[str] = set()
    for site in sites:
        pairs = ((original, site.original), (fused, site.fused))
        cones = [[model.graph.node[i] for i in cone] for model, cone in pairs]
        read = [{name for node in cone for name in node.input if name in tensors} for cone in cones]
        fixed |= read[0] ^ read[1]
        for node in cones[0]:
            for position, name in enumerate(node.input):
                table = node.op_type == "Gather" and position == 0
                (found if node.op_type == "Add" or table else fixed).add(name)
    return {
        name: numpy_helper.to_array(tensors[name])
        for name in sorted(found & tensors.keys() & kept.keys() - fixed)
        if _is_loose(tensors[name]) and kept[name] == tensors[name]
    }


def _is_loose(tensor: onnx.TensorProto) -> bool:
    count = int(np.prod(tensor.dims))
    real = tensor.data_type in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)
    return real and tensor.data_location != onnx.TensorProto.EXTERNAL and 1 < count <= _LOOSE


def given(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """What of `feeds` a cut model takes."""
    return {info.name: feeds[info.name] for info in model.graph.input}


def feed(
    sites: Sequence[Cut],
    real: Mapping[str, Any],
    seed: int,
    style: str = "plain",
    loose: Mapping[str, np.ndarray] | None = None,
) -> dict[str, Any]:
    """Inputs for `cut` models, of the shapes in `real`: that itself where its content has a meaning, else unit normals.

    In the style "rows", rows (along the last axis) are small, large, constant or zero, and of masks all hidden or all
    seen; in the style "samples", so are whole samples (along the first).  `loose` constants are (all but) 0 then.
    """
    feeds: dict[str, Any] = {}
    for name, value in (loose or {}).items():
        small = 1.0 if style == "plain" else 0.0 if value.ndim == 1 else _SMALL
        feeds[name] = (value * small).astype(value.dtype)
    for number, site in enumerate(sites):
        for name in site.observed:
            feeds[f"{number}/{name}"] = site.resized_all(real[name])
        for name, shape in site.shapes(real).items():
            rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
            feeds[f"{number}/{name}"] = real[name] if site.entangled else _noise(real[name], rng, style, shape)
    return feeds


def stand_in(value: np.ndarray) -> str:
    """What is fed in place of a value: noise, "signed" or "unsigned"; "" for what has a meaning and is fed as it is."""
    if not numerics.is_float(value.dtype) or value.dtype.kind == "c" or not value.size:
        return ""
    if not any(value.strides):
        value = value[(slice(1),) * value.ndim]  # one number throughout
    low, high = _range(value)
    if {low, high} <= {0.0, 1.0} and ((value == 0) | (value == 1)).all():
        return ""
    return sign_of(low, high)


def sign_of(low: float, high: float) -> str:
    """What noise stands in for elements in this range: "signed" or "unsigned", and "" for none."""
    # What never is negative may be a variance, or a probability.
    return "" if _is_mask(low, high) else "unsigned" if low >= 0 else "signed"


def _range(value: np.ndarray) -> tuple[float, float]:
    """The least and the largest element, both NaN if one is."""
    wide = value if value.dtype.kind == "f" else value.astype(np.float32)
    return float(wide.min()), float(wide.max())


def _is_mask(low: float, high: float) -> bool:
    """Is something of this range filled with what hides?"""
    return not (low >= -_HUGE and high <= _HUGE)


def _noise(value: np.ndarray, rng: np.random.Generator, style: str, shape: tuple[int, ...]) -> np.ndarray:
    """What is fed in place of a value: noise of that shape, or as much of the value itself where it has a meaning."""
    instead = stand_in(value)
    if not instead and value.shape != shape:
        value = value[tuple(map(slice, shape))]
    if value.dtype == np.bool_:
        return _dead_rows(value, True, False) if style == "rows" else value
    if instead:
        largest = _LARGE_HALF if value.dtype == np.float16 else math.inf
        noise = _unusual(rng.standard_normal(shape), style, largest)
        return np.asarray(np.abs(noise) if instead == "unsigned" else noise).astype(value.dtype)
    real = numerics.is_float(value.dtype) and value.dtype.kind != "c" and value.size
    masks = real and style == "rows" and _is_mask(*_range(value))
    return _dead_rows(value, value.max(), value.min()) if masks else value


def _dead_rows(mask: np.ndarray, seen: Any, hidden: Any) -> np.ndarray:
    """The mask with a row that hides everything and one that hides nothing, whichever value does that."""
    if mask.ndim < 2 or mask.shape[-1] < 2:
        return mask
    made = mask.copy()
    rows = made.reshape(-1, made.shape[-1])
    rows[2 * len(rows) // 3] = seen
    rows[len(rows) // 3] = hidden
    return made


def _unusual(noise: np.ndarray, style: str, largest: float) -> np.ndarray:
    """Rows, or samples, of several sizes, one constant and one zero; all tensors have them at the same places."""
    if style == "plain" or noise.ndim < 2:
        return noise
    kept = noise.shape[:-1] if style == "rows" else noise.shape[:1]
    rows = noise.reshape(*kept, -1).reshape(int(np.prod(kept)), -1)
    factors = [min(factor, largest) for factor in _FACTORS[style]]
    scale = np.array([factors[i % len(factors)] for i in range(len(rows))])
    rows = rows * scale[:, None]
    constant = np.arange(len(rows)) % _PERIOD == 4
    rows[constant] = rows[constant][:, :1]
    rows[np.arange(len(rows)) % _PERIOD == 8] = 0
    return np.asarray(rows.reshape(noise.shape))
