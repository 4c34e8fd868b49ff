"""One product with all that is elementwise behind it, of further operands too, as a pass over its elements.

The operands of the product lie in memory, b as it is or with its last two axes turned; views in between are none.  What
is behind needs of the product the thread's own element alone, so that views and transposes may lie behind it: a result
may be written with its heads apart.  What is read under a condition is left to a loop over elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd, prod

import numpy as np
from onnx import NodeProto

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.access import ACCESS
from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.device.kernel import REAL
from onnxfuse.kernels.device.products import result
from onnxfuse.kernels.pointwise.expressions.carried import Carried, Functions, Stored
from onnxfuse.kernels.pointwise.expressions.elementwise import FORMULAS
from onnxfuse.kernels.pointwise.expressions.index import DOWN, LANE, Coordinates, Guard, flat, total, variable
from onnxfuse.kernels.pointwise.expressions.moves import Call
from onnxfuse.kernels.pointwise.expressions.scalars import FLOAT, Scalar, Scalars
from onnxfuse.kernels.pointwise.expressions.substitute import Substitution
from onnxfuse.kernels.pointwise.expressions.values import Value
from onnxfuse.kernels.pointwise.expressions.values import aligned as along
from onnxfuse.kernels.pointwise.loops import bytes_read
from onnxfuse.kernels.rows.places import Matrix, PlaceError, kinds_of, places, stored, traced, used_by
from onnxfuse.model.op_traits import MATRIX_PRODUCTS


@dataclass(frozen=True, slots=True)
class Operand:
    """An operand of a product: the number of the array that it lies in, and the shape by which it is read there."""

    number: int
    shape: tuple[int, ...]
    turned: bool
    """Are its last two axes the other way around in memory?  The shape is that in memory."""


@dataclass
class Multiplied(Matrix):
    """The product of a body, once it is met, and the matrix that it makes."""

    inputs: Sequence[TensorType] = ()
    a: Operand | None = None
    b: Operand | None = None
    scale: float = 1.0
    dtype: np.dtype[np.generic] = field(default_factory=lambda: np.dtype(np.float32))

    def meet(self, call: Call) -> list[Value]:
        """The product.  Raises KernelError for a second one, and for one of what does not lie in memory."""
        if self.a is not None:
            raise KernelError(f"{call.op} is a second product")
        x, y = call.x, call.operand(1)
        if x.dtype != y.dtype or x.dtype.name not in REAL:
            raise KernelError(f"{call.op} of {x.dtype.name} and {y.dtype.name} is no product of one real type")
        if call.attributes.get("transA") or min(len(x.shape), len(y.shape)) < 2:
            raise KernelError(f"{call.op} of what is turned, or no matrix")
        transposed = bool(call.attributes.get("transB", 0))
        shape = result(x.shape, y.shape, transposed)
        self.rows, self.columns = prod(shape[:-1]), shape[-1]
        self.a, self.b = self._operand(x, False), self._operand(y, transposed)
        if self.a.turned:
            raise PlaceError(f"{call.op} of what is turned")
        self.scale, self.dtype = float(call.attributes.get("alpha", 1.0)), x.dtype
        made = self.result(shape, x.dtype, self.place)
        return [self._added(call, made) if call.op == "Gemm" and call.given(2) else made]

    def _operand(self, value: Value, transposed: bool) -> Operand:
        """Where an operand lies that the product reads as it is, or `transposed`."""
        if not self.rows * self.columns * value.size:
            return Operand(0, value.shape, transposed)  # nobody reads it
        own = tuple(variable(f"c{axis}", n) for axis, n in enumerate(value.shape))
        element = value.at(own)
        if element.kind != "load" or element.payload[2] or element.payload[3] != value.size:
            raise PlaceError("an operand of the product is computed, or a part of what lies in memory")
        number, offset, *_ = element.payload
        if self.inputs[number].dtype != value.dtype:
            raise PlaceError("an operand of the product has another type in memory")
        if offset == flat(own, value.shape):
            return Operand(number, value.shape, transposed)
        *batch, k, n = value.shape
        if offset == flat((*own[:-2], own[-1], own[-2]), (*batch, n, k)):
            return Operand(number, (*batch, n, k), not transposed)
        raise PlaceError("an operand of the product does not lie in memory as it is multiplied")

    def _added(self, call: Call, made: Value) -> Value:
        """The product and beta times what a Gemm adds."""
        other, beta = call.operand(2), float(call.attributes.get("beta", 1.0))

        def at(c: Coordinates, guard: Guard) -> Scalar:
            added = other.at(along(c, other.shape), guard)
            if beta != 1:
                added = self.scalars.call("Mul", FORMULAS["Mul"], [added, self.scalars.literal(beta, FLOAT)])
            return self.scalars.call("Add", FORMULAS["Add"], [made.at(c, guard), added])

        return Value(made.shape, made.dtype, at, [made, other])


@dataclass(frozen=True)
class Traced:
    """A product and what is done to its elements."""

    types: tuple[TensorType, ...]
    """Of the outputs that are wanted."""
    a: Operand
    b: Operand
    scale: float
    dtype: np.dtype[np.generic]
    rows: int
    columns: int
    width: int
    """Neighbouring elements that a thread is given at a time."""
    inputs: tuple[int, ...]
    """Numbers of the arrays that the pass reads beside the product."""
    outputs: tuple[int, ...]
    text: str
    """The struct `Fused`."""
    carried: Carried
    read: int
    """Bytes of those arrays."""
    flops: int
    """Of each element."""


def product(
    nodes: Sequence[NodeProto], inputs: Mapping[str, TensorType], outputs: Sequence[str], aligned: bool = False
) -> Traced:
    """Nodes of which one is a product, as that and the pass over its elements; an output named "" is not wanted.
    `aligned` says that all arrays begin at multiples of 16 bytes: then neighbours are read and written together.

    Raises KernelError where they are anything else."""
    types, made, stores, used = _met(nodes, inputs, outputs)
    assert made.a is not None
    assert made.b is not None
    kinds = kinds_of(used, made.inputs)
    width = neighbours(made, aligned)
    lanes = in_lanes(made, width, DOWN)
    stores = [Stored(s.number, s.dtype, lanes.scalar(s.element), lanes.index(s.place)) for s in stores]
    text, carried = _written(kinds, stores, made.rows * made.columns, width)
    return Traced(
        types,
        made.a,
        made.b,
        made.scale,
        made.dtype,
        made.rows,
        made.columns,
        width,
        tuple(kinds),
        tuple(one.number for one in stores),
        text,
        carried,
        bytes_read(used, made.inputs, made.rows * made.columns),
        sum(s.flops for s in used),
    )


def product_types(
    nodes: Sequence[NodeProto], inputs: Mapping[str, TensorType], outputs: Sequence[str]
) -> tuple[TensorType, ...]:
    """The types of the outputs of what `product` would write.  Raises KernelError as that does."""
    return _met(nodes, inputs, outputs)[0]


def _met(
    nodes: Sequence[NodeProto], inputs: Mapping[str, TensorType], outputs: Sequence[str]
) -> tuple[tuple[TensorType, ...], Multiplied, list[Stored], list[Scalar]]:
    """The types of the outputs of a body, its product, what is stored, and all that is computed from.  Raises
    KernelError."""
    scalars = Scalars()
    made = Multiplied(scalars, inputs=list(inputs.values()))
    values = traced(scalars, nodes, inputs, dict.fromkeys(MATRIX_PRODUCTS, made.meet))
    if made.a is None or made.b is None:
        raise KernelError("no node is a product")
    found = places(made, MATRIX_PRODUCTS, nodes, values)
    stores: list[Stored] = []
    for k, name in enumerate(outputs):
        if name:
            size = made.rows * made.columns
            if size or values[name].size:
                stores.append(stored(k, values[name], found.get(name), (size,)))
    types = tuple(TensorType(values[name].dtype, values[name].shape) for name in outputs if name)
    return types, made, stores, used_by([one.element for one in stores])


def neighbours(made: Multiplied, aligned: bool) -> int:
    """How many neighbours of a product a thread has at a time: an access of them at most, and so many as divide its
    columns; one where arrays are not aligned."""
    return gcd(made.columns, ACCESS // made.dtype.itemsize) if aligned else 1


def in_lanes(made: Multiplied, width: int, down: int = 0) -> Substitution:
    """An element as that of a lane of a vector, column = width·column + v, and what device code hands over as an array
    of them; `down` is DOWN where what depends on no row is to stand apart."""
    lane, depends = ("v", LANE | down) if width > 1 else ("0", down)
    column = total([(variable("column", made.columns // width), width), (variable("v", width, LANE), 1)])
    return Substitution(
        made.scalars,
        {"row": variable("row", made.rows, down), **({"column": column} if width > 1 else {})},
        lambda name: made.scalars.argument(f"{name}[{lane}]", FLOAT, depends),
    )


def _written(kinds: Mapping[int, str], stores: Sequence[Stored], count: int, width: int) -> tuple[str, Carried]:
    """The struct `Fused`, and what it carries."""
    for wide in (False, True):
        functions = Functions(kinds, wide, width)
        same, lines = functions.stores_apart(stores)
        if functions.narrow and count < MOST_NARROW:
            break
    carried = functions.carried()
    text = [
        *carried.head,
        "struct Fused {",
        *(f"{member};" for member in carried.members),
        "__device__ __forceinline__ auto columns(int column_) const {",
        "const Index column = static_cast<Index>(column_);",
        *same,
        f"return [=](const float (&result)[{width}], long long row_) {{",
        "const Index row = static_cast<Index>(row_);",
        *lines,
        "};",
        "}",
        "};",
        "",
    ]
    return "\n".join(text), carried


MOST_NARROW = 1 << 30
"""Elements of a product that are counted in 32 bits."""
