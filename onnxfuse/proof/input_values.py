"""Values for the inputs of a model: such as they mean something, and such as users have, too."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from onnxfuse.errors import UsageError

from .input_shapes import Input, Sizes, fits, named, sizes_of, symbols_of, text_of

_POSITION_NAME = re.compile(r"(^|_)pos(ition)?s?(_|$)", re.IGNORECASE)
_LARGE = 30.0
"""What the numbers of one sample are multiplied by in an unusual case."""


@dataclass(frozen=True, slots=True)
class Case:
    """One set of inputs: a name such as ``batch=3 seq=7``, and by input name what onnxruntime is fed.

    A tensor is an array of the input's dtype (ml_dtypes has those that numpy lacks), a sequence a list of arrays.
    """

    name: str
    inputs: dict[str, Any]
    unusual: bool = False
    """Rows are masked throughout, numbers are 0 or large, or there are none: the original may have NaN to show."""

    @property
    def empty(self) -> bool:
        """Whether an input has no elements."""
        return any(isinstance(value, np.ndarray) and not value.size for value in self.inputs.values())


def usual_case(
    inputs: list[Input], shapes: dict[str, Sizes], seed: int, number: int, careful: bool, off: str = ""
) -> Case:
    """Inputs of these sizes; integers whose use is unknown are 0 and 1 if `careful`.  Switches are on, but for the one
    that is `off`."""
    feeds: dict[str, Any] = {}
    for item in inputs:
        rng = np.random.default_rng([seed, number, zlib.crc32(item.name.encode())])
        sizes = sizes_of(item, shapes)
        draw = [_values(item, sizes, rng, shapes, number, careful) for _ in range(2 if item.sequence else 1)]
        feeds[item.name] = draw if item.sequence else draw[0]
        if item.switch and not item.sequence:
            feeds[item.name] = np.full_like(feeds[item.name], item.name != off)
    return Case(", ".join(filter(None, (named(shapes) or "static shapes", off and f"{off} off"))), feeds)


def unusual_case(inputs: list[Input], case: Case) -> Case:
    """The case with a second sample that is all padding, or zeros, and a third of which everything or a lot is seen."""
    feeds = {
        item.name: value if item.sequence else _unusual(item, value)
        for item, value in ((item, case.inputs[item.name]) for item in inputs)
    }
    return Case(f"{case.name}, one sample masked or zero, one large", feeds, unusual=True)


def _unusual(item: Input, value: np.ndarray) -> np.ndarray:
    axis = next((axis for axis, size in enumerate(value.shape) if size >= 3), None)
    if axis is None or value.dtype.kind in "OUSc":
        axis = 0 if value.ndim and value.dtype.kind not in "OUSc" else None
    if axis is None or item.usage.count or item.usage.positive or item.switch or not value.size:
        return value
    made = value.copy()
    rows = np.moveaxis(made, axis, 0)
    at = min(1, len(rows) - 1)
    second, third = rows[at : at + 1], rows[2:3]
    if value.dtype == np.bool_ or (item.usage.mask and item.integer):
        second[...], third[...] = 0, 1
    elif item.usage.mask:
        # Some are added to scores, some say where to add; what is 0 hides nothing or everything.
        second[...], third[...] = np.finfo(np.float16 if made.dtype.itemsize == 2 else np.float32).min, 0
    elif not item.integer:
        second[...] = 0
        third *= np.asarray(_LARGE, made.dtype)
    elif item.usage.padding is not None:
        second[...] = item.usage.padding
    elif item.usage.steps:
        second[...] = 1  # an empty sequence has no numbers to tell of, nor has its argmax
    elif not item.usage.limits and not _POSITION_NAME.search(item.name):
        second[...] = 0
    return made


def given_case(
    inputs: list[Input], given: Mapping[str, np.ndarray], shapes: Mapping[str, Sequence[int]] = MappingProxyType({})
) -> Case:
    """The case that a user gives.  Raises UsageError where it does not fit the model, or the `shapes` given besides."""
    by_name = {item.name: item for item in inputs}
    for name in given:
        if name not in by_name:
            raise UsageError(f"--inputs: {name!r} is no input of the model, which wants {', '.join(by_name) or 'none'}")
    for item in inputs:
        wanted = f"{item.dtype}[{text_of(item.dims)}]"
        if item.name not in given:
            raise UsageError(f"--inputs: input {item.name!r} is missing; the model wants {wanted}")
        array = given[item.name]
        kind_fits = array.dtype == item.dtype or (item.dtype.kind == "O" and array.dtype.kind in "OUST")
        if not kind_fits or not (item.sequence or fits(array.shape, item.dims)):
            raise UsageError(
                f"--inputs: input {item.name!r} is {array.dtype}[{text_of(array.shape)}]; the model wants {wanted}"
            )
        if tuple(shapes.get(item.name, array.shape)) != array.shape:
            asked, found = text_of(shapes[item.name]), text_of(array.shape)
            raise UsageError(f"--shape {item.name}:{asked} is not what --inputs has, {found}: give one of them")
    return Case("given", {n: list(a) if by_name[n].sequence else a for n, a in given.items()})


def _values(
    item: Input, sizes: tuple[int, ...], rng: np.random.Generator, shapes: dict[str, Sizes], number: int, careful: bool
) -> np.ndarray:
    symbols: Sizes = {}
    for known in shapes.values():
        for symbol, size in known.items():
            symbols[symbol] = min(size, symbols.get(symbol, size))
    bound = item.usage.bound(symbols)
    if item.dtype.kind == "O":
        return np.array(rng.choice(["", "a", "onnx", "fusion"], sizes), dtype=object).reshape(sizes)
    if item.dtype == np.bool_ and not sizes:
        return np.array(number % 2 == 0)  # a switch: both ways over two cases
    if item.dtype == np.bool_ or item.usage.mask:
        values = rng.integers(0, 2, sizes)
        if sizes and values.size:
            values[..., 0] = not item.usage.hides  # a row that attends to nothing has no meaning, and often no number
    elif item.integer and _POSITION_NAME.search(item.name) and sizes:
        values = np.broadcast_to(np.arange(sizes[-1]) % (bound or sizes[-1] or 1), sizes)
    elif bound is not None:
        values = rng.integers(0, bound, sizes)
    elif item.usage.count:
        values = rng.integers(1, 4, sizes)
    elif item.integer and item.usage.steps:
        # One sequence is as long as the axis, which some models compute from the lengths; none is empty.
        own = set().union(*(symbols_of(dim) for dim in item.dims))
        top = item.usage.longest({symbol: size for symbol, size in symbols.items() if symbol not in own})
        values = rng.integers(1, top + 1, sizes)
        values.reshape(-1)[:1] = top
    elif item.integer:
        top = 2 if careful else 10 if item.dtype.itemsize > 1 else min(np.iinfo(item.dtype).max + 1, 128)
        values = rng.integers(0, top, sizes)
    elif item.usage.bounds is not None and item.dtype.kind == "f" and math.prod(sizes) == 1:
        return np.asarray(rng.uniform(*item.usage.bounds, sizes)).astype(item.dtype)
    elif item.usage.positive:
        return np.asarray(rng.uniform(0.1, 2.0, sizes)).astype(item.dtype)
    elif item.dtype.kind == "c":
        return np.asarray(rng.standard_normal(sizes) + 1j * rng.standard_normal(sizes)).astype(item.dtype)
    else:
        return np.asarray(rng.standard_normal(sizes)).astype(item.dtype)
    return np.asarray(values).astype(item.dtype)
