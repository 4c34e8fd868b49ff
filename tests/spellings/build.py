"""Authors small graphs: a builder, the styles that exporters differ in everywhere, and the selection of cases."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import accumulate, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

Array = NDArray[Any]
Operand = str | float | Array
"""A value's name, a number (a constant of the neighbouring operand's dtype, shaped by the style), or a constant."""

Choices = dict[str, tuple[str, ...]]

PREDICATES = {"And", "Equal", "Greater", "GreaterOrEqual", "IsNaN", "Less", "LessOrEqual", "Not", "Or"}
AXES_AS_INPUT_FROM_18 = {"ReduceMean", "ReduceMax", "ReduceSumSquare", "ReduceLogSumExp", "ReduceL2"}


@dataclass(frozen=True, slots=True)
class Spelling:
    """One way to write an operator, and what it stands for."""

    name: str
    """The choices that differ from the family's plainest spelling, e.g. ``mean=sum/n,root=pow``."""
    model: onnx.ModelProto
    expect: dict[str, int]
    """Fused operators in the finished model, by op_type."""
    inputs: dict[str, Array]
    outputs: dict[str, Array]
    """The operator's float64 definition, applied to `inputs`."""


@dataclass(frozen=True, slots=True)
class Style:
    """What exporters do differently everywhere, whatever the operator."""

    constant: str = "initializer"
    """``initializer`` or ``node``: where constants live."""
    scalar: str = "[]"
    """``[]``, ``[1]`` or ``[1,1,1]``: the shape of one-element constants."""
    noise: str = "none"
    """``identity`` or ``cast``: a no-op behind every third float node."""


STYLE_CHOICES: Choices = {
    "constant": ("initializer", "node"),
    "scalar": ("[]", "[1]", "[1,1,1]"),
    "noise": ("none", "identity", "cast"),
}
"""The choices of `Style`, for a family to include among its own."""


@dataclass(slots=True)
class Graph:
    """A graph under construction: ``g.Add(x, 1.0)`` appends a node and returns the name of its output."""

    opset: int = 17
    style: Style = field(default_factory=Style)
    inputs: dict[str, Array] = field(default_factory=dict)
    outputs: dict[str, Array] = field(default_factory=dict)
    _nodes: list[onnx.NodeProto] = field(default_factory=list)
    _initializers: list[onnx.TensorProto] = field(default_factory=list)
    _dtypes: dict[str, np.dtype[Any]] = field(default_factory=dict)
    _signature: tuple[list[onnx.ValueInfoProto], list[onnx.ValueInfoProto]] = field(default_factory=lambda: ([], []))

    def input(self, name: str, value: Array, dims: Sequence[int | str] | None = None) -> str:
        """Declare a graph input that is fed `value`; `dims` where the declared shape is symbolic."""
        self.inputs[name] = value
        self._dtypes[name] = value.dtype
        self._signature[0].append(_value_info(name, value.dtype, value.shape if dims is None else dims))
        return name

    def output(self, name: str, truth: Array, dims: Sequence[int | str] | None = None) -> None:
        """Declare a graph output whose float64 value is `truth`."""
        self.outputs[name] = truth
        self._signature[1].append(_value_info(name, self._dtypes[name], truth.shape if dims is None else dims))

    def constant(self, value: Array) -> str:
        """A constant tensor, as the style wants it."""
        name = f"c{len(self._dtypes)}"
        self._dtypes[name] = value.dtype
        tensor = numpy_helper.from_array(np.ascontiguousarray(value).reshape(value.shape), name)
        if self.style.constant == "initializer":
            self._initializers.append(tensor)
        else:
            self._nodes.append(helper.make_node("Constant", [], [name], name=f"Constant_{name}", value=tensor))
        return name

    def scalar(self, value: float, dtype: np.dtype[Any]) -> str:
        """A one-element constant in the style's shape."""
        shape = tuple(1 for _ in self.style.scalar.strip("[]").split(",") if _)
        return self.constant(np.full(shape, value, dtype))

    def dtype(self, value: str) -> np.dtype[Any]:
        """Dtype of a value that stands in the graph already."""
        return self._dtypes[value]

    def cast(self, x: str, dtype: type[np.generic] | np.dtype[Any]) -> str:
        """Cast `x`; writes the node even if `x` has that dtype already."""
        return self.node("Cast", x, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def reduce(self, op_type: str, x: str, axes: Sequence[int], *, keep: str = "keepdims") -> str:
        """Reduce over `axes`, leaving size-1 axes by `keepdims` or an Unsqueeze; with keep="late" they are gone."""
        attributes: dict[str, Any] = {"keepdims": int(keep == "keepdims")}
        operands: list[Operand] = [x]
        if op_type in AXES_AS_INPUT_FROM_18 and self.opset < 18:
            attributes["axes"] = list(axes)
        else:
            operands.append(np.array(axes, np.int64))
        reduced = self.node(op_type, *operands, **attributes)
        return self.node("Unsqueeze", reduced, np.array(axes, np.int64)) if keep == "unsqueeze" else reduced

    def split(self, x: str, parts: int, axis: int, size: int) -> list[str]:
        """Split `x` into `parts` pieces of `size` along `axis`."""
        sizes = self.constant(np.full(parts, size, np.int64))
        names = [f"v{len(self._dtypes)}_{part}" for part in range(parts)]
        self._dtypes |= dict.fromkeys(names, self.dtype(x))
        self._nodes.append(helper.make_node("Split", [x, sizes], names, name=f"Split_{names[0]}", axis=axis))
        return names

    def node(self, op_type: str, *operands: Operand, **attributes: Any) -> str:
        """Append a node with one output."""
        typed = [self._dtypes[operand] for operand in operands if isinstance(operand, str)]
        neighbour = next((dtype for dtype in typed if dtype != np.bool_), np.dtype(np.float32))
        names = [self._operand(operand, neighbour) for operand in operands]
        match op_type:
            case "Cast":
                dtype = helper.tensor_dtype_to_np_dtype(attributes["to"])
            case "Shape":
                dtype = np.dtype(np.int64)
            case "Where":
                dtype = self._dtypes[names[1]]
            case _:
                dtype = np.dtype(np.bool_) if op_type in PREDICATES else self._dtypes[names[0]]
        name = f"v{len(self._dtypes)}"
        self._dtypes[name] = dtype
        self._nodes.append(helper.make_node(op_type, names, [name], name=f"{op_type}_{name}", **attributes))
        return self._noise(name)

    def __getattr__(self, op_type: str) -> Callable[..., str]:
        if not op_type[:1].isupper():
            raise AttributeError(op_type)
        return lambda *operands, **attributes: self.node(op_type, *operands, **attributes)

    def spelling(self, name: str, expect: dict[str, int]) -> Spelling:
        """The finished model."""
        opsets = [helper.make_opsetid("", self.opset)]
        graph = helper.make_graph(self._nodes, "spelling", *self._signature, self._initializers)
        version = helper.find_min_ir_version_for(opsets)
        model = helper.make_model(graph, opset_imports=opsets, ir_version=version, producer_name="spelling")
        return Spelling(name, model, expect, self.inputs, self.outputs)

    def _operand(self, operand: Operand, dtype: np.dtype[Any]) -> str:
        match operand:
            case str():
                return operand
            case np.ndarray():
                return self.constant(operand)
            case _:
                return self.scalar(operand, dtype)

    def _noise(self, name: str) -> str:
        dtype = self._dtypes[name]
        if self.style.noise == "none" or dtype.kind != "f" or len(self._nodes) % 3:
            return name
        noisy = f"v{len(self._dtypes)}"
        self._dtypes[noisy] = dtype
        to: dict[str, Any] = {"to": helper.np_dtype_to_tensor_dtype(dtype)} if self.style.noise == "cast" else {}
        self._nodes.append(helper.make_node(self.style.noise.capitalize(), [name], [noisy], name=f"Noop_{noisy}", **to))
        return noisy


class Case(SimpleNamespace):
    """One selection from `Choices`: the attributes are the choices' names, the values the chosen words."""

    def style(self) -> Style:
        """The part of the selection that `STYLE_CHOICES` describes."""
        return Style(self.constant, self.scalar, self.noise)


def everything(choices: Choices, valid: Callable[[Case], bool] = lambda case: True) -> Iterator[tuple[str, Case]]:
    """Every selection that `valid` allows, with its name."""
    for words in product(*choices.values()):
        if valid(case := Case(**dict(zip(choices, words, strict=True)))):
            yield _name({choice: words[0] for choice, words in choices.items()}, case), case


def covering(
    choices: Choices, count: int, valid: Callable[[Case], bool] = lambda case: True
) -> tuple[tuple[str, Case], ...]:
    """`count` selections with their names: the plainest, every single step away from it, then whatever pairs best.

    The plainest selection takes every first word.  The rest greedily covers pairs of words that no earlier selection
    had together (Cohen et al., "The AETG System", IEEE TSE 23(7), 1997), since it is in pairs that spellings interact.
    The same arguments always give the same selections; there must be more than `count` of them.
    """
    return chosen(tuple((choice, tuple(words)) for choice, words in choices.items()), count, valid)


@cache
def chosen(
    choices: tuple[tuple[str, tuple[str, ...]], ...], count: int, valid: Callable[[Case], bool]
) -> tuple[tuple[str, Case], ...]:
    """What `covering` gives, which every opset asks for.

    Each word of each choice is a bit; `apart` has, for each, the bits it has not been together with."""
    every, bounds = [words for _, words in choices], [(len(words), len(words).bit_length()) for _, words in choices]
    names = [choice for choice, _ in choices]
    starts = [*accumulate((len(words) for words in every), initial=0)]
    apart = [~(1 << bit) for bit in range(starts[-1])]
    seen: dict[tuple[int, ...], Case] = {}
    bits = random.Random(0).getrandbits

    def case_of(places: tuple[int, ...]) -> Case:
        return Case(**{name: words[i] for name, words, i in zip(names, every, places, strict=True)})

    def drawn() -> tuple[int, ...]:
        """Places of words, drawn as Random.choice does."""
        while True:
            found = []
            for size, wide in bounds:
                while (i := bits(wide)) >= size:
                    pass
                found.append(i)
            places = tuple(found)
            if places not in seen and valid(case_of(places)):
                return places

    def news(places: tuple[int, ...]) -> int:
        """Twice the pairs that no selection has yet."""
        mine = [start + i for start, i in zip(starts, places, strict=False)]
        both = sum(1 << bit for bit in mine)
        return sum((apart[bit] & both).bit_count() for bit in mine)

    single = [
        tuple(i if choice == other else 0 for other in range(len(every)))
        for choice, words in enumerate(every)
        for i in range(len(words))
    ]
    steps = (places for places in single if valid(case_of(places)))
    while len(seen) < count:
        places = next(steps, None) or max((drawn() for _ in range(40)), key=news)
        mine = [start + i for start, i in zip(starts, places, strict=False)]
        both = sum(1 << bit for bit in mine)
        for bit in mine:
            apart[bit] &= ~both
        seen.setdefault(places, case_of(places))
    plain = {name: words[0] for name, words in choices}
    return tuple((_name(plain, case), case) for case in seen.values())


def distinct(spellings: Iterable[Spelling]) -> Iterator[Spelling]:
    """`spellings` without those whose model is the same as an earlier one's."""
    seen: set[bytes] = set()
    for spelling in spellings:
        if (model := spelling.model.SerializeToString(deterministic=True)) not in seen:
            seen.add(model)
            yield spelling


def _name(plain: Mapping[str, str], case: Case) -> str:
    unusual = (f"{choice}={word}" for choice, word in vars(case).items() if word != plain[choice])
    return ",".join(unusual) or "plain"


def _value_info(name: str, dtype: np.dtype[Any], dims: Sequence[int | str]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(dtype), list(dims))
