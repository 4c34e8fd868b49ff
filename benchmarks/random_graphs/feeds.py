"""What a model is fed: ordinary numbers, and everything that algebra of real numbers forgets."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from onnxfuse.model.walk import nodes_of

from .build import HALF

Array = NDArray[Any]
Fill = Callable[[np.random.Generator, tuple[int, ...]], Array]
ORDINARY = {"b": 2, "s": 3, "t": 5}
"""The sizes that a model is made for."""


@dataclass(frozen=True)
class Feed:
    name: str
    inputs: Mapping[str, Array]

    @property
    def empty(self) -> bool:
        return any(not array.size for array in self.inputs.values())


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.standard_normal(shape)


def _some(*strange: float) -> Fill:
    """Ordinary numbers, and about one in six of these."""

    def fill(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return np.where(rng.random(shape) < 1 / 6, rng.choice(strange, shape), rng.standard_normal(shape))

    return fill


def _large(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Numbers whose exponential is out of float32's range, and not of float64's."""
    return rng.choice((-1, 1), shape) * rng.uniform(50, 300, shape)


def _wide(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Numbers of all sizes whose cubes are in range."""
    return rng.standard_normal(shape) * 10.0 ** rng.integers(-12, 12, shape)


def _rows(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Rows of one number each."""
    return np.broadcast_to(rng.standard_normal((*shape[:-1], 1)) * 7, shape) if shape else rng.standard_normal(shape)


def _zeros(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.where(rng.random(shape) < 0.3, -0.0, 0.0)


CASES: tuple[tuple[str, Fill, float, dict[str, int]], ...] = (
    ("ordinary", _normal, 0.7, {}),
    ("NaN", _some(np.nan), 0.7, {}),
    ("infinities", _some(np.inf, -np.inf), 0.7, {}),
    ("large", _large, 0.7, {}),
    ("wide", _wide, 0.7, {}),
    ("zeros", _zeros, 0.7, {}),
    ("constant rows", _rows, 1.0, {}),
    ("masked throughout", _normal, 0.0, {}),
    ("other sizes", _normal, 0.5, {"b": 3, "s": 7, "t": 4}),
    ("sizes of 1", _normal, 0.5, {"b": 1, "s": 1, "t": 1}),
    ("empty sequence", _normal, 0.5, {"s": 0}),
    ("empty batch", _normal, 0.5, {"b": 0}),
)
"""(name, real numbers, the chance of a mask's element to be true, sizes that are not ordinary)"""


def feeds(model: onnx.ModelProto, seed: int = 0) -> list[Feed]:
    """One feed for each case; those of sizes are left out where no dimension has a name."""
    return [feed for number in range(len(CASES)) if (feed := _feed(model, number, seed)) is not None]


def exponentials(model: onnx.ModelProto) -> bool:
    """Are exponentials taken, which not even float64 holds of enormous numbers?"""
    return any(node.op_type in ("Exp", "ReduceLogSumExp") for node in nodes_of(model))


def _half(model: onnx.ModelProto) -> bool:
    """Is anything in half precision?  onnxruntime computes some of it in float32: what overflows, one cannot tell."""
    casts = {a.i for node in nodes_of(model) if node.op_type == "Cast" for a in node.attribute}
    return HALF in casts | {info.type.tensor_type.elem_type for info in model.graph.input}


def _feed(model: onnx.ModelProto, number: int, seed: int) -> Feed | None:
    name, fill, truth, sizes = CASES[number]
    rng, inputs = np.random.default_rng((seed, number)), dict[str, Array]()
    named = {d.dim_param for info in model.graph.input for d in info.type.tensor_type.shape.dim if d.dim_param}
    if sizes and not named & sizes.keys():
        return None
    for info in model.graph.input:
        kind = info.type.tensor_type
        shape = tuple((ORDINARY | sizes)[d.dim_param] if d.dim_param else d.dim_value for d in kind.shape.dim)
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
        if dtype.kind == "b":
            array: Array = rng.random(shape) < truth
            if name == "ordinary" and array.ndim > 1:
                array[0] = False
        elif dtype.kind == "i":
            array = _integers(rng, shape, int(re.sub(r"\D", "", info.name) or 0))
        else:
            array = fill(rng, shape)
            if (fill is _wide and exponentials(model)) or (fill in (_wide, _large) and _half(model)):
                array = np.sign(array) * np.abs(array) ** 0.1
        with np.errstate(all="ignore"):
            inputs[info.name] = np.array(array, dtype, order="C")
    return Feed(name, inputs)


def _integers(rng: np.random.Generator, shape: tuple[int, ...], bound: int) -> Array:
    """Indices below a bound, or any numbers."""
    if bound:
        return rng.integers(0, bound, shape)
    small = rng.integers(-9, 10, shape)
    return np.where(rng.random(shape) < 0.2, rng.choice((2**62, -(2**63), 2**31), shape), small)
