"""A model under construction: values with their types and dimensions, and the choices that it is made of."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

FLOAT, HALF, INT64, BOOL = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.BOOL
REAL = (FLOAT, HALF)
T = TypeVar("T")


class Choices(Protocol):
    """Where decisions come from: a seed, or a test that wants to find the simplest ones which still fail."""

    def integer(self, low: int, high: int) -> int:
        """A number from low to high, both included; low is the simplest."""


class Seeded:
    """The decisions that belong to a number."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def integer(self, low: int, high: int) -> int:
        return self._random.randint(low, high)


class Dim(NamedTuple):
    """A dimension: its size in the ordinary case, and the names of which it is a multiple; () where it is static."""

    size: int
    names: tuple[str, ...] = ()

    @property
    def static(self) -> bool:
        return not self.names

    def times(self, other: Dim) -> Dim:
        return Dim(self.size * other.size, tuple(sorted(self.names + other.names)))

    def made(self, size: int, text: str) -> Dim:
        """A dimension of this size that is computed from this one, as the text says; nobody knows more about it."""
        return Dim(size, (f"({'*'.join(self.names)}.{self.size} {text})",)) if self.names else Dim(size)


ONE = Dim(1)
Dims = tuple[Dim, ...]


@dataclass(frozen=True)
class Value:
    name: str
    dtype: int
    dims: Dims
    bound: int = 0
    """Of integers: all lie in [0, bound); 0 where nobody knows."""
    constant: bool = False

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(d.size for d in self.dims)


def broadcast(*all_dims: Dims) -> Dims | None:
    """The dimensions of what is broadcast together, where all that is not 1 is surely equal."""
    rank, result = max(map(len, all_dims)), list[Dim]()
    for i in range(rank):
        column = {dims[i - rank + len(dims)] for dims in all_dims if i - rank + len(dims) >= 0} - {ONE}
        if len(column) > 1:
            return None
        result.append(column.pop() if column else ONE)
    return tuple(result)


@dataclass
class Builder:
    """A graph, or the body of a function, node by node."""

    choices: Choices
    opset: int
    values: list[Value] = field(default_factory=list)
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    inputs: list[Value] = field(default_factory=list)
    functions: list[onnx.FunctionProto] = field(default_factory=list)
    prefix: str = "v"
    from_the_end: bool = False
    """Do reductions count their axes from the end?  onnxruntime (1.31) then gives empty tensors the wrong shape."""
    inline: bool = False
    """Are constants nodes?  A function has no initializers."""

    # ---------------------------------------------------------------------------------------------- decisions

    def integer(self, low: int, high: int) -> int:
        return self.choices.integer(low, high)

    def pick(self, options: Sequence[T]) -> T:
        """One of several, of which the first is the simplest."""
        return options[self.integer(0, len(options) - 1)]

    def chance(self, one_in: int) -> bool:
        return self.integer(0, one_in - 1) == one_in - 1

    def value(self, fits: Callable[[Value], bool]) -> Value | None:
        """A value of which this holds, more often a late one."""
        fitting = [v for v in reversed(self.values) if fits(v)]
        if not fitting:
            return None
        return fitting[min(self.integer(0, len(fitting) - 1), self.integer(0, len(fitting) - 1))]

    def real(self, rank: int = 0, most: int = 5) -> Value | None:
        return self.value(lambda v: v.dtype in REAL and rank <= v.rank <= most)

    # ---------------------------------------------------------------------------------------------- nodes

    def fresh(self) -> str:
        return f"{self.prefix}{len(self.nodes)}"

    def node(
        self, op: str, inputs: Sequence[Value | None], outputs: int = 1, domain: str = "", **attributes: Any
    ) -> list[str]:
        base = self.fresh()
        names = [base if outputs == 1 else f"{base}_{i}" for i in range(outputs)]
        given = [v.name if v is not None else "" for v in inputs]
        while given and not given[-1]:
            given.pop()
        self.nodes.append(helper.make_node(op, given, names, name=f"{op}_{base}", domain=domain, **attributes))
        return names

    def add(
        self,
        op: str,
        *inputs: Value | None,
        dims: Dims | None = None,
        dtype: int = 0,
        bound: int = 0,
        **attributes: Any,
    ) -> Value:
        """A node of one output: like its first input, where nothing else is said."""
        first = next(v for v in inputs if v is not None)
        (name,) = self.node(op, inputs, **attributes)
        made = Value(name, dtype or first.dtype, first.dims if dims is None else dims, bound)
        self.values.append(made)
        return made

    def joined(self, op: str, *inputs: Value, dtype: int = 0, **attributes: Any) -> Value:
        """A node whose inputs broadcast."""
        dims = broadcast(*(v.dims for v in inputs))
        assert dims is not None, (op, inputs)
        return self.add(op, *inputs, dims=dims, dtype=dtype, **attributes)

    def array(self, array: NDArray[Any], bound: int = 0) -> Value:
        """A constant."""
        name = f"{self.prefix}c{len(self.initializers)}_{len(self.nodes)}"
        tensor = numpy_helper.from_array(array, name)
        if self.inline or self.chance(8):
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        else:
            self.initializers.append(tensor)
        dims = tuple(Dim(size) for size in array.shape)
        return Value(name, tensor.data_type, dims, bound, constant=True)

    def integers(self, *numbers: int) -> Value:
        return self.array(np.array(numbers, np.int64))

    def number(self, number: float, dtype: int = FLOAT, rank: int = 0) -> Value:
        kind = helper.tensor_dtype_to_np_dtype(dtype)
        with np.errstate(over="ignore"):
            return self.array(np.full((1,) * rank, number).astype(kind))

    def normal(self, sizes: Sequence[int], dtype: int = FLOAT, scale: float = 1.0, shift: float = 0.0) -> Value:
        """A constant of normally distributed numbers."""
        drawn = np.random.default_rng(self.integer(0, 999)).standard_normal(tuple(sizes))
        kind = helper.tensor_dtype_to_np_dtype(dtype)
        return self.array(np.asarray(drawn * scale + shift).astype(kind))

    # ---------------------------------------------------------------------------------------------- what versions spell

    def reduce(self, op: str, x: Value, axes: Sequence[int], keepdims: int = 1, dtype: int = 0) -> Value:
        """A reduction, its axes where the opset has them."""
        gone = {a % max(x.rank, 1) for a in axes}
        dims = tuple(ONE if i in gone else d for i, d in enumerate(x.dims) if keepdims or i not in gone)
        axes = [a % x.rank - x.rank if self.from_the_end else a % x.rank for a in axes]
        listed = self.opset < (13 if op == "ReduceSum" else 18)
        if listed:
            return self.add(op, x, dims=dims, dtype=dtype, axes=list(axes), keepdims=keepdims)
        return self.add(op, x, self.integers(*axes), dims=dims, dtype=dtype, keepdims=keepdims)

    def with_axes(self, op: str, x: Value, axes: Sequence[int], dims: Dims) -> Value:
        """Squeeze or Unsqueeze."""
        if self.opset < 13:
            return self.add(op, x, dims=dims, axes=list(axes))
        return self.add(op, x, self.integers(*axes), dims=dims)

    def transpose(self, x: Value, perm: Sequence[int]) -> Value:
        return self.add("Transpose", x, dims=tuple(x.dims[i] for i in perm), perm=list(perm))

    def reshape(self, x: Value, dims: Dims, origins: Sequence[int | None]) -> Value:
        """A Reshape; `origins` are the axes of x that give each dimension, None where it is merged or static."""
        plain = [
            0 if origin == i else d.size if d.static else -1
            for i, (d, origin) in enumerate(zip(dims, origins, strict=True))
        ]
        if plain.count(-1) <= 1 and not self.chance(4):
            if dims and plain.count(-1) == 0 and self.chance(3) and all(d.size for d in dims):
                plain[self.integer(0, len(plain) - 1)] = -1
            return self.add("Reshape", x, self.integers(*plain), dims=dims)
        shape, parts, merged = self.add("Shape", x, dims=(Dim(x.rank),), dtype=INT64), list[Value](), 0
        for d, origin in zip(dims, origins, strict=True):
            if d.static:
                parts.append(self.integers(d.size))
            elif origin is not None:
                parts.append(self.add("Gather", shape, self.integers(origin), dims=(ONE,), axis=0))
            else:
                parts.append(self.integers(-1))
                merged += 1
        assert merged < 2, (x, dims, origins)
        target = self.add("Concat", *parts, dims=(Dim(len(parts)),), axis=0) if parts else self.integers()
        return self.add("Reshape", x, target, dims=dims)
