"""One random use of an op: types, dimensions, attributes and inputs, as a model of a single node, and its feeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, defs, helper, numpy_helper, shape_inference

from benchmarks.random_graphs.build import Choices
from benchmarks.random_graphs.feeds import Feed

Array = NDArray[Any]
Fill = Callable[[np.random.Generator, tuple[int, ...]], Array]
T = TypeVar("T")
FLOAT, HALF, DOUBLE, BFLOAT = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16
INT32, INT64, BOOL = TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL
REAL = (FLOAT, FLOAT, FLOAT, HALF, DOUBLE, BFLOAT)
"""Types of real tensors, the usual one more often."""
NEWEST_IR = 13
"""The newest version of files that onnxruntime reads; opset 28 came with a newer one."""
FEEDS = ("ordinary", "other sizes", "wide")


@dataclass(frozen=True)
class Size:
    """A dimension: its sizes when it is fed first, and then; one with a name is symbolic."""

    first: int
    then: int
    name: str = ""

    def of(self, feed: int) -> int:
        return self.then if feed == 1 and self.name else self.first

    def times(self, factor: int) -> Size:
        """One that is a multiple of this one; of a symbolic one nobody knows that."""
        return Size(self.first * factor, self.then * factor, f"{self.name}_{factor}" if self.name else "")

    def plus(self, other: Size) -> Size:
        name = f"{self.name}_and_{other.name}" if self.name or other.name else ""
        return Size(self.of(0) + other.of(0), self.of(1) + other.of(1), name)


def fixed(size: int) -> Size:
    return Size(size, size)


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.standard_normal(shape)


def positive(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.uniform(0.2, 3, shape)


def integers(low: int, high: int) -> Fill:
    """Integers from low to high, both included."""
    return lambda rng, shape: rng.integers(low, high + 1, shape)


@dataclass(frozen=True)
class Given:
    """An input of the node: fed, or a constant if it is static and `constant` says so."""

    name: str
    dtype: int
    dims: tuple[Size, ...]
    fill: Fill
    exact: tuple[Any, ...] = ()
    """What it holds in each feed, where numbers are not to be drawn."""
    sequence: bool = False
    """Is it a sequence of such tensors?"""

    @property
    def info(self) -> onnx.ValueInfoProto:
        dims = [d.name or d.first for d in self.dims]
        kind = helper.make_tensor_type_proto(self.dtype, dims)
        return helper.make_value_info(self.name, helper.make_sequence_type_proto(kind) if self.sequence else kind)


@dataclass
class Draw:
    """A model of one node, the feeds it takes, and why it cannot fold, if it cannot."""

    op: str
    version: int
    opset: int
    model: onnx.ModelProto
    feeds: list[Feed]
    impossible: str = ""
    lacking: Mapping[str, str] = field(default_factory=dict)
    """Target → what its runtime lacks for this use to be one node."""


@dataclass
class Drawing:
    """The choices of one draw, and what has been chosen."""

    choices: Choices
    op: str
    opset: int
    inputs: list[Given | None] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: list[tuple[str, onnx.TypeProto | None]] = field(default_factory=list)
    impossible: str = ""
    """Why no draw like this folds."""
    lacking: dict[str, str] = field(default_factory=dict)
    """Target → what its runtime lacks for a draw like this to be one node."""

    def lacks(self, reason: str) -> None:
        """No target's runtime has what this would need."""
        self.lacking.update(dict.fromkeys(("onnxfuse", "onnx"), reason))

    # ------------------------------------------------------------------------------------------- choices

    def integer(self, low: int, high: int) -> int:
        return self.choices.integer(low, high)

    def pick(self, options: Sequence[T]) -> T:
        """One of several, of which the first is the simplest."""
        return options[self.integer(0, len(options) - 1)]

    def chance(self, one_in: int) -> bool:
        return self.integer(0, one_in - 1) == one_in - 1

    def allowed(self, parameter: str, wanted: Sequence[int] = REAL) -> int:
        """A type that the op's schema has, of those that are wanted."""
        schema = defs.get_schema(self.op, self.opset)
        names = next(c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == parameter)
        return self.pick([t for t in wanted if f"tensor({_NAMES[t]})" in names])

    def number(self, *simple: float) -> float:
        """One of some numbers, or any between -2 and 2."""
        return self.pick(simple) if self.chance(2) else self.integer(-200, 200) / 100

    def size(self, low: int = 1, high: int = 6, name: str = "") -> Size:
        """A dimension; if it may be symbolic, `name` says what it is called."""
        first = self.integer(low, high)
        if name and self.chance(3):
            return Size(first, self.integer(low, high + 2), name)
        return fixed(first)

    def dims(self, low: int, high: int, names: str = "abcdef") -> tuple[Size, ...]:
        """Dimensions of a tensor whose rank is between these two, both included."""
        return tuple(self.size(name=names[i]) for i in range(self.integer(low, high)))

    def axis(self, rank: int, low: int = 0) -> int:
        """One axis, counted from either end."""
        axis = self.integer(low, rank - 1)
        return axis - rank if self.chance(2) else axis

    # ------------------------------------------------------------------------------------------- the node

    def give(self, dtype: int, dims: Sequence[Size], fill: Fill = normal, *, constant: bool = False) -> Given:
        """The next input; a constant where `constant` says so and all is static."""
        given = Given(f"x{len(self.inputs)}", dtype, tuple(dims), fill)
        self.inputs.append(given)
        if constant and not any(d.name for d in dims):
            rng = np.random.default_rng(self.integer(0, 999))
            self.constants[given.name] = _cast(fill(rng, tuple(d.first for d in dims)), dtype)
        return given

    def exactly(self, dtype: int, first: Any, then: Any = None, *, constant: bool = False) -> Given:
        """The next input, whose numbers mean something; a constant if that is asked for and both feeds agree."""
        then = first if then is None else then
        shape = np.shape(first)
        given = Given(f"x{len(self.inputs)}", dtype, tuple(map(fixed, shape)), normal, (first, then))
        self.inputs.append(given)
        if constant and np.array_equal(first, then):
            self.constants[given.name] = _cast(np.array(first), dtype)
        return given

    def leave(self) -> None:
        """The next input is left out."""
        self.inputs.append(None)

    def output(self, dtype: int = 0, given: bool = True, rank: int | None = None) -> None:
        """The next output, of this type; one that is not given is left out.  Its rank, if onnx does not infer it."""
        name = f"y{len(self.outputs)}" if given else ""
        shape = None if rank is None else [None] * rank
        self.outputs.append((name, helper.make_tensor_type_proto(dtype, shape) if given else None))

    def set(self, **attributes: Any) -> None:
        self.attributes |= attributes

    def maybe(self, one_in: int = 2, **attributes: Any) -> bool:
        """Set attributes, or leave them to their defaults; were they set?"""
        if given := self.chance(one_in):
            self.set(**attributes)
        return given

    # ------------------------------------------------------------------------------------------- the model

    def drawn(self, version: int) -> Draw:
        names = [given.name if given is not None else "" for given in self.inputs]
        while names and not names[-1]:
            names.pop()
        outputs = list(self.outputs)
        while not outputs[-1][0]:
            outputs.pop()
        node = helper.make_node(self.op, names, [name for name, _ in outputs], name=self.op, **self.attributes)
        fed = [given for given in self.inputs if given is not None and given.name not in self.constants]
        graph = helper.make_graph(
            [node],
            "drawn",
            [given.info for given in fed],
            [helper.make_value_info(name, kind) for name, kind in outputs if kind is not None],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )
        imports = [helper.make_opsetid("", self.opset)]
        ir_version = min(max(helper.find_min_ir_version_for(imports, ignore_unknown=True), 8), NEWEST_IR)
        model = helper.make_model(graph, opset_imports=imports, ir_version=ir_version)
        declared = list(model.graph.output)
        model = shape_inference.infer_shapes(model, data_prop=True)
        for own, inferred in zip(declared, model.graph.output, strict=True):
            if own.type.tensor_type.HasField("shape"):  # what onnx infers may be wrong: the scores behind a cache
                inferred.CopyFrom(own)
        return Draw(self.op, version, self.opset, model, _feeds(fed), self.impossible, self.lacking)


def _feeds(fed: Sequence[Given]) -> list[Feed]:
    """What the model is fed, in each way in turn."""
    found = []
    for number, name in enumerate(FEEDS):
        rng, inputs = np.random.default_rng(number), dict[str, Any]()
        for given in fed:
            if given.exact:
                array = np.array(given.exact[number == 1])
            else:
                array = given.fill(rng, tuple(d.of(number) for d in given.dims))
                if name == "wide" and given.fill is normal:
                    array = array * 8
            inputs[given.name] = [_cast(array, given.dtype)] * 2 if given.sequence else _cast(array, given.dtype)
        found.append(Feed(name, inputs))
    return found


def _cast(array: Array, dtype: int) -> Array:
    return np.array(array).astype(helper.tensor_dtype_to_np_dtype(dtype))


_NAMES: Mapping[int, str] = {
    FLOAT: "float",
    HALF: "float16",
    DOUBLE: "double",
    BFLOAT: "bfloat16",
    INT32: "int32",
    INT64: "int64",
    BOOL: "bool",
    TensorProto.INT8: "int8",
    TensorProto.UINT8: "uint8",
    TensorProto.INT16: "int16",
    TensorProto.UINT32: "uint32",
    TensorProto.UINT64: "uint64",
    TensorProto.STRING: "string",
}
