"""One reduction of rows with all that is elementwise or moves data before it and behind it, as one launch.

What is before is computed on the read, at whatever places it stands; what is behind on the write, where it needs of
the reduction the thread's own element (of a normalization or a softmax) or the row's own result (of a sum) alone.  So
views and transposes may lie behind it, and nothing that looks at a neighbour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TypeAlias

import numpy as np
from onnx import NodeProto

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.access import ACCESS
from onnxfuse.kernels.device.device import Launch, Source, TensorType
from onnxfuse.kernels.pointwise.expressions.carried import Functions, Stored
from onnxfuse.kernels.pointwise.expressions.elementwise import FORMULAS
from onnxfuse.kernels.pointwise.expressions.index import LANE, Coordinates, Guard, Index, coordinates
from onnxfuse.kernels.pointwise.expressions.moves import Call
from onnxfuse.kernels.pointwise.expressions.scalars import FLOAT, Scalar, Scalars
from onnxfuse.kernels.pointwise.expressions.source import NARROW_LIMIT
from onnxfuse.kernels.pointwise.expressions.substitute import Substitution
from onnxfuse.kernels.pointwise.expressions.values import Value, aligned, broadcast, computed_type
from onnxfuse.kernels.pointwise.loops import Loop, Single, bytes_read, computed, reached

from .arrangement import Arrangement, arrange, arrange_sectors
from .places import ELEMENTWISE, Matrix, kinds_of, places, stored, traced, used_by
from .quotients import Quotients
from .schedule import Varies
from .turned import turned
from .vectors import Moves

ENTRY = "region_rows"
CROWDED = 264
"""Rows that keep a card busy, each with few threads."""

NORMS = {"LayerNormalization": 1, "RMSNormalization": 0}
SOFTMAXES = {"Softmax": "SOFTMAX", "LogSoftmax": "LOG"}
REDUCTIONS = {"ReduceSum": "SUM", "ReduceMean": "MEAN", "ReduceMax": "MAX", "ReduceMin": "MIN"}
EMPTY = {"ReduceSum": 0.0, "ReduceMean": 0.0, "ReduceMax": float("-inf"), "ReduceMin": float("inf")}
"""What a row of no elements has for a result; of a mean, which ONNX leaves open, onnxruntime's."""
ROWS = frozenset((*NORMS, *SOFTMAXES, *REDUCTIONS))
"""Ops that compute rows."""
SECOND = "is a second reduction of rows"
PLACED = frozenset((*FORMULAS, *ELEMENTWISE, *NORMS, *SOFTMAXES, "Constant"))
"""Ops whose results of one shape all stand at the places of the matrix, whatever is put together of them."""


class OtherRowsError(KernelError):
    """What reduces rows, but not once along the last axes."""


class AcrossError(OtherRowsError):
    """What has its neighbours in memory in neighbouring rows."""


@dataclass(frozen=True)
class RowLoop(Single):
    """One launch: `inputs` and `outputs` are the numbers of the arrays that it takes, in order."""

    source: Source
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    parameters: tuple[np.generic, ...]
    how: Arrangement
    rows: int
    read: int
    """Bytes."""
    flops: int

    def launch(self, multiprocessors: int) -> Launch:
        return Launch(self.source, ENTRY, (self.how.blocks(self.rows),), (self.how.threads,))


@dataclass
class Reduced(Matrix):
    """The reduction of a body, once it is met, and the matrix that it reduces."""

    given: Value | None = None
    family: str = ""
    defines: dict[str, object] = field(default_factory=dict)
    call: str = ""
    epsilon: float = 0.0

    @property
    def reduces(self) -> bool:
        return self.family == "REDUCTION"

    def meet(self, call: Call) -> list[Value]:
        """The results of the reduction.  Raises KernelError for a second one, and for one that is none of rows."""
        x = call.x
        if self.given is not None:
            raise OtherRowsError(f"{call.op} {SECOND}")
        if computed_type(x.dtype) != FLOAT or not x.shape:
            raise KernelError(f"{call.op} of {x.dtype.name} is no reduction of rows of real numbers")
        if call.outputs > 1:
            raise KernelError(f"further outputs of {call.op} are not computed")
        self.given = x
        if call.op in REDUCTIONS:
            return self._reduction(call, x)
        axis = call.axis(-1)
        if call.op in SOFTMAXES and axis != len(x.shape) - 1:
            raise OtherRowsError(f"{call.op} along an axis that is not the last")
        self._matrix(x, axis)
        if call.op in SOFTMAXES:
            self.family, self.call = "SOFTMAX_ROWS", "softmax(fused, rows, columns)"
            self.defines = {"FORM": SOFTMAXES[call.op]}
            return [self.result(x.shape, x.dtype, self.place)]
        return [self._normalization(call, x)]

    def _matrix(self, x: Value, axis: int) -> None:
        self.rows, self.columns = prod(x.shape[:axis]), prod(x.shape[axis:])
        if self.columns >= NARROW_LIMIT:
            raise KernelError(f"rows of {self.columns} elements are too long")

    def _reduction(self, call: Call, x: Value) -> list[Value]:
        rank, given = len(x.shape), call.integers(1, "axes")
        axes = sorted({a % rank for a in given} if given else range(rank))
        if axes != list(range(axes[0], rank)) or (not given and call.attributes.get("noop_with_empty_axes")):
            raise OtherRowsError(f"{call.op} along axes that are not the last")
        self._matrix(x, axes[0])
        self.family, self.call = "REDUCTION", "reduce(fused, rows, columns)"
        self.defines = {"REDUCE": REDUCTIONS[call.op]}
        shape = (*x.shape[: axes[0]], *((1,) * len(axes) if call.attributes.get("keepdims", 1) else ()))
        if not self.columns:
            nothing = self.scalars.literal(EMPTY[call.op], FLOAT)
            return [Value(shape, x.dtype, lambda *_: nothing)]
        return [self.result(shape, x.dtype, self.row)]

    def _normalization(self, call: Call, x: Value) -> Value:
        if call.attributes.get("stash_type", 1) != 1:
            raise KernelError(f"{call.op} computes in float32 only")
        self.family, self.call = "NORM", "normalise(fused, rows, columns, epsilon)"
        self.defines = {"CENTER": NORMS[call.op], "MEAN": 0}
        self.epsilon = float(call.attributes.get("epsilon", 1e-5))
        result = self.result(x.shape, x.dtype, self.place)
        operands = [(op, call.operand(at)) for at, op in ((1, "Mul"), (2, "Add")) if call.given(at)]
        if broadcast([x.shape, *(operand.shape for _, operand in operands)]) != x.shape:
            raise KernelError(f"{call.op} of {list(x.shape)} has larger operands")

        def at(c: Coordinates, guard: Guard) -> Scalar:
            found = result.at(c, guard)
            for op, operand in operands:
                found = self.scalars.call(op, FORMULAS[op], [found, operand.at(aligned(c, operand.shape), guard)])
            return found

        return Value(x.shape, x.dtype, at, [result, *(operand for _, operand in operands)])


def rows(
    nodes: Sequence[NodeProto],
    inputs: Mapping[str, TensorType],
    outputs: Sequence[str],
    aligned: bool = True,
    along: bool = True,
) -> tuple[tuple[TensorType, ...], Sequence[RowLoop] | Sequence[Loop]]:
    """The types of the outputs of some nodes, one of which reduces rows, and the launch that computes them, none where
    they are empty; an output named "" is not wanted, and `aligned` says that all arrays begin at multiples of 16 bytes.
    Rows without elements have a number for a result: what is made of that is left to loops over elements.  Raises
    KernelError; AcrossError where neighbours lie in neighbouring rows, unless threads are to be `along` a row."""
    row, wanted = _met(nodes, inputs, outputs)
    if not row.rows * row.columns:
        return _types(wanted), _empty(wanted, inputs)
    return _types(wanted), [_loop(row, list(inputs.values()), wanted, aligned, along)]


def row_types(
    nodes: Sequence[NodeProto], inputs: Mapping[str, TensorType], outputs: Sequence[str]
) -> tuple[tuple[TensorType, ...], int]:
    """The types of the outputs, and the number of launches, of what `rows` would write.  Raises KernelError as that
    does along a row."""
    row, wanted = _met(nodes, inputs, outputs)
    if not row.rows * row.columns:
        return _types(wanted), sum(loop.launches for loop in _empty(wanted, inputs))
    used_by(_written(row, wanted).elements)
    return _types(wanted), RowLoop.launches


_Wanted: TypeAlias = Mapping[int, tuple[Value, Index | None]]
"""Outputs by their numbers, each with the place of its elements."""


def _met(
    nodes: Sequence[NodeProto], inputs: Mapping[str, TensorType], outputs: Sequence[str]
) -> tuple[Reduced, _Wanted]:
    """The reduction of rows of a body, and what is wanted of it.  Raises KernelError."""
    scalars = Scalars()
    row = Reduced(scalars)
    values = traced(scalars, nodes, inputs, dict.fromkeys(ROWS, row.meet))
    if row.given is None:
        raise KernelError("no node reduces rows")
    found = places(row, ROWS, nodes, values)
    return row, {k: (values[name], found.get(name)) for k, name in enumerate(outputs) if name}


def _types(wanted: _Wanted) -> tuple[TensorType, ...]:
    return tuple(TensorType(value.dtype, value.shape) for value, _ in wanted.values())


def _empty(wanted: _Wanted, inputs: Mapping[str, TensorType]) -> Sequence[Loop]:
    """What is made of rows without elements, as loops over its own."""
    return computed(ENTRY, {k: value for k, (value, _) in wanted.items()}, list(inputs.values()))


@dataclass(frozen=True)
class Written:
    """What a row kernel computes of an element of its row: what is reduced, what is stored of that alone, what of each
    element and what of each row is stored behind the reduction."""

    read: Scalar
    kept: Sequence[Stored]
    each: Sequence[Stored]
    once: Sequence[Stored]

    @property
    def elements(self) -> list[Scalar]:
        return [self.read, *(one.element for one in (*self.kept, *self.each, *self.once))]

    def moved(self, lanes: Substitution) -> Written:
        """Of other elements, as in the lanes of vectors; what is of a row stays."""
        kept, each = (
            [Stored(s.number, s.dtype, lanes.scalar(s.element), lanes.index(s.place)) for s in stores]
            for stores in (self.kept, self.each)
        )
        return Written(lanes.scalar(self.read), kept, each, self.once)


def _written(row: Reduced, outputs: _Wanted) -> Written:
    """Of the outputs.  Raises KernelError."""
    assert row.given is not None
    kept, each, once = list[Stored](), list[Stored](), list[Stored]()
    for k, (value, place) in outputs.items():
        one = stored(k, value, place, (row.rows, row.rows * row.columns))
        if value.size < row.rows * row.columns and not row.reduces:
            raise OtherRowsError("a value of each row is written beside what is of its elements")
        of_row = row.reduces and value.size == row.rows and place == row.row
        waits = any(s.kind == "argument" for s in reached([one.element]))
        (once if of_row else each if waits else kept).append(one)
    return Written(row.given.at(coordinates(row.place, row.given.shape)), kept, each, once)


def _loop(row: Reduced, inputs: Sequence[TensorType], outputs: _Wanted, aligned: bool, along: bool) -> RowLoop:
    """The launch for some outputs."""
    varies, result = Varies(), row.scalars.argument(row.argument, FLOAT)

    def same(s: Scalar) -> bool:
        """Throughout a row, as the result of a sum is, and an element of a norm is not."""
        return not varies(s) and (row.reduces or result not in reached([s]))

    written = _written(row, outputs)
    used_by(written.elements)
    written = written.moved(Quotients(row.scalars, same))
    used = reached(written.elements)
    kinds, stores = kinds_of(used, inputs), (*written.kept, *written.each)
    loads = [s for s in used if s.kind == "load"]
    moves = Moves(row.scalars, row.rows, row.columns, loads, stores, kinds)
    if not along and (moves.layout(aligned).across or turned(moves, aligned)):
        raise AcrossError("neighbours lie in neighbouring rows")
    layout = moves.along(aligned)
    width, crowded, addresses = layout.width, row.rows > CROWDED, len(kinds) + len(outputs)
    how = (
        arrange(row.columns, width, max(ACCESS // width, 4), crowded, 1, addresses)
        if width > 1
        else arrange_sectors(row.columns, 1, moves.sector() if aligned else 1, 4, crowded, 1, addresses)
    )
    argument = row.scalars.argument("held[v]", FLOAT, LANE) if width > 1 and not row.reduces else None
    lanes = layout.lanes(row.scalars, row.columns, lambda _: argument or row.scalars.argument("held[0]", FLOAT))
    text, parameters = _source(row, kinds, written.moved(lanes), width)
    defines = {**row.defines, **({"SPREAD": int(bool(written.each))} if row.reduces else {})}
    file = Source.file(
        "region_rows.cu",
        FAMILY=row.family,
        LANES=how.lanes,
        VECTOR=how.vector,
        ITEMS=how.items,
        WIDE=int(how.wide),
        EVEN=int(how.even(row.columns)),
        SECTOR=how.sector,
        **defines,
    )
    bounds = ", ".join(map(str, how.bounds))
    scalars: list[np.generic] = [np.int64(row.rows), np.int32(row.columns)]
    scalars += [np.float32(row.epsilon)] if row.family == "NORM" else []
    count = row.rows * row.columns
    return RowLoop(
        Source(file.name, file.text + text.replace("BOUNDS", bounds)),
        tuple(kinds),
        tuple(one.number for one in (*stores, *written.once)),
        (*parameters, *scalars),
        how,
        row.rows,
        bytes_read(used, inputs, count),
        count * (sum(s.flops for s in used) + 5),
    )


def _source(
    row: Reduced, inputs: Mapping[int, str], written: Written, width: int, wide: bool = False
) -> tuple[str, tuple[np.generic, ...]]:
    """The `Fused` of a region and its kernel, and what the kernel takes behind its arrays; numbers, never sizes, are in
    the text."""
    functions, held = Functions(inputs, wide, width), "held[v]" if width > 1 else "held[0]"
    read = functions.value(written.read, held)
    keep = functions.statements((), written.kept, {written.read: held if written.read.depends & LANE else "held[0]"})
    write, finish = functions.stores(written.each), functions.statements((), written.once, once=True)
    if not (wide or functions.narrow):
        return _source(row, inputs, written, width, True)
    carried = functions.carried()
    given = [*carried.parameters, "long long rows", "int columns"]
    given += ["float epsilon"] if row.family == "NORM" else []
    member, place = "__device__ __forceinline__ void", "long long row_, int column_, int) const {"
    own = "const Index row = static_cast<Index>(row_);"
    at = f"{own}\nconst Index column = static_cast<Index>(column_ / VECTOR);"
    text = [
        *carried.head,
        "struct Fused {",
        *(f"{one};" for one in carried.members),
        *(f"{member} read(float (&held)[VECTOR], {place}", at, *read, "}"),
        *(f"{member} keep(const float (&held)[VECTOR], {place}", at, *keep, "}"),
        *(f"{member} write(const float (&held)[VECTOR], {place}", at, *write, "}"),
        *(f"{member} finish(long long row_, float result) const {{", own, *finish, "}"),
        "__device__ void statistics(long long, float, float) const {}",
        "};",
        f'extern "C" __global__ void __launch_bounds__(BOUNDS) {ENTRY}(',
        ",\n".join(given) + ") {",
        f"const Fused fused{carried.fill};",
        f"{row.call};",
        "}\n",
    ]
    return "\n".join(text), carried.values
