"""One reduction of rows with all that is elementwise or moves data before it and behind it, as one launch.

What is before is computed on the read, at whatever places it stands; what is behind on the write, where it needs of
the reduction the thread's own element (of a normalization or a softmax) or the row's own result (of a sum) alone.  So
views and transposes may lie behind it, and nothing that looks at a neighbour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from onnx import NodeProto

from onnxfuse.errors import KernelError
from onnxfuse.kernels.device.device import Launch, Source, TensorType
from onnxfuse.kernels.device.types import TYPES
from onnxfuse.kernels.pointwise.expressions.elementwise import FORMULAS
from onnxfuse.kernels.pointwise.expressions.index import (
    Coordinates,
    Guard,
    Index,
    coordinates,
    flat,
    free,
    total,
    variable,
)
from onnxfuse.kernels.pointwise.expressions.moves import Call
from onnxfuse.kernels.pointwise.expressions.scalars import FLOAT, Scalar, Scalars
from onnxfuse.kernels.pointwise.expressions.source import NARROW_LIMIT, Writer, division, table
from onnxfuse.kernels.pointwise.expressions.trace import trace
from onnxfuse.kernels.pointwise.expressions.values import Value, aligned, computed_type
from onnxfuse.kernels.pointwise.expressions.values import source as array
from onnxfuse.kernels.pointwise.loops import bytes_read, reached

from .arrangement import Arrangement, arrange

ENTRY = "region_rows"
CROWDED = 264
"""Rows that keep a card busy, each with few threads."""

NORMS = {"LayerNormalization": 1, "RMSNormalization": 0}
SOFTMAXES = {"Softmax": "SOFTMAX", "LogSoftmax": "LOG"}
REDUCTIONS = {"ReduceSum": "SUM", "ReduceMean": "MEAN", "ReduceMax": "MAX", "ReduceMin": "MIN"}
ROWS = frozenset((*NORMS, *SOFTMAXES, *REDUCTIONS))
"""Ops that compute rows."""
ELEMENTWISE = frozenset("Cast CastLike Clip Gelu IsInf Max Mean Min Mod Pow Sum Where".split())
"""Ops of elements at one place, beside those that have one formula."""
PLACED = frozenset((*FORMULAS, *ELEMENTWISE, *NORMS, *SOFTMAXES, "Constant"))
"""Ops whose results of one shape all stand at the places of the matrix, whatever is put together of them."""
KEEPING = frozenset("Reshape Squeeze Unsqueeze Flatten".split())
"""Ops that leave elements at their places in memory."""


class PlaceError(KernelError):
    """What is behind a reduction is not at its places, at sizes at which all the rest fits."""


@dataclass(frozen=True, slots=True)
class RowLoop:
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
class _Row:
    """The reduction of a body, once it is met, and how elements are counted: `place` in the matrix [rows, columns]."""

    scalars: Scalars
    node: NodeProto | None = None
    given: Value | None = None
    rows: int = 1
    columns: int = 1
    family: str = ""
    defines: dict[str, object] = field(default_factory=dict)
    call: str = ""
    epsilon: float = 0.0

    @property
    def row(self) -> Index:
        return variable("row", self.rows)

    @property
    def place(self) -> Index:
        return total([(self.row, self.columns), (variable("column", self.columns), 1)])

    @property
    def reduces(self) -> bool:
        return self.family == "REDUCTION"

    def meet(self, call: Call) -> list[Value]:
        """The results of the reduction.  Raises KernelError for a second one, and for one that is none of rows."""
        x = call.x
        if self.given is not None:
            raise KernelError(f"{call.op} is a second reduction of rows")
        if computed_type(x.dtype) != FLOAT or not x.shape:
            raise KernelError(f"{call.op} of {x.dtype.name} is no reduction of rows of real numbers")
        if call.outputs > 1:
            raise KernelError(f"further outputs of {call.op} are not computed")
        self.given = x
        if call.op in REDUCTIONS:
            return self._reduction(call, x)
        axis = call.axis(-1)
        if call.op in SOFTMAXES and axis != len(x.shape) - 1:
            raise KernelError(f"{call.op} along an axis that is not the last")
        self._matrix(x, axis)
        if call.op in SOFTMAXES:
            self.family, self.call = "SOFTMAX_ROWS", "softmax(fused, rows, columns)"
            self.defines = {"FORM": SOFTMAXES[call.op]}
            return [self._result(x.shape, x.dtype, self.place)]
        return [self._normalization(call, x)]

    def _matrix(self, x: Value, axis: int) -> None:
        self.rows, self.columns = prod(x.shape[:axis]), prod(x.shape[axis:])
        if not 0 < self.rows * self.columns < NARROW_LIMIT:
            raise KernelError(f"{self.rows} rows of {self.columns} elements are nothing to reduce, or too many")

    def _reduction(self, call: Call, x: Value) -> list[Value]:
        rank, given = len(x.shape), call.integers(1, "axes")
        axes = sorted({a % rank for a in given} if given else range(rank))
        if axes != list(range(axes[0], rank)) or (not given and call.attributes.get("noop_with_empty_axes")):
            raise KernelError(f"{call.op} along axes that are not the last")
        self._matrix(x, axes[0])
        self.family, self.call = "REDUCTION", "reduce(fused, rows, columns)"
        self.defines = {"REDUCE": REDUCTIONS[call.op]}
        kept = call.attributes.get("keepdims", 1)
        return [self._result((*x.shape[: axes[0]], *((1,) * len(axes) if kept else ())), x.dtype, self.row)]

    def _normalization(self, call: Call, x: Value) -> Value:
        if call.attributes.get("stash_type", 1) != 1:
            raise KernelError(f"{call.op} computes in float32 only")
        self.family, self.call = "NORM", "normalise(fused, rows, columns, epsilon)"
        self.defines = {"CENTER": NORMS[call.op], "MEAN": 0}
        self.epsilon = float(call.attributes.get("epsilon", 1e-5))
        result = self._result(x.shape, x.dtype, self.place)
        operands = [(op, call.operand(at)) for at, op in ((1, "Mul"), (2, "Add")) if call.given(at)]

        def at(c: Coordinates, guard: Guard) -> Scalar:
            found = result.at(c, guard)
            for op, operand in operands:
                found = self.scalars.call(op, FORMULAS[op], [found, operand.at(aligned(c, operand.shape), guard)])
            return found

        return Value(x.shape, x.dtype, at, [result, *(operand for _, operand in operands)])

    def _result(self, shape: tuple[int, ...], dtype: np.dtype[np.generic], own: Index) -> Value:
        """What a thread, or the first of a row's, has in its hand; nothing else may be asked."""

        def at(c: Coordinates, _: Guard) -> Scalar:
            if free(flat(c, shape)) != free(own):
                raise PlaceError("what is behind the reduction needs another row's result, or another element's")
            return self.scalars.argument("result", FLOAT)

        return Value(shape, dtype, at)


def rows(
    nodes: Sequence[NodeProto], inputs: Mapping[str, TensorType], outputs: Sequence[str]
) -> tuple[tuple[TensorType, ...], list[RowLoop]]:
    """The types of the outputs of some nodes, one of which reduces rows, and the launch that computes them; an output
    named "" is not wanted.  Raises KernelError."""
    scalars = Scalars()
    row = _Row(scalars)
    given = {name: array(scalars, k, t.shape, t.dtype) for k, (name, t) in enumerate(inputs.items())}
    names = [name for node in nodes for name in node.output if name]
    values = dict(zip(names, trace(scalars, nodes, given, names, dict.fromkeys(ROWS, row.meet)), strict=True))
    if row.given is None:
        raise KernelError("no node reduces rows")
    places = _places(row, nodes, values)
    wanted = {k: (values[name], places.get(name)) for k, name in enumerate(outputs) if name}
    types = tuple(TensorType(value.dtype, value.shape) for value, _ in wanted.values())
    return types, [_loop(row, list(inputs.values()), wanted)]


def _places(row: _Row, nodes: Sequence[NodeProto], values: Mapping[str, Value]) -> dict[str, Index | None]:
    """Where the element of each value stands in its memory that is computed at a place of the matrix, or for a row;
    None where that is no one place."""
    found: dict[str, Index | None] = {}
    for node in nodes:
        result = next((name for name in node.output if name), "")
        behind = [found[name] for name in node.input if name in found]
        if node.op_type in ROWS:
            found[result] = row.row if row.reduces else row.place
        elif behind:
            found |= {name: _moved(row, node, behind, values) for name in node.output if name}
    size = row.rows * row.columns
    before = {name: v for name, v in values.items() if name not in found}
    return found | {name: {size: row.place, row.rows: row.row}.get(value.size) for name, value in before.items()}


def _moved(row: _Row, node: NodeProto, places: Sequence[Index | None], values: Mapping[str, Value]) -> Index | None:
    """The place of a node's result, given those of its operands that come from the reduction."""
    x, y = values.get(node.input[0]), values[node.output[0]]
    if node.op_type in FORMULAS or node.op_type in ELEMENTWISE:
        if y.size == row.rows * row.columns:
            wide = [place for place in places if place != row.row] or [row.place]
            return wide[0] if all(place == wide[0] for place in wide) else None
        return row.row if y.size == row.rows and all(place == row.row for place in places) else None
    place = places[0]
    if len(places) > 1 or place is None or x is None or x.size != y.size:
        return None
    if node.op_type in KEEPING:
        return place
    if node.op_type != "Transpose":
        return None
    perm = next((list(a.ints) for a in node.attribute if a.name == "perm"), list(range(len(x.shape)))[::-1])
    own = coordinates(place, x.shape)
    return flat(tuple(own[p] for p in perm), y.shape)


def _loop(row: _Row, inputs: Sequence[TensorType], outputs: Mapping[int, tuple[Value, Index | None]]) -> RowLoop:
    """The launch for some outputs, each with the place of its elements."""
    assert row.given is not None
    read = row.given.at(coordinates(row.place, row.given.shape))
    each, once = list[_Stored](), list[_Stored]()
    for k, (value, place) in outputs.items():
        if place is None or value.size not in (row.rows, row.rows * row.columns):
            raise PlaceError("what is behind the reduction is written at no one place")
        stored = _Stored(k, value.dtype.name, value.at(coordinates(place, value.shape)), place)
        (once if row.reduces and value.size == row.rows and place == row.row else each).append(stored)
    used = reached([read, *(stored.element for stored in (*each, *once))])
    if any(s.kind == "select" or (s.kind in ("load", "table") and s.payload[2]) for s in used):
        # Where the condition fails its places are none, and what is computed of them overflows.
        raise PlaceError("what is read under a condition is left to a loop over elements")
    numbers = sorted({s.payload[0] for s in used if s.kind == "load"})
    how = arrange(row.columns, 1, 4, row.rows > CROWDED)
    text, parameters = _source(row, {k: inputs[k].dtype.name for k in numbers}, read, each, once)
    defines = {**row.defines, **({"SPREAD": int(bool(each))} if row.reduces else {})}
    file = Source.file(
        "region_rows.cu",
        FAMILY=row.family,
        LANES=how.lanes,
        VECTOR=how.vector,
        ITEMS=how.items,
        WIDE=int(how.wide),
        **defines,
    )
    bounds = ", ".join(map(str, how.bounds))
    scalars: list[np.generic] = [np.int64(row.rows), np.int32(row.columns)]
    scalars += [np.float32(row.epsilon)] if row.family == "NORM" else []
    count = row.rows * row.columns
    return RowLoop(
        Source(file.name, file.text + text.replace("BOUNDS", bounds)),
        tuple(numbers),
        tuple(stored.number for stored in (*each, *once)),
        (*parameters, *scalars),
        how,
        row.rows,
        bytes_read(used, inputs, count),
        count * (sum(s.flops for s in used) + 5),
    )


@dataclass(frozen=True, slots=True)
class _Stored:
    """An output: its number, element type and element, and where that goes."""

    number: int
    dtype: str
    element: Scalar
    place: Index


def _source(
    row: _Row, inputs: Mapping[int, str], read: Scalar, each: Sequence[_Stored], once: Sequence[_Stored]
) -> tuple[str, tuple[np.generic, ...]]:
    """The `Fused` of a region and its kernel, and what the kernel takes behind its arrays; numbers, never sizes, are in
    the text."""
    first = Writer(inputs)
    shared: dict[str, Any] = {"tables": first.tables, "numbers": first.numbers, "divisors": first.divisors}
    writers = [first, Writer(inputs, **shared), Writer(inputs, **shared)]
    held = writers[0].scalar(read)
    lines = [[*writers[0].outer, f"held[v] = {held};"]]
    for writer, stores in zip(writers[1:], (each, once), strict=True):
        texts = [(s.number, s.dtype, writer.scalar(s.element), writer.index(s.place)) for s in stores]
        stored = [f"out{k}[{place}] = Rounded<{TYPES[kind]}>::of({text});" for k, kind, text, place in texts]
        lines.append([*writer.outer, *stored])
    if max(writer.largest for writer in writers) >= NARROW_LIMIT:
        raise KernelError("an operand has too many elements to be counted in 32 bits")
    arrays = [f"const {TYPES[kind]}* __restrict__ in{k}" for k, kind in inputs.items()]
    arrays += [f"{TYPES[stored.dtype]}* __restrict__ out{stored.number}" for stored in (*each, *once)]
    numbers = [f"int {name}" for name in first.numbers.values()]
    divisors = list(first.divisors.values())
    given = [*arrays, *numbers]
    given += [part for name in divisors for part in (f"int {name}_n", f"unsigned {name}_m", f"int {name}_s")]
    members = [*arrays, *numbers, *(f"Divisor {name}" for name in divisors)]
    filled = [member.split()[-1] for member in (*arrays, *numbers)]
    filled += [f"{{{name}_n, {name}_m, {name}_s}}" for name in divisors]
    given += ["long long rows", "int columns", *(["float epsilon"] if row.family == "NORM" else [])]
    loop = "#pragma unroll\nfor (int v = 0; v < VECTOR; v++) {\nconst Index column = column_ + v;"
    place = "long long row_, int column_, int"
    own = "const Index row = static_cast<Index>(row_);"
    text = [
        "\ntypedef int Index;",
        *(table(name, *content) for content, name in first.tables.items()),
        "struct Fused {",
        *(f"{member};" for member in members),
        f"__device__ __forceinline__ void read(float (&held)[VECTOR], {place}) const {{",
        *(own, loop, *lines[0], "}\n}"),
        f"__device__ __forceinline__ void write(float (&held)[VECTOR], {place}) const {{",
        *(own, loop, "const float result = held[v];", *lines[1], "}\n}"),
        "__device__ __forceinline__ void finish(long long row_, float result) const {",
        *(own, *lines[2], "}"),
        "__device__ void keep(const float (&)[VECTOR], long long, int, int) const {}",
        "__device__ void statistics(long long, float, float) const {}",
        "};",
        f'extern "C" __global__ void __launch_bounds__(BOUNDS) {ENTRY}(',
        ",\n".join(given) + ") {",
        f"const Fused fused{{{', '.join(filled)}}};",
        f"{row.call};",
        "}\n",
    ]
    parameters: list[np.generic] = [np.int32(n) for n in first.numbers]
    for n in first.divisors:
        parameters += division(n)
    return "\n".join(text), tuple(parameters)
