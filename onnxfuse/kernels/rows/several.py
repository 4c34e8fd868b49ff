"""Several reductions of the rows of one matrix, independent or one behind the other, and sums of its columns.

A row is a run of elements along axes that follow each other, wherever these stand among the axes: along the last ones
its elements are neighbours in memory, along others its rows are.  Or it is along all axes but some that follow each
other, as that of a channel is, whose elements are a run in each sample.  Normalizations and softmaxes are reductions by
their definitions here.  Sums over all rows, as gradients of a scale and a bias are, come from the same pass: each block
has a part, and a second small launch sums the parts in their order, so that the result is the same each time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np
from onnx import NodeProto

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import TensorType
from onnxfuse.kernels.pointwise.expressions.carried import Stored
from onnxfuse.kernels.pointwise.expressions.elementwise import FORMULAS
from onnxfuse.kernels.pointwise.expressions.index import (
    Coordinates,
    Guard,
    Index,
    coordinates,
    divide,
    flat,
    free,
    total,
    variable,
)
from onnxfuse.kernels.pointwise.expressions.moves import Call
from onnxfuse.kernels.pointwise.expressions.scalars import FLOAT, Scalar, Scalars
from onnxfuse.kernels.pointwise.expressions.source import NARROW_LIMIT
from onnxfuse.kernels.pointwise.expressions.values import Value, aligned, computed_type
from onnxfuse.kernels.pointwise.loops import Loop, computed, reached

from .fused import EMPTY, ENTRY, NORMS, REDUCTIONS, ROWS, SOFTMAXES
from .passes import Passes, behind_sums, passes
from .places import Matrix, PlaceError, places, stored, traced, used_by
from .schedule import Reduction
from .vectors import COLUMN


@dataclass
class Several(Matrix):
    """The reductions of a body, as they are met, and the matrix that all of them reduce."""

    reduced: list[Reduction] = field(default_factory=list)
    summed: list[Reduction] = field(default_factory=list)
    sums_of: list[tuple[Value, int]] = field(default_factory=list)
    """What columns are summed of, and how many columns there are."""
    made: dict[Value, Index] = field(default_factory=dict)
    """Results, and where they stand."""
    inner: int = 1
    """How many neighbours along later axes a row has elements of none of: the distance of its elements.  Where rows are
    `around` their axes, how many neighbours of a run are its own."""
    around: bool = False
    """Is a row along all axes but some that follow each other?"""
    known: bool = False
    """Have rows been reduced?"""

    @property
    def place(self) -> Index:
        row, column = self.row, variable(COLUMN, self.columns)
        if self.around:
            outer, own = divide(column, self.inner)
            return total([(outer, self.rows * self.inner), (row, self.inner), (own, 1)])
        outer, own = divide(row, self.inner)
        return total([(outer, self.columns * self.inner), (column, self.inner), (own, 1)])

    def meet(self, call: Call) -> list[Value]:
        """The results of a reduction.  Raises KernelError for one of other rows than those before it reduced."""
        x = call.x
        if computed_type(x.dtype) != FLOAT or not x.shape:
            raise KernelError(f"{call.op} of {x.dtype.name} is no reduction of rows of real numbers")
        if call.outputs > 1:
            raise KernelError(f"further outputs of {call.op} are not computed")
        if call.op in REDUCTIONS:
            return [self._reduction(call, x)]
        axis, last = call.axis(-1), len(x.shape) - 1
        self._rows(call, x, axis, axis if call.op in SOFTMAXES else last)
        if not x.size:
            return [self._element(x.shape, x.dtype, self.scalars.literal(0.0, FLOAT), self.place)]
        return [self._softmax(call, x) if call.op in SOFTMAXES else self._normalization(call, x)]

    # ------------------------------------------------------------------------------------------------- the matrix

    def _rows(self, call: Call, x: Value, first: int, last: int, around: bool = False) -> None:
        """Rows along these axes and those between them, or along all others."""
        before, between, inner = prod(x.shape[:first]), prod(x.shape[first : last + 1]), prod(x.shape[last + 1 :])
        rows, columns = (between, before * inner) if around else (before * inner, between)
        found = (rows, columns, inner, around)
        if self.known and found != (self.rows, self.columns, self.inner, self.around):
            raise PlaceError(f"{call.op} reduces other rows than those that are reduced before it")
        if columns >= NARROW_LIMIT:
            raise KernelError(f"rows of {columns} elements are too long")
        self.known = True
        self.rows, self.columns, self.inner, self.around = found

    def _at(self, x: Value) -> Scalar:
        """The element of the matrix that is in hand."""
        return x.at(coordinates(self.place, x.shape))

    def _element(self, shape: tuple[int, ...], dtype: np.dtype[np.generic], element: Scalar, own: Index) -> Value:
        """A result; nothing else of it may be asked than what is in hand."""

        def at(c: Coordinates, _: Guard) -> Scalar:
            if free(flat(c, shape)) != free(own):
                raise PlaceError("what is behind needs another row's result, or another element's")
            return element

        made = Value(shape, dtype, at)
        self.made[made] = own
        return made

    # --------------------------------------------------------------------------------------------- the reductions

    def _reduction(self, call: Call, x: Value) -> Value:
        rank, given = len(x.shape), call.integers(1, "axes")
        axes = sorted({a % rank for a in given} if given else range(rank))
        others = [a for a in range(rank) if a not in axes]
        around = not _follow(axes)
        if (around and not _follow(others)) or (not given and call.attributes.get("noop_with_empty_axes")):
            raise KernelError(f"{call.op} along axes that do not follow each other, and others that do not either")
        run = others if around else axes
        first, last = run[0], run[-1]
        kept = call.attributes.get("keepdims", 1)
        shape = tuple(n if k not in axes else 1 for k, n in enumerate(x.shape) if kept or k not in axes)
        rows_of_all = (self.rows, self.columns, self.around) == (self.inner, prod(x.shape[: last + 1]), False)
        if first == 0 and last < rank - 1 and not around and not (self.known and rows_of_all):
            return self._column_sum(call, x, last + 1, shape)
        self._rows(call, x, first, last, around)
        if not x.size:
            nothing = self.scalars.literal(EMPTY[call.op], FLOAT)
            return Value(shape, x.dtype, lambda *_: nothing)
        return self._element(shape, x.dtype, self._of_row(REDUCTIONS[call.op], self._at(x)), self.row)

    def _column_sum(self, call: Call, x: Value, axis: int, shape: tuple[int, ...]) -> Value:
        if call.op != "ReduceSum":
            raise KernelError(f"{call.op} of columns")
        columns = prod(x.shape[axis:])
        if not x.size:
            zero = self.scalars.literal(0.0, FLOAT)
            return Value(shape, x.dtype, lambda *_: zero)
        result = self.scalars.argument(f"sum{len(self.sums_of)}_", FLOAT)
        self.sums_of.append((x, columns))
        return self._element(shape, x.dtype, result, variable(COLUMN, columns))

    def _of_row(self, kind: str, element: Scalar) -> Scalar:
        """The result of a reduction, one for each that there is."""
        own = next((r for r in self.reduced if (r.kind, r.element) == (kind, element)), None)
        if own is None:
            own = Reduction(kind, element, f"result{len(self.reduced)}_")
            self.reduced.append(own)
        return self.scalars.argument(own.name, FLOAT)

    def _call(self, op: str, *operands: Scalar) -> Scalar:
        return self.scalars.call(op, FORMULAS[op], operands)

    def _softmax(self, call: Call, x: Value) -> Value:
        moved = self._call("Sub", own := self._at(x), self._of_row("MAX", own))
        exponential = self._call("Exp", moved)
        whole = self._of_row("SUM", exponential)
        if SOFTMAXES[call.op] == "LOG":
            return self._element(x.shape, x.dtype, self._call("Sub", moved, self._call("Log", whole)), self.place)
        share = self._call("Mul", exponential, self._call("Reciprocal", whole))
        return self._element(x.shape, x.dtype, share, self.place)

    def _normalization(self, call: Call, x: Value) -> Value:
        if call.attributes.get("stash_type", 1) != 1:
            raise KernelError(f"{call.op} computes in float32 only")
        own = self._at(x)
        if NORMS[call.op]:
            own = self._call("Sub", own, self._of_row("MEAN", own))
        epsilon = self.scalars.literal(float(call.attributes.get("epsilon", 1e-5)), FLOAT)
        variance = self._call("Add", self._of_row("MEAN", self._call("Mul", own, own)), epsilon)
        normal = self._call("Mul", own, self._call("Reciprocal", self._call("Sqrt", variance)))
        result = self._element(x.shape, x.dtype, normal, self.place)
        operands = [(op, call.operand(at)) for at, op in ((1, "Mul"), (2, "Add")) if call.given(at)]

        def at(c: Coordinates, guard: Guard) -> Scalar:
            found = result.at(c, guard)
            for op, operand in operands:
                found = self._call(op, found, operand.at(aligned(c, operand.shape), guard))
            return found

        made = Value(x.shape, x.dtype, at, [result, *(operand for _, operand in operands)])
        self.made[made] = self.place
        return made

    def close(self) -> None:
        """All is met: what the columns are that are summed.  Raises KernelError where these are not the matrix's."""
        for k, (x, columns) in enumerate(self.sums_of):
            if not self.known:
                self.known, self.rows, self.columns = True, x.size // columns, columns
            if self.around or (self.rows, self.columns, self.inner) != (x.size // columns, columns, 1):
                raise PlaceError("sums of columns of another matrix than that whose rows are reduced")
            self.summed.append(Reduction("SUM", self._at(x), f"sum{k}_"))


def _follow(axes: Sequence[int]) -> bool:
    """Is there one behind the other, and one at least?"""
    return bool(axes) and list(axes) == list(range(axes[0], axes[-1] + 1))


def several(
    nodes: Sequence[NodeProto], inputs: Mapping[str, TensorType], outputs: Sequence[str], aligned: bool = True
) -> tuple[tuple[TensorType, ...], Sequence[Passes] | Sequence[Loop]]:
    """The types of the outputs of some nodes that reduce rows, and the launches that compute them; an output named ""
    is not wanted, and `aligned` says that all arrays begin at multiples of 16 bytes.  Raises KernelError where they are
    no passes over the rows of one matrix."""
    types, made = _met(nodes, inputs, outputs)
    if not isinstance(made, _Several):
        return types, made
    return types, [passes(made.rows, made.reductions, made.sums, made.stores, list(inputs.values()), aligned)]


def several_types(
    nodes: Sequence[NodeProto], inputs: Mapping[str, TensorType], outputs: Sequence[str]
) -> tuple[tuple[TensorType, ...], int]:
    """The types of the outputs, and the number of launches, of what `several` would write.  Raises KernelError as that
    does."""
    types, made = _met(nodes, inputs, outputs)
    if not isinstance(made, _Several):
        return types, sum(loop.launches for loop in made)
    behind_sums(made.reductions, made.sums, made.stores)
    return types, 2 if made.sums else 1


@dataclass(frozen=True)
class _Several:
    """What is reduced of a matrix, and stored."""

    rows: Several
    reductions: list[Reduction]
    sums: list[Reduction]
    stores: list[Stored]


def _met(
    nodes: Sequence[NodeProto], inputs: Mapping[str, TensorType], outputs: Sequence[str]
) -> tuple[tuple[TensorType, ...], _Several | Sequence[Loop]]:
    """The types of the outputs of a body, and its reductions; loops over elements where it has none.  Raises
    KernelError."""
    scalars = Scalars()
    rows = Several(scalars)
    values = traced(scalars, nodes, inputs, dict.fromkeys(ROWS, rows.meet))
    wanted = {k: values[name] for k, name in enumerate(outputs) if name}
    types = tuple(TensorType(value.dtype, value.shape) for value in wanted.values())
    if not rows.reduced and not rows.sums_of:
        return types, computed(ENTRY, wanted, list(inputs.values()))
    rows.close()
    made = {name: rows.made[value] for name, value in values.items() if value in rows.made}
    found = places(rows, ROWS, nodes, values, made)
    stores: list[Stored] = []
    for k, value in wanted.items():
        place = found.get(outputs[k])
        stores.append(stored(k, value, place, () if place is None else (place.high + 1,)))
    reductions, sums = _wanted(rows, stores)
    used_by([*(s.element for s in stores), *(r.element for r in (*reductions, *sums))])
    return types, _Several(rows, reductions, sums, stores)


def _wanted(rows: Several, stores: Sequence[Stored]) -> tuple[list[Reduction], list[Reduction]]:
    """The reductions of rows and the sums of columns that something stored needs."""
    of = {one.name: one for one in (*rows.reduced, *rows.summed)}
    pending, found = [stored.element for stored in stores], set[str]()
    while pending:
        for s in reached([pending.pop()]):
            if s.kind == "argument" and s.payload not in found:
                found.add(s.payload)
                pending.append(of[s.payload].element)
    return [r for r in rows.reduced if r.name in found], [s for s in rows.summed if s.name in found]
