"""The inputs of a model as it declares them, and sizes for the axes that it leaves open."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx

from onnxfuse.errors import UsageError
from onnxfuse.model.dims import declared_name
from onnxfuse.proof import input_roles as usage

Sizes = dict[str, int]

_LARGEST_INPUT = 1 << 31
"""Elements of a generated input: more is a mistake of the model, and more than the memory of most machines."""
LADDERS: dict[str, tuple[int, ...]] = {
    "batch": (3, 1, 2, 4),
    "sequence": (7, 13, 16, 5, 32, 3, 64, 128, 2, 1, 77, 256),
    "past": (5, 9, 8, 16, 1),
    "image": (37, 64, 96, 32, 224, 128, 28, 256, 299, 384, 512),
    "features": (37, 24, 40, 32, 48, 64, 96, 128, 28, 224, 256),
    "signal": (401, 1601, 3000, 50, 16000, 100),
}
"""Sizes to try for a dynamic axis, by kind.  Odd ones first: they catch a fusion that rounds or swaps dimensions.
Features are smaller than an image, and attention takes each of their places for a position (a U-Net of latents)."""
_COLOURS = 3
"""Channels that an image has at most."""
_BATCH_NAME = re.compile(r"batch|^b$|^bs$", re.IGNORECASE)
_PAST_NAME = re.compile(r"past|cache", re.IGNORECASE)
_IMAGE_NAME = re.compile(r"height|width|^h$|^w$", re.IGNORECASE)
_SIGNAL_NAME = re.compile(r"samples|frames|audio", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Input:
    """A graph input that must be fed: its dims are sizes or the names of symbols."""

    name: str
    dtype: np.dtype[Any]
    dims: tuple[int | str, ...]
    sequence: bool
    usage: usage.Usage

    @property
    def past(self) -> bool:
        return bool(_PAST_NAME.search(self.name)) and len(self.dims) >= 3 and not self.integer

    @property
    def switch(self) -> bool:
        """Whether it is one boolean that decides which branch an If takes."""
        return self.usage.switch and self.dtype == np.bool_ and set(self.dims) <= {1}

    @property
    def integer(self) -> bool:
        return bool(np.issubdtype(self.dtype, np.integer))


def read(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> list[Input]:
    """The inputs to feed; `shapes` gives a rank to those that declare none.  Raises UnsupportedError."""
    used = usage.trace(model)
    initializers = {tensor.name for tensor in model.graph.initializer}
    initializers |= {tensor.values.name for tensor in model.graph.sparse_initializer}
    result = []
    for info in model.graph.input:
        if info.name in initializers:
            continue
        kind, sequence = info.type, False
        while (wrapper := kind.WhichOneof("value")) in ("optional_type", "sequence_type"):
            sequence |= wrapper == "sequence_type"
            kind = getattr(kind, wrapper).elem_type
        if wrapper != "tensor_type":
            raise UnsupportedError(f"no values can be generated for input {info.name!r} of type {wrapper or 'unknown'}")
        tensor = kind.tensor_type
        if not tensor.HasField("shape") and info.name not in shapes:
            raise UnsupportedError(f"input {info.name!r} has no rank: say --shape {info.name}:DIM,DIM,...")
        dims: tuple[int | str, ...] = tuple(
            dim.dim_value
            if dim.HasField("dim_value") and dim.dim_value >= 0
            else declared_name(dim.dim_param) or f"{info.name}.{axis}"
            for axis, dim in enumerate(tensor.shape.dim)
        )
        if not tensor.HasField("shape"):
            dims = tuple(f"{info.name}.{axis}" for axis in range(len(shapes[info.name])))
        dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
        result.append(Input(info.name, dtype, dims, sequence, used[info.name]))
    return result


def as_weights_say(inputs: list[Input], shapes: Collection[str]) -> list[Input]:
    """The inputs with the sizes that weights tell of channels and features, and other axes of such a name with them;
    those whose `shapes` are given, by name, as they are: whoever gives one knows it."""
    told: dict[str, set[int]] = {}
    for item in inputs:
        for axis, size in item.usage.sizes.items():
            told.setdefault(str(item.dims[axis]), set()).add(size)
    known = {symbol: min(sizes) for symbol, sizes in told.items() if len(sizes) == 1}

    def sized(item: Input, axis: int, dim: int | str) -> int | str:
        return item.usage.sizes.get(axis, known.get(dim, dim)) if isinstance(dim, str) else dim

    return [
        item
        if item.name in shapes
        else replace(item, dims=tuple(sized(item, axis, dim) for axis, dim in enumerate(item.dims)))
        for item in inputs
    ]


class UnsupportedError(Exception):
    """An input for which nothing can be generated; the text is the reason."""


def fixed_sizes(inputs: list[Input], shapes: Mapping[str, Sequence[int]]) -> Sizes:
    """What `shapes` says about the symbols."""
    by_name = {item.name: item for item in inputs}
    fixed: Sizes = {}
    for name, sizes in shapes.items():
        if name not in by_name:
            raise UsageError(f"--shape {name}: no such input; the model has {', '.join(by_name) or 'none'}")
        dims = by_name[name].dims
        if not fits(sizes, dims):
            raise UsageError(f"--shape {name}:{text_of(sizes)} does not fit the declared [{text_of(dims)}]")
        for dim, size in zip(dims, sizes, strict=True):
            if isinstance(dim, str):
                fixed.setdefault(dim, size)
                fixed[f"{name}:{dim}"] = size
    return fixed


def fits(sizes: Sequence[int], dims: tuple[int | str, ...]) -> bool:
    return len(sizes) == len(dims) and all(isinstance(d, str) or d == s for s, d in zip(sizes, dims, strict=True))


def text_of(dims: Sequence[int | str]) -> str:
    return ",".join(map(str, dims))


def kinds_of(inputs: list[Input], fixed: Sizes) -> dict[str, str]:
    """The ladder that each free symbol climbs, guessed from its name, else from where it stands."""
    kinds: dict[str, str] = {}
    for item in inputs:
        for axis, dim in enumerate(item.dims):
            for symbol in symbols_of(dim):
                if symbol not in fixed:
                    kinds.setdefault(symbol, _kind(item, axis, symbol))
    return kinds


def _kind(item: Input, axis: int, symbol: str) -> str:
    label = "" if "." in symbol else symbol
    if _BATCH_NAME.search(label) or (label.lower() == "n" and not axis):
        return "batch"
    if _PAST_NAME.search(label):
        return "past"
    rank = len(item.dims)
    channels = item.dims[1] if rank >= 4 and axis >= 2 else 0
    image = "features" if isinstance(channels, int) and channels > _COLOURS else "image"
    if _IMAGE_NAME.search(label):
        return image
    if _SIGNAL_NAME.search(label):
        return "signal"
    if axis == 0 and rank > 1:
        return "batch"
    if item.past:
        return "past"
    if item.dtype.kind in "fV" and not item.usage.mask:
        if rank >= 4 and axis >= 2:
            return image
        if rank == 2 or (rank == 3 and (axis == 2 or item.dims[2] == 1)):  # of one channel, which may come last
            return "signal"
    return "sequence"


def symbols_of(dim: int | str) -> set[str]:
    """The symbols of a dim; exporters also write sums and products such as ``past_length + seq``."""
    tree = _expression(dim) if isinstance(dim, str) else None
    if tree is None:
        return {dim} if isinstance(dim, str) else set()
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Div: operator.floordiv,
}


def _expression(dim: str) -> ast.expr | None:
    """The arithmetic in a dim_param; None where it is just a label, such as ``batch-size``."""
    if re.search(r"\w-[A-Za-z_]", dim):
        return None
    try:
        tree = ast.parse(dim.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        return None
    known = (ast.BinOp, ast.Name, ast.Constant, ast.operator, ast.expr_context)
    arithmetic = all(
        isinstance(node, known)
        and (not isinstance(node, ast.operator) or type(node) in _OPERATORS)
        and (not isinstance(node, ast.Constant) or type(node.value) is int)
        for node in ast.walk(tree)
    )
    return tree if arithmetic else None


def evaluate(dim: str, sizes: Sizes) -> int:
    """The size of a dim, given those of its symbols."""

    def walk(tree: ast.expr) -> int:
        match tree:
            case ast.Name(name):
                return sizes[name]
            case ast.BinOp(left, kind, right):
                divisor = isinstance(kind, ast.Div | ast.FloorDiv)
                return _OPERATORS[type(kind)](walk(left), walk(right) or int(divisor))
            case ast.Constant(int(value)):
                return value
        raise AssertionError(ast.dump(tree))

    tree = _expression(dim)
    return sizes[dim] if tree is None else walk(tree)


def cover_past(inputs: list[Input], fixed: Sizes, shapes: dict[str, Sizes]) -> None:
    """Sets the length of masks beside a key/value cache to cached plus new positions; but not of those whose length a
    cache names, too: such a cache has no new ones, as that of an encoder's keys."""
    past = next((item for item in inputs if item.past), None)
    tokens = next((item for item in inputs if item.integer and len(item.dims) == 2 and not item.usage.mask), None)
    if past is None or tokens is None:
        return
    # The cached axis is the dynamic one besides the batch; [batch, heads, length, size] where all are static.
    axis = next((a for a, dim in enumerate(past.dims) if a and isinstance(dim, str)), len(past.dims) - 2)
    length = sizes_of(past, shapes)[axis] + sizes_of(tokens, shapes)[1]
    named = {dim for item in inputs if item.past and item.dims != past.dims for dim in item.dims[1:]}
    for item in inputs:
        last = item.dims[-1] if item.dims else 1
        free = isinstance(last, str) and f"{item.name}:{last}" not in fixed and last not in named
        # A sum in the symbol already says so.
        if item.usage.mask and isinstance(last, str) and free and len(symbols_of(last)) < 2:
            shapes[item.name][last] = length


def sizes_of(item: Input, shapes: dict[str, Sizes]) -> tuple[int, ...]:
    return tuple(shapes[item.name][dim] if isinstance(dim, str) else dim for dim in item.dims)


def named(shapes: Mapping[str, Sizes]) -> str:
    """The sizes of all inputs by symbol: ``batch=3 sequence=7/12``."""
    label: dict[str, list[int]] = {}
    for known in shapes.values():
        for dim, size in known.items():
            label.setdefault(dim, []).append(size)
    return " ".join(f"{dim}={'/'.join(map(str, dict.fromkeys(sizes)))}" for dim, sizes in label.items())


def impossible(inputs: Sequence[Input], shapes: dict[str, Sizes]) -> str:
    """Why an input cannot have the shape that the model declares, such as a size of ``batch - 9``; "" if all can."""
    for item in inputs:
        sizes = sizes_of(item, shapes)
        if min(sizes, default=0) < 0 or math.prod(sizes) > _LARGEST_INPUT:
            return f"input {item.name!r} would have the shape {list(sizes)}: give it --inputs or --shape"
    return ""
